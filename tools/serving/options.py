"""The options of serve.py."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from config.command_line import Count, Name, matching
from config.options import ModelOptions

Port = Annotated[int, Field(ge=0, lt=2**16)]
ApiKey = Annotated[str, matching(r"[!-~]{8,}", "8 characters or more of ASCII, no spaces")]
Origins = Annotated[
    str, matching(r"(https?://[\w.:\[\]-]+,?)*", "origins as in https://a.org,http://localhost:3000")
]

LOOPBACK = ["localhost", "127.0.0.1"]


@dataclass(frozen=True)
class ServeOptions(ModelOptions):
    """The options of serve.py. The comment after a field is its text in `--help`."""

    program: ClassVar[str] = "serve.py"
    purpose: ClassVar[str] = "Serve a trained model: OpenAI's API at /v1, and a page in the browser at /."

    beside: Name = ""  # folder of another run to compare, of the same vocabulary; or give --out_dir twice
    follow: bool = False  # serve each new checkpoint of a run that is still training
    host: Name = "127.0.0.1"  # address to listen at; one that others can reach needs an api_key
    port: Port = 8000  # port to listen at; 0: any that is free
    api_key: ApiKey | None = None  # what clients have to send; None: nothing
    allowed_hosts: str = ""  # without an api_key: more names, with commas, that it is called by; *: any
    allow_origins: Origins = ""  # with commas: other sites whose pages may ask
    slots: Count = 16  # requests computed together
    max_waiting: Count = 64  # requests that wait for a slot; others are refused (429)
    max_tokens: Count = 4096  # new tokens that one request may ask for
    block_size: Count = 2048  # with --init_from: the longest context, if the weights allow more
    mesh: Name = "data:1"  # devices per axis of fsdp and tensor, as in tensor:2

    @property
    def hosts(self) -> list[str]:
        """Return the names by which clients may call the server; "*": any."""
        # Another site's name may lead to 127.0.0.1 (DNS rebinding), but its page has no key.
        return ["*"] if self.api_key else LOOPBACK + self.allowed_hosts.lower().replace(",", " ").split()

    @property
    def origins(self) -> list[str]:
        return [origin for origin in self.allow_origins.lower().split(",") if origin]
