"""Snapshots of a kernel's state: rolled back to, begun with in other sandboxes, and refused by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import leeward
from kit.live_daemon import LiveDaemon


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with LiveDaemon(tmp_path_factory.mktemp("daemon"), "--pool-size", "4") as made:
        yield made


#: State of many kinds, and afterwards the check that it is as it was.
STATE = """
import collections, contextlib, itertools, json, random, re, sqlite3, sys, weakref
numbers = {n: str(n) for n in range(5000)}
def count():
    n = 0
    while True:
        n += 1
        yield n
counter = count()
[next(counter) for _ in range(3)]
db = sqlite3.connect(":memory:")
db.execute("create table t (x)")
db.executemany("insert into t values (?)", [(n,) for n in range(100)])
class Node: pass
node = Node()
node.me = node
ref = weakref.ref(node)
file = open("file", "w+")
file.write("abcdef")
file.flush()
file.seek(3)
try: 1 / 0
except ZeroDivisionError as error: kept = error
"""
CHECK = """
assert "4999" == numbers[4999] and 4 == next(counter) and node is ref()
assert (100, 4950) == db.execute("select count(*), sum(x) from t").fetchone()
assert "def" == file.read() and kept.__traceback__ is not None
import gc, subprocess, threading
gc.collect()
threads = [threading.Thread(target=sum, args=(range(1000),)) for _ in range(10)]
[each.start() for each in threads]
[each.join() for each in threads]
assert "hi" == subprocess.run(["echo", "hi"], capture_output=True, text=True).stdout.strip()
import asyncio
assert 3 == asyncio.run(asyncio.sleep(0, 3))
"fine"
"""


def test_a_kernel_is_rolled_back(box: leeward.Sandbox) -> None:
    """To what it was, with all kinds of state; more than once, and also when it was lost."""
    kernel = box.kernel()
    kernel.execute(STATE)
    snapshot = kernel.snapshot()
    assert "fine" == kernel.execute(CHECK).value.strip("'")
    kernel.execute("numbers.clear(); del node; new = 1")
    for _ in range(2):
        kernel.rollback(snapshot)
        got = kernel.execute(CHECK)
        assert "'fine'" == got.value, got.stderr_text
        assert "NameError" in kernel.execute("new").stderr_text
    kernel.execute("import os; os._exit(1)")
    with pytest.raises(leeward.SessionOver):
        kernel.execute("1")
    kernel.rollback(snapshot.id)
    assert "'fine'" == kernel.execute(CHECK).value
    snapshot.remove()
    with pytest.raises(leeward.SnapshotFailed, match="no snapshot"):
        kernel.rollback(snapshot)
    assert "5" == kernel.execute("next(counter)").value


def test_kernels_of_other_sandboxes_begin_with_it(daemon: LiveDaemon, box: leeward.Sandbox) -> None:
    """Each with a copy of its own; their seeds differ."""
    kernel = box.kernel()
    kernel.execute("import random, os, ssl\nx = [1]\nrandom.seed(1)")
    with kernel.snapshot() as snapshot:
        assert 0 < snapshot.size < 40 << 20
        with leeward.Sandbox(socket=daemon.socket) as other:
            one, two = other.kernel(snapshot=snapshot), other.kernel(snapshot=snapshot)
            one.execute("x.append(2)")
            assert "[1, 2]" == one.execute("x").value
            assert "[1]" == two.execute("x").value
            assert 3 == len({each.execute("random.random(), ssl.RAND_bytes(8)").value for each in (kernel, one, two)})
            assert one.execute("os.getpid()").value == one.execute("import threading; threading.get_native_id()").value
            assert b"out\n" == one.execute("print('out')").stdout
