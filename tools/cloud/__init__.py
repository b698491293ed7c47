"""The parts of app.py, the launcher."""

from pathlib import Path

VOLUME = "nanojaxgpt"  # at Modal: keeps runs and data
MOUNTED = Path("/vol")  # where a container sees the Volume
