"""The parts of app.py, the launcher."""

from pathlib import Path
from typing import Any

try:
    import modal
except ImportError:  # only rented machines need it
    modal: Any = None

VOLUME = "nanojaxgpt"  # at Modal: keeps runs and data
MOUNTED = Path("/vol")  # where a container sees the Volume
