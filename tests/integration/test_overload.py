"""
A connection that floods a daemon with jobs: most are refused, at once and without Python, and other connections have
theirs run. test_fair_shares.py has the same of other users.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

import leeward
from kit import reactors
from kit.flood import Flood
from kit.live_daemon import LiveDaemon
from kit.waiting import poll_until

#: Fewer than the fast path refuses in one turn: Python has none of these requests as long as it refuses them. And two
#: workers take longer for these than a job may wait.
AHEAD = 50


@pytest.fixture(params=reactors.WAYS)
def daemon(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[LiveDaemon]:
    with LiveDaemon(tmp_path_factory.mktemp("daemon"), "--pool-size", "2", *reactors.OPTIONS[request.param]) as made:
        yield made


def test_c311_a_flood_of_jobs_has_no_other_connections_refused(daemon: LiveDaemon) -> None:
    """Each call of one that sends the next when it has the answer is answered; the flood gets what is left."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(daemon.socket))
    with Flood(sock, AHEAD) as flood, leeward.Client(daemon.socket, retry_busy=False) as other:
        poll_until(lambda: flood.answers["busy"] > 2000, "the fast path refuses by itself")
        refused, done = flood.answers["busy"], flood.answers["finished"]
        for at in range(20):
            assert f"{at}\n".encode() == other.execute(f"print({at})").stdout
        assert flood.answers["busy"] > refused
        poll_until(lambda: flood.answers["finished"] > done + 100, "what is left is the flood's")

    assert {"busy", "finished"} == set(flood.answers)
    with leeward.Client(daemon.socket) as client:
        counts = client.status()["jobs"]
    assert (flood.answers["busy"], flood.answers["finished"] + 20) == (counts["refused"], counts["done"])
