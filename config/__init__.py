"""The options of a run, the reader of command lines, and one file for each experiment.

`options.py` holds the options of train.py, and `command_line.py` reads every command's. All other files are
experiments.
"""
