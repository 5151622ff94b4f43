"""
Chooses the zygote's memory that becomes mappings of a memory file, so that clones don't copy its page tables.

Runs in:   the zygote, when it has imported everything.
Source:    proc_pid_maps(5); pagemap(5): Documentation/admin-guide/mm/pagemap.rst

Only memory whose use is known is chosen: data of libraries, the heap (brk), and the interpreter's arenas. Memory that a
library, or malloc for a large block, has mapped isn't safe: its owner may use MADV_DONTNEED, after which it would have
the file's content in place of zeros, or mremap, which would make it longer than the file. docs/decisions/0145
"""

from __future__ import annotations

import array
import mmap
import resource
from collections.abc import Iterable, Iterator, Sequence

from leeward._native import snapshot as native
from leeward.base.dataclass import dataclass

#: Switches for tests: whether a snapshot is taken, and whether it is in huge pages.
TAKE = True
HUGE = True

_PAGE = resource.getpagesize()
_PRESENT, _SWAPPED, _FILE = 1 << 63, 1 << 62, 1 << 61
_ENTRY = 8  # bytes of /proc/self/pagemap for each page
#: A gap of at most so many untouched pages is included, because another mapping would cost more.
_HOLE = 64
#: At most so many pages of a library's constants are included with the data behind them: one mapping in place of two.
_CONSTANTS = 32
#: Bytes of a snapshot, at most. Copying 10 MiB takes some 3 ms, and needs twice the memory for that time.
_MOST = 256 << 20
#: The state of the snapshot in the daemon's status: TAKEN, OFF, or NONE and the reason.
TAKEN, OFF, NONE = "taken", "off", "none: "
#: Address, bytes, PROT_*
Part = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Mapping:
    """A line of /proc/PID/maps."""

    start: int
    end: int
    rights: str
    inode: int
    name: str

    @property
    def protection(self) -> int:
        return mmap.PROT_READ | (mmap.PROT_WRITE if self.rights[1] == "w" else 0)


def lay_out(wanted: bool) -> native.MemorySnapshot | str:
    """
    Choose the memory. Returns a snapshot for `take`; OFF if none is *wanted*; or NONE and the reason if the kernel
    doesn't report the memory, or there is none, or too much. In every case arenas aren't gathered any more.
    """
    arenas = native.gathered_arenas()
    if not (wanted and TAKE):
        return OFF
    try:
        with open("/proc/self/maps") as maps, open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
            def own(mapping: Mapping) -> list[int]:
                """Addresses of pages that this process has written."""
                pagemap.seek(mapping.start // _PAGE * _ENTRY)
                entries = array.array("Q", pagemap.read((mapping.end - mapping.start) // _PAGE * _ENTRY))
                return [mapping.start + number * _PAGE for number, entry in enumerate(entries)
                        if entry & _SWAPPED or (entry & _PRESENT and not entry & _FILE)]

            found = [part for mapping, before in known(maps, arenas, native.thread_storage())
                     for part in parts(mapping, before, own(mapping))]
    except OSError as error:
        return f"{NONE}its page map can't be read ({error.strerror})"
    if not found:
        return f"{NONE}there is nothing that could be a file's"
    if sum(size for _, size, _ in found) > _MOST:
        return f"{NONE}it has written more than {_MOST >> 20} MiB"
    return native.MemorySnapshot(found)


def take(memory: native.MemorySnapshot) -> str:
    """Take the snapshot. Returns TAKEN, or NONE and the reason; KernelRefusal as `MemorySnapshot.take`."""
    return TAKEN if memory.take(huge=HUGE) else f"{NONE}no memory file can hold what it has written"


def known(maps: Iterable[str], arenas: tuple[int, int], storage: int) -> Iterator[tuple[Mapping, Mapping | None]]:
    """
    The mappings of *maps*, lines of /proc/PID/maps, that may be taken, each with the one before it. *arenas* are the
    address and bytes of the interpreter's; the mapping with *storage*, an address in the thread's storage, is left out.
    """
    mappings = list(map(_mapping, maps))
    libraries = {(each.inode, each.name) for each in mappings if each.inode and each.rights[2] == "x"}
    for mapping, before in zip(mappings, [None, *mappings], strict=False):
        if mapping.rights in ("rw-p", "r--p") and not mapping.start <= storage < mapping.end and (
                (mapping.inode, mapping.name) in libraries or mapping.name == "[heap]"
                or (arenas[0] <= mapping.start and mapping.end <= sum(arenas))):
            yield mapping, before


def _mapping(line: str) -> Mapping:
    span, rights, _, _, inode, *name = line.split(maxsplit=5)
    start, end = (int(number, 16) for number in span.split("-"))
    return Mapping(start, end, rights, int(inode), name[0].strip() if name else "")


def parts(mapping: Mapping, before: Mapping | None, own: Sequence[int]) -> list[Part]:
    """
    The parts of *mapping* to take: *own* are the addresses of its pages that this process has written. The constants of
    the mapping *before* it are taken as well if they are of the same library.
    """
    if not own:
        return []
    if mapping.inode:
        start = mapping.start
        if (before is not None and (before.end, before.rights, before.inode, before.name)
                == (start, mapping.rights, mapping.inode, mapping.name) and start - before.start <= _CONSTANTS * _PAGE):
            start = before.start
        return [(start, mapping.end - start, mapping.protection)]
    found: list[Part] = []
    since = own[0]
    for page, after in zip(own, [*own[1:], 0], strict=True):
        if not after or after - page > _HOLE * _PAGE:
            found.append((since, page + _PAGE - since, mapping.protection))
            since = after
    return found
