"""Folders as the hub has them: a small model of transformers beside a tokenizer with special tokens.

The tokenizer begins a text with <s>, as Llama's does; its documents end with [END] and its chats' turns with
[TURN], names that nobody could guess.
"""

import json
from pathlib import Path

import tokenizers
import torch
from tokenizers import processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from data.prepare import prepare
from tests.helpers import flags

SPECIAL = ["<s>", "[END]", "[TURN]", "[PAD]"]
START, END, TURN, PAD = range(1, 5)
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}[TURN]{% endfor %}assistant:"


def library_tokenizer(template: str | None = "<s> $A") -> tokenizers.Tokenizer:
    """A byte-level BPE whose post-processor is `template`."""
    symbols = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = ["<unk>", *SPECIAL, *symbols, "th", "the", "Ġthe"]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the")]
    library = tokenizers.Tokenizer(tokenizers.models.BPE({x: i for i, x in enumerate(vocabulary)}, merges))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    library.add_special_tokens(SPECIAL)
    if template:
        named = [(name, i + 1) for i, name in enumerate(SPECIAL)]
        library.post_processor = processors.TemplateProcessing(single=template, special_tokens=named)
    return library


V = library_tokenizer().get_vocab_size()


def save_tokenizer(folder: Path, library: tokenizers.Tokenizer, **config) -> Path:
    """Save a tokenizer with its special tokens and a chat template, as transformers does."""
    named = {"bos_token": "<s>", "eos_token": "[END]", "pad_token": "[PAD]", "chat_template": TEMPLATE}
    PreTrainedTokenizerFast(tokenizer_object=library, **named | config).save_pretrained(folder)
    return folder


def save_llama(folder: Path) -> LlamaForCausalLM:
    """Save a Llama with large random weights beside the tokenizer, and return it."""
    torch.manual_seed(0)
    shape = dict(num_hidden_layers=2, hidden_size=32, intermediate_size=64, vocab_size=V)
    shape |= dict(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    config = LlamaConfig(**shape, eos_token_id=END)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    save_tokenizer(folder, library_tokenizer())
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [END, TURN]}))
    return model


def prepare_texts(folder: Path, tokenizer: Path, texts: list[str]) -> Path:
    """Prepare a data set of these documents below `folder`, and return where it is."""
    source, to = folder / "source.jsonl", folder / "set"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    prepare(flags(dict(source=source, to=to, tokenizer=tokenizer, val_fraction=0.4, num_proc=1)))
    return to
