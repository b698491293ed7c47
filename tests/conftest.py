"""Shared by tests: devices, signals, how they compile, a tiny data set, the command line of a short run.

Functions that tests call by name are in helpers.py.
"""

import atexit
import gc
import os
import shutil
import signal
import tempfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import jax
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, processors

from data import documents
from data.tokenizer import JsonTokenizer, TiktokenTokenizer, end_of_text, from_json
from parallel.machines import wait_for_simulated_devices

pytest.register_assert_rewrite("tests.helpers")  # for a failed `assert` there to show its values

import train  # noqa: E402
from tests.helpers import OLD_LOOPS, flags, kill_started, write_tiny_data  # noqa: E402

# Devices for the tests of meshes; the others take the first. The programs that tests start have one.
jax.config.update("jax_num_cpu_devices", 8)
wait_for_simulated_devices()  # and those of the programs

# A collection walks over all that JAX traced, which is garbage only when `programs_are_freed`. With Python's
# own thresholds the collections took a tenth of the tests' time.
gc.set_threshold(50_000, 20, 100)

# Most of the time goes into compiling tiny models. XLA takes a fifth of it without costly optimisations and
# with its older loops, and still less for programs in one piece; the formulas are the same, the last bits
# perhaps not. What one test compiled, the others and the second worker read from a folder that this run of
# the tests makes and removes. All of it holds for the programs that tests start, too.
IN_ONE_PIECE = "--xla_cpu_parallel_codegen_split_count=1"
QUICK = "jax_disable_most_optimizations"
os.environ["XLA_FLAGS"] += f" {OLD_LOOPS} {IN_ONE_PIECE}"
os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE"  # dtype=auto is float32 on every CPU
if "PYTEST_XDIST_WORKER" in os.environ:
    COMPILED = os.environ["JAX_COMPILATION_CACHE_DIR"]
else:
    COMPILED = tempfile.mkdtemp(prefix="compiled-")
    atexit.register(shutil.rmtree, COMPILED, ignore_errors=True)
for name, value in {
    QUICK: True,
    "jax_compilation_cache_dir": COMPILED,
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}.items():
    jax.config.update(name, value)
    os.environ[name.upper()] = str(value)


# A shell that starts the tests in the background has SIGINT ignored, which programs inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_program_and_no_signal_handler_is_left():
    stops = {signal.SIGTERM, *(getattr(signal, x, signal.SIGTERM) for x in ("SIGHUP", "SIGUSR1"))}  # if there
    before = {number: signal.getsignal(number) for number in stops}
    yield
    kill_started()
    for number, handler in before.items():
        signal.signal(number, handler)


MANY_MAPS = 6_000  # of memory: about a gigabyte of programs


@pytest.fixture(scope="module", autouse=True)
def programs_are_freed():
    """Free all that JAX has compiled once it is much. Modules share programs, as those of jnp's functions.

    A program maps memory, and beyond the kernel's 65,530 maps XLA crashes.
    """
    yield
    maps = Path("/proc/self/maps")
    if not maps.exists() or len(maps.read_text().splitlines()) > MANY_MAPS:
        jax.clear_caches()


@pytest.fixture(autouse=True)
def one_process_is_this_one(monkeypatch):
    """Tokenize documents here where a test asks for one process: to start another takes seconds."""

    def pool(num_proc, context, start, settings):
        if num_proc > 1:
            return ProcessPoolExecutor(num_proc, context, start, settings)
        description, val_fraction = settings
        worker = from_json(description), end_of_text(description), val_fraction
        monkeypatch.setattr(documents, "worker", worker, raising=False)
        return ThreadPoolExecutor(1)

    monkeypatch.setattr(documents, "ProcessPoolExecutor", pool)


@pytest.fixture(scope="module")
def steps_compiled_once():
    """Have runs that train alike share their step: to trace and lower it takes most of a tiny run's time."""
    compile_step, compiled = train.compile_step, {}
    elsewhere = dict(out_dir="", dataset="", init_from="", overwrite=False, max_iters=0, eval_interval=1)
    elsewhere |= dict(eval_iters=1, log_interval=1, keep_checkpoints=1, always_save_checkpoint=True)
    elsewhere |= dict(sampling="random", vocab_size=None)

    def compile_once(state, options):
        key = replace(options, **elsewhere), state.model.config
        if key not in compiled:
            compiled[key] = compile_step(state, options)
        return compiled[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "compile_step", compile_once)
        yield


