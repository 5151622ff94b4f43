"""
Sandboxes that sleep on disk: a folder for each in a folder of the daemon's, and the memory of their zygotes, each once.

Trust: the folder is the daemon's user's alone (0700), and a daemon that has it keeps others from it by a lock. Nobody here
reads the states' bytes. What was changed there harms the sandbox that is in it: a head is checked value by value, and nobody
waits for what is no file. A waking kernel maps the file of its state and reads of it what it touches; the loader closes the
descriptor, opened for reading, before it goes on as the copy.

Theory of operation. Two threads do what takes time: one writes and removes, so that what it knows of the folder is its own;
one reads, so that a waking sandbox doesn't wait for those that fall asleep. What is done gets back to the loop by a bell.
A sandbox's folder gets its name when it is whole, and loses it when it was read, so that no later daemon has again what
was awake. A zygote's memory is always read into a memory file, since many map it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import queue
import re
import signal
import stat
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from leeward._native.memfd import SEALS, memory_file, seal
from leeward.base.dataclass import dataclass, replace
from leeward.base.file_locks import locked
from leeward.base.whole_files import read_whole
from leeward.daemon.loop.barrier import in_any_case, nothing
from leeward.daemon.loop.reactor import READ, Reactor
from leeward.daemon.run.dumping import KernelState, close_file, seal_size
from leeward.daemon.sandboxes.last_uses import LastUses
from leeward.daemon.sandboxes.snapshots import Leaves, all_of_it
from leeward.daemon.worker.zygote_memory import ZygoteMemory
from leeward.errors import Busy, SnapshotFailed
from leeward.isolation import ownership
from leeward.spec.sizes import size_text
from leeward.wire.sandbox_ids import ID_ALPHABET, ID_LENGTH

T = TypeVar("T")

_SLEEPER, _MEMORY, _PART, _LOCK = ".sleeper", "memory-", ".part", "lock"
_HEAD, _FILES, _FORMAT = "head", "files", 1
_MOST_HEAD, _SUM = 8 << 20, 32
#: Of a text in a head, characters; of a whole number; of seconds, since the epoch as well: the loop counts nanoseconds.
_MOST_TEXT, _MOST_WHOLE, _MOST_SECONDS = 4096, 1 << 53, 1 << 32
#: Bytes that are copied at a time.
_PIECE = 8 << 20


@dataclass(frozen=True, slots=True)
class Asleep:
    """What a sleeping sandbox is made of: its kernels' states by their numbers, and its files, whose descriptors it owns."""

    states: Mapping[int, KernelState]
    files: int
    size: int  # bytes of the files

    @property
    def bytes(self) -> int:
        """Without the zygotes' memory."""
        return self.size + sum(state.size for state in self.states.values())

    def copy(self) -> Asleep:
        """The same, with descriptors of its own."""
        states: dict[int, KernelState] = {}
        try:
            for number, state in self.states.items():
                states[number] = replace(state, fd=os.dup(state.fd))
            return Asleep(states, os.dup(self.files), self.size)
        except OSError:
            for state in states.values():
                os.close(state.fd)
            raise

    def close(self) -> None:
        in_any_case(*(partial(close_file, state.fd, state.size) for state in self.states.values()),
                    partial(close_file, self.files, self.size))


