"""Ctrl-C while a command still imports: it ends at once and quietly. A command imports this before all else.

During JAX's seconds of import a KeyboardInterrupt is a page of traceback, or is swallowed. From `command` of
config/command_line.py on, Ctrl-C raises one again. A file that others import, too, imports this as `__main__`
only.
"""

import os
import signal


def exit_at_once(number, frame):
    os._exit(130)  # as a shell expects after Ctrl-C


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # it may be ignored, as of a background job
    signal.signal(signal.SIGINT, exit_at_once)
