"""The HTTP server, its options and errors, and the page while a model loads. It imports no JAX."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import h11
import uvicorn
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from common.command_line import Count, Name, matching
from config.options import ModelOptions

PAGE = Path(__file__).parent / "page"  # files for anybody: they hold nothing of the model
FINISH = 25  # seconds that running requests are given after SIGTERM, before they are answered with an error
MAX_BODY = 2**20  # bytes of a request
READ = 30  # seconds for a request to arrive, whose connection is closed if it does not
LOOPBACK = ["localhost", "127.0.0.1"]

Port = Annotated[int, Field(ge=0, lt=2**16)]
ApiKey = Annotated[str, matching(r"[!-~]{8,}", "8 characters or more of ASCII, no spaces")]
Hosts = Annotated[
    str, matching(r"((\*|(\*\.)?[\w.-]+)([ ,]+|$))*", "names as in example.org,*.example.com, or * for any")
]
Origins = Annotated[
    str, matching(r"(https?://[\w.:\[\]-]+,?)*", "origins as in https://a.org,http://localhost:3000")
]


@dataclass(frozen=True)
class ServeOptions(ModelOptions):
    """Serve a trained model: OpenAI's API at /v1, and a page in the browser at /."""

    follow: bool = False  # serve each new checkpoint of a run that is still training
    host: Name = "127.0.0.1"  # address to listen at; one that others can reach needs an api_key
    port: Port = 8000  # port to listen at; 0: any that is free
    api_key: ApiKey | None = None  # what clients have to send; None: nothing
    allowed_hosts: Hosts = ""  # more names, with commas, that it is called by; *: any, as with a key alone
    allow_origins: Origins = ""  # with commas: other sites whose pages may ask
    slots: Count = 16  # requests computed together
    max_waiting: Count = 64  # requests that wait for a slot; others are refused (429)
    max_tokens: Count = 4096  # new tokens that one request may ask for
    block_size: Count = 2048  # with --init_from: the longest context, if the weights allow more
    mesh: Name = "data:1"  # devices per axis of fsdp and tensor, as in tensor:2

    @property
    def hosts(self) -> list[str]:
        """Return the names by which clients may call the server, as *.example.com; "*": any."""
        # Another site's name may lead to 127.0.0.1 (DNS rebinding), but its page has no key.
        named = self.allowed_hosts.lower().replace(",", " ").split()
        return ["*"] if self.api_key and not named else LOOPBACK + named

    @property
    def origins(self) -> list[str]:
        """Return the other sites whose pages may ask."""
        return [origin for origin in self.allow_origins.lower().split(",") if origin]


class TimedProtocol(H11Protocol):
    """Closes a connection unless a whole request is there within READ seconds, or no part of one."""

    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.timer = self.loop.call_later(READ, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        incomplete = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if not incomplete and self.timer:
            self.timer.cancel()
        if not incomplete or self.timer is None:
            self.timer = self.loop.call_later(READ, self.transport.abort) if incomplete else None


class Server(uvicorn.Server):
    """Answers until a signal comes, then finishes what runs. Until there is a model, it has the page."""

    def __init__(self, options: ServeOptions, listener: socket.socket):
        self.address = "http://{}:{}".format(*listener.getsockname())
        self.status = "loading JAX"
        self.give_up: Callable[[], None] = lambda: None
        self.stop_work: Callable[[], None] = lambda: None
        self.error: BaseException | None = None  # of the thread that loads and computes
        page = Mount("/", StaticFiles(directory=PAGE, html=True))
        self.app: ASGIApp = Starlette(routes=[page], exception_handlers={HTTPException: self.tell_status})
        # A page of another site may not send JSON, which all that computes asks for, unless CORS allows it.
        app = CORSMiddleware(
            lambda *call: self.app(*call), options.origins, allow_methods=["GET", "POST"], allow_headers=["*"]
        )
        settings = uvicorn.Config(
            TrustedHostMiddleware(app, options.hosts, www_redirect=False),
            log_level="warning",
            access_log=False,
            server_header=False,
            headers=[("X-Content-Type-Options", "nosniff"), ("X-Frame-Options", "DENY")],
            timeout_graceful_shutdown=FINISH + 5,
            timeout_keep_alive=75,  # seconds; clients close idle connections earlier
            limit_concurrency=900,  # 1,024 open files is a usual limit
            http=TimedProtocol,
            ws="none",
            lifespan="off",
        )
        super().__init__(settings)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(FINISH, self.give_up)
        await super().shutdown(sockets)

    def say(self, status: str) -> None:
        """Tell the page, and the terminal, what the server does."""
        self.status = status
        print(status, flush=True)

    async def tell_status(self, request: Request, error: Exception) -> JSONResponse:
        """Answer for /health, which the page asks, and for any other route that is not there yet."""
        starting = ApiError(f"{self.status}: try again later", status=503, code="unavailable")
        return JSONResponse(starting.body() | {"status": self.status}, 503, starting.headers)


# Errors as clients see them: OpenAI's error object, with an HTTP status

KINDS = {429: "requests", 500: "server_error", 503: "server_error"}  # OpenAI's types, by status


class ApiError(HTTPException):
    """A request that cannot be answered. `param` names the field that is wrong."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None):
        super().__init__(status, message, {"Retry-After": "1"} if status in (429, 503) else None)
        self.param, self.code = param, code

    def body(self) -> dict:
        kind = KINDS.get(self.status_code, "invalid_request_error")
        return {"error": {"message": self.detail, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status_code, self.headers)


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    match error:
        case ApiError():
            return error.response()
        case RequestValidationError():
            return bad_field(error).response()
        case HTTPException():  # of FastAPI: an unknown path; 400: a body that is no text, or too deep
            message = f"{request.method} {request.url.path[:100]}: {error.detail}"
            code = "invalid_json" if error.status_code == 400 else None
            answer = ApiError(message, status=error.status_code, code=code)
            answer.headers = error.headers  # such as Allow
            return answer.response()
    return ApiError("the server made a mistake; its log says more", status=500, code="internal").response()


def bad_field(error: RequestValidationError) -> ApiError:
    """Name the first field that is wrong, and what each alternative of its type expects."""
    errors = error.errors()
    place = errors[0]["loc"][1:]
    if errors[0]["type"] == "json_invalid":
        return ApiError(f"the body is not JSON: {errors[0]['ctx']['error']}", code="invalid_json")
    expected = dict.fromkeys(x["msg"] for x in errors if x["loc"][1:2] == place[:1])
    path = ".".join(map(str, place))[:100].encode(errors="replace").decode()  # half a character is no text
    param = path.split(".")[0] or None
    where = path or "the body, JSON of the Content-Type application/json"
    return ApiError(f"{where}: {' or '.join(expected)}", param, code="invalid_value")
