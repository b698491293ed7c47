"""Everything that can be set in a training run: its name, type, default and meaning, in one dataclass.

`load(argv)` turns a command line into `Options`. Later sources win over earlier ones:

    the defaults below                  nanoGPT's, under nanoGPT's names
    <out_dir>/options.json              the run's own options, when `init_from` goes on with a run,
                                        or the shape of the weights that it names
    config files                        python train.py config/quickstart.py
    the command line                    --batch_size=32, or --batch_size 32

A config file is Python: plain assignments whose public names are options, run in a namespace of its own.
A value is checked in the same way wherever it comes from, and a bad one raises `UserError`.
This file imports neither JAX nor NumPy, so that a mistyped option is answered at once.
"""

import ast
import difflib
import json
import os
import re
import runpy
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args, get_origin, get_type_hints


class UserError(Exception):
    """A mistake for the user to put right, in one line: which file or option, what is wrong, what to do."""

    def __init__(self, text: str):
        super().__init__(" ".join(text.split()))  # one line, even around another library's message


def command(main: Callable[[list[str]], None]) -> None:
    """Run a command's `main(argv)`. A `UserError` prints as one line on stderr and exits with status 2."""
    try:
        main(sys.argv[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output is gone, as in `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the exit would fail to flush it
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(130)  # what a shell expects after Ctrl-C; training handles its own and saves first


class Limit(NamedTuple):
    """A condition on an option's value, and the words for it in an error."""

    text: str
    holds: Callable[[Any], bool]


Name = Annotated[str, Limit("a name that is not empty", bool)]
Count = Annotated[int, Limit("an integer, 1 or more", lambda x: x >= 1)]
Steps = Annotated[int, Limit("an integer, 0 or more", lambda x: x >= 0)]
Batches = Annotated[int, Limit("an integer, 1 or more, or -1", lambda x: x >= 1 or x == -1)]
Seed = Annotated[int, Limit("an integer from 0 to 4294967295", lambda x: 0 <= x < 2**32)]
Positive = Annotated[float, Limit("a number above 0", lambda x: x > 0)]
NonNegative = Annotated[float, Limit("a number, 0 or more", lambda x: x >= 0)]
Address = Annotated[
    str, Limit("host:port, or auto", lambda x: x == "auto" or re.fullmatch(r".+:\d{1,5}", x) is not None)
]
Fraction = Annotated[float, Limit("a number from 0 up to, but not including, 1", lambda x: 0 <= x < 1)]


@dataclass(frozen=True)
class Options:
    """Every option of train.py. The comment behind a field is its text in `--help`."""

    program: ClassVar[str] = "train.py"
    purpose: ClassVar[str] = "Train a GPT."

    # output and evaluation
    out_dir: Name = "out"  # folder of the run: checkpoints, options.json, metrics.jsonl, loss.png
    eval_interval: Count = 2000  # steps between evaluations, each of which may save a checkpoint
    log_interval: Count = 1  # steps between lines of metrics.jsonl
    eval_iters: Batches = 200  # batches per evaluation and split; -1: the whole split, in order
    eval_only: bool = False  # evaluate once, then stop
    always_save_checkpoint: bool = True  # save at each evaluation, not only at the lowest validation loss
    keep_checkpoints: Count = 2  # how many of the last checkpoints to keep; the best is always kept
    init_from: Name = "scratch"  # resume, auto (resume if there is a run), gpt2, a hub id, a folder, a run's
    overwrite: bool = False  # start anew in an out_dir that already holds a run
    seed: Seed = 1337  # of the initial weights, the batches and the dropout
    profile: Name | None = None  # folder for a trace of steps 10 to 13 and the HLO of the step
    # Weights & Biases
    wandb_log: bool = False  # log to Weights & Biases as well
    wandb_project: str = "owt"  # its project
    wandb_run_name: str = "gpt2"  # the name of this run there
    # data
    dataset: Name = "openwebtext"  # folder below data/ that holds train.bin and val.bin
    gradient_accumulation_steps: Count = 40  # microbatches per step, to simulate larger batches
    batch_size: Count = 12  # sequences per microbatch
    block_size: Count = 1024  # tokens per sequence
    sampling: Literal["random", "epoch"] = "random"  # random windows, or each once per epoch
    document_mask: bool = False  # end-of-text opens a document, which reads no other; without cuDNN's kernel
    # model
    n_layer: Count = 12  # blocks
    n_head: Count = 12  # attention heads
    n_kv_head: Count | None = None  # key/value heads, shared by groups of query heads; None: n_head
    n_embd: Count = 768  # width of the residual stream
    n_hidden: Count | None = None  # width of the MLP; None: 4 n_embd, for swiglu 8/3 n_embd
    vocab_size: Count | None = None  # tokens the model knows; None: those of the data set
    position: Literal["learned", "rope"] = "learned"  # learned embeddings, or rotary
    rope_theta: Positive = 10000.0  # base of the rotary frequencies
    rope_scaling: Positive = 1.0  # Llama 3's factor for longer contexts; 1: none
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"  # normalisation before attention, MLP and head
    norm_eps: Positive = 1e-5  # added to the mean square that a normalisation divides by
    mlp: Literal["swiglu", "gelu"] = "swiglu"  # gelu is GPT-2's; both have as many parameters
    bias: bool = False  # biases in the linear layers and layernorms
    qk_norm: bool = False  # normalise queries and keys
    tie_embeddings: bool = True  # the head is the token embedding, transposed
    dropout: Fraction = 0.0  # of embeddings, attention and residuals; for finetuning try 0.1 or more
    # LoRA (arXiv:2106.09685): train small matrices beside the weights, which stay as they are
    lora_rank: Steps = 0  # of the small matrices' product; 0: train the weights themselves
    lora_alpha: Positive = 32.0  # the product counts alpha / rank times
    lora_targets: Name = "c_attn,c_proj,c_fc"  # the layers with such matrices; attn.c_proj names one c_proj
    lora_base_dtype: Literal["float32", "bfloat16"] = "float32"  # that the weights are stored in
    lora_merge: Name | None = None  # only write the run in out_dir to this folder, its matrices merged
    # optimizer
    optimizer: Literal["adamw", "muon", "lion"] = "adamw"  # lion: try a fifth of the rate
    learning_rate: Positive = 6e-4  # the highest
    max_iters: Steps = 600000  # steps in all
    weight_decay: NonNegative = 1e-1  # of matrices and embeddings only
    beta1: Fraction = 0.9  # decay of the gradient's running mean
    beta2: Fraction = 0.95  # decay of the running mean of its square; lion: of the mean that beta1 adds to
    grad_clip: NonNegative = 1.0  # largest gradient norm; 0: no clipping
    # learning rate schedule
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"  # after warmup; wsd: decays in the last fifth
    decay_lr: bool = True  # follow the schedule; False: learning_rate throughout, without warmup
    warmup_iters: Steps = 2000  # steps of linear warmup
    lr_decay_iters: Steps = 600000  # step at which min_lr is reached; about max_iters, per Chinchilla
    min_lr: NonNegative = 6e-5  # the lowest; about learning_rate / 10, per Chinchilla
    # devices
    mesh: Name = "data:-1"  # devices per axis of stage, data, fsdp, tensor, as in data:2,fsdp:4; -1: the rest
    pipeline_schedule: Literal["gpipe", "1f1b", "interleaved"] = "1f1b"  # of the mesh's stage axis
    virtual_stages: Count = 1  # chunks of the layers on each rank of the stage axis; not for 1f1b
    pipeline_branches: Literal["cond", "where"] = "cond"  # where: ranks never branch apart, if that hangs
    show_sharding: bool = False  # print which device holds what of the parameters, then stop
    # many processes; without these, SLURM, Open MPI and TPU pods on Kubernetes are asked
    coordinator: Address | None = None  # host:port of process 0, for all to meet; auto: JAX asks the launcher
    num_processes: Count | None = None  # how many processes train together
    process_id: Steps | None = None  # which of them this one is, from 0
    # system
    device: Literal["auto", "cpu", "cuda", "tpu"] = "auto"  # auto: JAX's choice; gpu and cuda:0 mean cuda
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # matmuls; auto: bfloat16 on GPU/TPU, else float32
    attention: Literal["auto", "einsum", "cudnn"] = "auto"  # auto: the fastest the platform has; all agree
    unroll: Steps = 0  # layers unrolled in the scan over layers, 0: all; fewer compile faster, may run slower
    remat: Literal["none", "block", "dots"] = "none"  # recompute all of a block, or all but linear layers
    compile: bool = True  # for PyTorch only and ignored: JAX always compiles the step
    backend: str = "nccl"  # for PyTorch only and ignored

    def to_json(self) -> dict[str, Any]:
        """The options as plain JSON values: what `options.json` and a checkpoint hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any, origin: str) -> "Options":
        """Options from `to_json`'s values, the rest at their defaults; errors begin with `origin`."""
        if not isinstance(values, dict):
            raise UserError(f"{origin}: expected a JSON object of options")
        return cls(**{name: checked(name, value, f"{origin}: ", cls) for name, value in values.items()})


RESUMING = ("resume", "auto")  # values of init_from that may go on with a run

# These say what one command does, or where; a resumed run does not take them over from its options.json.
NOT_RESUMED = (
    *("out_dir", "init_from", "overwrite", "eval_only", "profile", "show_sharding", "lora_merge"),
    *("coordinator", "num_processes", "process_id"),
)


def load(argv: list[str], shape_of: Callable[[str], dict[str, Any]] | None = None) -> Options:
    """The options of a command line, or `UserError`. `--help` prints them all and exits.

    `shape_of` gives the options that the weights of some name, as in `--init_from=gpt2`, decide.
    """
    values = given(argv, Options)
    options = replace(starting_point(values, shape_of), **values)
    if options.overwrite and options.init_from in RESUMING:
        raise UserError(f"overwrite=True starts anew, but init_from={options.init_from} may go on; drop one")
    return options


def given(argv: list[str], cls: type) -> dict[str, Any]:
    """What a command line and its config files set of the options of `cls`, checked. `--help` exits.

    `cls` is a frozen dataclass with a `program` and a `purpose`: `Options`, or what another command has.
    """
    if "--help" in argv or "-h" in argv:
        show_help(cls)
    files, arguments = split(argv, cls)
    found = {name: (f"{path}: ", value) for path in files for name, value in run_config(path, cls).items()}
    found |= {name: ("--", value) for name, value in arguments.items()}
    return {
        name: checked(name, translated(name, value), origin, cls) for name, (origin, value) in found.items()
    }


@cache
def types(cls: type) -> dict[str, Any]:
    """The type of each option of `cls`."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


def read(path: str) -> Options:
    """The options in a run's `options.json`."""
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as options: {error}") from error
    return Options.from_json(values, origin=path)


def starting_point(values: dict[str, Any], shape_of: Callable[[str], dict[str, Any]] | None) -> Options:
    """The options that `values` are laid over: of the run or the weights to go on with, or the defaults."""
    init_from = values.get("init_from", Options.init_from)
    path = os.path.join(values.get("out_dir", Options.out_dir), "options.json")
    if init_from in RESUMING and os.path.exists(path):
        return replace(read(path), **{name: getattr(Options, name) for name in NOT_RESUMED})
    if init_from in ("scratch", *RESUMING):
        return Options()
    if shape_of is None:
        raise UserError(f"init_from={init_from}: expected one of scratch, {', '.join(RESUMING)} here")
    shape = shape_of(init_from)
    for name, theirs in shape.items():
        ours = values.get(name, theirs)
        if ours != theirs and not (name == "block_size" and ours < theirs):
            remedy = "leave it out, or give fewer" if name == "block_size" else "leave it out"
            raise UserError(f"{name}={ours}, but {init_from} has {name}={theirs}: {remedy}")
    return replace(Options(), **shape)


def split(argv: list[str], cls: type) -> tuple[list[str], dict[str, Any]]:
    """The config files, and the values by option name, of a command line."""
    files, arguments = [], {}
    words = iter(argv)
    for word in words:
        if word.startswith("--"):
            key, equals, text = word[2:].partition("=")
            name = known(key.replace("-", "_"), "--", cls)
            default = getattr(cls, name)
            if not equals:
                text = next(words, "--")
                if text.startswith("--"):  # the next option, or the end
                    raise UserError(f"--{key} needs a value, as in --{key}={default}")
            arguments[name] = text if isinstance(default, str) else literal(text)
        elif word.endswith(".py") and not word.startswith("-"):
            files.append(word)
        else:
            raise UserError(f"{word}: expected a config file (NAME.py) or --key=value; see --help")
    return files, arguments


def literal(text: str) -> Any:
    """The Python value that `text` spells; `text` itself, for `checked` to refuse, if it spells none."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def run_config(path: str, cls: type) -> dict[str, Any]:
    """Run a config file; its public names and values, but for modules, functions and classes."""
    if not os.path.isfile(path):
        raise UserError(f"{path}: there is no such config file")
    try:
        names = runpy.run_path(path)
    except SyntaxError as error:
        raise UserError(f"{error.filename or path}:{error.lineno or 1}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((frame.lineno for frame in reversed(frames) if frame.filename == path), 1)
        raise UserError(f"{path}:{line}: {type(error).__name__}: {error}") from error
    return {
        name: value
        for name, value in names.items()
        if name in types(cls)
        or not (name.startswith("_") or callable(value) or isinstance(value, ModuleType))
    }


FROM_TORCH = {  # (option, PyTorch's value): JAX's value, and what to know where it is not quite the same
    ("dtype", "float16"): ("bfloat16", "which needs no loss scaling"),
    ("device", "mps"): ("cpu", "the nearest that JAX supports"),
    ("device", "gpu"): ("cuda", None),
    ("device", "cuda:N"): ("cuda", "and CUDA_VISIBLE_DEVICES chooses among GPUs"),
}


def translated(name: str, value: Any) -> Any:
    """A value written for PyTorch in JAX's terms, with a line of notice where it does not mean the same."""
    if name in ("backend", "compile"):
        print(f"note: {name} is for PyTorch only and is ignored", file=sys.stderr)
    if name not in ("device", "dtype") or not isinstance(value, str):
        return value
    spelling = re.sub(r"^cuda:\d+$", "cuda:N", value)
    becomes, remark = FROM_TORCH.get((name, spelling), (value, None))
    if remark:
        print(f"note: {name}={value} becomes {becomes}, {remark}", file=sys.stderr)
    return becomes


def known(name: str, origin: str, cls: type) -> str:
    """`name`, if it is an option of `cls`; `origin` is what stands before it in an error."""
    if name not in types(cls):
        nearest = difflib.get_close_matches(name, types(cls), n=1)
        advice = f"did you mean {nearest[0]}?" if nearest else f"python {cls.program} --help lists them all"
        raise UserError(f"{origin}{name} is not an option; {advice}")
    return name


def checked(name: str, value: Any, origin: str, cls: type) -> Any:
    """`value` as option `name` of `cls` holds it; `origin` is what stands before the name in an error."""
    kind = types(cls)[known(name, origin, cls)]
    try:
        return conform(value, kind)
    except ValueError as error:
        raise UserError(f"{origin}{name} is {value!r}, expected {in_words(kind)}") from error


def conform(value: Any, kind: Any) -> Any:
    """`value` as type `kind`, else `ValueError`. 1e5 is an int and 1 a float; True is neither."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    finite = number and abs(value) <= sys.float_info.max  # false for nan as well
    if get_origin(kind) is Annotated:
        base, limit = get_args(kind)
        value = conform(value, base)
        if limit.holds(value):
            return value
    elif get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
    elif type(None) in get_args(kind):
        return None if value is None else conform(value, get_args(kind)[0])
    elif kind is int and finite and value == int(value):
        return int(value)
    elif kind is float and finite:
        return float(value)
    elif kind in (bool, str) and isinstance(value, kind):
        return value
    raise ValueError


def in_words(kind: Any) -> str:
    """What an error says was expected of a value of type `kind`."""
    if get_origin(kind) is Annotated:
        return get_args(kind)[1].text
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if type(None) in get_args(kind):
        return f"{in_words(get_args(kind)[0])}, or None"
    return {bool: "True or False", str: "a string"}[kind]


def show_help(cls: type) -> None:
    """Print every option with its type, default and meaning, and exit with status 0."""
    import tyro  # here, because it takes longer to import than everything else does to run

    tyro.cli(
        cls,
        prog=f"python {cls.program} [CONFIG.py ...]",
        description=f"{cls.purpose} A config file sets options; --key=value sets one over it.",
        args=["--help"],
        config=(tyro.conf.FlagConversionOff,),
        use_underscores=True,
    )
