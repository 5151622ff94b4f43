"""`leeward daemon run`: the start of the daemon, and how its process becomes one of the background."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from leeward.errors import LeewardError
from leeward_cli.messages import write
from leeward_cli.options import parse

# Imported in functions: what not every start needs; 219 ms of processor time for all of it.

if TYPE_CHECKING:  # imported in `configuration`, as a step of the start
    from leeward.daemon.config import Config

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


def run(argv: Sequence[str]) -> int:
    """Run the daemon until it is stopped, or print its configuration. Returns the exit status."""
    options = parse("daemon run", argv).parameters()
    ready_fd = options.pop("ready_fd")
    if options.pop("print_config"):
        from leeward.daemon.config_sources import print_config
        from leeward.daemon.descriptors import in_force, limit

        config = configuration(**options)
        write(1, print_config(config).encode())
        allowed = in_force(limit(), workers=config.pool_size, spares=config.spares, asked=config.max_connections,
                           metrics=bool(config.metrics))
        write(1, f"\n# max_connections in force: {allowed}\n".encode())
        return 0
    from leeward.daemon import memory

    memory.prepare()  # before the next imports
    from leeward.daemon import early

    config = configuration(**options)

    def ready() -> None:
        if ready_fd is not None:
            detach(ready_fd, config.socket)

    try:
        bootstrap = early.start(early.settings(config))
        from leeward.daemon import main  # while the zygote warms up

        main.run(config, ready, load=lambda: configuration(**options), bootstrap=bootstrap)
    except LeewardError as error:
        from leeward_cli.doctor import complain_of_host

        complain_of_host(error, config.allow_degraded)
        return 1
    return 0


def log_file(socket: str) -> str:
    """The path of the log of the background daemon of *socket*: beside the socket, in the same private folder."""
    return f"{socket.removesuffix('.sock')}.log"


def detach(ready_fd: int, socket: str) -> None:
    """Redirect the daemon's output to its log, and report that it is ready to the `leeward daemon start` that waits."""
    log = os.open(log_file(socket), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.ftruncate(log, 0)
    for fd in (1, 2):
        os.dup2(log, fd)
    os.close(log)
    os.write(ready_fd, b"+")
    os.close(ready_fd)
