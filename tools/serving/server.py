"""The HTTP server: who may ask, its limits, and the page from the first second on, while a model is loaded.

This imports no JAX, which takes seconds.
"""

import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn
from fastapi.responses import JSONResponse
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from tools.serving.errors import ApiError

PAGE = Path(__file__).parent / "page"  # files for anybody: they hold nothing of the model
FINISH = 30  # seconds that running requests are given after SIGTERM
IDLE = 75  # seconds from an answer to the next request: clients close idle connections earlier
CONNECTIONS = 900  # 1,024 open files is a usual limit


class Server(uvicorn.Server):
    """Answers until a signal comes, and then finishes what runs.

    Until there is a model, `app` is the page alone, and whatever else is asked for is told the status.
    """

    def __init__(self, hosts: list[str], origins: list[str], listener: socket.socket):
        """`hosts` are names by which clients may call it; "*": any. Pages of `origins` may ask."""
        self.address = "http://{}:{}".format(*listener.getsockname())
        self.status = "loading JAX"
        self.stop_work: Callable[[], None] = lambda: None
        self.error: BaseException | None = None  # of the thread that loads and computes
        page = Mount("/", StaticFiles(directory=PAGE, html=True))
        self.app: ASGIApp = Starlette(routes=[page], exception_handlers={HTTPException: self.tell_status})
        ours = same_site(lambda *call: self.app(*call), origins)
        checked = TrustedHostMiddleware(ours, hosts, www_redirect=False)
        settings = uvicorn.Config(
            CORSMiddleware(checked, origins, allow_methods=["GET", "POST"], allow_headers=["*"]),
            log_level="warning",
            access_log=False,
            server_header=False,
            headers=[("X-Content-Type-Options", "nosniff"), ("X-Frame-Options", "DENY")],
            timeout_graceful_shutdown=FINISH,
            timeout_keep_alive=IDLE,
            limit_concurrency=CONNECTIONS,
            http="h11",
            ws="none",
            lifespan="off",
        )
        super().__init__(settings)

    def say(self, status: str) -> None:
        """Tell the page, and the terminal, what the server does."""
        self.status = status
        print(status, flush=True)

    async def tell_status(self, request: Request, error: Exception) -> JSONResponse:
        """Answer for /health, which the page asks, and for any other route that is not there yet."""
        starting = ApiError(f"{self.status}: try again later", status=503, code="unavailable")
        return JSONResponse(starting.body() | {"status": self.status}, 503, starting.headers)


def same_site(app: ASGIApp, origins: list[str]) -> ASGIApp:
    """Refuse what pages of other sites than `origins` ask for, by the `Origin` that browsers send.

    Whatever else comes is read as JSON, also the form that `curl -d` says it is.
    """

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        headers = MutableHeaders(scope=scope)
        origin = headers.get("origin")
        own = origin is None or origin.partition("://")[2] == headers.get("host")
        if not own and origin not in origins:
            refused = ApiError("a page of another site may not ask", status=403, code="forbidden")
            return await refused.response()(scope, receive, send)
        headers["content-type"] = "application/json"
        await app(scope, receive, send)

    return checked
