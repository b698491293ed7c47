"""What `config/options.py` promises: nanoGPT's names and defaults, sources in order, one-line errors."""

import json
import shlex
import sys
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import pytest

from common.command_line import Count, given, take_options
from config.options import FIXED, ModelShape, Options, parse_options
from evaluate import EvaluateOptions
from experiments.chat import ChatOptions
from experiments.reference import FREE, read_options
from model import GPTConfig
from runs.checkpoint import Manifest, saved_options
from runs.start import shape_of_weights
from sample import SampleOptions
from tests.damage import NOT_VALUES, assert_named
from tests.helpers import refusal, run_python
from tools.cloud.options import LaunchOptions
from tools.serving.server import ServeOptions

NANOGPT_DEFAULTS = (
    "out_dir=out eval_interval=2000 log_interval=1 eval_iters=200 eval_only=False "
    "always_save_checkpoint=True init_from=scratch wandb_log=False wandb_project=owt wandb_run_name=gpt2 "
    "dataset=openwebtext gradient_accumulation_steps=40 batch_size=12 block_size=1024 "
    "n_layer=12 n_head=12 n_embd=768 dropout=0.0 bias=False learning_rate=6e-4 max_iters=600000 "
    "weight_decay=0.1 beta1=0.9 beta2=0.95 grad_clip=1.0 decay_lr=True warmup_iters=2000 "
    "lr_decay_iters=600000 min_lr=6e-5"
)


