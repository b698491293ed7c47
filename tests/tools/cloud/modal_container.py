"""Containers as Modal has them, for the stand-in in modal_server.py: Modal's own entrypoint in a chroot.

A container sees the uploaded files and the Volumes at their paths, and for the rest this machine. What it
writes to a Volume is there at once. Needs Linux's user namespaces (`unshare`).
"""

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from collections import ChainMap
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import psutil
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message_factory import GetMessageClass
from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from grpclib.server import Server
from modal_proto import api_pb2 as pb

RESULT = pb.GenericResult
HOST = "run.modal.host"  # of a tunnel: nothing answers there
ENDED = (RESULT.GENERIC_STATUS_SUCCESS, RESULT.GENERIC_STATUS_TERMINATED)  # there is no other attempt
# Arguments: the container's root, pairs of a path here and one in the container, -- and the command.
ENTER = """set -e; root=$1; shift
for top in /*; do
  if [ -e "$root$top" ]; then continue
  elif [ -L "$top" ]; then cp -a "$top" "$root$top"
  elif [ -d "$top" ]; then mkdir "$root$top"; mount --rbind "$top" "$root$top"
  fi
done
while [ "$1" != -- ]; do mkdir -p "$root$2"; mount --rbind "$1" "$root$2"; shift 2; done; shift
exec chroot "$root" /usr/bin/env -C /root "$@" """


class Disturbance(NamedTuple):
    """An event that befalls a container as soon as `when(its Volume)` is true.

    preempt: SIGINT, and a new container; crash: all of it is gone at once, and a new container; kill: the
    kernel kills the script; cancel: its input is cancelled; ctrl-c: SIGINT to the user's own command.
    """

    what: Literal["preempt", "crash", "kill", "cancel", "ctrl-c"]
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
            if answer is None and method.name not in self.acknowledged:
                raise GRPCError(Status.UNIMPLEMENTED, f"the stand-in for Modal has no {method.name}")
            if method.server_streaming:
                async for response in answer(request):
                    await stream.send_message(response)
            else:
                await stream.send_message(await answer(request) if answer else Response())

        kind = Cardinality.UNARY_STREAM if method.server_streaming else Cardinality.UNARY_UNARY
        return Handler(handle, kind, Request, Response)


class Call:
    """One call of a function: attempts, until one has a result or all that are allowed have failed."""

    def __init__(self, server, function_id: str, call_id: str, input_id: str, input):
        self.server, self.function_id, self.call_id = server, function_id, call_id
        self.input_id, self.input = input_id, input
        self.app_id, self.function = server.functions[function_id]
        self.output, self.ended = None, asyncio.Event()

    async def execute(self) -> None:
        try:
            for _ in range(1 + self.function.retry_policy.retries):
                output = None
                while output is None and self.app_id not in self.server.stopped:
                    assert len(self.server.containers) < 8, "the containers never come to an end"
                    self.server.containers.append(container := Container(self))
                    await container.run()
                    output = container.output  # None: it is gone, and another gets the input
                if output is None or output.result.status in ENDED:
                    break
            self.output = output
        except Exception as error:  # of this stand-in's own: the client must not wait for ever
            self.output = self.outcome(RESULT(status=RESULT.GENERIC_STATUS_FAILURE, exception=repr(error)))
            raise
        finally:
            self.ended.set()

    def outcome(self, result: RESULT, data_format=pb.DATA_FORMAT_UNSPECIFIED) -> pb.FunctionGetOutputsItem:
        return pb.FunctionGetOutputsItem(result=result, input_id=self.input_id, data_format=data_format)


