"""Web endpoints as Modal has them, for the stand-in in modal_server.py: HTTP in front of a container.

The first request starts a container, in which Modal's own entrypoint starts the server of the function. Each
request becomes an input, as the ASGI messages that Modal sends. A container that was asked nothing for IDLE
seconds is sent home: the endpoint scales to zero.
"""

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web
from google.protobuf.empty_pb2 import Empty
from modal._serialization import deserialize_data_format, serialize_data_format
from modal_proto import api_pb2 as pb

from tests.tools.cloud.modal_container import Container

IDLE = 3.0  # seconds


class Exchange:
    """A request, and the messages that answer it."""

    def __init__(self, call_id: str, input_id: str, request: web.Request, body: bytes):
        self.call_id, self.input_id, self.body = call_id, input_id, body
        self.scope = {
            "type": "http",
            "method": request.method,
            "path": request.path,
            "query_string": request.query_string.encode(),
            "headers": [(name.lower(), value) for name, value in request.raw_headers],
            "client": ("192.0.2.1", 1234),
        }
        self.answers: asyncio.Queue[dict | None] = asyncio.Queue()
        self.over = asyncio.Event()


class Endpoint:
    """A function with a URL. It is what `Call` is to a container, for as long as the App runs."""

    def __init__(self, server, function_id: str):
        self.server, self.function_id = server, function_id
        self.app_id, self.function = server.functions[function_id]
        self.container: WebContainer | None = None
        self.exchanges: dict[str, Exchange] = {}

    async def start(self) -> None:
        self.http = web.AppRunner(web.Application())
        self.http.app.add_routes([web.route("*", "/{path:.*}", self.handle)])
        await self.http.setup()
        site = web.TCPSite(self.http, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        if self.container:
            self.container.kill()
        await self.http.cleanup()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        new = self.server.new_id
        exchange = Exchange(new("fc"), new("in"), request, await request.read())
        self.exchanges[exchange.call_id] = exchange
        if self.container and self.container.closing:
            await self.container.gone.wait()  # containers share this machine's ports
        if self.container is None or self.container.gone.is_set():
            self.container = WebContainer(self)
            self.server.containers.append(self.container)
            self.server.running.append(asyncio.ensure_future(self.container.run()))
        self.container.inputs.put_nowait(exchange)
        response = web.StreamResponse()
        while (message := await exchange.answers.get()) is not None:
            if message["type"] == "http.response.start":
                response.set_status(message["status"])
                for name, value in message["headers"]:
                    if name.lower() not in (b"transfer-encoding", b"content-length"):
                        response.headers.add(name.decode(), value.decode())
                await response.prepare(request)
            else:
                await response.write(message["body"])
        if not response.prepared:
            raise web.HTTPBadGateway(text="the container is gone")
        return response


class WebContainer(Container):
    """A container that gets many inputs, each of them a request."""

    def __init__(self, endpoint: Endpoint):
        super().__init__(endpoint, 0, 1, asyncio.Barrier(1))
        self.endpoint, self.inputs = endpoint, asyncio.Queue()
        self.closing, self.gone = False, asyncio.Event()

    async def run(self) -> None:
        self.input_given = True  # by the request that started it
        try:
            await super().run()
        finally:
            self.gone.set()
            for exchange in self.endpoint.exchanges.values():
                exchange.answers.put_nowait(None)

    async def FunctionGetInputs(self, r):
        try:
            exchange = await asyncio.wait_for(self.inputs.get(), IDLE)
        except TimeoutError:
            self.closing = True
            return pb.FunctionGetInputsResponse(inputs=[pb.FunctionGetInputsItem(kill_switch=True)])
        args = serialize_data_format(((exchange.scope,), {}), pb.DATA_FORMAT_PICKLE)
        item = pb.FunctionGetInputsItem(
            input_id=exchange.input_id,
            input=pb.FunctionInput(args=args, data_format=pb.DATA_FORMAT_PICKLE),
            function_call_id=exchange.call_id,
        )
        return pb.FunctionGetInputsResponse(inputs=[item])

    async def FunctionCallGetDataIn(self, r) -> AsyncIterator[pb.DataChunk]:
        exchange = self.endpoint.exchanges[r.function_call_id]
        if r.last_index < 1:
            message = {"type": "http.request", "body": exchange.body, "more_body": False}
            data = serialize_data_format(message, pb.DATA_FORMAT_ASGI)
            yield pb.DataChunk(data_format=pb.DATA_FORMAT_ASGI, data=data, index=1)
        await exchange.over.wait()

    async def FunctionCallPutDataOut(self, r):
        exchange = self.endpoint.exchanges[r.function_call_id]
        for chunk in r.data_chunks:
            exchange.answers.put_nowait(deserialize_data_format(chunk.data, chunk.data_format, None))
        return Empty()

    async def FunctionPutOutputs(self, r):
        for output in r.outputs:
            for exchange in self.endpoint.exchanges.values():
                if exchange.input_id == output.input_id:
                    exchange.over.set()
                    exchange.answers.put_nowait(None)
        return Empty()
