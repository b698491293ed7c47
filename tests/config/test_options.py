"""What `config/options.py` promises: nanoGPT's names and defaults, sources in order, one-line errors."""

import inspect
import json
import re
import sys
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import pytest

from common.command_line import Count, take_options
from config.options import FIXED, ModelShape, Options, parse_options
from experiments.reference import FREE, read_options
from model import GPTConfig
from runs.checkpoint import Manifest, saved_options
from tests.damage import NOT_VALUES, assert_named
from tests.helpers import ROOT, refusal, run_python

NANOGPT_DEFAULTS = (
    "out_dir=out eval_interval=2000 log_interval=1 eval_iters=200 eval_only=False "
    "always_save_checkpoint=True init_from=scratch wandb_log=False wandb_project=owt wandb_run_name=gpt2 "
    "dataset=openwebtext gradient_accumulation_steps=40 batch_size=12 block_size=1024 "
    "n_layer=12 n_head=12 n_embd=768 dropout=0.0 bias=False learning_rate=6e-4 max_iters=600000 "
    "weight_decay=0.1 beta1=0.9 beta2=0.95 grad_clip=1.0 decay_lr=True warmup_iters=2000 "
    "lr_decay_iters=600000 min_lr=6e-5"
)
BABY = (
    "out_dir=out-shakespeare-char eval_interval=250 log_interval=10 always_save_checkpoint=False "
    "wandb_project=shakespeare-char wandb_run_name=mini-gpt dataset=shakespeare_char "
    "gradient_accumulation_steps=1 batch_size=64 block_size=256 n_layer=6 n_head=6 n_embd=384 dropout=0.2 "
    "learning_rate=1e-3 max_iters=5000 lr_decay_iters=5000 min_lr=1e-4 beta2=0.99 warmup_iters=100"
)


def flags(words):
    """A command line, of "name=value name=value"."""
    return [f"--{word}" for word in words.split()]


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
    folder = tmp_path / "run"
    folder.mkdir()
    started_with = replace(
        Options(), n_embd=32, n_kv_head=2, batch_size=7, out_dir="elsewhere", overwrite=True
    )
    write_manifest(folder, 5, started_with)
    (folder / "options.json").write_text(json.dumps(vars(Options(n_embd=64, batch_size=9))))
    return str(folder)


def write_manifest(folder, iteration, options):
    path = folder / "checkpoints" / str(iteration) / "manifest" / "metadata"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(Manifest(options, 11, None).to_json()))


def resumed(*argv):
    return parse_options(list(argv), saved_options=saved_options)


def error(*argv):
    """The text of the error that a command line ends in, which is one line."""
    return refusal(parse_options, list(argv))


# --- defaults and sources ---------------------------------------------------------------------------------


def test_defaults_are_nanogpts_and_pass_their_own_checks():
    assert parse_options(flags(NANOGPT_DEFAULTS)) == parse_options([]) == Options()
    assert Options.from_json(vars(Options()), origin="defaults") == Options()


def test_config_files_apply_in_order_and_the_command_line_wins_wherever_it_stands(config):
    first = config("batch_size = 1\nn_layer = 1\nmax_iters = 1e5\nlearning_rate = 1\n", "first.py")
    second = config("batch_size = 2\nn_layer = 2\nn_kv_head = None\n", "second.py")
    options = parse_options(["--batch_size=3", first, second])
    assert (options.batch_size, options.n_layer, options.max_iters) == (3, 2, 100000)
    assert type(options.max_iters) is int and type(options.learning_rate) is float


def test_a_value_may_follow_its_key_and_the_last_one_wins():
    words = ["--batch_size", "3", "--eval_iters", "-1", "--learning-rate=1", "--batch_size=4"]
    options = parse_options(words)
    assert (options.batch_size, options.eval_iters, options.learning_rate) == (4, -1, 1.0)


@pytest.mark.parametrize(
    "argument, value",
    [
        ("--max_iters=1e5", 100000),
        ("--learning_rate=1", 1.0),
        ("--bias=True", True),
        ("--decay_lr=False", False),
        ("--n_kv_head=None", None),
        ("--position=rope", "rope"),
        ("--wandb_run_name=1e5", "1e5"),  # text stays text, whatever it looks like
        ("--wandb_run_name=None", "None"),
        ("--wandb_run_name=a=b", "a=b"),
        ("--wandb_run_name=", ""),
    ],
)
def test_values_on_the_command_line(argument, value):
    options = parse_options([argument])
    found = getattr(options, argument[2:].partition("=")[0])
    assert found == value and type(found) is type(value)


