"""What `config/options.py` promises: nanoGPT's names and defaults, sources in order, one-line errors."""

from config.interrupt import exit_at_once

import json
import runpy
import signal
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import pytest

from config.command_line import Count, command, split_options
from config.options import Options, parse_options, read_options
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
    (folder / "options.json").write_text(json.dumps(started_with.to_json()))
    return str(folder)


def error(*argv):
    """The text of the error that a command line ends in, which is one line."""
    return refusal(parse_options, list(argv))


# --- defaults and sources ---------------------------------------------------------------------------------


def test_defaults_are_nanogpts():
    assert parse_options(flags(NANOGPT_DEFAULTS)) == Options()


def test_defaults_pass_their_own_checks():
    assert Options.from_json(Options().to_json(), origin="defaults") == Options()


def test_config_files_apply_in_order_and_the_command_line_wins_wherever_it_stands(config):
    first = config("batch_size = 1\nn_layer = 1\nn_head = 1\n", "first.py")
    second = config("batch_size = 2\nn_layer = 2\n", "second.py")
    options = parse_options(["--batch_size=3", first, second])
    assert (options.batch_size, options.n_layer, options.n_head) == (3, 2, 1)


def test_a_value_may_follow_its_key_and_the_last_one_wins():
    words = ["--batch_size", "3", "--eval_iters", "-1", "--learning-rate=1", "--batch_size=4"]
    options = parse_options(words)
    assert (options.batch_size, options.eval_iters, options.learning_rate) == (4, -1, 1.0)


@pytest.mark.parametrize(
    "argument, value",
    [
        ("--max_iters=1e5", 100000),
        ("--max_iters=0", 0),
        ("--learning_rate=1", 1.0),
        ("--bias=True", True),
        ("--decay_lr=False", False),
        ("--n_kv_head=4", 4),
        ("--n_kv_head=None", None),
        ("--position=rope", "rope"),
        ("--wandb_run_name=1e5", "1e5"),  # text stays text, whatever it looks like
        ("--profile=2026", "2026"),
        ("--profile=None", None),
        ("--wandb_run_name=a=b", "a=b"),
        ("--wandb_run_name=", ""),
        ("--out_dir=my.py", "my.py"),
    ],
)
def test_values_on_the_command_line(argument, value):
    options = parse_options([argument])
    found = getattr(options, argument[2:].partition("=")[0])
    assert found == value and type(found) is type(value)


def test_values_in_a_config_file_become_the_types_of_their_options(config):
    options = parse_options([config("max_iters = 1e5\nlearning_rate = 1\nn_kv_head = None\nout_dir = 'o'\n")])
    assert (options.max_iters, options.learning_rate, options.n_kv_head) == (100000, 1.0, None)
    assert type(options.max_iters) is int and type(options.learning_rate) is float


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


def test_a_config_file_runs_in_a_namespace_of_its_own(config):
    assert "NameError" in error(config("batch_size = len(DEFAULTS)\n"))
    first, second = config("_size = 3\n", "first.py"), config("batch_size = _size\n", "second.py")
    assert "NameError" in error(first, second)
    assert parse_options([config("def load(argv): return None\nbatch_size = 3\n")]).batch_size == 3
    assert parse_options([]) == Options()


@pytest.mark.parametrize(
    "given, becomes, notices",
    [
        ("device='cuda'", "cuda", 0),
        ("device='gpu'", "cuda", 0),
        ("device='cuda:12'", "cuda", 1),
        ("device='mps'", "cpu", 1),
        ("dtype='bfloat16'", "bfloat16", 0),
        ("dtype='float16'", "bfloat16", 1),
        ("compile=False", None, 1),
        ("backend='gloo'", None, 1),
    ],
)
@pytest.mark.parametrize("in_a_file", [True, False])
def test_what_is_written_for_pytorch_is_translated_with_a_notice(
    given, becomes, notices, in_a_file, config, capsys
):
    name = given.partition("=")[0]
    options = parse_options([config(given) if in_a_file else "--" + given.replace("'", "")])
    assert getattr(options, name, None) == becomes  # None: ignored
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == notices
    assert name in printed.err or not notices


# --- going on with a run ----------------------------------------------------------------------------------


@pytest.mark.parametrize("init_from", ["resume", "auto"])
def test_a_resumed_run_keeps_its_options_below_config_files_and_the_command_line(run, config, init_from):
    path = config("batch_size = 8\nblock_size = 64\n")
    options = parse_options([path, f"--out_dir={run}", f"--init_from={init_from}", "--block_size=65"])
    assert (options.n_embd, options.n_kv_head, options.batch_size, options.block_size) == (32, 2, 8, 65)


