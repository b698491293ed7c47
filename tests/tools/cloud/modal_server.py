"""A stand-in for Modal's servers on this machine, for the real `modal` command and client to talk to.

    async with ModalServer(state_folder) as server:
        status, printed = await server.command([sys.executable, "-m", "modal", "run", "app.py"], cwd=...)

It listens on the loopback only, notes every request, and refuses those it does not know. Images are noted,
not built. A function that is called really runs: modal_container.py starts Modal's own container entrypoint.
`disturbances` are what may happen to containers, one for each in the order in which they start.
"""

import asyncio
import hashlib
import itertools
import os
import shlex
import shutil
from collections import defaultdict
from pathlib import Path

from aiohttp import web
from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from modal_proto import api_pb2 as pb

from tests.tools.cloud.modal_container import Call, Disturbance, Service

SUCCESS = pb.GenericResult(status=pb.GenericResult.GENERIC_STATUS_SUCCESS)
BUILDER = pb.ImageMetadata(image_builder_version="2025.06")


class ModalServer(Service):
    """A server that a `modal` command talks to, with one Volume, `state` / volume, and one Dict."""

    acknowledged = frozenset({"AppHeartbeat", "AppPublish", "ClientHello"})

    def __init__(self, state: Path, entries: dict, secrets=None, disturbances: tuple[Disturbance, ...] = ()):
        super().__init__(requests=[])
        self.entries = entries  # of the Dict, as the client pickles them
        self.state, self.secrets, self.disturbances = state, secrets or {}, list(disturbances)
        self.volume = state / "volume"
        self.ids = itertools.count(1)
        self.apps, self.mounts, self.files, self.images = {}, {}, {}, []
        self.secret_values, self.functions, self.calls = {}, {}, {}
        self.logs = defaultdict(asyncio.Queue)
        self.stopped, self.containers, self.running = set(), [], []

    async def __aenter__(self):
        await self.start()
        self.http = web.AppRunner(web.Application())  # for downloads from a Volume
        self.http.app.add_routes([web.static("/volume", self.volume)])
        await self.http.setup()
        site = web.TCPSite(self.http, "127.0.0.1", 0)
        await site.start()
        self.http_url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exception):
        if exception != (None, None, None):
            for container in self.containers:
                container.kill()
        await asyncio.gather(*self.running)  # a detached App goes on to its end
        self.grpc.close()
        await self.http.cleanup()
        shutil.rmtree(self.state / "containers", ignore_errors=True)

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
        settings = pb.EnvironmentSettings(image_builder_version=BUILDER.image_builder_version)
        return pb.EnvironmentGetOrCreateResponse(
            environment_id="en-1", metadata=pb.EnvironmentMetadata(name="main", settings=settings)
        )

    async def AppCreate(self, r):
        app_id = self.new_id("ap")
        self.apps[app_id] = r
        return pb.AppCreateResponse(app_id=app_id, app_page_url=self.url, app_logs_url=self.url)

    async def AppClientDisconnect(self, r):
        if self.apps[r.app_id].app_state != pb.APP_STATE_DETACHED:
            self.stopped.add(r.app_id)
            for container in self.containers:
                if container.app_id == r.app_id:
                    await container.stop()
        self.logs[r.app_id].put_nowait(pb.TaskLogsBatch(app_done=True))
        return Empty()

    async def AppGetLogs(self, r):
        while True:
            batch = await self.logs[r.app_id].get()
            yield batch
            if batch.app_done:
                return

    # Files and images

    async def MountBatchedCheckExistence(self, r):
        missing = [key for key in r.sha256_hex_hashes if key not in self.files]
        return pb.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing)

    async def MountPutFile(self, r):
        if r.data or r.sha256_hex == hashlib.sha256(b"").hexdigest():
            self.files[r.sha256_hex] = r.data
        return pb.MountPutFileResponse(exists=r.sha256_hex in self.files)

    async def MountGetOrCreate(self, r):
        mount_id = self.new_id("mo")
        self.mounts[mount_id] = r.files
        return pb.MountGetOrCreateResponse(mount_id=mount_id)

    async def ImageGetOrCreate(self, r):
        self.images.append(r.image)
        return pb.ImageGetOrCreateResponse(image_id=self.new_id("im"), result=SUCCESS, metadata=BUILDER)

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
        version = pb.VOLUME_FS_VERSION_V1
        metadata = pb.VolumeMetadata(name=r.deployment_name, version=version)
        return pb.VolumeGetOrCreateResponse(volume_id="vo-1", version=version, metadata=metadata)

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
        urls = [f"{self.http_url}/{path.relative_to(self.state)}"] * bool(size)
        return pb.VolumeGetFile2Response(get_urls=urls, size=size, len=size)

    async def DictGetOrCreate(self, r):
        metadata = pb.DictMetadata(name=r.deployment_name)
        return pb.DictGetOrCreateResponse(dict_id="di-1", metadata=metadata)

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

    def metadata(self, function, app_id: str, function_id: str):
        return pb.FunctionHandleMetadata(
            function_name=function.function_name,
            function_type=function.function_type,
            app_id=app_id,
            definition_id="de-1",
            supported_input_formats=function.supported_input_formats,
            supported_output_formats=function.supported_output_formats,
        )

    async def FunctionPrecreate(self, r):
        function_id = self.new_id("fu")
        return pb.FunctionPrecreateResponse(
            function_id=function_id, handle_metadata=self.metadata(r, r.app_id, function_id)
        )

    async def FunctionCreate(self, r):
        self.functions[r.existing_function_id] = (r.app_id, r.function)
        only = pb.FunctionData.RankedFunction(function=r.function)
        return pb.FunctionCreateResponse(
            function_id=r.existing_function_id,
            function=r.function,
            function_data=pb.FunctionData(ranked_functions=[only]),
            handle_metadata=self.metadata(r.function, r.app_id, r.existing_function_id),
        )

    async def FunctionMap(self, r):
        """A call, of which the client only wants to know the outcome later: one that was spawned."""
        assert r.function_call_invocation_type == pb.FUNCTION_CALL_INVOCATION_TYPE_ASYNC
        call = Call(self, r.function_id, self.new_id("fc"), self.new_id("in"), r.pipelined_inputs[0].input)
        self.calls[call.call_id] = call
        self.running.append(asyncio.ensure_future(call.execute()))
        return pb.FunctionMapResponse(
            function_call_id=call.call_id,
            function_call_jwt=call.call_id,
            pipelined_inputs=[pb.FunctionPutInputsResponseItem(idx=0, input_id=call.input_id)],
        )

    async def FunctionGetOutputs(self, r):
        if r.function_call_id not in self.calls:  # one of a stand-in before this one
            raise GRPCError(Status.NOT_FOUND, f"no call {r.function_call_id}")
        call = self.calls[r.function_call_id]
        try:
            await asyncio.wait_for(call.ended.wait(), max(r.timeout, 0.01))
        except TimeoutError:
            return pb.FunctionGetOutputsResponse(num_unfinished_inputs=1)
        return pb.FunctionGetOutputsResponse(outputs=[call.output])