@pytest.fixture
def config(tmp_path):
    """Writes a config file and returns its path."""

    def write(text, name="experiment.py"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def run(tmp_path):
    """A run's folder with the options it was started with; returns it as a string."""
    options = replace(Options(), n_embd=32, n_kv_head=2, batch_size=7, out_dir="elsewhere", overwrite=True)
    (manifest := tmp_path / "run/checkpoints/5/manifest/metadata").parent.mkdir(parents=True)
    manifest.write_text(json.dumps(Manifest(options, 11, None).to_json()))
    (tmp_path / "run/options.json").write_text(json.dumps(vars(Options(n_embd=64, batch_size=9))))
    return str(tmp_path / "run")


def resumed(*argv):
    return parse_options(list(argv), saved_options=saved_options)


def error(*argv):
    """The one line that a command line ends in."""
    return refusal(parse_options, list(argv))


def test_defaults_are_nanogpts_and_pass_their_own_checks():
    words = [f"--{word}" for word in NANOGPT_DEFAULTS.split()]
    assert parse_options(words) == parse_options([]) == Options()
    assert Options.from_json(vars(Options()), origin="defaults") == Options()


def test_the_shape_is_the_models_own_with_its_defaults():
    shape = {field.name: field.default for field in fields(ModelShape)}
    own = {field.name: field.default for field in fields(GPTConfig)}
    assert own.keys() - shape.keys() == {"vocab_size", "document_start"}
    assert shape.items() <= own.items()


def test_every_option_is_kept_or_free_or_says_how_a_run_learns():
    """A new option is named here, in config/options.py, or in experiments/reference.py: else one could change
    unseen when a run is resumed or compared."""
    learning = (
        "dropout dataset vocab_size gradient_accumulation_steps batch_size sampling document_mask "
        "learning_rate max_iters weight_decay beta1 beta2 grad_clip "
        "schedule decay_lr warmup_iters lr_decay_iters min_lr"
    )
    assert sorted([*FIXED, *FREE, *learning.split()]) == sorted(field.name for field in fields(Options))


def test_config_files_apply_in_order_and_the_command_line_wins_wherever_it_stands(config):
    first = config("batch_size = 1\nn_layer = 1\nmax_iters = 1e5\nlearning_rate = 1\n", "first.py")
    second = config("batch_size = 2\nn_layer = 2\nn_kv_head = None\nmax_iters *= 2\n", "second.py")
    options = parse_options(["--batch_size=3", first, second])
    assert (options.batch_size, options.n_layer, options.max_iters) == (3, 2, 200000)
    assert type(options.max_iters) is int and type(options.learning_rate) is float


@pytest.mark.parametrize(
    "words, name, value",
    [
        ("--max_iters=1e5", "max_iters", 100000),
        ("--learning-rate 1", "learning_rate", 1.0),
        ("--eval_iters -1", "eval_iters", -1),
        ("--seed=2 --seed=3", "seed", 3),
        ("--overwrite --seed=1337", "overwrite", True),
        ("--decay_lr false", "decay_lr", False),
        ("--n_kv_head=None", "n_kv_head", None),
        ("--wandb_run_name=1e5", "wandb_run_name", "1e5"),  # text stays text, whatever it looks like
        ("--wandb_run_name=a=b", "wandb_run_name", "a=b"),
        ("--wandb_run_name=", "wandb_run_name", ""),
    ],
)
def test_values_on_the_command_line(words, name, value):
    options = parse_options(words.split())
    assert options == replace(Options(), **{name: value})
    assert type(getattr(options, name)) is type(value)


@pytest.mark.parametrize(
    "line, name, value",
    [
        ("wandb_run_name = time.strftime('%Y', time.gmtime(0))", "wandb_run_name", "1970"),
        ("out_dir = os.path.join('runs', 'a')", "out_dir", str(Path("runs", "a"))),
        ("min_lr = math.sqrt(4)", "min_lr", 2.0),
        ("batch_size = np.prod([2, 3])", "batch_size", 6),
        ("decay_lr = np.bool_(False)", "decay_lr", False),
        ("gradient_accumulation_steps *= 2", "gradient_accumulation_steps", 80),
        ("def half(): return n_layer // 2\nn_layer = half()", "n_layer", 6),
        ("bias = 1", "bias", True),
        ("if __name__ == '__main__':\n    batch_size = 3", "batch_size", 3),
        ("# of its own\nimport time\nn_gpus = 8\nbatchsize = 4\nn_layer = 3 * n_gpus", "n_layer", 24),
        ("sizes = {'small': 3}\nclass Unused: pass\nn_layer = sizes['small']", "n_layer", 3),
    ],
)
def test_a_config_file_is_python_with_names_of_its_own_and_those_of_nanogpts_train_py(
    line, name, value, config, capsys
):
    options = parse_options([config(line + "\n")])
    assert options == replace(Options(), **{name: value})
    assert type(getattr(options, name)) is type(value)
    assert capsys.readouterr() == ("", "")


def test_a_config_file_sets_what_it_assigns_and_not_what_it_reads(run, config):
    """Also where the value is the default, which it then sets over a resumed run's."""
    path = config(f"batch_size = {Options.batch_size}\nmin_lr = learning_rate / 10\n")
    options = resumed(f"--out_dir={run}", "--init_from=resume", path)
    assert (options.batch_size, options.n_embd) == (Options.batch_size, 32)


def test_a_config_file_that_asks_pytorch_says_what_to_do(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # it is not installed
    for line in ("device = 'cuda' if torch.cuda.is_available() else 'cpu'", "import torch"):
        text = error(path := config(f"batch_size = 1\n{line}\n"))
        assert text.startswith(f"{path}:2: ") and "torch" in text
        assert text.endswith("leave out what asks PyTorch: the defaults of device and dtype choose the best")


def test_a_config_file_runs_in_a_namespace_of_its_own(config):
    first, second = config("_size = 3\n", "first.py"), config("batch_size = _size\n", "second.py")
    assert "NameError" in error(first, second)


@pytest.mark.parametrize("in_a_file", [True, False])
def test_what_pytorch_alone_has_is_left_out_or_becomes_jaxs_with_a_note(in_a_file, config, capsys):
    for name, value, becomes in (
        ("compile", False, None),
        ("backend", "gloo", None),
        ("dtype", "float16", "bfloat16"),
        ("device", "mps", "cpu"),
        ("device", "gpu", "cuda"),
        ("device", "cuda:1", "cuda"),
    ):
        word = config(f"{name} = {value!r}\n") if in_a_file else f"--{name}={value}"
        assert parse_options([word]) == replace(Options(), **{name: becomes} if becomes else {})
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.startswith(f"note: {name}")
        assert "is for PyTorch" in printed.err and (becomes or "") in printed.err


@pytest.mark.parametrize("init_from", ["resume", "auto"])
def test_a_resumed_run_keeps_its_options_below_config_files_and_the_command_line(run, config, init_from):
    path = config("batch_size = 8\nblock_size = 64\n")
    options = resumed(path, f"--out_dir={run}", f"--init_from={init_from}", "--block_size=65")
    assert (options.n_embd, options.n_kv_head, options.batch_size, options.block_size) == (32, 2, 8, 65)
    assert (options.out_dir, options.init_from, options.overwrite) == (run, init_from, False)
    assert "overwrite=True" in error(path, f"--init_from={init_from}", "--overwrite=True")


@pytest.mark.parametrize("init_from", ["resume", "auto"])
def test_without_a_checkpoint_a_resumed_run_starts_from_the_defaults(tmp_path, init_from):
    (tmp_path / "options.json").write_text(json.dumps(vars(Options(n_embd=64))))
    options = resumed(f"--out_dir={tmp_path}", f"--init_from={init_from}")
    begun = "scratch" if init_from == "auto" else init_from
    assert options == replace(Options(), out_dir=str(tmp_path), init_from=begun)


@pytest.mark.parametrize("auto", ["--init_from=auto", "--init-from auto"])
def test_without_a_checkpoint_auto_begins_from_the_weights_that_others_name(run, config, tmp_path, auto):
    path, out = config(f"init_from = {run!r}\n"), f"--out_dir={tmp_path}"
    begun = parse_options([path, out], shape_of_weights)
    assert begun.init_from == run and begun.n_embd == 32
    assert parse_options([path, out, *auto.split()], shape_of_weights) == begun
    assert parse_options([f"--init_from={run}", out, *auto.split()], shape_of_weights) == begun


def test_any_damage_to_an_options_json_is_one_line(tmp_path):
    path = tmp_path / "options.json"
    values = {"batch_size": 3, "learning_rate": 1e-3, "dataset": "x", "n_kv_head": 2}
    path.write_text(json.dumps(values))
    assert read_options(str(path)) == replace(Options(), **values)
    free = ("an empty object instead", *asdict(Options()))
    said = assert_named(path, lambda: read_options(str(path)), free)
    wrong = {f"batch_size is {what}" for what in NOT_VALUES} | {"learning_rate is infinity"}
    wrong |= {"learning_rate is true", "dataset is a text", "n_kv_head is true"}
    assert wrong <= {what for what, line in said.items() if line is not None}


@pytest.mark.parametrize("typo, nearest", [("batchsize", "batch_size"), ("learning-rat", "learning_rate")])
def test_a_typo_names_the_nearest_option(typo, nearest):
    for word in (f"--{typo}=1", f"--{typo}"):
        text = error(word)
        assert text.startswith("--") and f"is not an option; did you mean {nearest}?" in text


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("batch_size", "True", "True: it should be a valid integer"),
        ("learning_rate", "float('nan')", "nan: it should be "),
        ("learning_rate", "10 ** 400", "1000"),
        ("bias", "2", "2: it should be a valid boolean"),
        ("optimizer", "'adam'", "'adam': it should be 'adamw' or 'muon'"),
    ],
)
def test_a_wrong_value_in_a_config_file_is_named(name, value, says, config):
    path = config(f"{name} = {value}\n")
    assert error(path).startswith(f"{path}: {name} is {says}")


