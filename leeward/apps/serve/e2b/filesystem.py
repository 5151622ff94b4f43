"""The methods of E2B's file system."""

from __future__ import annotations

import asyncio
import posixpath
import secrets
import stat
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from leeward.apps.serve.calls import ServeCall, T, Use, in_turn
from leeward.apps.serve.e2b.boxes import OpenBox
from leeward.apps.serve.e2b.connect_rpc import FEW, Method, Row, keepalive_of
from leeward.apps.serve.problems import ServeProblem, bad, busy, missing
from leeward.client import file_calls
from leeward.client.aio_files import AsyncFiles
from leeward.client.conversation import checked
from leeward.client.file_calls import FileChange, FileInfo, FileWatch
from leeward.errors import DaemonError

#: Entries of a list of folders below folders; events that wait for a caller; watchers of a sandbox: at most.
MOST_ENTRIES, MOST_EVENTS, MOST_WATCHERS = 20_000, 4096, 16
#: Seconds between two scans of a folder that is watched, at least, and so many times those of the last one; a tenant's
#: folders that are scanned so often. Of more each is scanned less often.
LOOKS_S, RESTS, OFTEN = 0.25, 10, 8

S = TypeVar("S")

_TYPES = {"file": "FILE_TYPE_FILE", "folder": "FILE_TYPE_DIRECTORY"}
_EVENTS = {"created": "EVENT_TYPE_CREATE", "modified": "EVENT_TYPE_WRITE", "deleted": "EVENT_TYPE_REMOVE"}


