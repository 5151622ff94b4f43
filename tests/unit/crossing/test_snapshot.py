"""Which memory a snapshot takes."""

from __future__ import annotations

import mmap
import resource

import pytest

from leeward.crossing import snapshot
from leeward.crossing.snapshot import Mapping, known, parts

PAGE = resource.getpagesize()
READ, WRITE = mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE

MAPS = """\
10000-20000 r--p 00000000 fd:00 7  /lib/a b.so
20000-30000 r-xp 00010000 fd:00 7  /lib/a b.so
30000-40000 r--p 00020000 fd:00 7  /lib/a b.so
40000-50000 rw-p 00030000 fd:00 7  /lib/a b.so
50000-60000 rw-p 00000000 00:00 0  [heap]
60000-70000 rw-p 00000000 00:00 0
70000-80000 rw-p 00000000 00:00 0
80000-90000 r--s 00000000 fd:00 8  /usr/lib/gconv-modules.cache
90000-a0000 ---p 00000000 00:00 0
a0000-b0000 rwxp 00000000 00:00 0
b0000-c0000 rw-p 00000000 00:00 0  [stack]
c0000-d0000 rw-p 00000000 00:00 0  [anon:glibc]
d0000-e0000 rw-p 00000000 fd:00 9  /srv/numbers
"""


def taken(arenas: tuple[int, int] = (0, 0), storage: int = 0) -> list[int]:
    return [mapping.start for mapping, _ in known(MAPS.splitlines(keepends=True), arenas, storage)]


def test_of_memory_without_a_file_the_heap_and_arenas_alone_are_known() -> None:
    assert [0x10000, 0x30000, 0x40000, 0x50000] == taken()
    assert [0x10000, 0x30000, 0x40000, 0x50000, 0x70000] == taken(arenas=(0x70000, 0x20000))


@pytest.mark.parametrize("arenas", [(0x68000, 0x8000), (0x60000, 0x8000), (0x61000, 0xf000)])
def test_a_mapping_that_is_arenas_in_part_is_left(arenas: tuple[int, int]) -> None:
    assert 0x60000 not in taken(arenas)


@pytest.mark.parametrize("storage", [0x40000, 0x4ffff])
def test_the_mapping_with_the_threads_storage_is_left(storage: int) -> None:
    assert 0x40000 not in taken(storage=storage)
    assert 0x50000 in taken(storage=0x40000)


def test_a_file_that_is_no_library_is_left() -> None:
    assert 0xd0000 not in taken()


def test_a_mapping_comes_with_the_one_before_it() -> None:
    before = {mapping.start: before for mapping, before in known(MAPS.splitlines(), (0, 0), 0)}

    assert before[0x10000] is None
    assert Mapping(0x20000, 0x30000, "r-xp", 7, "/lib/a b.so") == before[0x30000]


def library(start: int, pages: int, rights: str, name: str = "a.so") -> Mapping:
    return Mapping(start, start + pages * PAGE, rights, 7, name)


def test_unwritten_mappings_are_left() -> None:
    assert [] == parts(library(0, 4, "rw-p"), None, [])
    assert [] == parts(Mapping(0, 4 * PAGE, "rw-p", 0, "[heap]"), None, [])


def test_a_librarys_data_are_taken_whole() -> None:
    assert [(0, 4 * PAGE, WRITE)] == parts(library(0, 4, "rw-p"), None, [PAGE])


def test_so_are_constants_before_what_was_relocated() -> None:
    relocated = library(8 * PAGE, 1, "r--p")

    assert [(0, 9 * PAGE, READ)] == parts(relocated, library(0, 8, "r--p"), [relocated.start])


@pytest.mark.parametrize("before", [
    None,
    library(0, 8, "r-xp"),
    library(0, 8, "rw-p"),
    library(0, 8, "r--p", "b.so"),
    library(0, 7, "r--p"),
])
def test_no_other_mapping_before_it_is_taken(before: Mapping | None) -> None:
    relocated = library(8 * PAGE, 1, "r--p")

    assert [(relocated.start, PAGE, READ)] == parts(relocated, before, [relocated.start])


def test_many_constants_are_left() -> None:
    relocated = library(33 * PAGE, 1, "r--p")

    assert [(relocated.start, PAGE, READ)] == parts(relocated, library(0, 33, "r--p"), [relocated.start])


@pytest.mark.parametrize(("own", "found"), [
    ([2], [(2, 1)]),
    ([2, 3, 66], [(2, 65)]),
    ([2, 66], [(2, 65)]),
    ([2, 67], [(2, 1), (67, 1)]),
    ([2, 67, 68, 400], [(2, 1), (67, 2), (400, 1)]),
])
def test_large_holes_in_memory_are_left(own: list[int], found: list[tuple[int, int]]) -> None:
    heap = Mapping(0, 1000 * PAGE, "rw-p", 0, "[heap]")
    wanted = [(first * PAGE, pages * PAGE, WRITE) for first, pages in found]

    assert wanted == parts(heap, None, [page * PAGE for page in own])


def test_what_is_not_wanted_has_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert snapshot.OFF == snapshot.lay_out(False)
    monkeypatch.setattr(snapshot, "TAKE", False)
    assert snapshot.OFF == snapshot.lay_out(True)


def test_what_cannot_be_taken_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Laid out, and not taken: this process stays as it is."""
    monkeypatch.setattr(snapshot.native, "gathered_arenas", lambda: (0, 0))
    monkeypatch.setattr(snapshot, "_MOST", 1 << 40)  # whatever tests before have left
    assert not isinstance(snapshot.lay_out(True), str)  # control
    monkeypatch.setattr(snapshot, "_MOST", 1 << 20)
    assert "none: it has written more than 1 MiB" == snapshot.lay_out(True)
    monkeypatch.setattr(snapshot, "known", lambda *_: iter(()))
    assert "none: there is nothing that could be a file's" == snapshot.lay_out(True)


@pytest.mark.parametrize(("held", "told"), [
    (True, "taken"), (False, "none: no memory file can hold what it has written")])
def test_a_file_that_cannot_hold_it_is_told(held: bool, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = snapshot.native.MemorySnapshot([])
    monkeypatch.setattr(memory, "take", lambda *, huge: held and huge)

    assert told == snapshot.take(memory)
