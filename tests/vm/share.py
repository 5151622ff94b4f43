"""
The guest's root: this machine's own, read-only, by virtiofs. No image to make, and its tools are the ones here.

Runs in:   the host. As root, virtiofsd answers with the rights that it has. As an ordinary user it is root of a user
           namespace with one id: what lies here of others, root's own files too, belongs to nobody (65534) in
           the guest, and what the user may not read isn't there.

What is shared is a read-only copy of what is mounted here, in a mount namespace of its own: whatever happens in
the guest, nothing here is written. As root, of the mount at / alone, and of the one that the checkout is in where
that is another, so no /proc, /sys or /dev of this machine; a user may not have a mount without those on top of it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from kit.features import ROOT
from vm.kernels import Unavailable

#: Debian 12 has it with QEMU.
_SERVER = Path("/usr/lib/qemu/virtiofsd")

#: What lets virtiofsd run without root.
_AS_A_USER = Path(__file__).resolve().parent / "as_a_user.c"

#: All that is mounted, once more, and all of it read-only at once: mount(8) knows how since 2.39 only.
_VIEW = """
import ctypes, os, struct, sys
MS_BIND, MS_REC, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY, mount_setattr = 0x1000, 0x4000, -100, 0x8000, 1, 442
libc, view = ctypes.CDLL(None, use_errno=True), os.fsencode(sys.argv[1])
attributes = struct.pack("4Q", MOUNT_ATTR_RDONLY, 0, 0, 0)
if (libc.mount(b"/", view, None, ctypes.c_ulong(MS_BIND | MS_REC), None)
        or libc.syscall(ctypes.c_long(mount_setattr), ctypes.c_int(AT_FDCWD), view, ctypes.c_uint(AT_RECURSIVE),
                        attributes, ctypes.c_size_t(len(attributes)))):
    sys.exit(f"a read-only view of /: {os.strerror(ctypes.get_errno())}")
"""


def why_not() -> str:
    """What this machine lacks for it, or ""."""
    if not _SERVER.exists():
        return f"no {_SERVER} (Debian 12: qemu-system-common)"
    if os.geteuid():
        if not shutil.which("gcc"):
            return "no gcc, which virtiofsd takes to serve an ordinary user"
        if subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"], check=False,
                          stderr=subprocess.DEVNULL).returncode:
            return "virtiofsd needs root, or user namespaces for ordinary users"
    return ""


def serve(folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """
    Start the server; it ends when QEMU hangs up, with a status above 0 where it couldn't serve.

    Args:
        folder: for the socket, the view and the server's log, virtiofs.log.

    Returns:
        The server, and its socket, which can be connected to at once.
    """
    path, view = folder / "virtiofs", folder / "view"
    view.mkdir()
    lines, command = ["set -e"], ["unshare", "--mount", "--propagation", "private"]
    environment = {}
    if os.geteuid():
        command = ["unshare", "--user", "--map-root-user", "--mount"]
        lines.append(shlex.join([sys.executable, "-c", _VIEW, str(view)]))
        environment = {"LD_PRELOAD": str(_compiled(folder))}
    else:
        for place in dict.fromkeys(("/", _mount_of(ROOT))):
            at = shlex.quote(f"{view}{place}")
            lines += [f"mount --bind {shlex.quote(place)} {at}", f"mount -o remount,bind,ro {at}"]
    with socket.socket(socket.AF_UNIX) as listener, open(folder / "virtiofs.log", "wb") as out:
        listener.bind(str(path))
        listener.listen(1)
        given = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
        lines.append(f"exec env {given} {_SERVER} --fd={listener.fileno()} -o source={shlex.quote(str(view))}"
                     " -o cache=always,sandbox=chroot --thread-pool-size=0")
        server = subprocess.Popen([*command, "sh", "-c", "\n".join(lines)], pass_fds=[listener.fileno()],
                                  stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    return server, path


def why_failed(folder: Path, server: subprocess.Popen[bytes]) -> str:
    """What the server said before it ended by itself; "" if it didn't, or as it should."""
    if not server.poll():
        return ""
    said = (folder / "virtiofs.log").read_text(errors="replace").strip().splitlines()
    return f"virtiofsd: {said[-1] if said else 'it says nothing'}"


def _compiled(folder: Path) -> Path:
    made = folder / "as_a_user.so"
    try:
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", made, _AS_A_USER], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"gcc: {error.stderr.decode(errors='replace').strip()}") from None
    return made


def _mount_of(path: Path) -> str:
    while not path.is_mount():
        path = path.parent
    return str(path)
