"""Training on many devices and hosts: the mesh, the table of shardings, batches and processes."""
