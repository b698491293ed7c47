"""Runs on rented machines: the parts of app.py, here and at Modal; skypilot.yaml is for other clouds.

options.py and prices.py say what a launch is and costs, commands.py and jobs.py what each command runs.
rent.py and endpoint.py rent for it, claims.py gives a run to one launch alone, and container.py is what runs
there. sweep.py trains many runs. look.py shows runs, of this machine or of the Volume, as places.py reads
them. supervise.py runs a script.
"""

from pathlib import Path

VOLUME = "nanojaxgpt"  # name of the Volume at Modal that keeps runs and data
MOUNTED = Path("/vol")  # where the Volume is mounted in a container
SERVER_PORT = 8000  # at which serve.py listens in its container
SERVER_WORDS = "NANOJAXGPT_SERVE"  # environment variable with its options, as JSON
