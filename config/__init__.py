"""What can be set: `options.py` holds every option, each other file here is one experiment."""
