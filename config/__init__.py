"""The options of every command, their readers, and a file for each experiment that sets them.

`options.py` has those of train.py, `command_line.py` reads every command's, `files.py` opens and writes
files, and `devices.csv` has GPUs and TPUs. The other files are experiments.
"""