# --- nanoGPT's own files ----------------------------------------------------------------------------------


def test_a_config_file_is_python_as_nanogpts_are(config):
    path = config(
        "# a big run\nimport time\nfrom os import path\n"
        "wandb_run_name = 'ft-' + str(time.time())\nbatch_size = 12\ngradient_accumulation_steps = 5 * 8\n"
        "_tokens = batch_size * 1024\ndef per_step(n): return n\nclass Unused: pass\n"
        "max_iters = per_step(600000)\nlr_decay_iters = max_iters\n"
    )
    options = parse_options([path])
    assert options.gradient_accumulation_steps == 40
    assert options.wandb_run_name.startswith("ft-")
    assert options.lr_decay_iters == 600000


@pytest.mark.parametrize(
    "line, name, value",
    [
        ("wandb_run_name = time.strftime('%Y', time.gmtime(0))", "wandb_run_name", "1970"),
        ("out_dir = os.path.join('runs', 'a')", "out_dir", str(Path("runs", "a"))),
        ("min_lr = math.sqrt(4)", "min_lr", 2.0),
        ("weight_decay = np.sqrt(0.25)", "weight_decay", 0.5),
        ("batch_size = np.prod([2, 3])", "batch_size", 6),
        ("decay_lr = np.bool_(False)", "decay_lr", False),
        ("lr_decay_iters = max_iters", "lr_decay_iters", 600000),
        ("gradient_accumulation_steps *= 2", "gradient_accumulation_steps", 80),
        ("def half(): return n_layer // 2\nn_layer = half()", "n_layer", 6),
        ("bias = 1", "bias", True),
        ("bias = 0", "bias", False),
        ("if __name__ == '__main__':\n    batch_size = 3", "batch_size", 3),
        ("eval_only = 1", "eval_only", True),
    ],
)
def test_a_config_file_reads_the_defaults_and_what_nanogpts_train_py_imports(line, name, value, config):
    options = parse_options([config(line + "\n")])
    assert options == replace(Options(), **{name: value})
    assert type(getattr(options, name)) is type(value)


def test_a_later_config_file_goes_on_from_the_values_of_an_earlier_one(config):
    first, second = config("max_iters = 100\n", "first.py"), config("max_iters *= 2\n", "second.py")
    assert parse_options([first, second]) == replace(Options(), max_iters=200)


def test_a_config_file_sets_what_it_assigns_and_not_what_it_reads(run, config):
    """Also where the value is the default, which it then sets over a resumed run's."""
    path = config(f"batch_size = {Options.batch_size}\nmin_lr = learning_rate / 10\n")
    options = resumed(f"--out_dir={run}", "--init_from=resume", path)
    assert (options.batch_size, options.n_embd) == (Options.batch_size, 32)
    assert resumed(f"--out_dir={run}", "--init_from=resume").batch_size == 7


def test_a_config_file_may_have_names_of_its_own(config, capsys):
    path = config(
        "n_gpus = 8\ntotal_batch_size = 480\nsizes = {'small': 3}\nrun_name = 'a'\n"
        "gradient_accumulation_steps = 5 * n_gpus\nbatch_size = total_batch_size // n_gpus\n"
        "n_layer = sizes['small']\nwandb_run_name = f'{run_name}-{n_gpus}'\n"
    )
    expected = dict(gradient_accumulation_steps=40, batch_size=60, n_layer=3, wandb_run_name="a-8")
    assert parse_options([path]) == replace(Options(), **expected)
    assert capsys.readouterr() == ("", "")


def test_a_name_that_nothing_reads_sets_nothing(config):
    path = config("n_gpus = 8\nuse_flash = True\nbatchsize = 4\nbatch_size = 3\n")  # as in nanoGPT's exec
    assert parse_options([path]) == replace(Options(), batch_size=3)