@pytest.mark.parametrize(
    "argument, text",
    [
        ("--eval_iters=0", "--eval_iters is 0: it should be greater than or equal to 1 or it should be -1"),
        ("--out_dir=", "--out_dir is '': expected a name in UTF-8"),
        ("--out_dir=caf\udce9", "--out_dir is 'caf\\udce9': expected a name in UTF-8"),
        ("--init_from=nowhere", "init_from=nowhere: expected one of scratch, resume, auto here"),
        ("--xyzzy=1", "--xyzzy is not an option; see --help"),
        ("-x", "-x: expected a config file (NAME.py) or --key=value; see --help"),
        ("nowhere.py", "nowhere.py: there is no such config file"),
    ],
)
def test_a_wrong_word_on_the_command_line_is_named(argument, text):
    assert error(*argument.split()) == text


@pytest.mark.parametrize(
    "outside, at_the_edge, names",
    [
        ("", "x", "out_dir dataset"),
        (0, 1, "eval_interval log_interval keep_checkpoints gradient_accumulation_steps batch_size"),
        (0, 1, "block_size eval_iters n_layer n_head n_kv_head n_embd"),
        (-1, 0, "max_iters weight_decay grad_clip warmup_iters lr_decay_iters min_lr unroll seed"),
        (0, 1e-9, "learning_rate rope_theta"),
        (1, 0.99, "dropout beta1 beta2"),
        (-0.1, 0, "dropout beta1 beta2"),
        (2**31, 2**31 - 1, "warmup_iters"),  # in which devices count
        (float("inf"), 1e38, "learning_rate"),
    ],
)
def test_values_out_of_range_are_refused(outside, at_the_edge, names):
    for name in names.split():
        assert error(f"--{name}={outside}").startswith(f"--{name} is {outside!r}: ")
        assert getattr(parse_options([f"--{name}={at_the_edge}"]), name) == at_the_edge


