"""The HTTP application: the routes, who may ask, and how errors are told.

    app = make_app(served)          an ASGI application; app.state.served has all that the routes work with

A route is a line of `API`, or of `INSIDE` in inside.py, for those who have the key, or of `OPEN`. The files
of page/ are served at /, to anybody: they hold nothing of the model.
"""

import hmac
import ipaddress
from pathlib import Path
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tools.serving.completions import chat_completions, completions
from tools.serving.errors import ApiError
from tools.serving.fields import read_fields
from tools.serving.inside import INSIDE
from tools.serving.insight import Desk
from tools.serving.requests import check_ids, check_model, encode, refuse
from tools.serving.served import Served

PAGE = Path(__file__).parent / "page"

# Everything that the page loads is here; it runs no inline script, and nobody may frame it.
CONTENT_SECURITY_POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def make_app(served: Served) -> Starlette:
    keyed = [Middleware(RequireKey, key=served.api_key)] if served.api_key else []
    app = Starlette(
        routes=[
            *OPEN,
            *(
                Route(path, endpoint, methods=[method], middleware=keyed)
                for method, path, endpoint in API + INSIDE
            ),
            Mount("/", StaticFiles(directory=PAGE, html=True, check_dir=False)),
        ],
        middleware=[Middleware(SecurityHeaders), Middleware(KnownHosts, names=served.hosts)],
        exception_handlers={ApiError: api_error, HTTPException: http_error, Exception: unexpected_error},
    )
    app.state.served = served
    app.state.desk = Desk(served)
    return app


# Routes


async def health(request: Request) -> JSONResponse:
    """Say whether the server computes, how many requests have a slot, and how many wait or have one."""
    worker = request.app.state.served.worker
    figures = {"running": len(worker.running), "pending": worker.pending, "slots": worker.slots}
    return JSONResponse({"status": worker.status, **figures}, 200 if worker.serves else 503)


async def models(request: Request) -> JSONResponse:
    return JSONResponse({"object": "list", "data": [describe_model(request.app.state.served)]})


async def one_model(request: Request) -> JSONResponse:
    check_model(request.path_params["name"], request.app.state.served)
    return JSONResponse(describe_model(request.app.state.served))


def describe_model(served: Served) -> dict:
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "nanojaxgpt",
        "max_model_len": served.block_size,  # as vLLM says it
    }


async def tokenize(request: Request) -> JSONResponse:
    """{"prompt": text} to {"tokens": ids, "count", "max_model_len"}, as vLLM's."""
    served = request.app.state.served
    fields = await read_fields(request, served.limits.max_body)
    check_model(fields.text("model"), served)
    text = fields.take("prompt")
    if not isinstance(text, str):
        refuse("prompt", text, "a string")
    fields.finish()
    ids = encode(served, "prompt", text).tolist() if text else []
    return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": served.block_size})


async def detokenize(request: Request) -> JSONResponse:
    """{"tokens": ids} to {"prompt": text}, as vLLM's."""
    served = request.app.state.served
    fields = await read_fields(request, served.limits.max_body)
    check_model(fields.text("model"), served)
    ids = fields.take("tokens")
    if not isinstance(ids, list):
        refuse("tokens", ids, "a list of token ids")
    fields.finish()
    text = served.tokenizer.decode(check_ids(served, "tokens", ids).tolist()) if ids else ""
    return JSONResponse({"prompt": text})


OPEN = [Route("/health", health)]
API = [  # for those who have the key
    ("GET", "/v1/models", models),
    ("GET", "/v1/models/{name:path}", one_model),
    ("POST", "/v1/completions", completions),
    ("POST", "/v1/chat/completions", chat_completions),
    ("POST", "/tokenize", tokenize),
    ("POST", "/detokenize", detokenize),
]


# Errors


async def api_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return error.response()


async def http_error(request: Request, error: Exception) -> JSONResponse:
    """Answer Starlette's own errors: an unknown path, or a method that the path does not take."""
    assert isinstance(error, HTTPException)
    status, detail = error.status_code, error.detail
    headers: dict[str, str] = dict(error.headers or {})
    if status in (404, 405):  # of the page's files, which take every path and method that no route does
        routes = [route for route in request.app.routes if isinstance(route, Route)]
        methods = {name for x in routes if x.path == request.url.path for name in x.methods or ()}
        status, detail = (405, "Method Not Allowed") if methods else (404, "Not Found")
        headers = {"Allow": ", ".join(sorted(methods))} if methods else {}
    message = f"{request.method} {request.url.path[:100]}: {detail}"
    return ApiError(message, status=status, headers=headers).response()


async def unexpected_error(request: Request, error: Exception) -> JSONResponse:
    return ApiError("the server made a mistake; its log says more", status=500, code="internal").response()


# Who may ask


class RequireKey:
    """Answer 401 unless the request has `Authorization: Bearer <key>`."""

    def __init__(self, app: ASGIApp, key: str):
        self.app, self.expected = app, f"bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get("authorization", "").encode("latin-1")
        if hmac.compare_digest(given[:6].lower() + given[6:], self.expected):  # any case of the scheme
            return await self.app(scope, receive, send)
        error = ApiError("the API key is missing or wrong", status=401, code="invalid_api_key")
        await error.response()(scope, receive, send)


class KnownHosts:
    """Answer 403 to a browser that another site's page sent here.

    A site may let its name lead to 127.0.0.1 (DNS rebinding): then `Host` has that name. So `Host` has to be
    localhost, an address, or a name that the server was told. And a page of another site that asks by our
    name says its own in `Origin`.
    """

    def __init__(self, app: ASGIApp, names: frozenset[str]):
        self.app, self.names = app, names | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.knows(host) and (origin is None or origin.partition("://")[2] == host):
            return await self.app(scope, receive, send)
        error = ApiError("this host or origin may not ask: see --allowed_hosts", status=403, code="forbidden")
        await error.response()(scope, receive, send)

    def knows(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return "*" in self.names or name in self.names or is_address(name)


def is_address(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


class SecurityHeaders:
    """Tell browsers to load nothing from elsewhere, and to take an answer for what it says it is."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "no-referrer"
            await send(message)

        await self.app(scope, receive, send_with_headers)
