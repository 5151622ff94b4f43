"""
A snapshot that comes back: bytes that its user has read from this daemon or an earlier one.

Trust: none in the bytes, which nobody here reads: whoever can import them could as well have written them in a kernel of
his own. They are loaded behind every lock, and the loader compares what is mapped with the files that are there. What would
make a state wrong without being seen there is in the `key`: another kernel, processor or kind of state is refused by
name. A state has all that is leeward's in it, so a later leeward loads it. A user who lies about that harms his own kernels.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import platform
from collections.abc import Callable, Mapping

from leeward._native._shim import ffi
from leeward._native.memfd import seal
from leeward.daemon.run.dumping import KernelState, facts_of, seal_size
from leeward.daemon.worker.zygote_memory import ZygoteMemory
from leeward.errors import BadRequest, PeerError, SnapshotFailed
from leeward.spec.sandbox import View
from leeward.wire.job_frames import STATES, shown_name

#: Seconds within which the next bytes have to come.
PATIENCE_S = 60.0

_SHOWN = 16  # digits of a hash


@functools.cache
def key() -> Mapping[str, str]:
    """What must be equal where a snapshot is loaded, besides the files that it has mapped."""
    return {"leeward": f"states {STATES}", "kernel": f"{platform.release()} {platform.version()}",
            "vdso": _vdso(), "processor": _processor(), "machine": platform.machine()}


def _vdso() -> str:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.rstrip().endswith("[vdso]"):
                start, end = (int(each, 16) for each in line.split(maxsplit=1)[0].split("-"))
                return hashlib.sha256(ffi.buffer(ffi.cast("char *", start), end - start)).hexdigest()[:_SHOWN]
    return "none"


def _processor() -> str:
    """Its model, and a hash of its features: libraries have chosen functions by these."""
    found: dict[str, str] = {}
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    features = found.get("flags", found.get("Features", ""))
    return f"{found.get('model name', 'unknown')} {hashlib.sha256(features.encode()).hexdigest()[:_SHOWN]}"


def image_of(view: View) -> str:
    """The layers of an image's root, in short; "" for another root. A state from there has no file by its name."""
    return "" if view.root is None else hashlib.sha256(
        " ".join(map(os.path.basename, view.root.layers)).encode()).hexdigest()[:_SHOWN]


def check_image(state: KernelState, view: View) -> None:
    """SnapshotFailed if *state* was taken in a sandbox of another image than that of *view*."""
    if state.image != image_of(view):
        raise SnapshotFailed("the snapshot was taken in a sandbox with another root file system than this one's image"
                             if view.root is not None else "the snapshot was taken in a sandbox of an image")


def check(theirs: Mapping[str, str]) -> None:
    """SnapshotFailed, with its name, if something was different where a snapshot was taken."""
    for name, ours in key().items():
        if theirs.get(name) != ours:
            raise SnapshotFailed(f"the snapshot was taken with another {name}: {shown_name(theirs.get(name, 'unknown'))};"
                                 f" here it is {ours}")


class Arriving:
    """Takes the bytes of a snapshot: *sizes* are those of its state and of its zygote's memory, *facts* as a kernel tells."""

    def __init__(self, sizes: tuple[int, int], facts: bytes, made: float, image: str = "") -> None:
        try:
            self._facts = facts_of(facts)
        except PeerError as error:
            raise BadRequest(f"facts: {error}") from None
        self.size, self.made, self._image = sum(sizes), made, image
        self._sizes, self._at = sizes, 0
        self._files: list[int] = []

    def begin(self, new_file: Callable[[int], int]) -> None:
        """Have a file for each of the sizes, which *new_file* makes."""
        try:
            for size in self._sizes:
                self._files.append(new_file(size))
                os.ftruncate(self._files[-1], size)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise SnapshotFailed(f"its memory: {error.strerror}") from error
            raise

    def add(self, data: bytes) -> int:
        """Take the next bytes, and return how many are missing; BadRequest if there are too many."""
        if len(data) > self.size - self._at:
            raise BadRequest(f"{len(data)} bytes of a snapshot that lacks {self.size - self._at}")
        state, rest = self._files
        first = data[:max(0, self._sizes[0] - self._at)]
        _put(state, first, self._at)
        _put(rest, data[len(first):], self._at + len(first) - self._sizes[0])
        self._at += len(data)
        return self.size - self._at

    def state(self) -> KernelState:
        """The whole snapshot's state, whose files aren't ours any more."""
        (state, rest), self._files = self._files, []
        memory = ZygoteMemory(rest, is_counted=True)
        for fd in (state, rest):
            seal(fd, fcntl.F_SEAL_WRITE)
            seal_size(fd)
        return KernelState(state, self._sizes[0], *self._facts, memory=memory if self._sizes[1] else None,
                           image=self._image)

    def close(self) -> None:
        files, self._files = self._files, []
        for fd in files:
            os.close(fd)


def _put(fd: int, data: bytes, at: int) -> None:
    while data:
        done = os.pwrite(fd, data, at)
        data, at = data[done:], at + done
