"""States of programs that nobody has thought of: copies show what the original shows, and so does the end of a long chain."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import leeward
from kit.live_daemon import LiveDaemon
from kit.packages import PRELOAD
from kit.random_states import OF_LIBRARY, OF_PACKAGES, differing

pytestmark = pytest.mark.needs("x86-64")

LONG = bool(os.environ.get("LEEWARD_LONG"))
#: Programs, and snapshots of one another. A thousand of each with LEEWARD_LONG=1, some minutes.
PROGRAMS, CHAIN = (1000, 1000) if LONG else (20, 6)

DAEMON = ("--pool-size", "3")


def test_copies_of_random_states_show_the_same(daemon: LiveDaemon) -> None:
    """Over sixty modules of the standard library."""
    assert 60 <= len(OF_LIBRARY)
    assert [] == differing(daemon, OF_LIBRARY, PROGRAMS)


@pytest.mark.needs("preload-packages")
def test_copies_of_random_states_with_packages_show_the_same(tmp_path: Path, shown_packages: Callable[[Path], Path]) -> None:
    """Each program uses some of those that are installed."""
    there = {name: row for name, row in OF_PACKAGES.items()
             if any(PRELOAD.glob(f"lib/python3*/site-packages/{name.partition('.')[0]}"))}
    (tmp_path / "config.toml").write_text(f'pool_size = 3\npython_env = "{shown_packages(PRELOAD)}"\n'
                                          'preload = ["polars"]\n')  # elsewhere its import leaves a thread
    with LiveDaemon(tmp_path, "--config", str(tmp_path / "config.toml")) as daemon, ExitStack() as stack:
        begin = None
        if LONG:
            kernel = stack.enter_context(leeward.Sandbox(socket=daemon.socket, memory="1G")).kernel()
            assert kernel.execute("".join(f"import {name}\n" for name in there)).ok
            begin = stack.enter_context(kernel.snapshot())
        assert [] == differing(daemon, there, PROGRAMS if LONG else 2, begin, memory="1G")


def test_a_chain_of_snapshots_ends_with_the_state_of_its_beginning(daemon: LiveDaemon) -> None:
    """Each is of a kernel that began with the one before, and has done something."""
    with leeward.Sandbox(socket=daemon.socket) as box:
        kernel = box.kernel()
        kernel.execute("import random\nrandom.seed(1)\nx, big = [], {each: str(each) for each in range(20_000)}")
        sizes = []
        for number in range(CHAIN):
            assert kernel.execute(f"x.append({number})\nbig[{number}] = [random.random()]").ok
            with kernel.snapshot() as snapshot:
                sizes.append(snapshot.size)
                after = box.kernel(snapshot=snapshot, same_random=True)
            kernel.close()
            kernel = after
        told = kernel.execute("(x == list(range(len(x))), len(x), len(big),"
                              f" round(sum(big[n][0] for n in range({CHAIN})), 9))").value
        chosen = random.Random(1)
        assert str((True, CHAIN, 20_000, round(sum(chosen.random() for _ in range(CHAIN)), 9))) == told
        assert max(sizes) < 2 * min(sizes)


