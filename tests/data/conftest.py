"""What the tests of data sets share: a byte-level tokenizer.json, made by hand."""

import pytest
import tokenizers


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
