"""The parts of model.py that a first reading may skip. Each file is one idea."""
