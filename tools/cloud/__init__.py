"""The parts of app.py, the launcher."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of the project, here and in a container
VOLUME = "nanojaxgpt"  # at Modal: keeps runs and data
MOUNTED = Path("/vol")  # where a container sees the Volume
TRAINING = ("train.py", "rl.py")  # they write a run, which one launch at a time may do
