"""
`leeward daemon start` and `stop`.

Runs in:   the CLI.

Theory of operation. `start` runs `daemon run` in a session of its own, with its own
standard error and the end of a pipe. What goes wrong on the way up is thus seen on the
terminal. Where systemd runs, the daemon starts in a scope of its own, whose cgroups are its to
divide; else it takes what it can get, and `leeward status` says what that is. When the
daemon is ready it moves its descriptors to a log file and writes a byte; a pipe that ends
without that byte is a start that failed.
"""

from __future__ import annotations

import os
import select
import shutil
import struct
import subprocess
import sys
import time
from _socket import SO_PEERCRED, SOL_SOCKET

from leeward.client.link import Link, connect
from leeward.errors import DaemonAway, NoAnswer
from leeward_cli.job import complain, write
from leeward_cli.settle import log_file

#: Seconds until a daemon must be ready; its own deadline for the first worker is shorter.
START_S = 60.0
#: Seconds until a daemon that was asked must have ended: it drains for less than 5.
STOP_S = 15.0
#: Seconds that systemd has to make a scope; it takes some hundredths of one.
SCOPE_S = 10.0
#: Is there if systemd is the service manager; sd_booted(3).
_SYSTEMD = "/run/systemd/system"


def start(arguments: list[str], socket: str) -> int:
    """
    Start `daemon run` with *arguments*, wait until it is ready; return the exit status.
    """
    read, written = os.pipe()
    # -P: the folder where the user happens to be must not provide our modules.
    command = [*scope(), sys.executable, "-P", "-m", "leeward_cli", "daemon", "run", f"--ready-fd={written}",
               *arguments]
    daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(written,),
                              start_new_session=True, cwd="/")
    os.close(written)
    try:
        ready = bool(select.select([read], [], [], START_S)[0]) and os.read(read, 1) == b"+"
    except KeyboardInterrupt:
        daemon.terminate()
        raise
    finally:
        os.close(read)
    if ready:
        write(1, f"leeward daemon {daemon.pid} is ready on {socket}; it logs to {log_file(socket)}\n".encode())
        # It outlives us; without this Python would warn that nobody waits for it.
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
        complain("the daemon was told to end while it started" + (f", by signal {-status}" if status else ""))
    return 1


def scope() -> list[str]:
    """
    The words before a command that run it in a group of systemd's that is its own, or none.

    systemd-run registers the scope and becomes the command: same process, same descriptors. Whether it
    can is tried with a command that does nothing: there may be no manager for this user, or no bus to ask.
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


def stop(socket: str) -> int:
    """
    Ask the daemon on *socket* to end, wait for that; return the exit status.
    """
    probe = connect(socket)
    assert probe is not None
    pid, _, _ = struct.unpack("3i", probe.getsockopt(SOL_SOCKET, SO_PEERCRED, 12))
    probe.close()
    until = time.monotonic() + STOP_S
    link = Link(socket)
    process = None
    try:
        if pid:  # 0 is a daemon in a pid namespace that we don't see; then only the socket tells
            status = link.call("status", {}, until)[0].ok
            # A socket that a service manager made is connected to the manager, not to the daemon.
            pid = status["pid"] if isinstance(status, dict) and type(status.get("pid")) is int else pid
            process = os.pidfd_open(pid)
        link.call("shutdown", {}, until)
        if process is not None:
            if not select.select([process], [], [], max(0.0, until - time.monotonic()))[0]:
                raise NoAnswer(f"daemon {pid} has not ended within {STOP_S:.0f} s; `kill -9 {pid}` ends it at once")
        else:
            _wait_closed(link, until)
    finally:
        link.close()
        if process is not None:
            os.close(process)
    return 0


def _wait_closed(link: Link, until: float) -> None:
    """
    Wait until the connection ends, which it does with the daemon.
    """
    try:
        while True:
            link.call("ping", {}, until)
            time.sleep(0.05)
    except DaemonAway:
        return