@pytest.mark.parametrize(
    "content, line, says",
    [
        ("batch_size = 1\nn_layer = = 2\n", 2, "invalid syntax"),
        ("def n():\n    raise ValueError('two\\nlines')\nn_layer = n()\n", 2, "ValueError: two lines"),
        ("def deep():\n    deep()\ndeep()\n", 2, "RecursionError"),
        ("batch_size = 1\0\n", 1, "null bytes"),
        ("n_layer = 2\nraise SystemExit(0)\n", 2, "SystemExit: 0"),
        ("raise ValueError('\\x1b[2J' + 'x' * 20_000)\n", 1, "ValueError: ?[2Jxxx"),
    ],
)
def test_a_config_file_that_does_not_run_is_named_with_its_line(content, line, says, config):
    text = error(path := config(content))
    assert text.startswith(f"{path}:{line}: ") and says in text and len(text) < 1100


@dataclass(frozen=True)
class Own:
    """Options of a command that also reads train.py's."""

    steps: Count | None = None
    loop: bool = False


def test_a_commands_own_options_are_taken_and_train_pys_are_left():
    words = ["x.py", "--loop", "--n_layer", "2", "--steps", "3", "--bias=True"]
    assert take_options(words, Own) == ({"loop": True, "steps": 3}, ["x.py", "--n_layer", "2", "--bias=True"])
    assert take_options(["--loop=False", "--no_such"], Own) == ({"loop": False}, ["--no_such"])
    assert refusal(take_options, ["--steps=0"], Own).startswith("--steps is 0: ")
    assert refusal(take_options, ["--steps", "--loop"], Own) == "--steps needs a value; see --help"


OTHERS = (ServeOptions, SampleOptions, EvaluateOptions, LaunchOptions, ChatOptions)


@pytest.mark.parametrize("cls, columns", [(Options, "1"), *((cls, "100") for cls in (Options, *OTHERS))])
def test_help_lists_every_option_with_its_default_and_meaning(cls, columns, monkeypatch, capsys):
    """In terminals of any width. A meaning is a comment at a field's end, and lost if the field has lines."""
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit) as ended:
        given(["--help"], cls)
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert not ended.value.code
    for field in fields(cls):
        kind_and_meaning, _, after = words.partition(f" --{field.name} ")[2].partition(" (default: ")
        assert after.startswith(f"{' '.join(shlex.quote(str(field.default)).split())})"), field.name
        assert len(kind_and_meaning.split()) >= 2, f"{field.name} has a type but no meaning"


def test_options_are_read_without_importing_jax_or_numpy():
    done = run_python(
        "-c",
        "import sys; from config.options import parse_options; parse_options(['--batch_size=3']);"
        "print(sorted({'jax', 'numpy', 'tyro'} & set(sys.modules)))",
    )
    assert done.stdout == "[]\n", done.stderr
