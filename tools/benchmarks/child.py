"""One version of the code, asked by another: `python tools/benchmarks/child.py FOLDER [WORDS]`.

It reads requests, a line of JSON each, and answers with one. Lists of train.py's words: the options of each
that are not its defaults. A number: how many seconds a step takes with WORDS, over as many steps. "check":
whether its loss is the cross entropy of its logits, and a mark of its weights after three steps.
"""

import sys

sys.path.pop(0)  # this file's folder
sys.path.insert(0, sys.argv[1])  # all that follows is that version's

import json
from hashlib import sha256

import jax
import numpy as np

from common.errors import command
from config.options import Options, parse_options
from parallel.machines import choose_device
from parallel.mesh import make_mesh
from runs.start import choose_config, open_dataset, shape_of_weights
from tools.benchmarks.variants import JaxStep


def main(argv: list[str]) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # which notes and JAX may print to
    step = None
    for line in sys.stdin:
        request = json.loads(line)
        if isinstance(request, list):
            answer = [changed(words) for words in request]
        else:
            step = step or make_step(argv[1:])
            answer = check(step) if request == "check" else step.run(request)
        print(json.dumps(answer), file=answers, flush=True)


def changed(words: list[str]) -> dict:
    options = vars(parse_options(words, shape_of_weights))
    return {name: value for name, value in options.items() if value != getattr(Options, name)}


def check(step: JaxStep) -> dict:
    x, y = step.batches[0, :, 0, :1]
    loud = jax.tree.map(lambda w: 10 * w, step.state.model)  # else all tokens would be as likely
    logits = np.asarray(jax.jit(lambda model: model(x))(loud), np.float64)[0]  # (T, V)
    nats = np.log(np.exp(logits - logits.max()).sum(-1)) + logits.max() - logits[range(len(logits)), y[0]]
    loss = float(jax.jit(lambda model: model.loss(x, y))(loud))
    near = np.isclose(loss, nats.mean(), rtol=1e-4 if step.dtype == "float32" else 5e-3)
    step.run(3)
    weights = b"".join(np.asarray(w).tobytes() for w in jax.tree.leaves(step.state.model))
    return {"right": bool(near), "mark": sha256(weights).hexdigest()}


def make_step(words: list[str]) -> JaxStep:
    options = parse_options(words, shape_of_weights)
    choose_device(options.device)
    jax.set_mesh(make_mesh("data:1"))
    return JaxStep(choose_config(options, open_dataset(options).meta), options)


if __name__ == "__main__":
    command(main)
