"""The HTTP application: OpenAI's routes, who may ask, and how errors look. insight.py has the page's routes.

The files of page/ are for anybody: they hold nothing of the model.
"""

import asyncio
import hmac
import ipaddress
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tools.serving.completions import Answer, ChatAnswer, respond
from tools.serving.errors import ApiError
from tools.serving.insight import Here, inside
from tools.serving.requests import (
    ChatBody,
    CompletionBody,
    bad_field,
    check_model,
    read_chat,
    read_completion,
)
from tools.serving.served import Served

PAGE = Path(__file__).parent / "page"
BODY = 60.0  # seconds for a request's body
# Everything that the page loads is here; it runs no inline script, and nobody may frame it.
POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def make_app(served: Served) -> FastAPI:
    app = FastAPI(
        title="nanoJAXGPT",
        docs_url=None,  # these two pages load their scripts from elsewhere
        redoc_url=None,
        exception_handlers={
            error: answer_error for error in (HTTPException, RequestValidationError, Exception)
        },
    )
    app.add_middleware(Guard, served=served)
    app.add_api_route("/health", health)
    key = [Depends(require_key)] if served.api_key else []
    app.include_router(api, dependencies=key)
    app.include_router(inside, dependencies=key)
    app.frontend("/", directory=PAGE, fallback=None)
    app.state.served = served
    return app


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    """Answer any error with OpenAI's error object."""
    match error:
        case ApiError():
            return error.response()
        case RequestValidationError():
            return bad_field(error).response()
        case HTTPException():  # of FastAPI: an unknown path, for example
            message = f"{request.method} {request.url.path[:100]}: {error.detail}"
            return ApiError(message, status=error.status_code, headers=dict(error.headers or {})).response()
    return ApiError("the server made a mistake; its log says more", status=500, code="internal").response()


# Routes

api = APIRouter()


async def health(served: Here) -> JSONResponse:
    """Whether the server computes; how many requests run, and how many run or wait."""
    worker = served.worker
    figures = {"running": len(worker.running), "pending": worker.pending, "slots": worker.slots}
    return JSONResponse({"status": worker.status, **figures}, 200 if worker.serves else 503)


@api.get("/v1/models")
async def models(served: Here) -> dict:
    return {"object": "list", "data": [describe_model(served)]}


@api.get("/v1/models/{name:path}")
async def one_model(name: str, served: Here) -> dict:
    check_model(name, served)
    return describe_model(served)


def describe_model(served: Served) -> dict:
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "nanojaxgpt",
        "max_model_len": served.block_size,  # as vLLM says it
    }


@api.post("/v1/completions")
async def completions(request: Request, served: Here, fields: CompletionBody) -> Response:
    return await respond(request, Answer(served, read_completion(fields, served)))


@api.post("/v1/chat/completions")
async def chat_completions(request: Request, served: Here, fields: ChatBody) -> Response:
    asked = await asyncio.to_thread(read_chat, fields, served)  # it waits for the template
    return await respond(request, ChatAnswer(served, asked))


# Who may ask


Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


async def require_key(served: Here, given: Credentials) -> None:
    """Raise ApiError unless the request has `Authorization: Bearer <key>`."""
    key, expected = given.credentials if given else "", served.api_key or ""
    if not hmac.compare_digest(key.encode(), expected.encode()):
        raise ApiError("the API key is missing or wrong", status=401, code="invalid_api_key")


class Guard:
    """Refuse pages of other sites, and bodies that are too large or slow; set HEADERS.

    A site may let its name lead to 127.0.0.1 (DNS rebinding). So `Host` has to be localhost, an address, or a
    name that the server knows, and `Origin`, where a page of another site has its own, the same.
    """

    def __init__(self, app: ASGIApp, served: Served):
        self.app, self.names, self.most = app, served.hosts | {"localhost"}, served.max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        async def receive_again() -> Message:
            return bodies.pop() if bodies else await receive()

        try:
            self.check_site(headers := MutableHeaders(scope=scope))
            bodies = [await self.read_body(receive)]
        except ApiError as error:
            return await error.response()(scope, receive, send_with_headers)
        headers["content-type"] = "application/json"  # whatever the client says: curl's -d says a form
        await self.app(scope, receive_again, send_with_headers)

    def check_site(self, headers: MutableHeaders) -> None:
        host, origin = headers.get("host", ""), headers.get("origin")
        try:
            name = urlsplit(f"//{host}").hostname or ""
            known = "*" in self.names or name in self.names or bool(ipaddress.ip_address(name))
        except ValueError:
            known = False
        if not known or origin is not None and origin.partition("://")[2] != host:
            message = "this host or origin may not ask: see --allowed_hosts"
            raise ApiError(message, status=403, code="forbidden")

    async def read_body(self, receive: Receive) -> Message:
        body, more = b"", True
        try:
            async with asyncio.timeout(BODY):
                while more:
                    message = await receive()
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > self.most:
                        message = f"the body has more than {self.most} bytes"
                        raise ApiError(message, status=413, code="body_too_large")
        except TimeoutError:
            close = {"Connection": "close"}
            raise ApiError("the request takes too long to come", status=408, headers=close) from None
        return {"type": "http.request", "body": body}
