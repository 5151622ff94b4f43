"""
The guest's root: this machine's own, read-only, by virtiofs. No image to make, and its tools are the ones here.

Runs in:   the host, as root: virtiofsd answers with the rights that it has.

What is shared is a read-only copy of the mount at / alone, in a mount namespace of its own, and of the one that
the checkout is in where that is another: no /proc, /sys or /dev of this machine, and whatever
happens in the guest, nothing here is written.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path

from features import ROOT
from vm.kernels import Unavailable

#: Debian 12 has it with QEMU.
_SERVER = Path("/usr/lib/qemu/virtiofsd")

_PATIENCE_S = 20.0


def why_not() -> str:
    """
    What this machine lacks for it, or "".
    """
    if os.geteuid():
        return "virtiofsd needs root"
    if not _SERVER.exists():
        return f"no {_SERVER} (Debian 12: qemu-system-common)"
    return ""


def serve(folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """
    Start the server; it ends when QEMU hangs up.

    Args:
        folder: for the socket and the server's log.

    Returns:
        The server, and its socket.

    Raises:
        Unavailable: it doesn't start.
    """
    socket, log, view = folder / "virtiofs", folder / "virtiofs.log", folder / "view"
    view.mkdir()
    places = dict.fromkeys(("/", _mount_of(ROOT)))
    lines = ["set -e"]
    for place in places:
        at = shlex.quote(f"{view}{place}")
        lines += [f"mount --bind {shlex.quote(place)} {at}", f"mount -o remount,bind,ro {at}"]
    lines.append(f"exec {_SERVER} --socket-path={shlex.quote(str(socket))} -o source={shlex.quote(str(view))}"
                 " -o cache=always,sandbox=chroot --thread-pool-size=0")
    with open(log, "wb") as out:
        server = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(lines)],
                                  stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    until = time.monotonic() + _PATIENCE_S
    while not socket.exists():
        if server.poll() is not None or time.monotonic() > until:
            server.kill()
            server.wait()
            said = log.read_text(errors="replace").strip().splitlines()
            raise Unavailable(f"virtiofsd doesn't start: {said[-1] if said else 'it says nothing'}")
        time.sleep(0.01)
    return server, socket


def _mount_of(path: Path) -> str:
    while not path.is_mount():
        path = path.parent
    return str(path)


def present() -> bool:
    """
    Whether there is all that a boot needs: QEMU, the server and what unpacks kernels.
    """
    return not why_not() and all(shutil.which(name) for name in ("qemu-system-x86_64", "apt-get", "lz4", "zstd"))
