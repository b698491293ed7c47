"""The parts of app.py: it runs the project's commands on rented machines at Modal, or on this one."""

from pathlib import Path

VOLUME = "nanojaxgpt"  # name of the Volume at Modal that keeps runs and data
MOUNTED = Path("/vol")  # where a container sees the Volume
SERVER_PORT = 8000  # at which serve.py listens in its container
SERVER_WORDS = "NANOJAXGPT_SERVE"  # environment variable with its options, as JSON
