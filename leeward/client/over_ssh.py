"""
The way to a daemon by ssh: one ssh a host and process, which forwards the daemon's socket to one of a private folder.

Bounds:    READY_S seconds until it is forwarded, in which ssh may ask for a password or whether it knows the host; and
           END_S until it is killed.
Ends:      with this process, however it ends: a command at the other end waits for the end of a pipe of ours.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
from urllib.parse import unquote, urlsplit

from leeward.client.connecting import away, connect
from leeward.errors import RequestRejected
from leeward.spec.paths import RemoteHost

READY_S, END_S = 120.0, 5.0
#: The program with its options; another one by this variable.
SSH, VARIABLE = "ssh", "LEEWARD_SSH"
#: Bytes of one read.
_PIECE = 1 << 18

#: Prints the path of the socket that leeward's own clients on that machine would take, and waits. One line without a quote,
#: which every shell passes on.
_WHERE = ('s=$LEEWARD_SOCKET; if [ -z "$s" ]; then u=$(id -u); if [ "$u" = 0 ]; then s=/run/leeward/leeward.sock; else '
          'd=${XDG_RUNTIME_DIR:-/run/user/$u}; [ -w "$d" ] && s=$d/leeward/leeward.sock || s=/tmp/leeward-$u/leeward.sock; '
          '[ -S "$s" ] || [ ! -S /run/leeward/leeward.sock ] || s=/run/leeward/leeward.sock; fi; fi; echo "$s"; '
          'exec cat >/dev/null')

_lock = threading.Lock()
_forwarded: dict[tuple[int, str], tuple[subprocess.Popen[bytes], str]] = {}  # by process and host; with the socket's path


async def way(host: RemoteHost) -> SocketWay:
    """A stream to the daemon. DaemonAway if there is none."""
    path = await asyncio.to_thread(forwarded, host)
    made = connect(path)
    assert made is not None
    made = socket.socket(fileno=made.detach())
    made.setblocking(False)
    return SocketWay(host, *await asyncio.open_unix_connection(sock=made))


def forwarded(host: RemoteHost) -> str:
    """The path of a socket of this machine that ssh forwards to the daemon's. DaemonAway if it can't."""
    with _lock:
        key = os.getpid(), str(host)
        known = _forwarded.get(key)
        if known is not None and known[0].poll() is not None:
            _end(*_forwarded.pop(key))
            known = None
        if known is None:
            known = _forwarded[key] = _forward(host)
        return known[1]


def _forward(host: RemoteHost) -> tuple[subprocess.Popen[bytes], str]:
    parts, ssh = urlsplit(host), shlex.split(os.environ.get(VARIABLE, SSH))
    there = [*(["-p", str(parts.port)] if parts.port else []), "--",
             f"{unquote(parts.username)}@{parts.hostname}" if parts.username else str(parts.hostname)]
    folder = tempfile.mkdtemp(prefix="leeward-ssh-")
    control, near = os.path.join(folder, "c"), os.path.join(folder, "s")
    try:
        command = [*ssh, "-T", "-M", "-S", control, "-o", "ControlPersist=no", *there, f"exec sh -c '{_WHERE}'"]
        made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise away(host, f"{ssh[0]}: {(error.strerror or '').lower()}") from None
    late = threading.Timer(READY_S, made.kill)
    late.start()
    try:
        assert made.stdout is not None
        far = unquote(parts.path) if parts.path not in ("", "/") else os.fsdecode(made.stdout.readline().rstrip(b"\n"))
        if not far.startswith("/") or ":" in far:
            raise away(host, "ssh has ended, and says why" if not far else "no path of a socket that ssh can forward")
        if far == unquote(parts.path):
            made.stdout.readline()
        done = subprocess.run([*ssh, "-S", control, "-O", "forward", "-L", f"{near}:{far}", *there], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, timeout=READY_S, check=False)
        if done.returncode != 0:
            raise away(host, "ssh forwards no socket there, and says why")
    except BaseException as error:
        made.kill()
        _end(made, near)
        raise (away(host, "ssh takes too long") if isinstance(error, subprocess.TimeoutExpired) else error) from None
    finally:
        late.cancel()
    return made, near


@atexit.register
def close() -> None:
    """End each ssh of this process."""
    with _lock:
        for key in [key for key in _forwarded if key[0] == os.getpid()]:
            _end(*_forwarded.pop(key))


def _end(made: subprocess.Popen[bytes], near: str) -> None:
    try:
        made.communicate(timeout=END_S)  # the end of its input ends it, if the network goes
    except subprocess.TimeoutExpired:
        made.kill()
        made.communicate()
    shutil.rmtree(os.path.dirname(near), ignore_errors=True)


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

    async def close(self) -> None:
        self._writer.transport.abort()

    async def port(self, sandbox: str, port: int) -> SocketWay | None:
        raise RequestRejected("ssh brings no socket of a sandbox here: `leeward sandbox port` on that machine, and ssh -L")
