"""The latency that a large pool and many idle connections add to a call."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator, Sequence

from bench.figures.row import FigureSettings, Row, compared, in_turn
from leeward.client.blocking import Client
from leeward.client.connecting import connect
from leeward_cli.bench.ours import armed, daemon, fresh

_WORKERS, _CONNECTIONS = 256, 1000
#: Descriptors beside the connections.
_OTHERS = 200


def measure(settings: FigureSettings) -> Sequence[Row]:
    with contextlib.ExitStack() as stack:
        few = stack.enter_context(daemon(None))
        many = stack.enter_context(daemon(None, f"--pool-size={_WORKERS}"))
        armed(few, 4)
        armed(many, _WORKERS)
        stack.enter_context(idle(many, _CONNECTIONS))
        alone = fresh(stack.enter_context(Client(few)), "4 workers, 1 connection")
        crowd = fresh(stack.enter_context(Client(many)), f"{_WORKERS} workers, {_CONNECTIONS} idle connections")
        found = in_turn([alone, crowd], settings.rounds, 20)
    return [compared(f"latency with {_WORKERS} workers and {_CONNECTIONS} idle connections over that with 4 and 1",
                     found, crowd.name, alone.name, 1.2)]


@contextlib.contextmanager
def idle(path: str, count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHERS
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            sock = connect(path)
            assert sock is not None
            stack.callback(sock.close)
        with Client(path) as client:
            client.ping()  # the others were accepted before it
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
