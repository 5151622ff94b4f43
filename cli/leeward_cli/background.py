"""
`leeward daemon start`, and a daemon for the length of one command.

Theory of operation. `start` runs `daemon run` in a session of its own, with this command's standard error and one end
of a pipe. So errors of the start are shown on the terminal. Where systemd runs, the daemon starts in a scope of its
own, in which it may make cgroups; elsewhere it uses the best cgroup driver that it can, and `leeward status` names it.
When the daemon is ready, it redirects its output to a log file and writes a byte to the pipe. If the pipe ends without
that byte, the start has failed.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from leeward.errors import LeewardError
from leeward_cli.daemon import log_file
from leeward_cli.messages import complain, write
from leeward_cli.stopping import STOP_S

#: Seconds until a daemon must be ready; its own deadline for the first worker is shorter.
START_S = 60.0
#: Seconds that systemd has to make a scope; it takes some hundredths of a second.
SCOPE_S = 10.0
#: Seconds without a request after which the daemon of a command that was killed ends.
ALONE_S = 120
#: Exists if systemd is the service manager; sd_booted(3).
_SYSTEMD = "/run/systemd/system"


def _begun(before: list[str], *arguments: str, **options: Any) -> tuple[subprocess.Popen[bytes], int]:
    """`daemon run` with *arguments*, behind the words *before*; and a pipe, of the caller, that says whether it is ready."""
    read, written = os.pipe()
    # -P: no module may be imported from the current folder.
    command = [*before, sys.executable, "-P", "-m", "leeward_cli", "daemon", "run", f"--ready-fd={written}", *arguments]
    try:
        daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(written,),
                                  cwd="/", **options)
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(written)
    return daemon, read


def _is_ready(read: int) -> bool:
    return bool(select.select([read], [], [], START_S)[0]) and os.read(read, 1) == b"+"


def start(arguments: list[str], socket: str) -> int:
    """Start `daemon run` with *arguments*, and wait until the daemon is ready. Returns the exit status."""
    daemon, read = _begun(scope(), *arguments, start_new_session=True)
    try:
        ready = _is_ready(read)
    except KeyboardInterrupt:
        daemon.terminate()
        raise
    finally:
        os.close(read)
    if ready:
        write(1, f"leeward daemon {daemon.pid} is ready on {socket}; it logs to {log_file(socket)}\n".encode())
        # The daemon outlives this process; without this Python would warn that it wasn't waited for.
        daemon.returncode = 0
        return 0
    try:
        status = daemon.wait(1.0)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
        complain(f"the daemon was not ready within {START_S:.0f} s")
        return 1
    if status <= 0:
        complain("the daemon ended while it was starting" + (f", by signal {-status}" if status else ""))
    return 1


@contextlib.contextmanager
def temporary(purpose: str, *options: str, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """A context with the path of the socket, in a new folder, of a daemon with these *options*, for the command *purpose*."""
    # In /tmp: a socket's path has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix=f"leeward-{purpose}.", dir="/tmp", ignore_cleanup_errors=True) as folder:
        path = f"{folder}/leeward.sock"
        process, read = _begun([], f"--socket={path}", f"--idle-exit={ALONE_S}", *options, env=env)
        try:
            if not _is_ready(read):
                raise LeewardError(f"{purpose}: its daemon didn't start; `leeward daemon run` says why")
            yield path
        finally:
            os.close(read)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def scope() -> list[str]:
    """
    The words to put before a command, so that it runs in a systemd scope of its own; empty if that isn't possible.

    systemd-run registers the scope and executes the command in the same process, with the same descriptors. This tries
    it with a command that does nothing, since there may be no manager for this user, or no bus.
    """
    program = shutil.which("systemd-run") if os.path.isdir(_SYSTEMD) else None
    if program is None:
        return []
    words = [program, *(["--user"] if os.geteuid() else []), "--scope", "--quiet", "--collect",
             "--property=Delegate=yes", "--"]
    try:
        tried = subprocess.run([*words, "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=SCOPE_S,
                               check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [] if tried.returncode else words
