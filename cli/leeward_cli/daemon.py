"""
`leeward daemon run`: its options in one table, and the daemon that they ask for.

Runs in:   the CLI, which becomes the daemon. Click shows the help and complains, and isn't imported for anything
           else: it would be a third of what a daemon imports.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # see leeward/wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from leeward.daemon.config import Config

DEGRADABLE = ("landlock", "cgroup")
LOG_LEVELS = ("debug", "info", "warning", "error")
TRANSPORTS = ("auto", "uring", "socket")
RESULTS = ("auto", "inline", "memfd")


class Option:
    """
    One option.

    Args:
        name: as it is typed.
        kind: int, str, the words that it may have, or bool: then it takes no value.
        value: what its value is called in help.
        many: it may be given more than once.
        off: of a bool: `--no-name` is there, too.
        parameter: what the program calls it, if not by its name.
    """

    __slots__ = ("help", "kind", "many", "name", "off", "parameter", "value")

    def __init__(self, name: str, kind: type | tuple[str, ...], text: str, value: str = "", many: bool = False,
                 off: bool = False, parameter: str = "") -> None:
        self.name, self.kind, self.help, self.value, self.many, self.off = name, kind, text, value, many, off
        self.parameter = parameter or name[2:].replace("-", "_")


OPTIONS = (
    Option("--pool-size", int, "Workers.  [default: 4]", "N"),
    Option("--socket", str, "Listen here; else LEEWARD_SOCKET, else the default.", "PATH"),
    Option("--config", str, "Read this configuration as well.", "FILE", parameter="config_file"),
    Option("--group", str, "Let this group's members in as well, within their quotas.", "NAME"),
    Option("--allow-degraded", DEGRADABLE, "Go without landlock or cgroup, if it can't be set; may be repeated.",
           "LAYER", many=True),
    Option("--log-level", LOG_LEVELS, "[default: info]"),
    Option("--log-json", bool, "Log JSON objects."),
    Option("--io", TRANSPORTS, "How to talk to the kernel.  [default: auto]"),
    Option("--spares", int, "Processes that a worker holds armed beside the next.  [default: 1]", "N"),
    Option("--express", bool, "Let short jobs go the short way.  [default: do]", off=True),
    Option("--results", RESULTS, "How output reaches a client.  [default: auto]"),
    Option("--rehearse", bool, "Let processes rehearse before they have a job.  [default: do]", off=True),
)
#: Of `daemon start`: become a background process when ready.
READY = Option("--ready-fd", int, "", "N")


def plain(argv: Sequence[str]) -> dict[str, Any] | None:
    """
    The parameters that click would find in *argv*; None where it has something to say: help, or a complaint.
    """
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
    """
    What the files, the environment and these options say together.
    """
    from leeward.daemon.config import load

    overrides = {
        "pool_size": pool_size,
        "group": group,
        "socket": os.path.abspath(socket) if socket else None,
        "allow_degraded": tuple(dict.fromkeys(allow_degraded)) or None,
        **others,
    }
    return load(config_file, {key: value for key, value in overrides.items() if value is not None})


def serve(ready_fd: int | None, options: Mapping[str, Any]) -> int:
    """
    Be the daemon, until told to end; return the exit status.
    """
    from leeward.daemon import early
    from leeward.errors import LeewardError

    config = configuration(**options)

    def ready() -> None:
        if ready_fd is not None:
            from leeward_cli.settle import settle

            settle(ready_fd, config.socket)

    try:
        begun = early.start(early.settings(config))
        from leeward.daemon.main import run  # while a zygote warms up

        run(config, ready, load=lambda: configuration(**options), begun=begun)
    except LeewardError as error:
        from leeward_cli.doctor import complain_of_host

        complain_of_host(error, config.allow_degraded)
        return 1
    return 0
