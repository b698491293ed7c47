"""What stands around the core. Delete this folder, and training, resuming and sampling go on."""