def entry_of(path: str, info: FileInfo, target: FileInfo | None) -> Row:
    """*info* of *path* as E2B has it; of a link with what it leads to."""
    about = target or info
    kinds = {"file": stat.S_IFREG, "folder": stat.S_IFDIR, "link": stat.S_IFLNK}
    when = datetime.fromtimestamp(max(0, about.mtime_ns // 1_000_000_000) % 253_402_300_799, UTC)
    row: Row = {"name": posixpath.basename(path) or "/", "path": path, "size": str(about.size), "mode": about.mode & 0o7777,
                "permissions": stat.filemode(kinds.get(about.kind, 0) | about.mode & 0o7777), "owner": "user",
                "group": "user", "modifiedTime": when.strftime("%Y-%m-%dT%H:%M:%SZ")}
    if about.kind in _TYPES:
        row["type"] = _TYPES[about.kind]
    if info.kind != "link":
        return row
    whole = posixpath.normpath(posixpath.join(posixpath.dirname(path), info.target))
    return {**row, "isSymlink": True, "symlinkTarget": whole}


async def entry(box: OpenBox, path: str) -> Row:
    info = await box.box.files.stat(path, follow=False)
    return entry_of(path, info, await _target(box, path) if info.kind == "link" else None)


async def _target(box: OpenBox, path: str) -> FileInfo | None:
    try:
        return await box.box.files.stat(path)
    except OSError:
        return None


async def _stat(call: ServeCall, box: OpenBox, message: Any) -> Row:
    return {"entry": await entry(box, await box.path(message.path))}


async def _make_dir(call: ServeCall, box: OpenBox, message: Any) -> Row:
    path = await box.path(message.path)
    await box.box.files.mkdir(path)
    return {"entry": await entry(box, path)}


async def _move(call: ServeCall, box: OpenBox, message: Any) -> Row:
    path = await box.path(message.destination)
    await box.box.files.move(await box.path(message.source), path)
    return {"entry": await entry(box, path)}


async def _remove(call: ServeCall, box: OpenBox, message: Any) -> Row:
    await box.box.files.remove(await box.path(message.path), recursive=True, missing_ok=True)
    return {}


async def _list_dir(call: ServeCall, box: OpenBox, message: Any) -> Row:
    found = await below(call.use, box, await box.path(message.path), max(1, message.depth))
    targets = {path: await _target(box, path) for path, info in found if info.kind == "link"}

    def entries(some: list[tuple[str, FileInfo]]) -> list[Row]:
        return [entry_of(path, info, targets.get(path)) for path, info in some]

    return {"entries": await rows_of(call.use, found, entries)}


async def rows_of(use: Use, found: list[S], rows: Callable[[list[S]], list[T]]) -> list[T]:
    """The *rows* of all that was found, some in each turn."""
    return [row for at in range(0, len(found), FEW) for row in await in_turn(use, rows, found[at:at + FEW])]


class TurnFiles(AsyncFiles):
    """The files in a sandbox, whose long answers are read in its tenant's turn."""

    def __init__(self, use: Use, box: OpenBox) -> None:
        super().__init__(box.box)
        self._use = use

    async def _ask(self, op: str, **fields: Any) -> dict[str, Any]:
        reply = await self._sandbox.ask(op, fields)
        return await in_turn(self._use, checked, file_calls.answer_of, op, fields, reply)

    async def pages(self, path: str) -> AsyncIterator[list[FileInfo]]:
        """The entries of a folder, as many as one answer has."""
        rows, more = list[list[Any]](), True
        while more:
            rows, more = await self._do(file_calls.page(file_calls.raw(path), rows[-1][0] if rows else b""))
            yield await in_turn(self._use, list, map(file_calls.info_of, rows))

    async def changes(self, seen: FileWatch) -> list[FileChange]:
        """What has changed since the last look."""
        call = seen.look()
        op, fields = next(call)
        _, found = await in_turn(self._use, file_calls.advanced, call, await self._ask(op, **fields), None)
        changes: list[FileChange] = found
        return changes


async def below(use: Use, box: OpenBox, folder: str, depth: int) -> list[tuple[str, FileInfo]]:
    """What is in a folder, and in its folders *depth* deep, by path; links aren't followed. ServeProblem for too much."""
    todo, found, files = deque([(folder, depth)]), list[tuple[str, FileInfo]](), TurnFiles(use, box)
    while todo:
        folder, depth = todo.popleft()
        async for infos in files.pages(folder):
            some = [(posixpath.join(folder, info.name), info) for info in infos]
            found += some
            todo += [(path, depth - 1) for path, info in some if info.is_folder and depth > 1]
            if len(found) > MOST_ENTRIES:
                raise bad(f"more than {MOST_ENTRIES} entries are below this folder")
    return await in_turn(use, sorted, found)


class Watcher:
    """
    Looks at a folder again and again.

    Attributes:
        events: those that nobody has taken; of more than MOST_EVENTS the oldest are dropped.
    """

    def __init__(self, box: OpenBox, use: Use, path: str, recursive: bool) -> None:
        self._box, self._use, self._recursive = box, use, recursive
        self._seen = FileWatch(path)
        self.events: deque[Row] = deque(maxlen=MOST_EVENTS)
        self.problem: ServeProblem | None = None
        self.changed = asyncio.Event()
        self._looking = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Take the first look; OSError if there is no such folder."""
        await self._changes()
        self._task = asyncio.ensure_future(self._go_on())
        self._use.watchers += 1

    async def _changes(self) -> list[FileChange]:
        return await TurnFiles(self._use, self._box).changes(self._seen)

    async def look(self) -> None:
        """Add what has changed since the last look."""
        async with self._looking:
            if self.problem is None:
                await self._look()

    async def _look(self) -> None:
        try:
            for change in await self._changes():
                if self._recursive or "/" not in change.path:
                    kinds = [change.kind, *(["modified"] if change.kind == "created" and self._seen.has_content(change.path)
                                            else [])]
                    self.events += [{"name": change.path, "type": _EVENTS[kind]} for kind in kinds]
                    self.changed.set()
            return
        except DaemonError:
            self.problem = ServeProblem(503, "the sandbox was killed or reached its end of life")
        except OSError:
            self.problem = missing("the folder isn't there any more")
        self.changed.set()

    async def _go_on(self) -> None:
        took = 0.0
        while self.problem is None:
            await asyncio.sleep(max(LOOKS_S, RESTS * took) * max(1.0, self._use.watchers / OFTEN))
            began = time.monotonic()
            await self.look()
            took = time.monotonic() - began

    def taken(self) -> list[Row]:
        """The events since the last call; ServeProblem if no more can come."""
        if not self.events and self.problem is not None:
            raise self.problem
        found = list(self.events)
        self.events.clear()
        self.changed.clear()
        return found

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self._use.watchers -= 1


async def _new_watcher(call: ServeCall, box: OpenBox, message: Any) -> tuple[str, Watcher]:
    path = await box.path(message.path)
    if len(box.watchers) >= MOST_WATCHERS:
        raise busy(f"{MOST_WATCHERS} folders of this sandbox are watched, as many as are allowed at once")
    watcher, name = Watcher(box, call.use, path, message.recursive), secrets.token_hex(8)
    box.watchers[name] = watcher
    try:
        await watcher.begin()
    except BaseException:
        del box.watchers[name]
        raise
    return name, watcher


async def _watch_dir(call: ServeCall, box: OpenBox, message: Any) -> AsyncIterator[Row]:
    name, watcher = await _new_watcher(call, box, message)
    try:
        yield {"start": {}}
        while True:
            try:
                async with asyncio.timeout(keepalive_of(call)):
                    await watcher.changed.wait()
            except TimeoutError:
                yield {"keepalive": {}}
            for event in watcher.taken():
                yield {"filesystem": event}
    finally:
        watcher.close()
        box.watchers.pop(name, None)


async def _create_watcher(call: ServeCall, box: OpenBox, message: Any) -> Row:
    name, _ = await _new_watcher(call, box, message)
    return {"watcherId": name}


def _watcher(box: OpenBox, message: Any) -> Watcher:
    found = box.watchers.get(message.watcher_id)
    if not isinstance(found, Watcher):
        raise missing("there is no such watcher")
    return found


async def _watcher_events(call: ServeCall, box: OpenBox, message: Any) -> Row:
    watcher = _watcher(box, message)
    await watcher.look()  # a caller that asks sees what it has just done
    return {"events": watcher.taken()}


async def _remove_watcher(call: ServeCall, box: OpenBox, message: Any) -> Row:
    _watcher(box, message).close()
    del box.watchers[message.watcher_id]
    return {}


METHODS = [Method("filesystem", name, handler) for name, handler in (
    ("Stat", _stat), ("MakeDir", _make_dir), ("Move", _move), ("Remove", _remove), ("ListDir", _list_dir),
    ("CreateWatcher", _create_watcher), ("GetWatcherEvents", _watcher_events), ("RemoveWatcher", _remove_watcher))]
METHODS.append(Method("filesystem", "WatchDir", _watch_dir, streams=True))
