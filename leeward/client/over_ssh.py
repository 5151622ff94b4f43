"""
The way to a daemon by ssh: one ssh a host and process, which forwards the daemon's socket to one of a private folder.

Ports:     the Python at the other end runs far_ports.py, whose socket is forwarded as the daemon's.
Trust:     none in what the other end prints: ssh would put variables of this process into a path that it forwards.
Bounds:    READY_S seconds until it is forwarded, in which ssh may ask for a password or whether it knows the host; and
           END_S until it is killed. A line of the other end's has _LINE bytes at most.
Ends:      with this process, however it ends: a command at the other end waits for the end of a pipe of ours.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib.resources
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from leeward.client.connecting import CONNECT_S, away
from leeward.client.conversation import refusal
from leeward.errors import RequestRejected, reason_of
from leeward.spec.paths import RemoteHost
from leeward.wire.frames import HEADER, VERSION, decode, encode
from leeward.wire.replies import parse_reply

READY_S, END_S = 120.0, 5.0
#: Seconds between two looks, at the end, for one that has just begun.
_AGAIN_S = 0.05
#: The program with its options; another one by this variable.
SSH, VARIABLE = "ssh", "LEEWARD_SSH"
#: Bytes of one read; of the answer about a port; of a line that says a path.
_PIECE, _ANSWER, _LINE = 1 << 18, 1 << 16, 1 << 12

#: Prints the path of the socket that leeward's own clients on that machine would take, and waits. One line without a quote,
#: which every shell passes on. In /tmp anybody may have made a folder of that name first.
_WHERE = ('s=$LEEWARD_SOCKET; if [ -z "$s" ]; then u=$(id -u); if [ "$u" = 0 ]; then s=/run/leeward/leeward.sock; else '
          'd=${XDG_RUNTIME_DIR:-/run/user/$u}; [ -w "$d" ] && s=$d/leeward/leeward.sock || { d=/tmp/leeward-$u; '
          's=$d/leeward.sock; [ -O "$d" ] && [ ! -L "$d" ] || s=/run/leeward/leeward.sock; }; '
          '[ -S "$s" ] || [ ! -S /run/leeward/leeward.sock ] || s=/run/leeward/leeward.sock; fi; fi; echo "$s"; '
          'exec cat >/dev/null')

#: Runs far_ports.py, whose text is the first line of its input.
_PORTS = 'exec sh -c \'exec python3 -c "import sys;exec(eval(sys.stdin.readline()))"\''


@dataclass(slots=True)
class _Forwarded:
    """
    Attributes:
        ssh: the master.
        folder: has the sockets that are forwarded: "s", and "p" for ports.
        far: the path of the daemon's.
    """

    ssh: subprocess.Popen[bytes]
    folder: str
    far: str

    @property
    def near(self) -> str:
        return os.path.join(self.folder, "s")

    @property
    def lives(self) -> bool:
        return self.ssh.poll() is None


@dataclass(slots=True)
class _Ports:
    """The ssh that runs far_ports.py, by the master *of*, and the path of its socket here."""

    ssh: subprocess.Popen[bytes]
    of: _Forwarded
    near: str

    @property
    def lives(self) -> bool:
        return self.of.lives and self.ssh.poll() is None


_Made = TypeVar("_Made", _Forwarded, _Ports)

_lock = threading.Lock()
#: What was begun, by process and host. Each is begun by a thread of its own, so that no host waits for another one.
_forwarded: dict[tuple[int, str], Future[_Forwarded]] = {}
_ports: dict[tuple[int, str], Future[_Ports]] = {}
_beginning: set[subprocess.Popen[bytes]] = set()  # each ssh that isn't ready
_running: set[subprocess.Popen[bytes]] = set()  # and each that wasn't ended; for a child of fork, which can wait for no lock


async def way(host: RemoteHost) -> SocketWay:
    """A stream to the daemon. DaemonAway if there is none."""
    near = (await asyncio.wrap_future(_forwarding(host))).near
    made = socket.socket(socket.AF_UNIX)
    try:
        made.settimeout(CONNECT_S)
        made.connect(near)  # in a folder of this user's own
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise away(host, reason_of(error)) from None
    return SocketWay(host, *await asyncio.open_unix_connection(sock=made))


def _forwarding(host: RemoteHost) -> Future[_Forwarded]:
    """A socket of this machine that ssh forwards to the daemon's. DaemonAway if it can't."""
    return _begun(_forwarded, host, partial(_forward, host), _end)


def _forwarding_ports(host: RemoteHost) -> Future[_Ports]:
    """As `_forwarding`, to far_ports.py, which runs there from then on. RequestRejected if it can't."""
    return _begun(_ports, host, lambda: _begin_ports(host, _forwarding(host).result()), lambda known: _stop(known.ssh))


