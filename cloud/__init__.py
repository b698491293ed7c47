"""Runs on rented machines: container.py is app.py's other end, at Modal; skypilot.yaml is for others."""

from pathlib import Path

VOLUME = "nanojaxgpt"  # the Volume at Modal that keeps runs and data
MOUNTED = Path("/vol")  # where it is in a container
