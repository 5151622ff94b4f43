"""
`leeward daemon run`: the table of its options, and the start of the daemon.

Runs in:   the CLI, which becomes the daemon. Click prints the help and usage errors, and isn't imported otherwise:
           it would be a third of a daemon's imports.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from leeward.errors import LeewardError
from leeward_cli.options import Option

# Imported in functions: what not every start needs; 219 ms of processor time for all of it.

if TYPE_CHECKING:  # imported in `configuration`, as a step of the start
    from leeward.daemon.config import Config

DEGRADABLE = ("landlock",)
LOG_LEVELS = ("debug", "info", "warning", "error")
TRANSPORTS = ("auto", "uring", "socket")
RESULTS = ("auto", "inline", "memfd")


#: Each option except --config sets the configuration key of the same name.
OPTIONS = (
    Option("--pool-size", "N", "Workers, each of which runs one job at a time.  [default: 4]", kind=int),
    Option("--shards", "N", "Processes that serve fresh jobs, each with a part of the workers.  [default: 1]",
           kind=int),
    Option("--socket", "PATH", "Listen here; else LEEWARD_SOCKET, else the configuration's, else the"
                                " default."),
    Option("--config", "FILE", "Read this configuration as well.", parameter="config_file"),
    Option("--group", "NAME", "Let this group's members in as well, within their quotas."),
    Option("--allow-degraded", "LAYER", "Start even if the kernel lacks this layer: landlock.", many=True,
           kind=DEGRADABLE),
    Option("--log-level", "", "Log events from this level on.  [default: info]", kind=LOG_LEVELS),
    Option("--log-json", "", "Log JSON objects."),
    Option("--io", "", "Use io_uring, or plain socket calls over epoll.  [default: auto]", kind=TRANSPORTS),
    Option("--spares", "N", "Spare processes of each worker, ready in addition to the one for the next job. Each saves"
                            " a job of a burst the wait for a new process, and takes memory.  [default: 1]", kind=int),
    Option("--fresh-layout", "", "Start an interpreter for each job, so that no two share an address layout or a hash"
                                 " seed; each job then costs the start of one.  [default: off]", off=True),
    Option("--fast-path", "", "Handle short jobs in C, in about half the time.  [default: on]", off=True),
    Option("--results", "", "Send output in the answer or by a memory file.  [default: auto]", kind=RESULTS),
    Option("--idle-exit", "S", "End after this many seconds without a request, a job or a session; 0 is never."
                               "  [default: 0]", kind=int),
    Option("--rehearse", "", "Run a small job in each new process before its real one, which then starts faster; making"
                             " the process costs more processor time.  [default: on]", off=True),
)
#: The option by which `daemon start` makes the daemon a background process when it is ready.
READY = Option("--ready-fd", "N", "", kind=int)


def parse_run(argv: Sequence[str]) -> dict[str, Any] | None:
    """The parameters in *argv*, as click parses them; None if click has to print help or a usage error."""
    known = {option.name: option for option in (*OPTIONS, READY)}
    off = {f"--no-{name[2:]}": option for name, option in known.items() if option.off}
    found: dict[str, Any] = {option.parameter: () if option.many else None for option in known.values()}
    words = list(reversed(argv))
    while words:
        name, given, value = words.pop().partition("=")
        option = known.get(name) or off.get(name)
        if option is None or (bool is option.kind and given):
            return None
        if bool is option.kind:
            found[option.parameter] = name in known
            continue
        if not given:
            if not words or words[-1].startswith("-"):
                return None
            value = words.pop()
        if int is option.kind:
            if not (value.isascii() and value.isdigit()):
                return None
            found[option.parameter] = int(value)
        elif isinstance(option.kind, tuple) and value not in option.kind:
            return None
        else:
            found[option.parameter] = (*found[option.parameter], value) if option.many else value
    return found


def configuration(pool_size: int | None, socket: str | None, config_file: str | None, group: str | None,
                  allow_degraded: tuple[str, ...], **others: Any) -> Config:
    """The configuration from files, environment and these options."""
    from leeward.daemon.config_sources import load

    overrides = {
        "pool_size": pool_size,
        "group": group,
        "socket": os.path.abspath(socket) if socket else None,
        "allow_degraded": tuple(dict.fromkeys(allow_degraded)) or None,
        **others,
    }
    return load(config_file, {key: value for key, value in overrides.items() if value is not None})


def serve(ready_fd: int | None, options: Mapping[str, Any]) -> int:
    """Run the daemon until it is stopped. Returns the exit status."""
    from leeward.daemon import memory

    memory.prepare()  # before the next imports
    from leeward.daemon import early

    config = configuration(**options)

    def ready() -> None:
        if ready_fd is not None:
            from leeward_cli.detach import detach

            detach(ready_fd, config.socket)

    try:
        bootstrap = early.start(early.settings(config))
        from leeward.daemon.main import run  # while the zygote warms up

        run(config, ready, load=lambda: configuration(**options), bootstrap=bootstrap)
    except LeewardError as error:
        from leeward_cli.doctor import complain_of_host

        complain_of_host(error, config.allow_degraded)
        return 1
    return 0
