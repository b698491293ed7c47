"""Draw all figures, each in a process of its own: python -m docs.figures"""

import subprocess
import sys
from pathlib import Path

for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
    print(f"python -m docs.figures.{path.stem}", flush=True)
    subprocess.run([sys.executable, "-m", f"docs.figures.{path.stem}"], check=True)
