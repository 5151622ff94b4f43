"""
A daemon on another machine: the client gets one end of a socket pair, and this speaks with the daemon at the other.

Runs in:   a thread with an event loop, which all connections of the process share.
Trust:     as in a daemon of this machine: none in its bytes. Memory files are made here, and sealed, of what it sends.
Bounds:    frames and memory files as the wire has them; MOST bytes of memory files in one answer.

Theory of operation. A stream of bytes carries no descriptors. So the first request on it is `keep_results`: memory files
of answers stay with the daemon. An answer that has some waits here until they were read, by requests of this module's own
with numbers above all of the client's, and goes on with files of this process. A socket in a sandbox is a stream of its
own, where the way has such. What else needs descriptors is refused here, and says so.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Protocol

from leeward.client.arena import new_file, seal
from leeward.client.connecting import PATIENCE_S, timeval
from leeward.client.conversation import refusal
from leeward.client.loop_thread import LoopThread
from leeward.client.mounts import ELSEWHERE
from leeward.errors import DaemonError, PeerError
from leeward.spec.paths import RemoteHost
from leeward.wire.frames import MAX_REPLY, MAX_REQUEST, VERSION, FrameReader, decode, encode, frame
from leeward.wire.replies import Reply, parse_reply

#: Bytes of one read, and of one piece of a memory file; such pieces that are asked for at once; bytes of one answer's files.
PIECE, WINDOW, MOST = 1 << 20, 4, (1 << 31) - 1
#: Seconds for which a socket's other direction may be idle when one has ended, as in aio_ports.py.
HALF_S = 60.0
#: The first number of a request of this module's own. Clients count from 1.
FIRST = 1 << 52
#: Bytes of the largest request that is looked into: those that are refused or answered here have no long fields.
SMALL = 1024

#: Requests that need descriptors, and why they are refused. Without an arena large requests are frames as any other.
_REFUSED = {"sandbox_dock": ELSEWHERE, "arena": "an arena is shared memory, and this daemon is on another machine"}


class RemoteWay(Protocol):
    """A stream of bytes to a daemon."""

    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> bytes:
        """The next bytes; none at the end."""

    async def end(self) -> bool:
        """Tell the other end that no more is sent; False if this way can't."""

    async def close(self) -> None: ...

    async def port(self, sandbox: str, port: int) -> RemoteWay | None:
        """A stream to a server in a sandbox; None if nobody listens. DaemonError if there is none by this way."""


def connect(host: RemoteHost) -> socket.socket:
    """A socket as `connecting.connect` gives. DaemonAway if there is no way to the daemon, or no daemon."""
    return _loop().result(_begun(host))


async def connect_async(host: RemoteHost) -> socket.socket:
    """As `connect`. It takes no thread of the caller's loop, however long the other machine says nothing."""
    return await _loop().awaited(_begun(host))


async def _begun(host: RemoteHost) -> socket.socket:
    """Open a way, and pass on by it until one end has closed; the client's end."""
    way = await _way(host)
    try:
        ours, theirs = socket.socketpair()
    except OSError:
        await way.close()
        raise
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        ours.setsockopt(socket.SOL_SOCKET, option, timeval(PATIENCE_S))
    theirs.setblocking(False)
    _start(Relay(theirs, way).run())
    return ours


async def _way(host: RemoteHost) -> RemoteWay:
    if host.startswith("ssh:"):
        from leeward.client import over_ssh  # one of the two is needed

        return await over_ssh.way(host)
    from leeward.client import over_websocket  # as above

    return await over_websocket.way(host, "/leeward")


# --- the thread -------------------------------------------------------------------

_lock = threading.Lock()
_running: LoopThread | None = None
_tasks: set[asyncio.Task[None]] = set()


def _loop() -> LoopThread:
    global _running
    with _lock:
        if _running is None:
            _running = LoopThread("leeward-remote")
        return _running


def _forget() -> None:
    """In a child of fork: the thread is the parent's."""
    global _running, _lock
    _running, _lock = None, threading.Lock()
    _tasks.clear()


os.register_at_fork(after_in_child=_forget)


