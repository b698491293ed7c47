"""Runs, a server of one, and its page, for the tests of serving."""

from dataclasses import replace

import jax
import pytest

import export
import train
from config.options import Options
from data.tokenizer import CharTokenizer, from_json
from data.writer import load_tokenizer, write_dataset
from runs.checkpoint import Manifest
from tests.helpers import save_run
from tests.tools.serving.served_run import BLOCK_SIZE, SYMBOLS, TEXT, serving
from training.state import create_state, model_config

TEMPLATE = (
    "{% for m in messages %}{{ m['role'].capitalize() }}: {{ m['content'] + '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
SHAPE = replace(Options(), n_layer=1, n_head=2, n_embd=16, block_size=32, position="rope", device="cpu")


def save_random(folder, tokenizer, seed=1337, **shape):
    """Save a run with random weights, so large that the text depends on the prompt."""
    options = replace(SHAPE, out_dir=str(folder), seed=seed, **shape)
    state = create_state(model_config(options, tokenizer.vocab_size), options)
    state = jax.tree.map(lambda w: 8 * w if w.ndim > 1 else w, state)
    return save_run(folder, state, Manifest(options, tokenizer.vocab_size, tokenizer.description))


@pytest.fixture(scope="session")
def run(tmp_path_factory, tiny):
    """A run that has trained, with several checkpoints. Not to be changed."""
    folder, tokenizer = tmp_path_factory.mktemp("trained"), CharTokenizer(SYMBOLS)
    ids = tokenizer.encode(TEXT)
    write_dataset(folder / "markup", ids[:-300], ids[-300:], tokenizer, "a test")
    options = dict(dataset=folder / "markup", block_size=BLOCK_SIZE, max_iters=20, lr_decay_iters=20)
    train.main(tiny(folder / "run", **options, keep_checkpoints=4))
    return folder / "run"


@pytest.fixture(scope="session")
def server(run):
    """A server of `run`. Not to be changed; test files may have their own."""
    with serving(out_dir=str(run)) as server:
        yield server


@pytest.fixture(scope="session")
def model_file(run, tmp_path_factory):
    """The URL of a file that holds the model of `run`."""
    path = tmp_path_factory.mktemp("pages") / "model.html"
    export.main([f"--out_dir={run}", f"--to={path}", "--format=html"])
    return path.as_uri()


@pytest.fixture
def at(request):
    """The URL of the page: a server's, or for tests of `both` also a file's."""
    if getattr(request, "param", "server") == "file":
        return request.getfixturevalue("model_file")
    return request.getfixturevalue("server")[0] + "/"


@pytest.fixture(scope="session")
def byte_run(tmp_path_factory, tokenizer_json):
    """A run whose tokens are bytes, so that most characters are several, with a chat template."""
    tokenizer = load_tokenizer(str(tokenizer_json))
    uses = tokenizer.description.get("uses", {}) | {"chat_template": TEMPLATE}
    tokenizer = from_json(tokenizer.description | {"uses": uses})
    return save_random(tmp_path_factory.mktemp("runs") / "bytes", tokenizer)


@pytest.fixture(scope="session")
def char_run(tmp_path_factory):
    tokenizer = CharTokenizer("\n :abcdefghijklmnopqrstuvwxyzAUS")
    return save_random(tmp_path_factory.mktemp("runs") / "chars", tokenizer)


@pytest.fixture(scope="module")
def kept_open(browser):
    """A page that stays open: those that open beside it take over its process, at half the CPU time."""
    context = browser.new_context()
    yield context.new_page()
    context.close()


@pytest.fixture
def open_page(browser, kept_open, at):
    """`open_page(view, ...)` opens the page; afterwards it has to have logged nothing but what is `expected`.

    A request to another host, which its policy refuses, is logged as an error. The page has an example to
    begin with, or no text if `empty`. A second page knows nothing of the first, unless it is given the
    first one's `context`.
    """
    contexts, pages, logged = [], [], []

    def open_page(view="write", expected=(), empty=True, at=at, context=None, shows="parameters", **settings):
        if context is None and (pages or settings or at.startswith("file:")):
            context = browser.new_context(**settings)
            contexts.append(context)
        elif context is None:
            context = kept_open.context
            kept_open.goto(f"{at}health")
            kept_open.evaluate("localStorage.clear()")  # of what another test left
        page = context.new_page()
        pages.append(page)
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: logged.append(str(error)))

        def log(message):
            if not any(text in message for text in expected):
                logged.append(message)

        page.on("dialog", lambda dialog: log(dialog.message))
        page.on("console", lambda message: message.type in ("error", "warning") and log(message.text))
        page.goto(view if "://" in view else f"{at}#/{view}")
        page.wait_for_selector(f"header:has-text('{shows}')")
        if empty:
            page.wait_for_selector(".by:has-text('An example')")
            page.get_by_role("button", name="New", exact=True).click()
        return page

    yield open_page
    for opened in (*pages, *contexts):
        opened.close()
    assert logged == []


@pytest.fixture
def page(open_page):
    """The page, without a text."""
    return open_page()