def test_a_config_file_can_name_the_run_to_resume(run, config):
    assert parse_options([config(f"out_dir = {run!r}\ninit_from = 'resume'\n")]).n_embd == 32


def test_a_resumed_run_is_where_it_is_found_and_does_not_overwrite(run):
    options = parse_options([f"--out_dir={run}", "--init_from=resume"])
    assert (options.out_dir, options.init_from, options.overwrite) == (run, "resume", False)


def test_a_run_from_scratch_ignores_the_options_of_the_run_before_it(run):
    assert parse_options([f"--out_dir={run}", "--overwrite=True"]) == replace(
        Options(), out_dir=run, overwrite=True
    )


@pytest.mark.parametrize("init_from", ["resume", "auto"])
def test_without_options_json_a_resumed_run_starts_from_the_defaults(tmp_path, init_from):
    options = parse_options([f"--out_dir={tmp_path}", f"--init_from={init_from}"])
    assert options == replace(Options(), out_dir=str(tmp_path), init_from=init_from)


@pytest.mark.parametrize(
    "content, says",
    [
        ('{"n_embd": 32', "options.json"),
        ("[]", "object"),
        ('{"n_embed": 32}', "n_embed is not an option"),
        ('{"n_embd": "32"}', "n_embd is '32', expected an integer"),
        ('{"learning_rate": NaN}', "learning_rate is nan, expected a number"),
    ],
)
def test_a_bad_options_json_is_named(run, content, says):
    path = Path(run, "options.json")
    path.write_text(content)
    text = error(f"--out_dir={run}", "--init_from=resume")
    assert text.startswith(str(path)) and says in text


def test_options_survive_json_and_missing_ones_keep_their_defaults(tmp_path):
    path = tmp_path / "options.json"
    options = replace(Options(), n_kv_head=3, position="rope", learning_rate=1 / 3)
    path.write_text(json.dumps(options.to_json()))
    assert read_options(str(path)) == options
    path.write_text('{"n_layer": 3}')
    assert read_options(str(path)) == replace(Options(), n_layer=3)


def test_any_damage_to_an_options_json_is_one_line(tmp_path):
    path = tmp_path / "options.json"
    path.write_text(json.dumps({"batch_size": 3, "learning_rate": 1e-3, "dataset": "x", "n_kv_head": 2}))
    free = ("an empty object instead", *asdict(Options()))
    said = assert_named(path, lambda: read_options(str(path)), free)
    wrong = {f"batch_size is {what}" for what in NOT_VALUES} - {"batch_size is 2^31"}
    wrong |= {"learning_rate is true", "learning_rate is infinity", "learning_rate is a huge integer"}
    wrong |= {"dataset is a text", "dataset is a long text", "n_kv_head is true"}
    assert wrong <= {what for what, line in said.items() if line is not None}


def test_overwriting_a_run_and_going_on_with_it_contradict_each_other():
    text = error("--overwrite=True", "--init_from=auto")
    assert "overwrite" in text and "init_from" in text


# --- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "typo, nearest",
    [
        *[("batchsize", "batch_size"), ("n_embed", "n_embd"), ("learning-rat", "learning_rate")],
        *[("value_embeddings", "tie_embeddings"), ("cautious_weight_decay", "weight_decay")],  # taken out
    ],
)
def test_a_typo_names_the_nearest_option(typo, nearest, config):
    assert f"did you mean {nearest}?" in error(f"--{typo}=1")
    assert f"did you mean {nearest}?" in error(f"--{typo}")
    path = config(f"{typo.replace('-', '_')} = 1\n")
    text = error(path)
    assert path in text and f"did you mean {nearest}?" in text


@pytest.mark.parametrize(
    "text",
    ["1" * 20_000, "0x" + "f" * 20_000, "[" * 20_000, "-" * 20_000 + "1", "(" * 190, "{[]: 1}", "9" * 30],
)
@pytest.mark.parametrize("form", ["--batch_size={}", "--no_such_{}=1", "{}"])
def test_words_of_any_length_and_depth_are_one_short_line(text, form):
    assert len(error(form.format(text))) < 200


def test_a_name_unlike_any_option_points_to_help():
    assert error("--xyzzy=1") == "--xyzzy is not an option; python train.py --help lists them all"


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("batch_size", "'12'", "an integer"),
        ("batch_size", "[1]", "an integer"),
        ("batch_size", "None", "an integer"),
        ("batch_size", "max", "an integer"),
        ("n_kv_head", "'two'", "an integer, 1 or more (below 2^31), or None"),
        ("learning_rate", "True", "a number"),
        ("learning_rate", "float('nan')", "a number"),
        ("learning_rate", "10 ** 400", "a number"),
        ("bias", "1", "True or False"),
        ("bias", "'True'", "True or False"),
        ("dataset", "5", "a name"),
        ("wandb_project", "None", "a string"),
        ("optimizer", "'adam'", "one of adamw, muon, normuon"),
        ("device", "7", "one of auto, cpu, cuda, tpu"),
    ],
)
def test_a_wrong_type_in_a_config_file_says_what_was_expected(name, value, expected, config):
    path = config(f"{name} = {value}\n")
    text = error(path)
    assert text.startswith(f"{path}: {name} is ") and f"expected {expected}" in text