class _Thread:
    """Does orders one after the other; what each returns, or its error, gets back to the loop."""

    def __init__(self, name: str, ring: Callable[[Callable[[], None]], None]) -> None:
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._ring = ring
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def order(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        def run() -> None:
            result: T | Exception
            try:
                result = work()
            except Exception as error:
                result = error
            self._ring(partial(done, result))

        self._orders.put(run)

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the loop's
        while (order := self._orders.get()) is not None:
            order()

    def end(self) -> None:
        """After the orders that it has."""
        self._orders.put(None)


#: Bytes, and the user for whom they count.
Share = tuple[int, int]


class SleepFolder:
    """
    The sleeping sandboxes in *folder*, which may have *most* bytes, of which *leaves* holds users to their part. BadRequest,
    OSError if it can't be used.
    """

    def __init__(self, reactor: Reactor, uses: LastUses, folder: str, most: Callable[[], int],
                 leaves: Leaves = all_of_it) -> None:
        self._reactor, self._uses, self._folder, self._most, self._leaves = reactor, uses, folder, most, leaves
        os.makedirs(folder, mode=0o700, exist_ok=True)
        ownership.check(folder, "sleep_folder")
        self._lock = locked(os.path.join(folder, _LOCK))
        self._sizes: dict[str, Share] = {}  # of sandboxes, by their ids
        self._woken: dict[int, Share] = {}  # files that kernels have mapped, though their names are gone
        self._users: dict[str, set[str]] = {}  # of a zygote's memory, by its hash: the writer's own
        #: Zygotes' memory by its hash, which counts for who brought it, and sandboxes' heads by their ids; changed by the
        #: writer alone.
        self._kept: dict[str, Share] = {}
        self._heads: dict[str, Share] = {}
        self._memories: WeakValueDictionary[str, ZygoteMemory] = WeakValueDictionary()
        self._said: deque[Callable[[], None]] = deque()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        reactor.watch(self._bell, READ, self._hear)
        self._writer, self._reader = _Thread("writes sleepers", self._ring), _Thread("reads sleepers", self._ring)

    def _ring(self, what: Callable[[], None]) -> None:
        self._said.append(what)
        os.eventfd_write(self._bell, 1)

    def _hear(self, _events: int) -> None:
        os.eventfd_read(self._bell)
        while self._said:
            self._reactor.barrier.call(self._said.popleft())

    def close(self) -> None:
        """The daemon ends; the sleepers stay."""
        in_any_case(partial(self._reactor.forget, self._bell), self._writer.end, self._reader.end,
                    partial(os.close, self._lock))

    # --- at the start ---------------------------------------------------------------

    def sleepers(self) -> Sequence[tuple[str, Mapping[str, Any] | SnapshotFailed]]:
        """
        The sandboxes that an earlier daemon has left, each with its record, or why it has none; before any other call.
        Anything else is removed.
        """
        found: list[tuple[str, Mapping[str, Any] | SnapshotFailed]] = []
        others, memories = [], []
        owners: dict[str, int] = {}
        for entry in os.listdir(self._folder):
            name, is_sleeper = entry.removesuffix(_SLEEPER), entry.endswith(_SLEEPER)
            if is_sleeper and len(name) == ID_LENGTH and set(name) <= set(ID_ALPHABET):
                try:
                    head = _read_head(self._path(name))
                    size, user = head["files"] + sum(kernel["size"] for kernel in head["kernels"]), head["record"]["user"]
                    size = min(size, sum(each.stat(follow_symlinks=False).st_size for each in os.scandir(self._path(name))))
                    self._heads[name] = os.stat(os.path.join(self._path(name), _HEAD)).st_size, user
                    self._note(name, head)
                    owners.update((kernel["memory"], user) for kernel in head["kernels"])
                    found.append((name, head["record"]))
                    self._sizes[name] = size, user
                except (OSError, ValueError, RecursionError) as error:
                    found.append((name, SnapshotFailed(f"its file can't be used: {error}")))
            elif entry.startswith(_MEMORY) and not entry.endswith(_PART) and _is_file(os.path.join(self._folder, entry)):
                memories.append(entry.removeprefix(_MEMORY))
            elif entry != _LOCK:
                others.append(entry)
        for digest in memories:
            self._kept[digest] = os.stat(self._memory_path(digest)).st_size, owners.get(digest, -1)
        self._writer.order(partial(self._tidy, others), nothing)
        return found

    def _tidy(self, entries: Sequence[str]) -> None:
        in_any_case(*(partial(_remove, os.path.join(self._folder, entry)) for entry in entries), self._drop_unused)

    def _drop_unused(self) -> None:
        """Remove the memory of zygotes that no sandbox here has any more."""
        for digest in self._kept.keys() - {digest for digest, users in self._users.items() if users}:
            _remove(self._memory_path(digest))
            del self._kept[digest]

    def _note(self, name: str, head: Mapping[str, Any]) -> None:
        for kernel in head["kernels"]:
            if kernel["memory"]:
                self._users.setdefault(kernel["memory"], set()).add(name)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name + _SLEEPER)

    def _memory_path(self, digest: str) -> str:
        return os.path.join(self._folder, _MEMORY + digest)

    # --- writing --------------------------------------------------------------------

    def put(self, name: str, user: int, record: Mapping[str, Any], what: Asleep,
            done: Callable[[Exception | None], None]) -> None:
        """Write a sandbox of *user*'s; *done* is called once it is in the folder, or with why it isn't. Busy without room."""
        self._check_room(user, what.bytes)
        own = what.copy()
        size = self._sizes[name] = what.bytes, user

        def written(error: Exception | None) -> None:
            own.close()
            if error is not None and self._sizes.get(name) is size:  # it can have woken, and be put again
                del self._sizes[name]
            done(error)

        self._writer.order(partial(self._write, name, user, record, own), written)

    def count(self, user: int, fd: int, size: int) -> None:
        """Count a file of a sandbox that wakes, unless it is counted already, until nobody has it. Busy if none can tell."""
        self._woken.setdefault(self._uses.watch(fd, self._let_go), (size, user))

    def _let_go(self, number: int) -> None:
        del self._woken[number]

    def _check_room(self, user: int, size: int) -> None:
        # Each is read in one step, for two threads ask.
        rows = [row for each in (self._sizes, self._kept, self._heads, self._woken) for row in [*each.values()]]
        used, most = sum(size for size, _ in rows), self._most()
        if used + size > most:
            raise Busy(f"sleeping sandboxes take {size_text(used)} of the disk already, and may take {size_text(most)}"
                       " (sleep_size)")
        own = sum(size for size, owner in rows if owner == user)
        if not self._leaves(user, own + size, most - used - size):
            raise Busy(f"sleeping sandboxes of yours take {size_text(own)} of the disk, and the rest is others' (sleep_size)")

    def _write(self, name: str, user: int, record: Mapping[str, Any], what: Asleep) -> None:
        part = self._path(name) + _PART
        try:
            os.mkdir(part, 0o700)
            kernels = []
            for number, state in what.states.items():
                digest = "" if state.memory is None else self._keep_memory(user, state.memory)
                _write_file(os.path.join(part, str(number)), state.fd, state.size)
                kernels.append({"number": number, "size": state.size, "python": state.python,
                                "packages": dict(state.packages), "lost": list(state.lost), "memory": digest})
            _write_file(os.path.join(part, _FILES), what.files, what.size)
            head = {"format": _FORMAT, "record": record, "kernels": kernels, "files": what.size}
            told = json.dumps(head, ensure_ascii=False).encode("utf-8", "surrogatepass")
            told = _sum(told) + told
            self._check_room(user, len(told))
            if len(told) > _MOST_HEAD:
                raise SnapshotFailed("what is told of it is too long")
            with open(os.open(os.path.join(part, _HEAD), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(told)
            self._heads[name] = len(told), user
            os.rename(part, self._path(name))
        except BaseException:
            self._heads.pop(name, None)
            in_any_case(partial(_remove, part), self._drop_unused)
            raise
        self._note(name, head)

    def _keep_memory(self, user: int, memory: ZygoteMemory) -> str:
        if not memory.digest:
            hashed = hashlib.sha256()
            for offset in range(0, memory.size, _PIECE):
                hashed.update(os.pread(memory.fd, _PIECE, offset))
            memory.digest = hashed.hexdigest()
        self._memories.setdefault(memory.digest, memory)
        if memory.digest not in self._kept:
            self._check_room(user, memory.size)
            path = self._memory_path(memory.digest)
            try:
                _write_file(path + _PART, memory.fd, memory.size)
                os.rename(path + _PART, path)
            except BaseException:
                _remove(path + _PART)
                raise
            self._kept[memory.digest] = memory.size, user
        return memory.digest

    def remove(self, name: str) -> None:
        """The sandbox *name* sleeps here no more."""
        self._sizes.pop(name, None)
        self._writer.order(partial(self._unlink, name), nothing)

    def _unlink(self, name: str) -> None:
        for users in self._users.values():
            users.discard(name)
        self._heads.pop(name, None)
        in_any_case(partial(_remove, self._path(name)), partial(_remove, self._path(name) + _PART), self._drop_unused)
        self._users = {digest: users for digest, users in self._users.items() if users}

    # --- reading --------------------------------------------------------------------

    def get(self, name: str, done: Callable[[Asleep | Exception], None]) -> None:
        """
        Take the sandbox *name* out of the folder; *done* is called once, with it or why it can't be. What was taken is no
        later daemon's any more, and its bytes count until it is removed.
        """
        self._reader.order(partial(self._read, name), done)

    def _read(self, name: str) -> Asleep:
        opened: list[int] = []
        path = self._path(name)
        try:
            head = _read_head(path)
            states: dict[int, KernelState] = {}
            for kernel in head["kernels"]:
                memory = self._memory(kernel["memory"]) if kernel["memory"] else None
                opened.append(_state_file(os.path.join(path, str(kernel["number"])), kernel["size"]))
                states[kernel["number"]] = KernelState(opened[-1], kernel["size"], kernel["python"], kernel["packages"],
                                                       tuple(kernel["lost"]), memory)
            opened.append(_opened(os.path.join(path, _FILES)))
            os.rename(path, path + _PART)
            return Asleep(states, opened[-1], head["files"])
        except BaseException:
            for fd in opened:
                os.close(fd)
            raise

    def _memory(self, digest: str) -> ZygoteMemory:
        found = self._memories.get(digest)
        if found is None:
            with open(_opened(self._memory_path(digest)), "rb", buffering=0) as file:
                fd = _in_memory(file.fileno(), os.fstat(file.fileno()).st_size, "leeward_zygote")
            seal(fd, SEALS)
            found = self._memories[digest] = ZygoteMemory(fd, is_counted=True)
            found.digest = digest
        return found


def _sum(text: bytes) -> bytes:
    """What a head begins with: what is read of it isn't checked any further, and a disk may spoil it."""
    return hashlib.sha256(text).digest()


def _read_head(path: str) -> Mapping[str, Any]:
    """The head of a sandbox's folder; ValueError if it isn't one of ours, or not as it was written."""
    told = read_whole(os.path.join(path, _HEAD), _MOST_HEAD) or b""
    own, text = told[:_SUM], told[_SUM:]
    if own != _sum(text):
        raise ValueError("it is damaged")
    head = json.loads(text.decode("utf-8", "surrogatepass"))
    if not isinstance(head, dict) or head.get("format") != _FORMAT:
        raise ValueError("it is of another version of leeward")
    check_form(head, _FORM)
    numbers = [kernel["number"] for kernel in head["kernels"]]
    if len(set(numbers)) < len(numbers):
        raise ValueError("two kernels of it have one number")
    return head


def _check_digest(value: object, what: str) -> None:
    if not isinstance(value, str) or not re.fullmatch("(?:[0-9a-f]{64})?", value):
        raise ValueError(f"{what} can't be {value!r:.60}")


#: What a head has to be, for `check_form`; `serving.restoring` has the form of its record.
_FORM = {"record": {"user": int}, "files": int, "kernels": [
    {"number": int, "size": int, "python": str, "packages": {str: str}, "lost": [str], "memory": _check_digest}]}


def check_form(value: Any, form: Any, what: str = "it") -> None:
    """
    ValueError unless *value*, which comes from JSON, has a *form*: a type; a list or a map of {str: ...}, with the form of
    all that is in it; a tuple with the form of each; a map with the names that there must be; or a check of the wire's.
    """
    if isinstance(form, dict) and isinstance(value, dict) and str not in form:
        for name, one in form.items():
            check_form(value.get(name), one, name)
        return
    if isinstance(form, dict) and isinstance(value, dict):
        pairs = [*((name, str) for name in value), *((each, form[str]) for each in value.values())]
    elif isinstance(form, (list, tuple)) and isinstance(value, list) and (isinstance(form, list) or len(form) == len(value)):
        pairs = [*zip(value, form * len(value) if isinstance(form, list) else form, strict=True)]
    elif isinstance(form, type) and type(value) in ((int, float) if form is float else (form,)):
        fits = len(value.encode()) <= _MOST_TEXT if form is str else (
            0 <= value <= (_MOST_SECONDS if form is float else _MOST_WHOLE))
        if not fits:
            raise ValueError(f"{what} can't be {value!r:.60}")
        return
    elif isinstance(form, (dict, list, tuple, type)):
        raise ValueError(f"{what} can't be {value!r:.60}")
    else:
        form(value, what)
        return
    for each, one in pairs:
        check_form(each, one, what)


def _is_file(path: str) -> bool:
    return stat.S_ISREG(os.lstat(path).st_mode)


def _opened(path: str) -> int:
    """A file, to be read; ValueError if it is something else, which could be waited for."""
    if not _is_file(path):
        raise ValueError("it is no file")
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _state_file(path: str, size: int) -> int:
    """A state's file, for the loader: itself, or a copy in memory where what is mapped of a file can't be run."""
    fd = _opened(path)
    if not os.fstatvfs(fd).f_flag & os.ST_NOEXEC:
        return fd
    try:
        copied = _in_memory(fd, size, "leeward_snapshot")
    finally:
        os.close(fd)
    seal(copied, fcntl.F_SEAL_WRITE)
    seal_size(copied)
    return copied


def _write_file(path: str, source: int, size: int) -> None:
    """Write *size* bytes of a file into a new one."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _copy(source, fd, size)
    finally:
        os.close(fd)


def _in_memory(source: int, size: int, name: str) -> int:
    """A memory file with the first *size* bytes of a file."""
    fd = memory_file(name)
    try:
        _copy(source, fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _copy(source: int, target: int, size: int) -> None:
    """Copy the first *size* bytes of *source* to where *target* is; OSError if there are fewer."""
    at = 0
    while at < size:
        done = os.sendfile(target, source, at, min(size - at, _PIECE))
        if not done:
            raise OSError("its file is cut off")
        at += done


def _remove(path: str) -> None:
    """Remove a file, or a folder, which loses its name first: what is left of it is no sandbox."""
    if os.path.islink(path) or not os.path.isdir(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    if not path.endswith(_PART):
        os.rename(path, path + _PART)
        path += _PART
    for each in os.listdir(path):
        os.unlink(os.path.join(path, each))
    os.rmdir(path)
