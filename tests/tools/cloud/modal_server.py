"""A stand-in for Modal's servers on this machine, for the real `modal` command and client to talk to.

    async with ModalServer(state_folder, entries) as server:
        status, printed = await server.command([sys.executable, "-m", "modal", "run", "app.py"], cwd=...)

It listens on the loopback only, notes every request, and refuses those it does not know. Images are noted,
not built. A function that is called really runs, by Modal's own container entrypoint in a chroot: it sees the
uploaded files and the Volume at their paths, and for the rest this machine. What it writes to the Volume is
there at once. That needs Linux's user namespaces (`unshare`).
"""

import asyncio
import contextlib
import itertools
import os
import shlex
import shutil
import signal
import sys
from collections import ChainMap, defaultdict
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import psutil
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message_factory import GetMessageClass
from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from grpclib.server import Server
from modal_proto import api_pb2 as pb

from tests.helpers import free_port

RESULT = pb.GenericResult
ENDED = (RESULT.GENERIC_STATUS_SUCCESS, RESULT.GENERIC_STATUS_TERMINATED)  # there is no other attempt
HOST = "run.modal.host"  # of a tunnel: nothing answers there
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


class ModalServer:
    """A server that a `modal` command talks to, with one Volume, `state` / volume, and one Dict.

    A call of Modal's API is answered by the method of its name.
    """

    # These need no more than an empty answer.
    acknowledged = frozenset({f"App{name}" for name in ("Heartbeat", "Publish")})
    acknowledged |= {f"Container{name}" for name in ("Hello", "Heartbeat")}
    acknowledged |= {"ClientHello", "TunnelStop", "VolumeCommit", "VolumeReload"}

    def __init__(self, state: Path, entries: dict, secrets=None):
        self.entries = entries  # of the Dict, as the client pickles them
        self.state, self.secrets = state, secrets or {}
        self.volume = state / "volume"
        self.ids, self.requests = itertools.count(1), []
        self.apps, self.mounts, self.files, self.images = {}, {}, {}, []
        self.secret_values, self.functions, self.calls = {}, {}, {}
        self.logs = defaultdict(asyncio.Queue)
        self.stopped, self.containers, self.running = set(), [], []

    async def __aenter__(self):
        self.grpc, port = Server([self]), free_port()
        await self.grpc.start("127.0.0.1", port)
        self.url = f"http://127.0.0.1:{port}"
        of_state = partial(SimpleHTTPRequestHandler, directory=self.state)  # for downloads from the Volume
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), of_state)
        Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    async def __aexit__(self, *exception):
        if exception != (None, None, None):
            self.stopped |= self.apps.keys()
            for container in self.containers:
                container.kill()
        await asyncio.gather(*self.running)  # a detached App goes on to its end
        self.grpc.close()
        self.http.shutdown()
        self.http.server_close()
        shutil.rmtree(self.state / "containers", ignore_errors=True)

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

    async def command(self, words: list, cwd: Path) -> tuple[int, str]:
        """Run a command that is to talk to this server. Returns its exit status and what it printed."""
        login = {"MODAL_SERVER_URL": self.url, "MODAL_CONFIG_PATH": os.devnull, "COLUMNS": "200"}
        login |= {"MODAL_TOKEN_ID": "ak-test", "MODAL_TOKEN_SECRET": "as-test"}
        client = self.client = await asyncio.create_subprocess_exec(
            *map(str, words),
            cwd=cwd,
            env=os.environ | login,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed, _ = await client.communicate()
        return client.returncode, printed.decode()

    def sent(self, call: str) -> list:
        """The requests of one kind, in order."""
        return [request for name, request in self.requests if name == call]

    def new_id(self, prefix: str) -> str:
        return f"{prefix}-{next(self.ids):06d}"

    # Apps

    async def EnvironmentGetOrCreate(self, r):
        settings = pb.EnvironmentSettings(image_builder_version="2025.06")
        metadata = pb.EnvironmentMetadata(name="main", settings=settings)
        return pb.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=metadata)

    async def AppCreate(self, r):
        app_id = self.new_id("ap")
        self.apps[app_id] = r
        return pb.AppCreateResponse(app_id=app_id)

    async def AppClientDisconnect(self, r):
        if self.apps[r.app_id].app_state != pb.APP_STATE_DETACHED:
            self.stopped.add(r.app_id)
            for container in self.containers:
                if container.call.app_id == r.app_id:
                    await container.stop()
        self.logs[r.app_id].put_nowait(pb.TaskLogsBatch(app_done=True))
        return Empty()

    async def AppGetLogs(self, r):
        batch = pb.TaskLogsBatch()
        while not batch.app_done:
            yield (batch := await self.logs[r.app_id].get())

    # Files and images

    async def MountBatchedCheckExistence(self, r):
        missing = [key for key in r.sha256_hex_hashes if key not in self.files]
        return pb.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing)

    async def MountPutFile(self, r):
        self.files[r.sha256_hex] = r.data
        return pb.MountPutFileResponse(exists=True)

    async def MountGetOrCreate(self, r):
        mount_id = self.new_id("mo")
        self.mounts[mount_id] = r.files
        return pb.MountGetOrCreateResponse(mount_id=mount_id)

    async def ImageGetOrCreate(self, r):
        self.images.append(r.image)
        built = RESULT(status=RESULT.GENERIC_STATUS_SUCCESS)
        return pb.ImageGetOrCreateResponse(image_id=self.new_id("im"), result=built)

    def image_environment(self) -> dict[str, str]:
        """Return the variables that the images set by `ENV`: a launch has one image of its own."""
        lines = [line for image in self.images for line in image.dockerfile_commands]
        words = [word for line in lines if line.startswith("ENV ") for word in shlex.split(line)[1:]]
        return dict(word.split("=", 1) for word in words if "$" not in word)

    # Secrets, the Volume and the Dict

    async def SecretGetOrCreate(self, r):
        if r.deployment_name not in self.secrets:
            raise GRPCError(Status.NOT_FOUND, f"Secret '{r.deployment_name}' not found in environment 'main'")
        secret_id = self.new_id("st")
        self.secret_values[secret_id] = self.secrets[r.deployment_name]
        return pb.SecretGetOrCreateResponse(secret_id=secret_id)

    async def VolumeGetOrCreate(self, r):
        return pb.VolumeGetOrCreateResponse(volume_id="vo-1")

    async def VolumeListFiles(self, r):
        folder = self.volume / r.path.strip("/")
        if not folder.exists():
            raise GRPCError(Status.NOT_FOUND, f"{r.path}: no such file or directory")
        names = sorted(str(path.relative_to(self.volume)) for path in folder.iterdir())
        entries = [pb.FileEntry(path=name, type=pb.FileEntry.DIRECTORY) for name in names]
        yield pb.VolumeListFilesResponse(entries=entries)

    async def VolumeGetFile2(self, r):
        path = self.volume / r.path.strip("/")
        if not path.is_file():
            raise GRPCError(Status.NOT_FOUND, f"{r.path}: no such file")
        size = path.stat().st_size
        url = f"http://127.0.0.1:{self.http.server_port}/{path.relative_to(self.state)}"
        return pb.VolumeGetFile2Response(get_urls=[url], size=size, len=size)

    async def DictGetOrCreate(self, r):
        return pb.DictGetOrCreateResponse(dict_id="di-1")

    async def DictUpdate(self, r):
        (entry,) = r.updates
        created = not (r.if_not_exists and entry.key in self.entries)
        if created:
            self.entries[entry.key] = entry.value
        return pb.DictUpdateResponse(created=created)

    async def DictGet(self, r):
        value = self.entries.get(r.key)
        return pb.DictGetResponse(found=value is not None, value=value)

    # Functions

    async def FunctionPrecreate(self, r):
        metadata = pb.FunctionHandleMetadata(function_name=r.function_name, function_type=r.function_type)
        return pb.FunctionPrecreateResponse(function_id=self.new_id("fu"), handle_metadata=metadata)

    async def FunctionCreate(self, r):
        function_id, made = r.existing_function_id, r.function
        self.functions[function_id] = (r.app_id, made)
        return pb.FunctionCreateResponse(
            function_id=function_id,
            function_data=pb.FunctionData(ranked_functions=[pb.FunctionData.RankedFunction(function=made)]),
            handle_metadata=pb.FunctionHandleMetadata(
                function_name=made.function_name, function_type=made.function_type
            ),
        )

    async def FunctionMap(self, r):
        """A call, of which the client only wants to know the outcome later: one that was spawned."""
        assert r.function_call_invocation_type == pb.FUNCTION_CALL_INVOCATION_TYPE_ASYNC
        call = Call(self, r.function_id, r.pipelined_inputs[0].input)
        self.calls[call.call_id] = call
        self.running.append(asyncio.ensure_future(call.execute()))
        response = pb.FunctionMapResponse(function_call_id=call.call_id)
        response.pipelined_inputs.add(idx=0, input_id=call.input_id)
        return response

    async def FunctionGetOutputs(self, r):
        if r.function_call_id not in self.calls:  # one of a stand-in before this one
            raise GRPCError(Status.NOT_FOUND, f"no call {r.function_call_id}")
        call = self.calls[r.function_call_id]
        try:
            await asyncio.wait_for(call.ended.wait(), max(r.timeout, 0.01))
        except TimeoutError:
            return pb.FunctionGetOutputsResponse(num_unfinished_inputs=1)
        return pb.FunctionGetOutputsResponse(outputs=[call.output])

    # A container makes these calls; the client does not.

    async def FunctionGetInputs(self, r):
        (call,) = [call for call in self.calls.values() if call.function_id == r.function_id]
        response = pb.FunctionGetInputsResponse()
        response.inputs.add(
            input_id=call.input_id,
            input=call.input,
            function_call_id=call.call_id,
            function_call_invocation_type=pb.FUNCTION_CALL_INVOCATION_TYPE_ASYNC,
        )
        call.container.input_given = True
        return response

    async def FunctionPutOutputs(self, r):
        (output,) = r.outputs
        (call,) = [call for call in self.calls.values() if call.input_id == output.input_id]
        call.container.output = call.outcome(output.result, output.data_format)
        return Empty()

    async def TunnelStart(self, r):
        return pb.TunnelStartResponse(host=HOST, port=443)