@pytest.mark.parametrize("line", ["device = 'cuda' if torch.cuda.is_available() else 'cpu'", "import torch"])
def test_a_config_file_that_asks_pytorch_says_what_to_do(line, config, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # it is not installed
    text = error(path := config(f"batch_size = 1\n{line}\n"))
    assert text.startswith(f"{path}:2: ") and "torch" in text
    assert text.endswith("leave out what asks PyTorch: the defaults of device and dtype choose the best")


def test_a_config_file_runs_in_a_namespace_of_its_own(config):
    first, second = config("_size = 3\n", "first.py"), config("batch_size = _size\n", "second.py")
    assert "NameError" in error(first, second)


@pytest.mark.parametrize("in_a_file", [True, False])
def test_what_only_pytorch_knows_is_ignored_with_a_note(in_a_file, config, capsys):
    words = (
        [config("compile = False\nbackend = 'gloo'\n")] if in_a_file else flags("compile=False backend=gloo")
    )
    assert parse_options(words) == Options()
    printed = capsys.readouterr()
    assert printed.out == "" and len(printed.err.splitlines()) == 2
    assert "compile is for PyTorch" in printed.err and "backend is for PyTorch" in printed.err


@pytest.mark.parametrize("in_a_file", [True, False])
@pytest.mark.parametrize(
    "given, becomes",
    [
        ("dtype=float16", "bfloat16"),
        ("device=mps", "cpu"),
        ("device=gpu", "cuda"),
        ("device=cuda:1", "cuda"),
        ("device=cuda", None),
        ("dtype=float32", None),
    ],
)
def test_pytorchs_values_become_jaxs_with_a_note(given, becomes, in_a_file, config, capsys):
    name, value = given.split("=")
    options = parse_options([config(f"{name} = {value!r}\n") if in_a_file else f"--{given}"])
    assert getattr(options, name) == (becomes or value)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (f"note: {given} is for PyTorch and becomes {becomes}\n" if becomes else "")


# --- going on with a run ----------------------------------------------------------------------------------


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
    assert options == replace(Options(), out_dir=str(tmp_path), init_from=init_from)


def test_the_newest_manifest_that_is_whole_counts(run):
    again = (f"--out_dir={run}", "--init_from=resume")
    write_manifest(Path(run), 20, replace(Options(), batch_size=20))
    write_manifest(Path(run), 100, replace(Options(), batch_size=100))
    for iteration, batch_size in ((100, 100), (20, 20), (5, 7)):
        assert resumed(*again).batch_size == batch_size
        Path(run, "checkpoints", str(iteration), "manifest", "metadata").write_text("{")
    said = refusal(resumed, *again)
    assert said.startswith(f"{Path(run, 'checkpoints', '5')}: the checkpoint is damaged")


@pytest.mark.parametrize(
    "content, says",
    [
        ('{"n_embd": 32', "cannot be read as options"),
        ("[]", "expected a JSON object"),
        ('{"n_embed": 32}', "n_embed is not an option"),
        ('{"n_embd": "32"}', "n_embd is '32': it should be a valid integer"),
    ],
)
def test_a_bad_options_json_is_named_where_a_tool_reads_it(tmp_path, content, says):
    path = tmp_path / "options.json"
    path.write_text(content)
    assert refusal(read_options, str(path)).startswith(f"{path}: {says}")


def test_any_damage_to_an_options_json_is_one_line(tmp_path):
    path = tmp_path / "options.json"
    path.write_text(json.dumps({"batch_size": 3, "learning_rate": 1e-3, "dataset": "x", "n_kv_head": 2}))
    assert read_options(str(path)) == replace(
        Options(), batch_size=3, learning_rate=1e-3, dataset="x", n_kv_head=2
    )
    free = ("an empty object instead", *asdict(Options()))
    said = assert_named(path, lambda: read_options(str(path)), free)
    wrong = {f"batch_size is {what}" for what in NOT_VALUES} | {"learning_rate is infinity"}
    wrong |= {"learning_rate is true", "dataset is a text", "n_kv_head is true"}
    assert wrong <= {what for what, line in said.items() if line is not None}


def test_every_option_is_kept_or_free_or_says_how_a_run_learns():
    """A new option is named here, in config/options.py, or in experiments/reference.py."""
    learning = (
        "dropout dataset vocab_size gradient_accumulation_steps batch_size sampling document_mask "
        "learning_rate max_iters weight_decay beta1 beta2 grad_clip "
        "schedule decay_lr warmup_iters lr_decay_iters min_lr"
    )
    named = [*FIXED, *FREE, *learning.split()]
    assert sorted(named) == sorted(field.name for field in fields(Options))


def test_the_shape_is_the_models_own_with_its_defaults_and_remarks():
    """It stands twice: Options has limits, and model.py imports nothing of ours."""
    for field in fields(ModelShape):
        assert field.default == getattr(GPTConfig, field.name)
    there = (ROOT / "model.py").read_text()
    for line in inspect.getsource(ModelShape).splitlines():
        if (field := re.match(r" +(\w+): .*(  # .*)", line)) and field[1] != "dropout":
            assert re.search(rf" {field[1]}: .*{re.escape(field[2])}\n", there), field[1]


# --- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "typo, nearest",
    [
        *[("batchsize", "batch_size"), ("n_embed", "n_embd"), ("learning-rat", "learning_rate")],
        *[("value_embeddings", "tie_embeddings"), ("cautious_weight_decay", "weight_decay")],  # taken out
    ],
)
def test_a_typo_names_the_nearest_option(typo, nearest):
    for word in (f"--{typo}=1", f"--{typo}"):
        text = error(word)
        assert text.startswith("--") and f"is not an option; did you mean {nearest}?" in text