@pytest.mark.parametrize(
    "argument, text",
    [
        ("--batch_size=abc", "--batch_size is 'abc', expected an integer, 1 or more (below 2^31)"),
        ("--batch_size=1.5", "--batch_size is 1.5, expected an integer, 1 or more (below 2^31)"),
        ("--batch_size=", "--batch_size is '', expected an integer, 1 or more (below 2^31)"),
        ("--learning_rate=1e999", "--learning_rate is inf, expected a number above 0 (at most 3.4e38)"),
        (
            "--warmup_iters=2147483648",
            "--warmup_iters is 2147483648, expected an integer, 0 or more (below 2^31)",
        ),
        ("--seed=4294967296", "--seed is 4294967296, expected an integer from 0 to 4294967295"),
        ("--min_lr=1e39", "--min_lr is 1e+39, expected a number, 0 or more (at most 3.4e38)"),
        ("--bias=yes", "--bias is 'yes', expected True or False"),
        ("--mlp=relu", "--mlp is 'relu', expected one of swiglu, gelu, relu2"),
        ("--init_from=nowhere", "init_from=nowhere: expected one of scratch, resume, auto here"),
    ],
)
def test_a_wrong_type_on_the_command_line_says_what_was_expected(argument, text):
    assert error(argument) == text


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
    ],
)
def test_values_out_of_range_are_refused(outside, at_the_edge, names):
    for name in names.split():
        assert error(f"--{name}={outside}").startswith(f"--{name} is {outside!r}, expected ")
        assert getattr(parse_options([f"--{name}={at_the_edge}"]), name) == at_the_edge


@pytest.mark.parametrize("words", [["--seed"], ["--seed", "--overwrite"], ["--seed", "--n_layer=2"]])
def test_a_key_without_a_value(words):
    assert error(*words) == "--seed needs a value: an integer from 0 to 4294967295"


@pytest.mark.parametrize("words", ["--overwrite --bias false", "--overwrite True --bias=false"])
def test_an_option_that_is_true_or_false_may_stand_alone(words):
    options = parse_options([*words.split(), "--seed=3", "--eval_only"])
    assert (options.overwrite, options.bias, options.eval_only, options.seed) == (True, False, True, 3)


@pytest.mark.parametrize("word", ["shakespeare", "-x", "-x.py", "batch_size=3"])
def test_a_word_that_is_neither_a_config_file_nor_an_option(word):
    assert error(word).startswith(f"{word}: expected a config file")


def test_a_missing_config_file(tmp_path):
    path = str(tmp_path / "nowhere.py")
    assert error(path) == f"{path}: there is no such config file"


@pytest.mark.parametrize(
    "content, line, says",
    [
        ("batch_size = 1\nn_layer = = 2\n", 2, "invalid syntax"),
        ("batch_size = 1\n\nn_layer = 1 // 0\n", 3, "ZeroDivisionError"),
        ("def n():\n    raise ValueError('two\\nlines')\nn_layer = n()\n", 2, "ValueError: two lines"),
        ("import nanojaxgpt_no_such_module\n", 1, "ModuleNotFoundError"),
        ("raise SystemExit(1)\n", 1, "SystemExit"),
        ("raise SystemExit('bye')\n", 1, "SystemExit: bye"),
        ("batch_size = 1\nraise KeyboardInterrupt\n", 2, "KeyboardInterrupt"),
        ("class Mine(BaseException):\n    pass\nraise Mine('own')\n", 3, "Mine: own"),
        ("class Mute(Exception):\n    __str__ = None\nraise Mute\n", 3, "Mute"),
        ("def deep():\n    deep()\ndeep()\n", 2, "RecursionError"),
        ("eval('1 +')\n", 1, "SyntaxError: invalid syntax"),
        ("batch_size = 1\0\n", 1, "null bytes"),
        ("raise ValueError('\\x1b[2J' + 'x' * 20_000)\n", 1, "ValueError: ?[2Jxxx"),
    ],
)
def test_a_config_file_that_does_not_run_is_named_with_its_line(content, line, says, config):
    path = config(content)
    text = error(path)
    assert text.startswith(f"{path}:{line}: ") and says in text and len(text) < 1100


