"""The HTTP server, its limits, and the page while a model loads. It imports no JAX, which takes seconds."""

import asyncio
import socket
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import uvicorn
from fastapi.responses import JSONResponse
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from tools.serving.errors import ApiError

PAGE = Path(__file__).parent / "page"  # files for anybody: they hold nothing of the model
FINISH = 25  # seconds that running requests are given after SIGTERM, before they are answered with an error
MAX_BODY = 2**20  # bytes of a request


class Server(uvicorn.Server):
    """Answers until a signal comes, then finishes what runs. Until there is a model, it has the page."""

    def __init__(self, hosts: list[str], origins: list[str], listener: socket.socket):
        """`hosts` are names by which clients may call it, as *.example.com. Pages of `origins` may ask."""
        self.address = "http://{}:{}".format(*listener.getsockname())
        self.status = "loading JAX"
        self.give_up: Callable[[], None] = lambda: None
        self.stop_work: Callable[[], None] = lambda: None
        self.error: BaseException | None = None  # of the thread that loads and computes
        page = Mount("/", StaticFiles(directory=PAGE, html=True))
        self.app: ASGIApp = Starlette(routes=[page], exception_handlers={HTTPException: self.tell_status})
        checked = refusing(lambda *call: self.app(*call), hosts, origins)
        settings = uvicorn.Config(
            CORSMiddleware(checked, origins, allow_methods=["GET", "POST"], allow_headers=["*"]),
            log_level="warning",
            access_log=False,
            server_header=False,
            headers=[("X-Content-Type-Options", "nosniff"), ("X-Frame-Options", "DENY")],
            timeout_graceful_shutdown=FINISH + 5,
            timeout_keep_alive=75,  # seconds; clients close idle connections earlier
            limit_concurrency=900,  # 1,024 open files is a usual limit
            http="h11",
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


def refusing(app: ASGIApp, hosts: list[str], origins: list[str]) -> ASGIApp:
    """Refuse calls by other names than `hosts`, from pages of other sites than `origins`, and large ones."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        headers = MutableHeaders(scope=scope)
        origin, host = headers.get("origin"), headers.get("host", "").partition(":")[0].lower()
        own = origin is None or origin.partition("://")[2] == headers.get("host")
        if not any(fnmatchcase(host, name) for name in hosts):
            refused = ApiError("the server is not called so: see --allowed_hosts", code="invalid_host")
        elif not own and origin not in origins:
            refused = ApiError("a page of another site may not ask", status=403, code="forbidden")
        elif int(headers.get("content-length", 0)) > MAX_BODY:
            refused = ApiError(f"the body is larger than {MAX_BODY:,} bytes", status=413)
        else:
            headers["content-type"] = "application/json"  # also of what `curl -d` calls a form
            return await app(scope, receive, send)
        await refused.response()(scope, receive, send)

    return checked
