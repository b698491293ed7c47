"""The options of a training run in one dataclass: the name, type, limits, default and meaning of each.

A later source wins: the defaults, nanoGPT's but for SwiGLU (`--mlp=gelu --bias=True` is GPT-2's); the
options of the run, or the shape of the weights, that init_from names; config files; the command line.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from common.command_line import (
    Address,
    Checkpoint,
    Count,
    Fraction,
    Name,
    NonNegative,
    NonNegativeInt,
    Positive,
    Seed,
    check_values,
    given,
    refuse_unused,
)
from common.errors import UserError


@dataclass(frozen=True)
class ModelShape:
    """The options that shape a model: fields of `GPTConfig` in model.py, with their limits."""

    block_size: Count = 1024  # tokens per sequence
    n_layer: Count = 12  # blocks
    n_head: Count = 12  # attention heads
    n_kv_head: Count | None = None  # key/value heads, shared by groups of query heads; None: n_head
    n_embd: Count = 768  # width of the residual stream
    head_dim: Count | None = None  # width of a head; None: n_embd / n_head
    n_hidden: Count | None = None  # width of the MLP; None: 4 n_embd, for swiglu 8/3 n_embd
    position: Literal["learned", "rope"] = "learned"  # learned embeddings, or rotary (arXiv:2104.09864)
    rope_theta: Positive = 10000.0  # base of the rotary frequencies
    rope_scaling: Positive = 1.0  # Llama 3's factor for longer contexts; 1: none
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"  # normalisation before attention, MLP and head
    norm_eps: Positive = 1e-5  # added to the mean square before its root is taken
    mlp: Literal["swiglu", "gelu", "gelu_erf", "relu2"] = "swiglu"  # gelu: GPT-2's; gelu_erf: nanoGPT's
    bias: bool = False  # biases in the linear layers and layernorms
    qkv_bias: bool = False  # biases of queries, keys and values alone, as in Qwen2
    qk_norm: bool = False  # normalise queries and keys (arXiv:2302.05442)
    window: Count | None = None  # tokens that a token attends to, itself included, as in Mistral; None: all
    tie_embeddings: bool = True  # the head shares the token embedding's weights
    dropout: Fraction = 0.0  # rate for embeddings, attention and residuals; for finetuning try 0.1+


@dataclass(frozen=True)
class Options(ModelShape):
    """Train a GPT."""

    # output and evaluation
    out_dir: Name = "out"  # folder of the run
    eval_interval: Count = 2000  # steps between evaluations, which save checkpoints
    log_interval: Count = 1  # steps between lines of metrics.jsonl
    eval_iters: Count | Literal[-1] = 200  # batches per evaluation and split; -1: the whole split, in order
    eval_only: bool = False  # evaluate once, then stop
    always_save_checkpoint: bool = True  # save at each evaluation, not only the best
    keep_checkpoints: Count = 2  # how many of the last checkpoints to keep, besides the best
    init_from: Name = "scratch"  # scratch, resume, auto (resume a run if any), gpt2, hub id, folder
    overwrite: bool = False  # start anew in an out_dir that already holds a run
    seed: Seed = 1337  # for the initial weights, the batches and dropout
    # Weights & Biases
    wandb_log: bool = False  # log to Weights & Biases as well
    wandb_project: str = "owt"  # project to log to
    wandb_run_name: str = "gpt2"  # name of the run there
    # data
    dataset: Name = "openwebtext"  # folder below data/ that holds train.bin and val.bin
    gradient_accumulation_steps: Count = 40  # microbatches per step, to simulate larger batches
    batch_size: Count = 12  # sequences per microbatch
    sampling: Literal["random", "epoch"] = "random"  # windows drawn at random, or each once per epoch
    document_mask: bool = False  # tokens attend to their own document alone; end-of-text begins one
    # model
    vocab_size: Count | None = None  # tokens the model knows; None: those of the data set
    mup_base_width: NonNegativeInt = 0  # n_embd that the rate was tuned at, for µP; 0: no µP
    mup_base_n_head: NonNegativeInt = 0  # n_head of the model with that n_embd; 0: this one's
    # LoRA (arXiv:2106.09685): train small adapters beside the weights
    lora_rank: NonNegativeInt = 0  # rank of the adapters; 0: train the weights themselves
    lora_alpha: Positive = 32.0  # an adapter's output is scaled by alpha / rank
    lora_targets: Name = "all"  # layers with adapters, as in c_q,c_v; all: all linear ones
    # optimizer
    optimizer: Literal["adamw", "muon"] = "adamw"  # direction of a step: see training/optimizer.py
    learning_rate: Positive = 6e-4  # highest learning rate
    max_iters: NonNegativeInt = 600000  # steps of the whole run
    weight_decay: NonNegative = 1e-1  # for matrices and embeddings only
    beta1: Fraction = 0.9  # decay rate of the gradient's running mean
    beta2: Fraction = 0.95  # decay rate of its square's running mean
    grad_clip: NonNegative = 1.0  # largest gradient norm; 0: no clipping
    # learning rate schedule
    # after warmup; wsd: decays in the last fifth of lr_decay_iters
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    decay_lr: bool = True  # follow the schedule; False: learning_rate throughout, without warmup
    warmup_iters: NonNegativeInt = 2000  # steps of linear warmup
    lr_decay_iters: NonNegativeInt = 600000  # step that reaches min_lr; about max_iters, per Chinchilla
    min_lr: NonNegative = 6e-5  # lowest learning rate; about learning_rate / 10, per Chinchilla
    # devices
    mesh: Name = "data:-1"  # devices per axis of stage, data, fsdp, tensor: data:2,fsdp:4; -1: the rest
    pipeline_schedule: Literal["gpipe", "1f1b", "interleaved"] = "1f1b"  # order of a stage's work
    virtual_stages: Count = 1  # chunks of the layers on each rank of the stage axis; not for 1f1b
    # many processes; --coordinator=auto alone asks the launcher (SLURM, Open MPI, Kubernetes, TPU pods)
    coordinator: Address | None = None  # host:port of process 0; auto: JAX asks the launcher
    num_processes: Count | None = None  # how many processes train together
    process_id: NonNegativeInt | None = None  # number of this process, from 0
    # system
    device: Literal["auto", "cpu", "cuda", "tpu"] = "auto"  # auto: JAX's choice
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # matmuls; auto: bfloat16 where it is faster
    deterministic: bool = False  # a GPU computes the same bits in each run, without cuDNN's attention
    compilation_cache: bool = True  # keep compiled programs in ~/.cache/nanojaxgpt for the next start
    attention: Literal["auto", "einsum", "cudnn", "splash"] = "auto"  # auto: the fastest the device has
    unroll: NonNegativeInt = 0  # layers unrolled at a time, 0: all; fewer compile faster, run slower
    remat: Literal["none", "block", "dots"] = "none"  # recompute blocks, or all but products, backward

    @property
    def tokens_per_step(self) -> int:
        return self.gradient_accumulation_steps * self.batch_size * self.block_size

    @classmethod
    def from_json(cls, values: Any, origin: str) -> "Options":
        """Make options from JSON values. Raises UserError, which begins with `origin`."""
        if not isinstance(values, dict):
            raise UserError(f"{origin}: expected a JSON object of options")
        return cls(**check_values(values, f"{origin}: ", cls))


@dataclass(frozen=True)
class ModelOptions:
    """The options of the commands that load a trained model."""

    init_from: Name = "resume"  # the run in out_dir, or gpt2[-medium|-large|-xl], a folder, a hub id
    out_dir: Name = "out"  # folder of the run
    checkpoint: Checkpoint = "last"  # of the run: last, best (the lowest validation loss), or an iteration
    device: Literal["auto", "cpu", "cuda", "tpu"] = "auto"  # auto: JAX's choice
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # matmuls; auto: bfloat16 where it is faster

    def __post_init__(self):
        if self.init_from != "resume" and self.checkpoint != "last":
            raise UserError(f"--checkpoint={self.checkpoint}: {self.init_from} is no run: use --out_dir")


# A resumed run must have the values of FIXED that it began with.
VARIANTS = ("mup_base_width", "mup_base_n_head")  # ideas in variants.py
SHAPE = (*(field.name for field in fields(ModelShape) if field.name != "dropout"), *VARIANTS)
FIXED = (*SHAPE, "lora_rank", "lora_alpha", "lora_targets", "optimizer")
# It does not take over these, which say what one command does, or where. The others may change.
NOT_RESUMED = (
    *("out_dir", "eval_only", "init_from", "overwrite", "compilation_cache"),
    *("coordinator", "num_processes", "process_id"),
)

RESUMING = ("resume", "auto")  # values of init_from that may go on with a run


def parse_options(
    argv: list[str],
    shape_of: Callable[[str], dict[str, Any]] | None = None,
    saved_options: Callable[[str], Options | None] = lambda out_dir: None,
    also: dict[str, Any] | None = None,
) -> Options:
    """Read the options of a command line. `--help` prints them all and exits. Raises UserError.

    `shape_of` returns the options that the weights decide which init_from names, such as gpt2, and
    `saved_options` those that the checkpoints of the run in a folder hold, or None.
    """
    values = given(argv, Options, also)
    init_from = values.get("init_from", Options.init_from)
    if init_from in RESUMING:
        if values.get("overwrite"):
            raise UserError(f"overwrite=True starts anew, but init_from={init_from} may go on; drop one")
        saved = saved_options(values.get("out_dir", Options.out_dir))
        if saved is None and (others := without_auto(argv)) != argv:  # begin as these say
            return parse_options(others, shape_of, saved_options, also)
        return replace(saved or Options(), **{name: getattr(Options, name) for name in NOT_RESUMED} | values)
    if init_from == "scratch":
        return Options(**values)
    if shape_of is None:
        raise UserError(f"init_from={init_from}: expected one of scratch, {', '.join(RESUMING)} here")
    shape = shape_of(init_from)
    for name, theirs in shape.items():
        ours = values.get(name, theirs)
        if ours != theirs and not (name == "block_size" and ours < theirs):
            fewer = ", or give fewer" if name == "block_size" else ""
            raise UserError(
                f"{name}={ours}, but {init_from} has {name}={theirs}: leave it out, in a config too{fewer}"
            )
    return Options(**shape | values)


def refuse_idle(typed: Iterable[str], options: Options) -> None:
    """Raise UserError for an option of the command line that has no effect without another."""
    for needed, is_there, idle in (
        ("lora_rank", options.lora_rank, ("lora_alpha", "lora_targets")),
        ("position=rope", options.position == "rope", ("rope_theta", "rope_scaling")),
        ("mesh=stage:N", re.search(r"stage:(?!1\b)", options.mesh), ("pipeline_schedule", "virtual_stages")),
        ("decay_lr", options.decay_lr, ("schedule",)),
    ):
        if not is_there:
            others = [name for name in idle if getattr(options, name) != getattr(Options, name)]
            refuse_unused(typed, others, f" is not used without --{needed}")


def without_auto(argv: list[str]) -> list[str]:
    """Leave out `--init_from=auto`, as one word or as two."""
    found, words = [], deque(argv)
    while words:
        word = words.popleft()
        name, equals, value = word.partition("=")
        if name.replace("-", "_") != "__init_from" or "auto" not in (value, *[*words][:1]):
            found.append(word)
        elif not equals:
            words.popleft()
    return found
