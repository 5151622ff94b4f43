"""
Results made ready to be sent: one frame, and sealed memory files for what is large.

Runs in:   the daemon.
Owns:      the descriptors of a parcel, until it is sent or dropped.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Mapping

from leeward._native.memfd import memory_file
from leeward.dataclass import dataclass, field
from leeward.errors import SHORT
from leeward.outcome import Result
from leeward.run.placement import LARGE_REPLY, PLACEMENTS
from leeward.run.report import Arena, Report
from leeward.wire.answers import Place, encode_result
from leeward.wire.bundles import size_of
from leeward.wire.frames import MAX_REPLY

#: Bytes of a reply beside output and files: an error's text, names of denied calls.
_REST = 1 << 20
#: Bytes that a file takes in a reply beside its name and content, at most.
_AROUND = 16

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


@dataclass(slots=True)
class Parcel:
    """
    Bytes to send, with the memory files whose descriptors go with the first of them.

    Attributes:
        weight: how many large things wait in it: memory files, and a large frame.
    """

    frame: memoryview
    arenas: list[Arena] = field(default_factory=list)
    weight: int = 0

    def close(self) -> None:
        """Close the descriptors; those that were sent are the receiver's own."""
        while self.arenas:
            self.arenas.pop().close()


def seal(pieces: Iterable[bytes]) -> Arena:
    """
    Make a sealed memory file that contains *pieces* one after the other.

    Raises:
        OSError: no descriptor or no memory is left.
    """
    fd = memory_file("leeward_results")
    try:
        size = 0
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                written = os.write(fd, rest)
                rest, size = rest[written:], size + written
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return Arena(fd, size)


def pack(number: int, report: Report, results: str = "auto") -> Parcel:
    """
    Return the answer to request *number*, whose report has a result. It owns the report's arenas from now on.

    Args:
        results: how collected files travel, one of placement.RESULTS.

    Raises:
        OSError: a memory file for collected files can't be made, and they have no room in a reply.
        ValueError: the result is larger than a reply may be.
    """
    result = report.result
    assert result is not None
    arenas = [] if report.arena is None else [report.arena]
    stdout: Place | None = None
    stderr: Place | None = None
    if report.arena is not None:
        stdout = None if report.arena.stdout is None else (0, *report.arena.stdout)
        stderr = None if report.arena.stderr is None else (0, *report.arena.stderr)
    try:
        files = _files(report, arenas, PLACEMENTS[results].files)
        frame = encode_result(number, result, stdout=stdout, stderr=stderr, files=files,
                              arenas=tuple(arena.size for arena in arenas))
    except BaseException:
        report.close()
        for arena in arenas:
            arena.close()
        raise
    return Parcel(memoryview(frame), arenas, len(arenas) + (len(frame) > LARGE_REPLY))


def _files(report: Report, arenas: list[Arena], most: int) -> dict[str, Place | bytes] | None:
    """
    Put collected files into a further memory file of *arenas* if they have more than *most* bytes, or don't fit into a
    reply. If no memory file can be made, they go into the reply if they fit.

    Returns:
        The files whose content isn't to be taken from *report*.
    """
    result, apart = report.result, report.files
    assert result is not None
    sizes = {name: len(content) for name, content in result.files.items()} if apart is None else {
        name: size for name, (_, size) in apart.places.items()}
    size = sum(sizes.values())
    names = sum(len(name.encode("utf-8", "replace")) + _AROUND for name in sizes)
    if apart is not None:
        if _fits(result, size + names) and size <= most:
            files = apart.contents()
            apart.arena.close()
            return {**files}
        arenas.append(apart.arena)
        return _places(sizes, len(arenas) - 1)
    if not size:
        return None
    fits = _fits(result, size + names)
    if fits and size <= most:
        return None
    try:
        arenas.append(seal(result.files.values()))
    except OSError as error:
        if fits and error.errno in SHORT:
            return None
        raise
    return _places(sizes, len(arenas) - 1)


def _fits(result: Result, files: int) -> bool:
    shown = sum(size_of(kind, content) for bundle in result.results for kind, content in bundle.items())
    return files + shown + len(result.stdout) + len(result.stderr) <= MAX_REPLY - _REST


def _places(sizes: Mapping[str, int], arena: int) -> dict[str, Place | bytes]:
    places: dict[str, Place | bytes] = {}
    offset = 0
    for name, size in sizes.items():
        places[name] = (arena, offset, size) if size else b""
        offset += size
    return places
