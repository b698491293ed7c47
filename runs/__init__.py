"""Keeping a run: checkpoints, weights to start from, records, speed, the machine, files, signals."""
