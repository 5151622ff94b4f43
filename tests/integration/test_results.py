"""Results by memory file and inline, by the switch --results."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit.live_daemon import LiveDaemon, open_files
from leeward.client import results
from leeward.client.arena import SEALS, map_arenas
from leeward.daemon.run.report import PLACEMENTS

NAME = "/memfd:leeward_results"
#: More than one that says "auto" sends inline.
MOST_INLINE = PLACEMENTS["inline"].output
MUCH = 4 * PLACEMENTS["auto"].output


@pytest.fixture(scope="module")
def by_memfd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with LiveDaemon(tmp_path_factory.mktemp("memfd"), "--pool-size=1", "--results=memfd") as daemon:
        yield daemon


def mappings() -> int:
    """How many results this process has mapped; each of them read-only."""
    with open("/proc/self/maps") as maps:
        found = [line.split() for line in maps if NAME in line]
    assert all("r--s" == line[1] for line in found), found
    return len(found)


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the memory files that came, each of which is looked at: its name, its seals."""
    seen: list[int] = []

    def look(fds: list[int], announced: list[int]) -> list[memoryview]:
        for fd, size in zip(fds, announced, strict=True):
            assert os.readlink(f"/proc/self/fd/{fd}").startswith(NAME)
            assert SEALS == SEALS & fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            seen.append(size)
        return map_arenas(fds, announced)

    monkeypatch.setattr(results, "map_arenas", look)
    return seen


def test_by_memfd_all_that_is_not_empty_comes_by_descriptor(by_memfd: LiveDaemon, sizes: list[int]):
    with by_memfd.client() as client:
        assert (b"", 0) == (client.execute("pass").stdout, len(sizes))
        assert (b"x\n", 1) == (client.execute("print('x')").stdout, len(sizes))
        got = client.execute("import sys; open('f', 'w').write('y'); sys.stderr.write('z')", collect=["f"])

    assert (b"", b"z", b"y", 3) == (got.stdout, got.stderr, got.files["f"], len(sizes))


def test_inline_as_far_as_there_is_room(tmp_path: Path, sizes: list[int]):
    with LiveDaemon(tmp_path, "--pool-size=1", "--results=inline") as daemon, daemon.client() as client:
        for size, files in ((MUCH, 0), (MOST_INLINE, 0), (MOST_INLINE + 1, 1)):
            code = f"import os\nleft = {size}\nwhile left:\n    left -= os.write(1, bytes(min(left, 1 << 20)))"

            got = client.execute(code, output=2 * MOST_INLINE)

            assert (bytes(size), files) == (got.stdout, len(sizes)), got


def test_the_mapping_lives_as_long_as_the_result(by_memfd: LiveDaemon):
    """Not as the connection, and not longer."""
    def check(result: leeward.Result) -> None:
        assert 1 == mappings()
        assert bytes(MUCH) == result.stdout_view == result.stdout

    code = f"import os; os.write(1, bytes({MUCH}))"
    assert 0 == mappings()
    with by_memfd.client() as client:
        result = client.execute(code)
    check(result)
    view = result.stdout_view
    del result
    gc.collect()
    assert 1 == mappings()  # for the view
    del view
    assert 0 == mappings()

    async def call() -> leeward.Result:
        async with leeward.AsyncClient(str(by_memfd.socket)) as client:
            return await client.execute(code)

    result = asyncio.run(call())
    check(result)
    del result
    gc.collect()
    assert 0 == mappings()


@pytest.mark.needs("compiler")
def test_the_mapping_of_the_c_client_lives_as_long_as_the_result(by_memfd: LiveDaemon, c_build: Path):
    library = ctypes.CDLL(str(c_build / "libleeward.so"))
    for name in ("leeward_connect", "leeward_execute"):
        getattr(library, name).restype = ctypes.c_void_p
    handle = ctypes.c_void_p(library.leeward_connect(os.fsencode(by_memfd.socket)))
    code = b"print('mapped')"

    result = ctypes.c_void_p(library.leeward_execute(handle, code, ctypes.c_size_t(len(code)), None))
    library.leeward_disconnect(handle)

    stdout = ctypes.c_void_p.from_address(result.value + 32)  # type: ignore[operator]  # not NULL
    assert (1, b"mapped\n") == (mappings(), ctypes.string_at(stdout, 7))
    library.leeward_free_result(result)
    assert 0 == mappings()


def test_the_daemon_keeps_no_file_that_it_has_sent(by_memfd: LiveDaemon):
    with by_memfd.client() as client:
        client.execute("print(1)")
        pid = client.status()["pid"]
    assert [] == [link for link in open_files(pid) if NAME in link]
