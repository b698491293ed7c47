"""From text to token ids to batches. Each data set is a folder with a prepare.py."""
