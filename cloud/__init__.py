"""Runs on rented machines: container.py is app.py's part at Modal, skypilot.yaml is for other clouds."""

from pathlib import Path

VOLUME = "nanojaxgpt"  # name of the Volume at Modal that keeps runs and data
MOUNTED = Path("/vol")  # where the Volume is mounted in a container