class Container(Service):
    """One container, and the server that it talks to."""

    acknowledged = frozenset(
        {"ContainerHello", "ContainerHeartbeat", "TunnelStop", "VolumeCommit", "VolumeReload"}
    )

    def __init__(self, call: Call):
        super().__init__(requests=[])
        self.call, self.server = call, call.server
        self.app_id, self.task_id = call.app_id, call.server.new_id("ta")
        self.folder = self.server.state / "containers" / self.task_id
        self.input_given, self.output, self.process = False, None, None

    async def run(self) -> None:
        """Start the container, and disturb it if it is its turn. Returns when it is gone."""
        await self.start()
        disturbance = self.server.disturbances.pop(0) if self.server.disturbances else None
        binds = self.files()
        arguments = self.folder / "arguments"
        arguments.write_bytes(self.arguments().SerializeToString())
        self.process = await asyncio.create_subprocess_exec(
            *("unshare", "-rm", "sh", "-c", ENTER, "sh", str(self.folder / "root")),
            *itertools.chain(*binds.items()),
            *("--", sys.executable, "-m", "modal._container_entrypoint"),
            env=self.environment(arguments),
            start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        disturbing = asyncio.ensure_future(self.disturb(disturbance)) if disturbance else None
        ending = asyncio.ensure_future(self.end_with_entrypoint())
        while chunk := await self.process.stdout.read(65536):
            log = pb.TaskLogs(data=chunk.decode(errors="replace"), file_descriptor=pb.FILE_DESCRIPTOR_STDOUT)
            self.server.logs[self.app_id].put_nowait(pb.TaskLogsBatch(task_id=self.task_id, items=[log]))
        await ending
        if disturbing:
            disturbing.cancel()
        self.grpc.close()
        self.server.requests += self.requests
        assert self.output or self.input_given or self.app_id in self.server.stopped, "it could not start"

    async def end_with_entrypoint(self) -> None:
        """Wait for Modal's entrypoint to end, and end with it whatever else runs in the container."""
        while self.process.returncode is None:  # wait() would wait for all that hold its pipe
            await asyncio.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def disturb(self, disturbance: Disturbance) -> None:
        while not disturbance.when(self.server.volume):
            await asyncio.sleep(0.02)
        match disturbance.what:
            case "crash":
                self.kill()
            case "kill":
                (script,) = self.scripts()
                script.kill()
            case "preempt":
                os.kill(self.process.pid, signal.SIGINT)
            case "cancel":  # as Modal's client does when a heartbeat's answer says so
                os.kill(self.process.pid, signal.SIGUSR1)
            case "ctrl-c":
                self.server.client.send_signal(signal.SIGINT)

    def scripts(self) -> list[psutil.Process]:
        """Return what the launcher has started in the container, and runs."""
        return psutil.Process(self.process.pid).children() if self.process.returncode is None else []

    def kill(self) -> None:
        if self.process and self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    async def stop(self) -> None:
        """As when the App is stopped: SIGINT, and time to end."""
        if self.process:
            if self.process.returncode is None and not self.output:
                os.kill(self.process.pid, signal.SIGINT)
            await self.process.wait()

    def files(self) -> dict[str, str]:
        """Write the uploaded files. Returns the folders here to bind, with their paths in the container."""
        function = self.call.function
        for file in itertools.chain(*(self.server.mounts[mount] for mount in function.mount_ids)):
            path = self.folder / "root" / file.filename.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.server.files[file.sha256_hex])
        (mount,) = function.volume_mounts
        # Python may lie below a folder that the uploaded files replace.
        python = {folder: folder for folder in (sys.prefix, sys.base_prefix)}
        return {str(self.server.volume): mount.mount_path} | python

    def arguments(self) -> pb.ContainerArguments:
        function, function_id = self.call.function, self.call.function_id
        handle = self.server.metadata(function, self.app_id, function_id)
        needed = [pb.Object(object_id=each.object_id) for each in function.object_dependencies]
        itself = pb.Object(object_id=function_id, function_handle_metadata=handle)
        layout = pb.AppLayout(function_ids={function.function_name: function_id}, objects=[*needed, itself])
        return pb.ContainerArguments(
            task_id=self.task_id,
            function_id=function_id,
            app_id=self.app_id,
            function_def=function,
            app_layout=layout,
        )

    def environment(self, arguments: Path) -> dict[str, str]:
        kept = ("JAX_", "XLA_", "ONEDNN_")
        ours = {name: value for name, value in os.environ.items() if name == "PATH" or name.startswith(kept)}
        theirs = {
            "HOME": "/root",
            "MODAL_IS_REMOTE": "1",
            "MODAL_SERVER_URL": self.url,
            "MODAL_TASK_ID": self.task_id,
            "MODAL_CLOUD_PROVIDER": "CLOUD_PROVIDER_OCI",
            "MODAL_CONTAINER_ARGUMENTS_PATH": str(arguments),
        }
        secrets = (self.server.secret_values[secret] for secret in self.call.function.secret_ids)
        return dict(ChainMap(ours, *secrets, theirs, self.server.image_environment()))

    async def FunctionGetInputs(self, r):
        item = pb.FunctionGetInputsItem(
            input_id=self.call.input_id,
            input=self.call.input,
            function_call_id=self.call.call_id,
            function_call_invocation_type=pb.FUNCTION_CALL_INVOCATION_TYPE_ASYNC,
        )
        self.input_given = True
        return pb.FunctionGetInputsResponse(inputs=[item])

    async def FunctionPutOutputs(self, r):
        self.output = self.call.outcome(r.outputs[0].result, r.outputs[0].data_format)
        return Empty()

    async def TunnelStart(self, r):
        return pb.TunnelStartResponse(host=HOST, port=443)

    async def TaskResult(self, r):  # it failed before it took the input
        self.output = self.call.outcome(r.result, pb.DATA_FORMAT_PICKLE)
        return Empty()

    def __getattr__(self, name):  # a container asks for these as a client does
        if name in ("VolumeGetOrCreate", "DictGetOrCreate", "DictUpdate", "DictGet", "FunctionGetOutputs"):
            return getattr(self.server, name)
        raise AttributeError(name)
