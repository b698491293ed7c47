"""The HTTP server: OpenAI's routes, and who may ask. insight.py has the page's routes."""

import hmac
import time
from pathlib import Path
from typing import Annotated

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from generation.engine import FIRST
from tools.serving.completions import Answer, ChatAnswer, respond
from tools.serving.errors import ApiError, answer_error
from tools.serving.insight import Here, inside
from tools.serving.requests import ChatBody, CompletionBody, check_model
from tools.serving.served import Served

PAGE = Path(__file__).parent / "page"  # files for anybody: they hold nothing of the model
FINISH = 30  # seconds that running requests are given after SIGTERM
IDLE = 75  # seconds from an answer to the next request: clients close idle connections earlier
CONNECTIONS = 900  # 1,024 open files is a usual limit
MAX_BODY = 2**20  # bytes of a request


def make_server(served: Served) -> uvicorn.Server:
    """Make what answers until a signal comes, and then finishes what runs."""

    async def look_after_engine() -> None:
        server.should_exit |= served.worker.error is not None

    settings = uvicorn.Config(
        make_app(served),
        log_level="warning",
        access_log=False,
        server_header=False,
        headers=[("X-Content-Type-Options", "nosniff"), ("X-Frame-Options", "DENY")],
        timeout_graceful_shutdown=FINISH,
        timeout_keep_alive=IDLE,
        limit_concurrency=CONNECTIONS,
        http="h11",
        ws="none",
        callback_notify=look_after_engine,
        timeout_notify=1,
    )
    server = uvicorn.Server(settings)
    return server


def make_app(served: Served) -> FastAPI:
    app = FastAPI(
        title="nanoJAXGPT",
        redoc_url=None,
        max_body_size=MAX_BODY,
        exception_handlers=dict.fromkeys([HTTPException, RequestValidationError, Exception], answer_error),
    )
    app.add_middleware(same_site)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=served.hosts, www_redirect=False)
    app.add_api_route("/health", health)
    key = [Depends(require_key)] if served.api_key else []
    app.include_router(api, dependencies=key)
    app.include_router(inside, dependencies=key)
    app.frontend("/", directory=PAGE, fallback=None)
    app.state.served = served
    return app


# Routes

api = APIRouter()


async def health(served: Here) -> JSONResponse:
    """Whether the server computes; how many requests run, or wait."""
    worker = served.worker
    figures = {"running": len(worker.running), "pending": len(worker.pending), "slots": worker.slots}
    figures["version"] = worker.version
    ready = worker.works and worker.compiled >= FIRST  # for a first answer
    return JSONResponse({"status": worker.status, **figures}, 200 if ready else 503)


@api.get("/v1/models")
async def models(served: Here) -> dict:
    return {"object": "list", "data": [await one_model(served.name, served)]}


@api.get("/v1/models/{name:path}")
async def one_model(name: str, served: Here) -> dict:
    check_model(name, served)
    return {
        "id": served.name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "nanojaxgpt",
        "max_model_len": served.model.config.block_size,  # as vLLM says it
    }


@api.post("/v1/completions")
async def completions(request: Request, served: Here, fields: CompletionBody) -> Response:
    return await respond(request, Answer(served, fields))


@api.post("/v1/chat/completions")
async def chat_completions(request: Request, served: Here, fields: ChatBody) -> Response:
    return await respond(request, ChatAnswer(served, fields))


# Who may ask

Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


async def require_key(served: Here, given: Credentials) -> None:
    """Raise ApiError unless the request has `Authorization: Bearer <key>`."""
    key, expected = given.credentials if given else "", served.api_key or ""
    if not hmac.compare_digest(key.encode(), expected.encode()):
        raise ApiError("the API key is missing or wrong", status=401, code="invalid_api_key")


def same_site(app: ASGIApp) -> ASGIApp:
    """Refuse what a page of another site asks for, by the `Origin` that browsers send.

    Whatever else comes is read as JSON, also the form that `curl -d` says it is.
    """

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = MutableHeaders(scope=scope)
            origin = headers.get("origin")
            if origin is not None and origin.partition("://")[2] != headers.get("host"):
                refused = ApiError("a page of another site may not ask", status=403, code="forbidden")
                return await refused.response()(scope, receive, send)
            headers["content-type"] = "application/json"
        await app(scope, receive, send)

    return checked
