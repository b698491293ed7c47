"""What can be set, how it is read, and one file for each experiment.

`options.py` and `shape.py` hold the options of train.py, `command_line.py` reads every command's, `files.py`
opens and writes files, and `devices.py` knows GPUs and TPUs. The other files are experiments.
"""
