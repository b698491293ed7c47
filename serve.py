"""Serve a trained model: OpenAI's API at /v1, and a page in the browser at /.

python serve.py --out_dir=out-quickstart            every option: python serve.py --help
curl http://127.0.0.1:8000/v1/completions --json '{"prompt": "def ", "max_tokens": 64}'
"""

import os
import signal
import socket
import threading

from common.command_line import given, refuse_unused
from common.errors import UserError, command
from tools.serving.server import LOOPBACK, ServeOptions, Server


def main(argv: list[str]) -> None:
    values = given(argv, ServeOptions)
    options = ServeOptions(**values)
    if options.init_from == "resume":
        refuse_unused(values, ["block_size"], f": the run in {options.out_dir} has its own")
    if options.follow and (options.init_from, options.checkpoint) != ("resume", "last"):
        raise UserError(
            "--follow=True serves a run's last checkpoint: leave out --init_from and --checkpoint"
        )
    with listen(options) as listener:
        server = Server(options, listener)
        print(f"starting at {server.address}", flush=True)

        def work() -> None:
            try:
                from tools.serving.app import serve  # here, because it imports JAX, which takes seconds

                serve(options, server)
            except BaseException as error:
                server.error, server.should_exit = error, True

        threading.Thread(target=work, daemon=True).start()
        # Uvicorn finishes what runs, restores this, and raises the signal again.
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        try:
            server.run([listener])
        finally:
            server.stop_work()
    if server.error:
        raise server.error
    os._exit(0)  # a thread that still loads or compiles would delay the exit, or crash while Python ends


def listen(options: ServeOptions) -> socket.socket:
    """Open the port before anything is loaded. Raises UserError, also if others could ask without a key."""
    if options.host not in LOOPBACK and options.api_key is None:
        raise UserError(f"--host={options.host} lets other machines ask: give an --api_key, for them to send")
    try:
        return socket.create_server((options.host, options.port))
    except (OSError, TypeError) as error:  # TypeError: no name of a host
        why = getattr(error, "strerror", None) or error
        raise UserError(f"--host={options.host} --port={options.port}: {why}") from None


if __name__ == "__main__":
    command(main)