def _begun(table: dict[tuple[int, str], Future[_Made]], host: RemoteHost, begin: Callable[[], _Made],
           end: Callable[[_Made], None]) -> Future[_Made]:
    """What *begin* makes, once for all who want it: it is made anew if it has failed, or its ssh has ended."""
    key = os.getpid(), str(host)
    before: _Made | None = None

    def run() -> None:
        try:
            if before is not None:
                end(before)
            made.set_result(begin())
        except BaseException as error:
            made.set_exception(error)

    with _lock:
        known = table.get(key)
        before = known.result() if known is not None and known.done() and known.exception() is None else None
        if known is not None and (not known.done() or (before is not None and before.lives)):
            return known
        made: Future[_Made] = Future()
        made.set_running_or_notify_cancel()  # who waits for it may give up, and it goes on for the others
        table[key] = made
    threading.Thread(target=run, name="begins ssh", daemon=True).start()
    return made


def _program() -> list[str]:
    return shlex.split(os.environ.get(VARIABLE, SSH))


def _there(host: RemoteHost) -> list[str]:
    """The other end, as ssh takes it."""
    parts = urlsplit(host)
    return [*(["-p", str(parts.port)] if parts.port else []), "--",
            f"{unquote(parts.username)}@{parts.hostname}" if parts.username else str(parts.hostname)]


def _begin_ports(host: RemoteHost, known: _Forwarded) -> _Ports:
    near = os.path.join(known.folder, "p")
    text = importlib.resources.files("leeward.client").joinpath("far_ports.py").read_text("utf-8")
    made = _start([*_program(), "-T", "-S", os.path.join(known.folder, "c"), *_there(host), _PORTS])
    late = _late(made)
    try:
        assert made.stdin is not None
        assert made.stdout is not None
        made.stdin.write(f"{f'{text}{chr(10)}main({known.far!r})'!r}\n".encode())
        made.stdin.flush()
        far = _line(made)
        if os.path.exists(near):
            os.unlink(near)  # of one that has ended
        if not _is_plain(far) or not _forwards(host, known.folder, near, far):
            raise RequestRejected("ports by ssh need a python3 at the other end, which ssh can run: ssh says why it can't")
    except BaseException as error:
        made.kill()
        _stop(made)
        raise _told(host, error) from None
    finally:
        late.cancel()
        _beginning.discard(made)
    return _Ports(made, known, near)


def _told(host: RemoteHost, error: BaseException) -> BaseException:
    """What a caller gets for *error*."""
    if isinstance(error, subprocess.TimeoutExpired):
        return away(host, "ssh takes too long")
    return away(host, "ssh has ended, and says why") if isinstance(error, OSError) else error


def _line(made: subprocess.Popen[bytes]) -> str:
    """A line of the other end's."""
    assert made.stdout is not None
    return os.fsdecode(made.stdout.readline(_LINE).rstrip(b"\n"))


def _is_plain(far: str) -> bool:
    """Whether ssh forwards this path as it is. A colon ends one, and ${VARIABLE} and %TOKEN become what they are here."""
    return far.startswith("/") and len(far) < _LINE and not set(":$%") & set(far)


def _forwards(host: RemoteHost, folder: str, near: str, far: str) -> bool:
    command = [*_program(), "-S", os.path.join(folder, "c"), "-O", "forward", "-L", f"{near}:{far}", *_there(host)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=READY_S, check=False)
    return done.returncode == 0


