"""Find a checkpoint: a folder of this machine, or a model of the Hugging Face hub to download."""

import os
import re
from pathlib import Path

from config.command_line import UserError

OPENAI = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")  # short for openai-community/gpt2, ...
FILES = (  # what is downloaded
    *("config.json", "model.safetensors", "model-*.safetensors", "model.safetensors.index.json"),
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
)


def locate(name: str) -> Path:
    """Find the folder that `--init_from=<name>` means; a folder that exists comes before a model of the hub.

    A model of the hub is downloaded unless it is in the hub's cache. Raises UserError.
    """
    if os.path.isdir(folder := os.path.expanduser(name)):
        return Path(folder)
    if name in OPENAI:
        return download(name, f"openai-community/{name}")
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        return download(name, name)
    raise UserError(
        f"init_from={name}: there is no such folder; expected resume (train.py: or scratch, auto), "
        f"{', '.join(OPENAI)}, a folder, or a model of the Hugging Face hub as in HuggingFaceTB/SmolLM2-135M"
    )


def download(name: str, repository: str) -> Path:
    """Download a model of the hub into the hub's cache, unless it is there. Raises UserError."""
    import huggingface_hub  # here, because a folder needs none of it, and it takes long to import
    from huggingface_hub import errors

    try:
        return Path(huggingface_hub.snapshot_download(repository, allow_patterns=list(FILES)))
    except errors.GatedRepoError:
        why = f"is gated: accept its terms at https://huggingface.co/{repository}, then `hf auth login`"
    except errors.RepositoryNotFoundError:
        why = "is not there, or it is private: check the name, or `hf auth login`"
    except errors.LocalEntryNotFoundError:
        why = "is not on this machine, and there is no network: connect, or give a folder that has it"
    except (errors.HFValidationError, OSError) as error:  # OSError: a full disk, and all answers of the hub
        why = f"cannot be downloaded ({str(error).strip().splitlines()[0][:200]})"
    raise UserError(f"init_from={name}: {repository} on the Hugging Face hub {why}")