@pytest.mark.parametrize("text", ["1" * 20_000, "[" * 20_000, "(" * 190, "{[]: 1}", "9" * 30])
@pytest.mark.parametrize("form", ["--batch_size={}", "--no_such_{}=1", "{}"])
def test_words_of_any_length_and_depth_are_one_line(text, form):
    assert len(error(form.format(text))) < 1100


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("batch_size", "'12'", "'12': it should be a valid integer"),
        ("batch_size", "None", "None: it should be a valid integer"),
        ("batch_size", "True", "True: it should be a valid integer"),
        ("n_kv_head", "'two'", "'two': it should be a valid integer"),
        ("learning_rate", "True", "True: it should be a valid number"),
        ("learning_rate", "float('nan')", "nan: it should be "),
        ("learning_rate", "10 ** 400", "1000"),
        ("bias", "2", "2: it should be a valid boolean"),
        ("batch_size", "np.ones(2)", "[1.0, 1.0]: it should be a valid integer"),
        ("dataset", "5", "5: it should be a valid string"),
        ("optimizer", "'adam'", "'adam': it should be 'adamw' or 'muon'"),
        ("device", "7", "7: it should be 'auto', 'cpu', 'cuda' or 'tpu'"),
    ],
)
def test_a_wrong_value_in_a_config_file_is_named(name, value, says, config):
    path = config(f"{name} = {value}\n")
    assert error(path).startswith(f"{path}: {name} is {says}")


@pytest.mark.parametrize(
    "argument, text",
    [
        ("--batch_size=abc", "--batch_size is 'abc': it should be a valid integer"),
        ("--batch_size=1.5", "--batch_size is 1.5: it should be a valid integer"),
        ("--batch_size=", "--batch_size is '': it should be a valid integer"),
        ("--eval_iters=0", "--eval_iters is 0: it should be greater than or equal to 1 or it should be -1"),
        ("--bias=yes", "--bias is 'yes': it should be a valid boolean"),
        ("--mlp=relu", "--mlp is 'relu': it should be 'swiglu', 'gelu', 'gelu_erf' or 'relu2'"),
        ("--init_from=nowhere", "init_from=nowhere: expected one of scratch, resume, auto here"),
        ("--seed", "--seed needs a value; see --help"),
        ("--seed --overwrite", "--seed needs a value; see --help"),
        ("--xyzzy=1", "--xyzzy is not an option; see --help"),
        ("-x", "-x: expected a config file (NAME.py) or --key=value; see --help"),
        ("batch_size=3", "batch_size=3: expected a config file (NAME.py) or --key=value; see --help"),
    ],
)
def test_a_wrong_value_on_the_command_line_is_named(argument, text):
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
        (-2, -1, "eval_iters"),
        (2**31, 2**31 - 1, "warmup_iters"),  # in which devices count
        (2**32, 2**32 - 1, "seed"),
        (1e39, 1e38, "min_lr"),
        (float("inf"), 1e38, "learning_rate"),
    ],
)
def test_values_out_of_range_are_refused(outside, at_the_edge, names):
    for name in names.split():
        assert error(f"--{name}={outside}").startswith(f"--{name} is {outside!r}: ")
        assert getattr(parse_options([f"--{name}={at_the_edge}"]), name) == at_the_edge


def test_an_empty_name_is_refused():
    assert error("--out_dir=") == "--out_dir is '': expected a name in UTF-8"


@pytest.mark.parametrize("words", ["--overwrite --bias false", "--overwrite True --bias=false"])
def test_an_option_that_is_true_or_false_may_stand_alone(words):
    options = parse_options([*words.split(), "--seed=3", "--eval_only"])
    assert (options.overwrite, options.bias, options.eval_only, options.seed) == (True, False, True, 3)


