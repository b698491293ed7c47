"""`options.py` has all that train.py can be told; each other file is an experiment, which sets some of it."""
