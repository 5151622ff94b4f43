"""
One boot: QEMU in software, a command in the guest, what it says, its exit status and its files.

Runs in:   the host.

Three serial lines: the kernel's console, what the command says (passed on at once), and at the end a tar
archive of /leeward-vm/out with the exit status in it. A guest that dies says no status.

Neither -cpu max (five-level page tables and vector units are dear in software) nor -M microvm (its
clock can't be calibrated without hardware: some boots hang).
"""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kit.features import ROOT
from vm import share
from vm.archive import Archive
from vm.kernels import Bootable, Unavailable

GUEST = "guest"
GUEST_ID = 54321

#: The emulators that run, for `turn_off_all`.
_RUNNING: set[subprocess.Popen[bytes]] = set()

#: To the kernel, and to systemd. On a busy host the timer of an emulated machine is late for the kernel's check of it, which
#: panics, and units need longer to start than systemd waits by itself.
_WORDS = "console=ttyS0 quiet panic=-1 mitigations=off audit=0 no_timer_check systemd.default_timeout_start_sec=600"

_SCRIPTS = Path(__file__).resolve().parent / "guest"


@dataclass(frozen=True, slots=True)
class Boot:
    """
    What to run, and how.

    Attributes:
        user: as an ordinary one, in a group that is delegated to it; else as root.
        systemd: the first process is it, and the group one that it delegates.
        command: a script for the shell, in the checkout; `alone COMMAND` runs one in a group of its own.
        environment: on top of what the guest's scripts set.
        seconds: until the machine is turned off.
        memory: MiB. Of processors there is one: two would wait for each other at every change of an address space,
        for as long as this machine lets either wait.
        append: to the kernel's command line.
        kept: what an earlier boot has left for this one, which finds it as /leeward-vm/kept.
    """

    kernel: Bootable
    command: str
    user: bool = False
    systemd: bool = False
    environment: Mapping[str, str] | None = None
    seconds: float = 1200.0
    memory: int = 2048
    append: str = ""
    kept: bytes = b""


@dataclass(frozen=True, slots=True)
class Ended:
    """
    Attributes:
        status: the command's; None where the guest didn't say one: dead, or turned off.
        files: by name, what it left in /leeward-vm/out.
        console: what the kernel said.
        seconds: from the start of QEMU to its end.
    """

    status: int | None
    files: Mapping[str, bytes]
    console: str
    seconds: float
    turned_off: bool


def run(boot: Boot, out: BinaryIO) -> Ended:
    """
    Boot, run, turn off. What the command says goes to *out* as it comes.

    Raises:
        Unavailable: this machine can't.
    """
    missing = share.why_not()
    if missing:
        raise Unavailable(missing)
    with tempfile.TemporaryDirectory(prefix="leeward-vm-") as name:
        folder = Path(name)
        (folder / "root.cpio").write_bytes(boot.kernel.archive.read_bytes() + _settings(boot))
        server, socket = share.serve(folder)
        try:
            ended = _run(boot, folder, socket, out)
            failed = share.why_failed(folder, server) if ended.status is None else ""
        finally:
            server.kill()
            server.wait()
    if failed:
        raise Unavailable(failed)
    return ended


def _settings(boot: Boot) -> bytes:
    """The archive of what differs from run to run: the scripts, and what they are told."""
    archive = Archive()
    for path in sorted(_SCRIPTS.iterdir()):
        archive.file("init" if "init" == path.name else f"guest/{path.name}", path.read_bytes(), 0o755)
    keep = dict.fromkeys(os.path.realpath(place) for place in (ROOT, sys.prefix, sys.base_prefix))
    told = {"SYSTEMD": int(boot.systemd), "ORDINARY": int(boot.user), "GUEST": GUEST, "GUEST_ID": GUEST_ID,
            "KEEP": " ".join(keep), "ALLOWED": boot.kernel.kernel.lacks or _left_out(boot.append),
            # Whoever runs mount(8) shall not become the nobody that it seems to belong to: share.py.
            "SUID": "nosuid" if os.geteuid() else "suid"}
    lines = [f"{key}={shlex.quote(str(value))}\n" for key, value in told.items()]
    archive.file("guest/settings", "".join(lines).encode())
    if boot.kept:
        archive.file("guest/kept", boot.kept)
    environment = [f"export {key}={shlex.quote(value)}" for key, value in (boot.environment or {}).items()]
    archive.file("guest/command", "\n".join(
        [*environment, f"cd {shlex.quote(str(ROOT))}", boot.command, ""]).encode())
    return archive.whole()


def _left_out(append: str) -> str:
    """The layer that a kernel told so at boot does without, or ""."""
    modules = [word for word in append.split() if word.startswith("lsm=")]
    return "landlock" if modules and "landlock" not in modules[-1] else ""


def _run(boot: Boot, folder: Path, socket: Path, out: BinaryIO) -> Ended:
    command = [
        # If this process is killed no machine stays behind.
        "setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64",
        "-accel", "tcg,thread=multi", "-M", "q35,memory-backend=ram", "-cpu", "qemu64", "-smp", "1",
        "-m", f"{boot.memory}M", "-object", f"memory-backend-memfd,id=ram,size={boot.memory}M,share=on",
        "-nodefaults", "-no-reboot", "-display", "none",
        "-kernel", str(boot.kernel.image), "-initrd", str(folder / "root.cpio"),
        "-chardev", f"socket,id=root,path={socket}", "-device", "vhost-user-fs-pci,chardev=root,tag=host",
        "-serial", f"file:{folder}/console", "-serial", "stdio", "-serial", f"file:{folder}/out.tar",
        "-append", f"{_WORDS} {boot.append}",
    ]
    started = time.monotonic()
    with open(folder / "qemu.log", "wb") as log:
        machine = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
    _RUNNING.add(machine)
    turned_off = threading.Event()

    def turn_off() -> None:
        turned_off.set()
        machine.kill()

    assert machine.stdout is not None
    limit = threading.Timer(boot.seconds, turn_off)
    limit.start()
    try:
        while said := os.read(machine.stdout.fileno(), 1 << 16):
            out.write(said)
            out.flush()
        machine.wait()
    finally:
        limit.cancel()
        machine.kill()
        machine.wait()
        _RUNNING.discard(machine)
        machine.stdout.close()
    files = _unpacked(folder / "out.tar")
    console = _text(folder / "console") + _text(folder / "qemu.log")
    status = files.get("status", b"").strip()
    return Ended(int(status) if status.isdigit() else None, files, console, time.monotonic() - started,
                 turned_off.is_set())


def turn_off_all() -> None:
    """End the machines that other threads run, which then clean up."""
    for machine in tuple(_RUNNING):
        machine.kill()


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _unpacked(path: Path) -> dict[str, bytes]:
    """The files of the archive *path*; none if the guest died before it was whole."""
    files = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as archive:
            for member in archive:
                content = archive.extractfile(member)
                if content is not None:
                    files[member.name.removeprefix("./")] = content.read()
    except (OSError, tarfile.TarError):
        return {}
    return files
