"""Serve a model: the routes of OpenAI's API, and whose key they need. insight.py has the page's routes."""

import hmac
from typing import Annotated

import jax
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from generation.engine import FIRST
from parallel.machines import choose_device, keep_compiled_programs
from parallel.mesh import make_mesh
from tools.serving.completions import respond
from tools.serving.insight import Here, inside
from tools.serving.requests import ChatBody, CompletionBody, check_model
from tools.serving.served import Served, follow, load_served
from tools.serving.server import MAX_BODY, PAGE, ApiError, ServeOptions, Server, answer_error


def serve(options: ServeOptions, server: Server) -> None:
    """Load the model, have the server answer with it, and look after both. Raises UserError."""
    choose_device(options.device)
    keep_compiled_programs()
    with jax.set_mesh(make_mesh(options.mesh)):
        served = load_served(options, server.say)
        served.worker.thread.start()
        server.app = make_app(served)
        server.give_up, server.stop_work = served.worker.give_up, served.worker.stop
        print(f"serving {served.name} at {server.address}", flush=True)
        if options.follow:
            follow(served, options)
    served.worker.thread.join()
    if served.worker.error:
        raise served.worker.error


def make_app(served: Served) -> FastAPI:
    app = FastAPI(
        title="nanoJAXGPT",
        docs_url=None,  # it would load its code from another host, on the origin that keeps the key
        redoc_url=None,
        max_body_size=MAX_BODY,
        exception_handlers=dict.fromkeys([HTTPException, RequestValidationError, Exception], answer_error),
    )
    app.add_api_route("/health", health)
    for router in (api, inside):
        app.include_router(router, dependencies=[Depends(require_key)] if served.api_key else [])
    app.frontend("/", directory=PAGE, fallback=None)
    app.state.served = served
    return app


api = APIRouter()


async def health(served: Here) -> JSONResponse:
    """Whether the server computes; how many requests run, or wait."""
    worker = served.worker
    told = {"status": worker.status, "version": worker.version, "loaded": served.loaded}
    told |= {"slots": worker.slots, "running": len(worker.running), "pending": len(worker.pending)}
    ready = worker.works and worker.compiled >= FIRST  # it can give a first answer
    return JSONResponse(told, 200 if ready else 503)


@api.get("/metrics")
async def metrics(served: Here) -> Response:
    """Figures for Prometheus."""
    figures = generate_latest(served.worker.figures.registry)
    return Response(figures, headers={"Content-Type": CONTENT_TYPE_LATEST})


@api.get("/v1/models")
async def models(served: Here) -> dict:
    return {"object": "list", "data": [await one_model(served.name, served)]}


@api.get("/v1/models/{name:path}")
async def one_model(name: str, served: Here) -> dict:
    check_model(name, served)
    return {
        "id": served.name,
        "object": "model",
        "created": served.loaded,
        "owned_by": "nanojaxgpt",
        "max_model_len": served.model.config.block_size,  # as vLLM says it
    }


@api.post("/v1/completions")
async def completions(request: Request, served: Here, fields: CompletionBody) -> Response:
    return await respond(request, served, fields)


@api.post("/v1/chat/completions")
async def chat_completions(request: Request, served: Here, fields: ChatBody) -> Response:
    return await respond(request, served, fields)


Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


async def require_key(served: Here, given: Credentials) -> None:
    """Raise ApiError unless the request has `Authorization: Bearer <key>`."""
    key, expected = given.credentials if given else "", served.api_key or ""
    if not hmac.compare_digest(key.encode(), expected.encode()):
        raise ApiError("the API key is missing or wrong", status=401, code="invalid_api_key")
