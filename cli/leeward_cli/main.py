"""
The `leeward` command: chooses between the fast path and click, and returns the exit status.

That is the job's own, with 124 for its time limit, 137 for its memory limit, 153 for its output limit, 128 + n for
signal n; 1 if the daemon doesn't answer or refuses, 2 for a mistake in the command line.
"""

from __future__ import annotations

import gc
import os
import sys

from leeward_cli.interrupts import die_by
from leeward_cli.messages import FOR_LINUX, complain, complain_of_system, keep_standard_descriptors

# Imported in functions: what not every start needs; 130 ms of processor time for all of it.

TYPE_CHECKING = False  # see leeward/wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Sequence

#: Commands that run without click, as `daemon run` does.
_OWN = ("exec", "ping", "run", "status")


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        return _run(arguments)
    except (ImportError, AttributeError):
        if sys.platform != "linux":
            complain(FOR_LINUX)
            return 1
        raise
    except (OSError, MemoryError) as error:  # a limit of this process, or of the host
        complain_of_system(error)
        return 1


def _run(arguments: Sequence[str] | None) -> int:
    argv = list(sys.argv[1:] if arguments is None else arguments)
    keep_standard_descriptors()
    command = argv[0] if argv else ""
    options = argv[1:argv.index("--")] if "--" in argv else argv[1:]
    asks_help = "--help" in options or "-h" in options
    if argv[:2] == ["daemon", "run"] and not asks_help:
        gc.disable()  # until the daemon is ready: imported objects stay
        return _own("daemon run", argv[2:])
    if command == "agent":
        status = _agent(argv)
        if arguments is None and argv[1:2] == ["start"]:
            _leave(status)
        return status
    if command not in _OWN or asks_help:
        from leeward_cli.full import app

        return app(argv)
    status = _own(command, argv[1:])
    if arguments is None:
        if "leeward.client.over_ssh" in sys.modules:
            from leeward.client import over_ssh

            over_ssh.close()
        # All output was written by write(2); finalizing the interpreter would take 4 ms for nothing.
        os._exit(status)
    return status


def _agent(argv: list[str]) -> int:
    """Run `leeward agent` by click, without the other groups; `agent start` also without the other commands."""
    from leeward_cli.click_options import run_alone

    if argv[1:2] != ["start"]:
        from leeward_cli.agent import agent

        return run_alone(agent, argv)
    gc.disable()  # until an agent is started: imported objects stay
    try:
        from leeward_cli.agent_start_command import alone

        return run_alone(alone, argv)
    finally:
        gc.enable()


def _leave(status: int) -> None:
    """Exit without finalizing the interpreter, which takes 5 ms. Returns if buffered output can't be written."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # the stream was closed at the start
                stream.flush()
    except OSError:
        return
    os._exit(status)


def _own(command: str, argv: list[str]) -> int:
    from leeward.errors import LeewardError
    from leeward_cli.options import USAGE, UsageError

    try:
        if command == "run":
            from leeward_cli.cold import run

            return run(argv)
        if command == "daemon run":
            from leeward_cli.daemon import run as run_daemon

            return run_daemon(argv)
        from leeward_cli.fast import COMMANDS

        return COMMANDS[command](argv)
    except UsageError as error:
        complain(f"{error}")
        complain(f"usage: {USAGE[command]}")
        return 2
    except LeewardError as error:
        if command == "run":
            from leeward_cli.doctor import complain_of_host
            from leeward_cli.options import parse

            complain_of_host(error, parse(command, argv).values("--allow-degraded"))
        else:
            complain(str(error))
        return 1
    except KeyboardInterrupt:
        return die_by("SIGINT")
    except BrokenPipeError:
        return die_by("SIGPIPE")  # `leeward exec ... | head`: the reader has closed the pipe
    except OSError as error:
        complain_of_system(error)
        return 1