@pytest.fixture
def jax_is_as_before():
    before = dict(jax.config.values)
    yield
    for name, value in before.items():
        if jax.config.values[name] != value:
            jax.config.update(name, value)


@pytest.fixture
def optimized(monkeypatch):
    """Compile as a user's run does: for tests of what the compiler makes of a program."""
    monkeypatch.delenv(QUICK.upper())
    jax.config.update(QUICK, False)
    jax.clear_caches()
    yield
    jax.config.update(QUICK, True)
    jax.clear_caches()


@pytest.fixture
def saved_figures(monkeypatch):
    """Every matplotlib figure that the test saves to a file, and the bytes of the file."""
    from matplotlib.figure import Figure  # here, because few tests draw

    figures, savefig = [], Figure.savefig

    def save(figure, path, **settings):
        savefig(figure, path, **settings)
        if hasattr(path, "flush"):  # a file
            path.flush()
            path = path.name
        figures.append((figure, Path(path).read_bytes()))

    monkeypatch.setattr(Figure, "savefig", save)
    return figures


@pytest.fixture(scope="module")  # while one is open, asyncio.run refuses
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install -r requirements-dev.txt"
    )
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("no chromium is installed: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def watched_page(browser):
    """`watched_page(site)` opens a page; a request to another host or an error fails the test."""
    page, wrong = browser.new_page(), []

    def watch(site: str):
        known = (site, "data:", "blob:")
        page.on("request", lambda request: request.url.startswith(known) or wrong.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        return page

    yield watch
    page.close()
    assert wrong == []


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory):
    """The folder of a data set: 28 characters, 1,500 of them for training and 300 for validation."""
    folder = tmp_path_factory.mktemp("data") / "tiny"
    write_tiny_data(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tiny_data):
    """`tiny(out_dir, max_iters=5)` is the command line of a run; what is not given is as below."""

    options = {
        "dataset": tiny_data,
        "device": "cpu",
        "mesh": "data:1",
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 16,
        "block_size": 8,
        "unroll": 1,  # compiles fastest
        "batch_size": 4,
        "gradient_accumulation_steps": 1,
        "learning_rate": 1e-2,
        "min_lr": 1e-3,
        "warmup_iters": 2,
        "lr_decay_iters": 40,
        "max_iters": 10,
        "eval_interval": 5,
        "eval_iters": 2,
    }
    return lambda out_dir, **changes: flags({"out_dir": out_dir} | options, **changes)


@pytest.fixture(scope="session")
def tokenizer_json(tmp_path_factory):
    """The path of a tokenizer.json: end-of-text is 0, a token for each byte, and "th", "the" and " the"."""
    symbols = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = ["<|endoftext|>", *symbols, "th", "the", "Ġthe"]
    model = tokenizers.models.BPE(
        {symbol: i for i, symbol in enumerate(vocabulary)}, [("t", "h"), ("th", "e"), ("Ġ", "the")]
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture
def byte_pairs(monkeypatch):
    """The real tiktoken, with an encoding that needs no download: a token per byte, and GPT-2's end."""
    import tiktoken  # here, because few tests need it

    encoding = tiktoken.Encoding(
        "gpt2",
        pat_str=r"\S+|\s+",
        mergeable_ranks={bytes([i]): i for i in range(256)},
        special_tokens={"<|endoftext|>": 50256, "<|other|>": 50257},
    )
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: encoding)
    return TiktokenTokenizer("gpt2")


@pytest.fixture
def sentencepiece():
    """A tokenizer as Llama 2's: <s>, a space, the text, </s>; unknown characters are bytes."""
    special, others = ["<s>", "</s>", "<turn>"], [f"<0x{byte:02X}>" for byte in range(256)]
    names = ["<unk>", *special, *others, "▁", "▁Hi", "H", "i"]
    model = models.Unigram([(name, -1.0 * (name not in special)) for name in names], 0, True)
    library = tokenizers.Tokenizer(model)
    spaces = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    library.normalizer = normalizers.Sequence(spaces)
    strips = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    library.decoder = decoders.Sequence(strips)
    library.add_special_tokens(special)
    named = [("<s>", 1), ("</s>", 2)]
    library.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=named)
    uses = {"eos_token_id": [2, 3], "document_start": 1}
    return JsonTokenizer(library.to_str(), uses=uses)
