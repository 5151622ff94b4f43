"""Which ids a daemon run by root gives to its workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leeward.daemon.worker.idmaps import CONTAINER_UID_BASE, STRIDE, WORKER_UID_BASE, claim_number, first_worker_id
from leeward.errors import Unsupported

HOST = "         0          0 4294967295\n"
CONTAINER = "0 100000 65536\n"


@pytest.mark.parametrize(("uids", "gids", "workers", "first"), [
    (HOST, HOST, 1024, WORKER_UID_BASE),
    (CONTAINER, CONTAINER, 4, CONTAINER_UID_BASE),
    (CONTAINER, CONTAINER, 584, CONTAINER_UID_BASE),
    (HOST, CONTAINER, 4, CONTAINER_UID_BASE),
    ("0 1000 1\n1 100000 65536\n", "0 1000 1\n1 100000 65536\n", 4, CONTAINER_UID_BASE),  # Podman's, of a user
])
def test_the_first_free_range_of_ids_is_found(uids: str, gids: str, workers: int, first: int) -> None:
    assert first == first_worker_id((uids, gids), workers)


@pytest.mark.parametrize(("uids", "gids", "workers"), [
    ("0 1000 1\n", "0 1000 1\n", 1),
    (CONTAINER, CONTAINER, 585),  # the next one would be one of systemd's dynamic users
    (CONTAINER, "0 100000 60000\n", 4),
    ("0 100000 60602\n60602 200000 10000\n", CONTAINER, 4),  # in two pieces
])
def test_too_few_ids_are_an_error_with_a_cure(uids: str, gids: str, workers: int) -> None:
    with pytest.raises(Unsupported, match="start leeward as another user than root"):
        first_worker_id((uids, gids), workers)


def test_each_daemon_of_root_has_the_least_number_that_no_other_has(tmp_path: Path) -> None:
    """And with it ids of its own. A number is free again with its descriptor."""
    folder = str(tmp_path / "numbers")
    held = [claim_number(folder) for _ in range(3)]
    os.close(held[1][1])
    again = claim_number(folder)
    blocked = claim_number("/proc/none")

    assert [0, 1, 2, 1] == [number for number, _ in (*held, again)]
    assert WORKER_UID_BASE + STRIDE == first_worker_id((HOST, HOST), STRIDE, 1)
    assert CONTAINER_UID_BASE == first_worker_id((CONTAINER, CONTAINER), 4, 1)
    assert (0, -1) == blocked
    for _, fd in (held[0], held[2], again):
        os.close(fd)
