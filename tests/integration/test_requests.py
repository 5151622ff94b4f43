"""Large requests to a real daemon, by the arena."""

from __future__ import annotations

import asyncio
import hashlib
import os

import leeward
from kit.live_daemon import LiveDaemon, open_files
from kit.waiting import poll_until
from leeward.client.slots import LARGE
from leeward.daemon.serving import inbox

READ = "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"

DAEMON = ("--pool-size=2",)


def arenas(pid: int) -> int:
    """How many the daemon has open."""
    return sum("/memfd:leeward_requests" in link for link in open_files(pid))


def test_a_large_request_arrives_whole(daemon: LiveDaemon):
    """As code, standard input and files; small ones in between go their ways."""
    data = os.urandom(LARGE)
    with daemon.client() as client:
        pid = client.status()["pid"]
        assert 0 == arenas(pid)
        for size in (1, 3, 15, 16):  # the last one is larger than a slot, with all that is around it
            got = client.execute(READ, stdin=data * size)

            assert f"{hashlib.sha256(data * size).hexdigest()}\n" == got.stdout_text
            assert b"1\n" == client.execute("print(1)").stdout
        code = "#" * LARGE + "\nprint('at the end')"
        assert b"at the end\n" == client.execute(code).stdout
        got = client.execute("import os; print(os.path.getsize('a'), os.path.getsize('b'))",
                             files={"a": data, "b": data * 2})
        assert f"{LARGE} {2 * LARGE}\n" == got.stdout_text
        assert 1 == arenas(pid)
    poll_until(lambda: not arenas(pid), "the daemon sees the end of a connection a little later")


def test_many_at_once_over_one_connection(daemon: LiveDaemon):
    """More than an arena has slots."""
    inputs = [os.urandom(1 << 10) * (LARGE >> 10) for _ in range(2 * inbox.SLOTS)]

    async def run() -> list[leeward.Result]:
        async with leeward.AsyncClient(str(daemon.socket)) as client:
            return await asyncio.gather(*(client.execute(READ, stdin=each) for each in inputs))

    assert [hashlib.sha256(each).hexdigest() for each in inputs] == [
        result.stdout_text.strip() for result in asyncio.run(run())]
