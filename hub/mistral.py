"""Mistral in Hugging Face's format: `MistralForCausalLM`, Llama with a sliding window (arXiv:2310.06825)."""

from dataclasses import replace
from typing import Any

from hub.family import check_number
from hub.llama import LLAMA, LLAMA_SHAPE
from model import GPTConfig


def read_config(values: dict[str, Any]) -> GPTConfig:
    window = values.get("sliding_window", 4096)  # transformers' default
    if window is not None:
        check_number("sliding_window", window, whole=True)
    return replace(LLAMA.read_config(values | {"sliding_window": None}), window=window)


def write_config(config: GPTConfig) -> dict[str, Any]:
    return LLAMA.write_config(config) | {"sliding_window": config.window}


MISTRAL = replace(
    LLAMA,
    model_type="mistral",
    architecture="MistralForCausalLM",
    read_config=read_config,
    write_config=write_config,
    needs=lambda config: LLAMA_SHAPE | {"window": config.window},
)