@dataclass(frozen=True)
class Own:
    """Options of a command that also reads train.py's."""

    steps: Count | None = None
    loop: bool = False


def test_a_commands_own_options_are_taken_and_train_pys_are_left():
    words = ["x.py", "--loop", "--n_layer", "2", "--steps", "3", "--bias=True"]
    assert split_options(words, Own) == (Own(3, True), ["x.py", "--n_layer", "2", "--bias=True"])
    assert split_options(["--loop=False", "--no_such"], Own) == (Own(), ["--no_such"])
    for words, says in (
        (["--steps=0"], "--steps is 0, expected an integer, 1 or more (below 2^31), or None"),
        (["--loop=maybe"], "--loop is 'maybe', expected True or False"),
        (["--steps", "--loop"], "--steps needs a value: an integer, 1 or more (below 2^31)"),
    ):
        assert refusal(split_options, words, Own) == says


# --- commands ---------------------------------------------------------------------------------------------


COMMAND = (  # a command that reads options and does nothing with them
    "from config.command_line import command; from config.options import parse_options; "
    "command(parse_options)"
)


INTERRUPTED = """
import os, runpy, signal, sys

script, *moments = sys.argv[1:]


class Interrupt:
    def find_spec(self, name, *rest):
        if name == moment:
            signal.raise_signal(signal.SIGINT)


for moment in moments:
    child = os.fork()
    if child == 0:
        sys.argv = [script, "--help"]
        sys.meta_path.insert(0, Interrupt())
        runpy.run_path(script, run_name="__main__")
    print(moment, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_ctrl_c_during_the_imports_ends_a_command_quietly():
    modules = ["jax", "numpy", "jax.numpy", "runs.checkpoint"]
    done = run_python("-c", INTERRUPTED, "train.py", *modules)
    assert done.stdout.splitlines() == [f"{name} 130" for name in modules] and done.stderr == ""


def test_a_program_that_only_imports_the_reader_of_options_is_interrupted_as_ever():
    """Such as one of Modal's containers, which is told by SIGINT that its machine is taken away."""
    done = run_python(
        "-c",
        "import tools.cloud.supervise, data.prepare, data.dataset, signal\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "inherited, within",
    [(exit_at_once, signal.default_int_handler), (signal.SIG_IGN, signal.SIG_IGN)],
)
def test_a_command_can_be_interrupted_unless_ctrl_c_is_ignored(inherited, within):
    before = signal.signal(signal.SIGINT, inherited)
    try:
        runpy.run_path(str(ROOT / "config" / "interrupt.py"))
        found = []
        command(lambda argv: found.append(signal.getsignal(signal.SIGINT)))
        assert found == [within]
    finally:
        signal.signal(signal.SIGINT, before)


def test_help_lists_every_option_with_its_default_and_meaning():
    done = run_python("-c", COMMAND, "--help")
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
    """As `sample.py --start` may have it: a byte that is not UTF-8 becomes half a character."""
    program = f"from config.command_line import command; command(lambda argv: print({ascii(text)}))"
    done = run_python("-c", program, PYTHONIOENCODING=encoding)
    assert (done.stdout, done.stderr) == ("n?\n", "")


@pytest.mark.parametrize(
    "meanwhile",
    [
        "pass",
        "threading.Thread(target=time.sleep, args=(3600,)).start()",  # what works on holds nothing up
        "sys.stdout.write('text')",  # and what was written is not lost
    ],
)
def test_ctrl_c_ends_a_command_quietly_with_status_130(meanwhile):
    done = run_python(
        "-c",
        "import sys, threading, time; from config.command_line import command\n"
        f"def interrupted(argv):\n  {meanwhile}\n  raise KeyboardInterrupt\n"
        "command(interrupted)",
    )
    assert (done.returncode, done.stderr) == (130, "")
    assert done.stdout == ("text" if "write" in meanwhile else "")


def test_options_are_read_without_importing_jax_or_numpy():
    done = run_python(
        "-c",
        "import sys; from config.options import parse_options; parse_options(['--batch_size=3']);"
        "print(sorted({'jax', 'numpy', 'tyro'} & set(sys.modules)))",
    )
    assert done.stdout == "[]\n", done.stderr


# --- the experiments in config/ ---------------------------------------------------------------------------


def test_the_baby_gpt_has_nanogpts_hyperparameters():
    baby = asdict(parse_options([str(ROOT / "config/train_shakespeare_char.py")]))
    nanogpt = asdict(parse_options(flags(BABY)))
    names = {word.partition("=")[0] for word in NANOGPT_DEFAULTS.split()}
    assert {name: baby[name] for name in names} == {name: nanogpt[name] for name in names}


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
