"""Both kinds of servers of the stand-in for Modal share this: they note calls and answer some."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from google.protobuf.message_factory import GetMessageClass
from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from grpclib.server import Server
from modal_proto import api_pb2 as pb


class Disturbance(NamedTuple):
    """An event that befalls a container as soon as `when(its Volume)` is true.

    preempt: SIGINT, and a new container; crash: all of it is gone at once, and a new container; timeout: the
    same, but a failed attempt; kill: the kernel kills the script; cancel: its input is cancelled; ctrl-c:
    SIGINT to the user's own command.
    """

    what: Literal["preempt", "crash", "timeout", "kill", "cancel", "ctrl-c"]
    when: Callable[[Path], bool]


class Service:
    """Answers the calls of Modal's API that it has a method for, and notes all of them in `requests`."""

    acknowledged = frozenset()  # calls that need no more than an empty answer

    def __init__(self, requests: list):
        self.requests = requests

    async def start(self) -> None:
        self.grpc = Server([self])
        await self.grpc.start("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.grpc._server.sockets[0].getsockname()[1]}"

    def check(self, metadata) -> None:
        """Raises GRPCError for a caller who may not."""

    def __mapping__(self) -> dict[str, Handler]:
        """Return all calls, each with its handler and the types of its messages, as grpclib asks for them."""
        methods = pb.DESCRIPTOR.services_by_name["ModalClient"].methods
        return {f"/modal.client.ModalClient/{method.name}": self.handler(method) for method in methods}

    def handler(self, method) -> Handler:
        Request, Response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        answer = getattr(self, method.name, None)

        async def handle(stream):
            request = await stream.recv_message()
            self.requests.append((method.name, request))
            self.check(stream.metadata)
            if answer is None and method.name not in self.acknowledged:
                raise GRPCError(Status.UNIMPLEMENTED, f"the stand-in for Modal has no {method.name}")
            if method.server_streaming:
                async for response in answer(request):
                    await stream.send_message(response)
            else:
                await stream.send_message(await answer(request) if answer else Response())

        kind = Cardinality.UNARY_STREAM if method.server_streaming else Cardinality.UNARY_UNARY
        return Handler(handle, kind, Request, Response)
