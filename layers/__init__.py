"""The parts of model.py that a first reading skips: each file is one idea, and imports no other folder."""
