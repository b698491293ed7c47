"""Documents to tokens to batches. Each folder here is a data set, with a prepare.py that writes it."""