def _start(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


# --- one connection ---------------------------------------------------------------


class _Ended(Exception):
    """One end has closed."""


class Relay:
    """Passes on between a client, at *near*, and a daemon, by *way*; owns both."""

    def __init__(self, near: socket.socket, way: RemoteWay) -> None:
        self._near, self._way = near, way
        self._last = FIRST
        self._owed = 0  # answers to the client
        self._asked: dict[int, asyncio.Future[Reply]] = {}
        self._giving = asyncio.Lock()

    async def run(self) -> None:
        """Until one end closes, or breaks the protocol."""
        try:
            async with asyncio.TaskGroup() as group:
                self._begin: Callable[[Coroutine[Any, Any, None]], object] = group.create_task
                self._begin(self._keep())
                self._begin(self._up())
                self._begin(self._down())
        except* (_Ended, PeerError, DaemonError, OSError):
            pass
        finally:
            self._near.close()
            await self._way.close()

    async def _keep(self) -> None:
        if (reply := await self._ask("keep_results", {})).ok is None:
            raise refusal(reply)  # of an older daemon, say

    async def _ask(self, op: str, fields: Mapping[str, Any]) -> Reply:
        self._last += 1
        future = self._asked[self._last] = asyncio.get_running_loop().create_future()
        await self._way.send(encode({"v": VERSION, "id": self._last, "op": op, **fields}))
        reply: Reply = await future
        return reply

    async def _up(self) -> None:
        loop, reader = asyncio.get_running_loop(), FrameReader(MAX_REQUEST)
        while data := await loop.sock_recv(self._near, PIECE):
            for payload in reader.feed(data):
                if len(payload) > SMALL or not await self._served(payload):
                    self._owed += 1
                    await self._way.send(frame(payload))
        raise _Ended

    async def _served(self, payload: bytes | memoryview) -> bool:
        """Whether a request is one that is answered here."""
        message = decode(payload)
        number, op = message.get("id"), message.get("op")
        if op in _REFUSED:
            await self._give(encode({"id": number, "error": {"kind": "bad_request", "message": _REFUSED[op]}}))
        elif op == "sandbox_connect":
            self._begin(self._connect(number, message.get("sandbox"), message.get("port")))
        else:
            return False
        return True

    async def _connect(self, number: Any, sandbox: Any, port: Any) -> None:
        try:
            there = await self._way.port(str(sandbox), int(port))
        except DaemonError as error:
            kind = getattr(error, "kind", "busy")
            await self._give(encode({"id": number, "error": {"kind": kind, "message": str(error)}}))
            return
        if there is None:
            await self._give(encode({"id": number, "ok": {"socket": False}}))
            return
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        _start(_pass_bytes(theirs, there))
        with ours:
            await self._give(encode({"id": number, "ok": {"socket": True}}), [ours.fileno()])

    async def _down(self) -> None:
        reader = FrameReader(MAX_REPLY)
        while data := await self._way.receive():
            for payload in reader.feed(data):
                reply = parse_reply(decode(payload))
                if reply.id > FIRST:
                    future = self._asked.pop(reply.id, None)
                    if future is None:
                        raise PeerError("an answer to nobody")
                    future.set_result(reply)
                    continue
                self._owed -= 1 if reply.id or reply.arenas else 0  # an error of 0 says why the connection is closed
                if self._owed < 0:  # each with memory files would have descriptors of this process
                    raise PeerError("more answers than requests")
                if reply.arenas:
                    self._begin(self._give_with_files(bytes(payload), reply))
                elif reply.descriptors:
                    raise PeerError("a socket that can't have come")
                else:
                    await self._give(frame(payload))
        raise _Ended

    async def _give_with_files(self, payload: bytes, reply: Reply) -> None:
        places = places_of(reply)
        if sum(length for _, _, length in places) > MOST:
            raise PeerError(f"an answer has more than {MOST} bytes")
        files: list[int] = []
        try:
            files.extend(map(new_file, reply.arenas))
            pieces = [(arena, at, min(PIECE, offset + length - at)) for arena, offset, length in places
                      for at in range(offset, offset + length, PIECE)]
            for first in range(0, len(pieces), WINDOW):
                await asyncio.gather(*(self._read(reply.id, files, *each) for each in pieces[first:first + WINDOW]))
            for fd in files:
                seal(fd)
            await self._ask("kept_drop", {"target": reply.id})
            await self._give(frame(payload), files)
        finally:
            for fd in files:
                os.close(fd)

    async def _read(self, target: int, files: Sequence[int], arena: int, offset: int, size: int) -> None:
        """Copy a piece of a memory file at the daemon into the one here."""
        found = await self._ask("kept_read", {"target": target, "arena": arena, "offset": offset, "size": size})
        data = (found.ok or {}).get("data")
        if not isinstance(data, bytes) or len(data) != size:
            raise PeerError("a piece of a memory file is cut off")
        os.pwrite(files[arena], data, offset)

    async def _give(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a frame to the client, with descriptors."""
        loop = asyncio.get_running_loop()
        async with self._giving:
            if descriptors:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(descriptors)}i", *descriptors))]
                while True:
                    try:
                        data = data[self._near.sendmsg([data], rights):]
                        break
                    except BlockingIOError:
                        await _writable(loop, self._near)
            await loop.sock_sendall(self._near, data)


def places_of(reply: Reply) -> list[tuple[int, int, int]]:
    """
    What an answer uses of its memory files: each [arena, offset, length] in it, and of a file of which it names no part
    all. A file may be larger by far.
    """
    found = set(_triples(reply.ok, reply.arenas))
    used = {arena for arena, _, _ in found}
    return sorted(found | {(arena, 0, size) for arena, size in enumerate(reply.arenas) if arena not in used})


def _triples(value: Any, arenas: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    if isinstance(value, list) and len(value) == 3 and all(type(each) is int and each >= 0 for each in value):
        arena, offset, length = value
        if arena < len(arenas) and offset + length <= arenas[arena]:
            yield arena, offset, length
    elif isinstance(value, (list, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _triples(each, arenas)


async def _writable(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    ready = asyncio.Event()
    loop.add_writer(sock.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(sock.fileno())


async def _pass_bytes(near: socket.socket, way: RemoteWay) -> None:
    """Pass on both directions until the far end has ended, or this one where *way* can't tell that of one direction."""
    loop = asyncio.get_running_loop()
    heard = float("inf")

    async def up() -> None:
        nonlocal heard
        while data := await loop.sock_recv(near, PIECE):
            await way.send(data)
        if await way.end():
            heard = loop.time()
            while (left := heard + HALF_S - loop.time()) > 0:
                await asyncio.sleep(left)
        raise _Ended

    async def down() -> None:
        nonlocal heard
        while data := await way.receive():
            await loop.sock_sendall(near, data)
            heard = loop.time()
        raise _Ended

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(up())
            group.create_task(down())
    except* (_Ended, PeerError, OSError):
        pass
    finally:
        near.close()
        await way.close()