def _forward(host: RemoteHost) -> _Forwarded:
    parts, ssh = urlsplit(host), _program()
    # ssh adds to the names of its sockets, which have 107 bytes at most.
    folder = tempfile.mkdtemp(prefix="leeward-ssh-", dir="/tmp" if len(tempfile.gettempdir()) > 64 else None)
    try:
        command = [*ssh, "-T", "-M", "-S", os.path.join(folder, "c"), "-o", "ControlPersist=no", *_there(host),
                   f"exec sh -c '{_WHERE}'"]
        made = _start(command)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise away(host, f"{ssh[0]}: {reason_of(error)}") from None
    late, found = _late(made), _Forwarded(made, folder, "")
    try:
        said = _line(made)
        far = unquote(parts.path) if parts.path not in ("", "/") else said
        if not _is_plain(far):
            raise away(host, "ssh has ended, and says why" if not far else "no path of a socket that ssh can forward")
        found.far = far
        if not _forwards(host, folder, found.near, far):
            raise away(host, "ssh forwards no socket there, and says why")
    except BaseException as error:
        made.kill()
        _end(found)
        raise _told(host, error) from None
    finally:
        late.cancel()
        _beginning.discard(made)
    return found


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    # Without buffers: the lock of one is held by who waits for a line, and a child of fork couldn't close the pipe.
    made = subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    _running.add(made)
    return made


def _late(made: subprocess.Popen[bytes]) -> threading.Timer:
    """Kills an ssh that isn't ready in time, unless it is cancelled."""
    _beginning.add(made)
    late = threading.Timer(READY_S, made.kill)
    late.daemon = True
    late.start()
    return late


@atexit.register
def close() -> None:
    """End each ssh of this process."""
    begun: list[Future[Any]] = [*_forwarded.values(), *_ports.values()]
    until = time.monotonic() + END_S
    over = False
    while not over:
        for made in list(_beginning):
            made.kill()
        # One that runs may be known to its thread only in a moment.
        over = not wait(begun, _AGAIN_S).not_done or time.monotonic() >= until
    for ports in _all(_ports):
        _stop(ports.ssh)
    for known in _all(_forwarded):
        _end(known)
    _ports.clear()
    _forwarded.clear()


def _all(table: dict[tuple[int, str], Future[_Made]]) -> list[_Made]:
    return [known.result() for key, known in table.items()
            if key[0] == os.getpid() and known.done() and known.exception() is None]


def _end(known: _Forwarded) -> None:
    _stop(known.ssh)
    shutil.rmtree(known.folder, ignore_errors=True)


def _forget() -> None:
    """In a child of fork: each ssh is the parent's, and ends with its pipe."""
    global _lock
    _lock = threading.Lock()
    for made in _running:
        _close(made)
    for table in (_forwarded, _ports, _beginning, _running):
        table.clear()


os.register_at_fork(after_in_child=_forget)


def _close(made: subprocess.Popen[bytes]) -> None:
    """Close the pipes; what the other end prints nobody reads then."""
    for pipe in (made.stdin, made.stdout):
        with contextlib.suppress(OSError):
            assert pipe is not None
            pipe.close()


def _stop(made: subprocess.Popen[bytes]) -> None:
    _running.discard(made)
    _close(made)
    try:
        made.wait(END_S)  # the end of its input ends it, if the network goes
    except subprocess.TimeoutExpired:
        made.kill()
        made.wait()


class SocketWay:
    """As remote.RemoteWay."""

    def __init__(self, host: RemoteHost, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._host, self._reader, self._writer = host, reader, writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def receive(self) -> bytes:
        try:
            return await self._reader.read(_PIECE)
        except ConnectionError:
            return b""

    async def end(self) -> bool:
        self._writer.write_eof()
        return True

    async def close(self) -> None:
        self._writer.transport.abort()

    async def port(self, sandbox: str, port: int) -> SocketWay | None:
        try:
            way = SocketWay(self._host, *await asyncio.open_unix_connection(
                (await asyncio.wrap_future(_forwarding_ports(self._host))).near))
        except OSError:
            raise away(self._host, "ssh has ended, and says why") from None
        try:
            await way.send(encode({"v": VERSION, "id": 1, "op": "sandbox_connect", "sandbox": sandbox, "port": port}))
            size = int.from_bytes(await way._reader.readexactly(HEADER), "big")
            reply = parse_reply(decode(await way._reader.readexactly(min(size, _ANSWER))))
            if reply.ok is None:
                raise refusal(reply)
        except (OSError, EOFError):
            await way.close()
            raise away(self._host, "it closed the connection") from None
        except BaseException:
            await way.close()
            raise
        if reply.ok.get("socket"):
            return way
        await way.close()
        return None
