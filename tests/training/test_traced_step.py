"""A first call of the quickstart's step runs little of the project: what a reader has to read."""

import json

from tests.helpers import ROOT, run_python

SCRIPT = """
import json, sys
import jax, numpy as np
from config.options import parse_options
from parallel.mesh import make_mesh
from training.compute import choose_how
from training.state import model_config, state_shapes
from training.step import train_step

options, root = parse_options(["config/quickstart.py"]), sys.argv[1]
batch = np.zeros((1, options.batch_size, options.block_size), np.int32)
entered = set()

def profile(frame, event, _):
    code = frame.f_code
    ours = code.co_filename.startswith(root) and "site-packages" not in code.co_filename  # of a .venv in here
    if event == "call" and ours and not code.co_name.startswith("<"):
        entered.add(code)

with jax.set_mesh(make_mesh("data:1")):
    config = model_config(options, 96)
    state, how = state_shapes(config, options), choose_how(options, config)
    sys.setprofile(profile)
    # This traces, and runs nothing.
    jax.eval_shape(lambda state: train_step(state, batch, batch, options, how), state)
    sys.setprofile(None)

def lines(code):
    numbers = [number for *_, number in code.co_lines() if number]
    return {(code.co_filename, number) for number in range(min(numbers), max(numbers) + 1)}

files = {code.co_filename for code in entered}
print(json.dumps([len(files), len(entered), len(set().union(*map(lines, entered)))]))
"""


def test_a_first_step_enters_eight_files_and_68_functions_of_450_lines():
    """Comprehensions and lambdas are no functions here: their lines count with those around them."""
    done = run_python("-c", SCRIPT, f"{ROOT}/")
    files, functions, lines = json.loads(done.stdout.splitlines()[-1])
    assert 1 < files <= 8 and 1 < functions <= 68 and 1 < lines <= 450, (files, functions, lines)