@pytest.mark.parametrize(
    "content, line, says",
    [
        ("batch_size = 1\nn_layer = = 2\n", 2, "invalid syntax"),
        ("batch_size = 1\n\nn_layer = 1 // 0\n", 3, "ZeroDivisionError"),
        ("def n():\n    raise ValueError('two\\nlines')\nn_layer = n()\n", 2, "ValueError: two lines"),
        ("import nanojaxgpt_no_such_module\n", 1, "ModuleNotFoundError"),
        ("def deep():\n    deep()\ndeep()\n", 2, "RecursionError"),
        ("batch_size = 1\0\n", 1, "null bytes"),
        ("n_layer = 2\nraise SystemExit(0)\n", 2, "SystemExit: 0"),
        ("raise ValueError('\\x1b[2J' + 'x' * 20_000)\n", 1, "ValueError: ?[2Jxxx"),
    ],
)
def test_a_config_file_that_does_not_run_is_named_with_its_line(content, line, says, config):
    text = error(path := config(content))
    assert text.startswith(f"{path}:{line}: ") and says in text and len(text) < 1100


def test_a_config_file_that_is_not_there_is_named():
    assert error("nowhere.py") == "nowhere.py: there is no such config file"


@dataclass(frozen=True)
class Own:
    """Options of a command that also reads train.py's."""

    steps: Count | None = None
    loop: bool = False


def test_a_commands_own_options_are_taken_and_train_pys_are_left():
    words = ["x.py", "--loop", "--n_layer", "2", "--steps", "3", "--bias=True"]
    assert take_options(words, Own) == ({"loop": True, "steps": 3}, ["x.py", "--n_layer", "2", "--bias=True"])
    assert take_options(["--loop=False", "--no_such"], Own) == ({"loop": False}, ["--no_such"])
    assert (
        refusal(take_options, ["--steps=0"], Own) == "--steps is 0: it should be greater than or equal to 1"
    )
    assert refusal(take_options, ["--steps", "--loop"], Own) == "--steps needs a value; see --help"


# --- commands ---------------------------------------------------------------------------------------------


def test_help_lists_every_option_with_its_default_and_meaning():
    done = run_python("-c", "from config.options import parse_options; parse_options(['--help'])")
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.replace("│", " ").split())
    for field in fields(Options):
        _, found, after = words.partition(f" --{field.name} ")
        entry = after.partition(" --")[0]
        assert found, f"{field.name} is not in --help"
        assert entry.endswith(f"(default: {field.default})") or f"(default: {field.default}) " in entry
        assert len(entry.partition("(default:")[0].split()) >= 2, f"{field.name} has a type but no meaning"


@pytest.mark.parametrize("encoding, text", [("ascii", "n\u00e9"), ("utf-8:strict", "n\udcff")])
def test_text_that_a_terminal_cannot_show_is_written_all_the_same(encoding, text):
    """As a token may be: a byte that is not UTF-8 becomes half a character."""
    program = f"from common.errors import command; command(lambda argv: print({ascii(text)}))"
    assert run_python("-c", program, PYTHONIOENCODING=encoding).stdout == "n?\n"


def test_ctrl_c_ends_a_command_quietly_with_status_130():
    """A thread that works on does not hold it up, and what was written is not lost."""
    done = run_python(
        "-c",
        "import sys, threading, time; from common.errors import command\n"
        "def interrupted(argv):\n"
        "  threading.Thread(target=time.sleep, args=(3600,)).start()\n"
        "  sys.stdout.write('text')\n"
        "  raise KeyboardInterrupt\n"
        "command(interrupted)",
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "text", "")


def test_options_are_read_without_importing_jax_or_numpy():
    done = run_python(
        "-c",
        "import sys; from config.options import parse_options; parse_options(['--batch_size=3']);"
        "print(sorted({'jax', 'numpy', 'tyro'} & set(sys.modules)))",
    )
    assert done.stdout == "[]\n", done.stderr


# --- the experiments in config/ ---------------------------------------------------------------------------


def test_the_baby_gpt_has_nanogpts_hyperparameters():
    assert parse_options([str(ROOT / "config/train_shakespeare_char.py")]) == parse_options(flags(BABY))


def test_the_cpu_run_is_the_baby_gpt_with_the_options_of_nanogpts_readme():
    baby = str(ROOT / "config/train_shakespeare_char.py")
    readme = (
        "--eval_iters=20 --log_interval=1 --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 "
        "--n_embd=128 --max_iters=2000 --lr_decay_iters=2000 --dropout=0.0 --out_dir=out-shakespeare-char-cpu"
    )
    cpu = parse_options([str(ROOT / "config/train_shakespeare_char_cpu.py")])
    expected = parse_options([baby, *readme.split()])
    names = {"wandb_project": cpu.wandb_project, "wandb_run_name": cpu.wandb_run_name}
    assert cpu == replace(expected, **names)