class Call:
    """One call of a function: attempts, until one has a result or all that are allowed have failed."""

    def __init__(self, server: ModalServer, function_id: str, input):
        self.server, self.function_id, self.input = server, function_id, input
        self.call_id, self.input_id = server.new_id("fc"), server.new_id("in")
        self.app_id, self.function = server.functions[function_id]
        self.output, self.ended = None, asyncio.Event()

    async def execute(self) -> None:
        try:
            for _ in range(1 + self.function.retry_policy.retries):
                output = None
                while output is None and self.app_id not in self.server.stopped:
                    assert len(self.server.containers) < 8, "the containers never come to an end"
                    self.container = Container(self)
                    self.server.containers.append(self.container)
                    await self.container.run()
                    output = self.container.output  # None: it is gone, and another gets the input
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


class Container:
    """One container of a call."""

    def __init__(self, call: Call):
        self.call, self.server, self.task_id = call, call.server, call.server.new_id("ta")
        self.folder = self.server.state / "containers" / self.task_id
        self.input_given, self.output, self.process = False, None, None

    async def run(self) -> None:
        """Start the container. Returns when it is gone."""
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
        ending = asyncio.ensure_future(self.end_with_entrypoint())
        while chunk := await self.process.stdout.read(65536):
            log = pb.TaskLogs(data=chunk.decode(errors="replace"), file_descriptor=pb.FILE_DESCRIPTOR_STDOUT)
            batch = pb.TaskLogsBatch(task_id=self.task_id, items=[log])
            self.server.logs[self.call.app_id].put_nowait(batch)
        await ending
        stopped = self.call.app_id in self.server.stopped
        assert self.output or self.input_given or stopped, "it could not start"

    async def end_with_entrypoint(self) -> None:
        """Wait for Modal's entrypoint to end, and end with it whatever else runs in the container."""
        while self.process.returncode is None:  # wait() would wait for all that hold its pipe
            await asyncio.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

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
        return pb.ContainerArguments(
            task_id=self.task_id,
            function_id=self.call.function_id,
            app_id=self.call.app_id,
            function_def=self.call.function,
        )

    def environment(self, arguments: Path) -> dict[str, str]:
        kept = ("JAX_", "XLA_", "ONEDNN_")
        ours = {name: value for name, value in os.environ.items() if name == "PATH" or name.startswith(kept)}
        theirs = {
            "HOME": "/root",
            "MODAL_IS_REMOTE": "1",
            "MODAL_SERVER_URL": self.server.url,
            "MODAL_CONTAINER_ARGUMENTS_PATH": str(arguments),
        }
        secrets = (self.server.secret_values[secret] for secret in self.call.function.secret_ids)
        return dict(ChainMap(ours, *secrets, theirs, self.server.image_environment()))
