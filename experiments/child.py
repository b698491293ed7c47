"""One version of the code, asked by another: `python experiments/child.py <its folder> [train.py's words]`.

It reads requests, a line of JSON each, and answers with one. Lists of train.py's words: the options of each
that are not its defaults. A number: how many seconds a step takes with the words above, over as many steps.
"""

import sys

sys.path[0] = sys.argv[1]  # in place of experiments/: all that follows is that version's

import json

from config.command_line import command
from config.options import Options, parse_options


def main(argv: list[str]) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # which JAX and the options' notes may print to
    step = None
    for line in sys.stdin:
        request = json.loads(line)
        if isinstance(request, list):
            answer = [changed(words) for words in request]
        else:
            step = step or make_step(argv[1:])
            answer = step.run(request)
        print(json.dumps(answer), file=answers, flush=True)


def changed(words: list[str]) -> dict:
    options = vars(parse_options(words, shape_of_weights))
    return {name: value for name, value in options.items() if value != getattr(Options, name)}


def shape_of_weights(init_from: str) -> dict:
    from runs.load import shape_of_weights  # here: JAX takes long to import

    return shape_of_weights(init_from)


def make_step(words: list[str]):
    import jax

    from parallel.machines import choose_device
    from parallel.mesh import make_mesh
    from runs.load import choose_config, open_dataset
    from tools.benchmarks.variants import JaxStep

    options = parse_options(words, shape_of_weights)
    choose_device(options.device)
    jax.set_mesh(make_mesh("data:1"))
    return JaxStep(choose_config(options, open_dataset(options).meta), options)


if __name__ == "__main__":
    command(main)
