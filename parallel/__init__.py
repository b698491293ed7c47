"""Many devices and many hosts: the mesh, the table of shardings, and the processes."""
