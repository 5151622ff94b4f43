"""The zygote's memory is a file's: jobs find in it what they would find otherwise, and no way to write it."""

from __future__ import annotations

import json

import pytest

from integration.test_begin_early import hurried  # noqa: F401  # a fixture
from integration.test_rehearsal import state_in
from kit.box import Box, begins_with

pytestmark = [pytest.mark.needs("user-namespaces"), pytest.mark.usefixtures("hurried")]

OFF = "from leeward.crossing import snapshot\nsnapshot.TAKE = False\n"
SMALL = "from leeward.crossing import snapshot\nsnapshot.HUGE = False\n"
#: There is no memory file that can hold it.
NO_FILE = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
#: The page map is nobody's to read.
NO_PAGE_MAP = """
import builtins
usual = builtins.open
def refuse(path, *rest, **options):
    if "/proc/self/pagemap" == path:
        raise PermissionError(13, "Permission denied", path)
    return usual(path, *rest, **options)
builtins.open = refuse
"""

MAPS = """
import json
print(json.dumps([line.strip().split(maxsplit=5) for line in open("/proc/self/maps")]))
"""

#: More memory of each kind than the zygote had: what follows the snapshot in the file isn't found, nor its end.
GROW = """
names = [f"name {number}" for number in range(200_000)]
large = bytearray(b"x") * (1 << 20)
large += large * 40
table = dict.fromkeys(names)
print(len(set(names)), len(large), len(table), {0, 120} >= set(large))
del names, table, large
print(sum(map(len, (bytes(size) for size in range(0, 400_000, 1000)))), any(any(bytes(9000)) for _ in range(400)))
"""


def mappings(beginning: str = "") -> list[list[str]]:
    with begins_with(beginning), Box() as box:
        return list(json.loads(box.run(MAPS).stdout))


def test_memory_that_the_zygote_has_written_is_a_files() -> None:
    found, other = mappings(), mappings(OFF)

    assert any("leeward_zygote" in line[-1] for line in found)
    assert not any("leeward_zygote" in line[-1] for line in other)  # control
    assert len(found) + 10 < len(other)


def test_where_no_file_can_hold_it_nothing_changes_and_the_log_says_so() -> None:
    with begins_with(NO_FILE), Box() as box:
        assert b"leeward_zygote" not in box.run(MAPS).stdout
        assert ["clones copy all of its page tables: no memory file can hold what it has written"] == [
            row["text"] for row in box.log.of("zygote says")]
        assert "none: no memory file can hold what it has written" == box.engine.status()["snapshot"]
    with Box() as box:
        assert "taken" == box.engine.status()["snapshot"]
        assert b"leeward_zygote" in box.run(MAPS).stdout
        assert [] == box.log.of("zygote says")  # control


def test_the_status_of_one_that_is_not_wanted_has_no_reason() -> None:
    with Box(rehearse=False) as box:
        assert b"leeward_zygote" not in box.run(MAPS).stdout
        assert "off" == box.engine.status()["snapshot"]
    with begins_with(OFF), Box() as box:
        assert "off" == box.engine.status()["snapshot"]


def test_where_the_page_map_cannot_be_read_the_status_says_so() -> None:
    with begins_with(NO_PAGE_MAP), Box() as box:
        assert b"leeward_zygote" not in box.run(MAPS).stdout
        assert "none: its page map can't be read (Permission denied)" == box.engine.status()["snapshot"]


@pytest.mark.parametrize(("beginning", "snapshot"), [("", "taken"), (NO_FILE, "none: no memory file")])
def test_zygotes_of_fresh_layouts_tell_theirs(beginning: str, snapshot: str) -> None:
    with begins_with(beginning), Box(pool_size=1, fresh_layout=True) as box:
        assert str(box.engine.status()["snapshot"]).startswith(snapshot)


def bytes_with(rights: str, lines: list[list[str]]) -> int:
    spans = [[int(number, 16) for number in line[0].split("-")] for line in lines if rights == line[1]]
    return sum(end - start for start, end in spans)


@pytest.mark.parametrize("rights", ["r-xp", "r--p", "rwxp"])
def test_no_mapping_becomes_writable_or_executable(rights: str) -> None:
    """As much as before is constant, relocated tables (RELRO) among it, and as much can be run."""
    assert bytes_with(rights, mappings(OFF)) == bytes_with(rights, mappings())


@pytest.mark.parametrize("beginning", ["", SMALL, NO_FILE])
def test_a_job_finds_what_it_would_find_otherwise(beginning: str) -> None:
    with begins_with(beginning), Box() as box:
        found = state_in(box)
    with begins_with(OFF), Box() as box:
        assert state_in(box) == found  # control


def test_memory_can_grow_and_comes_back_as_zeros() -> None:
    with Box() as box:
        done = box.run(GROW)

    assert b"200000 42991616 200000 True\n79800000 False\n" == done.stdout, done.stderr


def test_no_job_and_no_process_of_it_finds_what_another_has_written() -> None:
    code = """
import json, os, sys
print(hasattr(sys, "mark"), sys.getrecursionlimit(), hasattr(json, "mark"), flush=True)
sys.mark = json.mark = 1
sys.setrecursionlimit(77)
if 0 == (pid := os.fork()):
    json.mark = 2
    os._exit(0)
os.waitpid(pid, 0)
print(json.mark)
"""
    with Box() as box:
        assert [b"False 1000 False\n1\n"] * 4 == [box.run(code).stdout for _ in range(4)]


def test_a_job_has_no_way_to_the_file() -> None:
    """Its mappings are listed, and can't be opened."""
    code = """
import os
found = tried = 0
for line in open("/proc/self/maps"):
    if "leeward_zygote" in line:
        start, end = (int(number, 16) for number in line.split()[0].split("-"))
        tried += 1
        try:
            os.open(f"/proc/self/map_files/{start:x}-{end:x}", os.O_RDWR)
            found += 1
        except OSError:
            pass
print(found, tried > 0, sorted(os.listdir("/proc/self/fd"))[:3])
"""
    with Box() as box:
        assert box.run(code).stdout.startswith(b"0 True")
