"""
The kernels, from Debian's packages: fetched by apt, unpacked, never installed.

Runs in:   the host, as anybody. Needs apt-get, dpkg-deb, lz4 and zstd.
Source:    deb822 and apt.conf(5); Documentation/arch/x86/boot.rst

The "cloud" flavour boots quickest and has all that leeward asks for. A suite that this machine doesn't
know gets lists of its own in the cache, signed by the same keys; the system's set-up is left alone.

QEMU enters an ELF image directly (PVH), which spares the guest to unpack itself: a second a boot in software.
"""

from __future__ import annotations

import lzma
import os
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kit.features import ROOT
from vm.archive import Archive

#: Ignored by git, as all of .venv-*.
CACHE = ROOT / ".venv-vm"

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

#: What the guest needs to find its root, and for a disk. Those that a kernel has built in are no files of its package.
MODULES = ("virtio_pci", "virtio_blk", "virtiofs", "overlay", "loop", "ext4")

#: What the guest's first script calls.
APPLETS = ("cat", "chmod", "chown", "cp", "insmod", "ln", "mkdir", "mount", "mv", "poweroff", "rm", "seq", "sh",
           "sleep", "switch_root", "umount")

_GUEST = Path(__file__).resolve().parent / "guest"


class Unavailable(Exception):
    """This machine can't have the kernel, or can't boot it; says why."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """
    Where a kernel comes from.

    Attributes:
        suite: Debian's name for the release that has it.
        package: the one that depends on the newest build.
        lacks: the layer that an operator of leeward has to allow to be missing there.
    """

    name: str
    suite: str
    package: str = "linux-image-cloud-amd64"
    lacks: str = ""


#: By what `--kernel` says.
KERNELS: Mapping[str, Kernel] = {kernel.name: kernel for kernel in (
    Kernel("5.10", "bullseye", lacks="landlock"),
    Kernel("6.1", "bookworm"),
    Kernel("6.12", "bookworm", "linux-image-6.12-cloud-amd64"),
    Kernel("7", "trixie-backports"),
)}


@dataclass(frozen=True, slots=True)
class Bootable:
    """
    A kernel that is there.

    Attributes:
        release: the package that it came from.
    """

    kernel: Kernel
    image: Path
    archive: Path
    release: str


def get(kernel: Kernel) -> Bootable:
    """
    Fetch *kernel* unless the cache has it. Takes 5 to 15 s; asks no one for newer builds later.

    Raises:
        Unavailable: a tool is missing, or the packages can't be had.
    """
    folder = CACHE / kernel.name
    made = Bootable(kernel, folder / "vmlinux", folder / "root.cpio", "")
    stamp = folder / "release"
    wanted = _recipe()
    if not (stamp.exists() and stamp.read_text().splitlines()[1:] == [wanted]):
        folder.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as unpacked:
            release = _unpack(kernel, Path(unpacked))
            _write(made, Path(unpacked))
        stamp.write_text(f"{release}\n{wanted}\n")
    return replace(made, release=stamp.read_text().splitlines()[0])


def _recipe() -> str:
    """Changes with whatever decides what is in the cache."""
    return f"{' '.join(MODULES)} {' '.join(APPLETS)}"


# --- packages -----------------------------------------------------------------


def _unpack(kernel: Kernel, folder: Path) -> str:
    environment = apt_settings(kernel.suite, kernel.package)
    names = list(_packages(kernel, environment))
    tool(["apt-get", "-q", "download", *names], environment, folder)
    tool(["apt-get", "-q", "download", "busybox-static"], apt_settings("bookworm", "busybox-static"), folder)
    for package in folder.glob("*.deb"):
        tool(["dpkg-deb", "--extract", str(package), str(folder)])
        package.unlink()
    return next(name for name in names if name.startswith("linux-image-"))


def _packages(kernel: Kernel, environment: Mapping[str, str]) -> Iterator[str]:
    """Names of the packages that hold the newest build: one, or since Linux 7 three."""
    todo, seen = [kernel.package], {kernel.package}
    while todo:
        said = tool(["apt-cache", "depends", "--important", todo.pop()], environment)
        for name in re.findall(r"^ *Depends: (linux-(?:image|binary|modules)-\S+)$", said, re.MULTILINE):
            if name not in seen:
                seen.add(name)
                todo.append(name)
                yield name
    if len(seen) < 2:
        raise Unavailable(f"no kernel in Debian's {kernel.package} of {kernel.suite}")


def apt_settings(suite: str, package: str) -> Mapping[str, str]:
    """What has apt look into *suite* and nothing else; nothing where this machine's own lists have *package* of it."""
    if suite == _codename() and tool(["apt-cache", "pkgnames", package]).split():
        return {}
    if not os.path.exists(KEYRING):
        raise Unavailable(f"no {KEYRING} (Debian: debian-archive-keyring) to check Debian's packages with")
    folder = CACHE / f"apt-{suite}"
    for name in ("lists/partial", "cache/archives/partial", "preferences"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    suites = [("debian", suite)] if "-" in suite else [("debian", suite), ("debian-security", f"{suite}-security")]
    (folder / "sources.list").write_text("".join(
        f"deb [signed-by={KEYRING}] {_mirror(archive)} {name} main\n" for archive, name in suites))
    (folder / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{folder}/sources.list"; Dir::Etc::sourceparts "-";\n'
        f'Dir::Etc::preferences "-"; Dir::Etc::preferencesparts "{folder}/preferences";\n'
        f'Dir::State::lists "{folder}/lists"; Dir::Cache "{folder}/cache";\n'
        'Acquire::Languages "none"; APT::Sandbox::User "";\n')
    environment = {"APT_CONFIG": str(folder / "apt.conf")}
    tool(["apt-get", "-q", "update"], environment)
    return environment


def _mirror(archive: str) -> str:
    """Where this machine gets *archive* from, "debian" or "debian-security"."""
    known = tool(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]).split()
    return next((uri for uri in known if uri.rstrip("/").endswith(f"/{archive}")),
                f"http://deb.debian.org/{archive}")


def _codename() -> str:
    found = re.search(r'^VERSION_CODENAME="?(\w+)', Path("/etc/os-release").read_text(), re.MULTILINE)
    return found[1] if found else ""


def tool(command: list[str], environment: Mapping[str, str] | None = None, folder: Path | None = None) -> str:
    try:
        done = subprocess.run(command, env={**os.environ, "LC_ALL": "C", **(environment or {})}, cwd=folder,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Unavailable(f"no {command[0]} here") from None
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise Unavailable(f"{' '.join(command[:3])}: exit status {done.returncode}: {why}")
    return done.stdout


# --- from package to image ----------------------------------------------------


def _write(made: Bootable, unpacked: Path) -> None:
    """The image, and the archive with busybox and modules for the guest's first root."""
    made.image.write_bytes(elf_of(next(unpacked.glob("**/vmlinuz*")).read_bytes()))  # /boot until Linux 7
    archive = Archive()
    for name in ("bin", "dev", "guest", "modules", "proc", "sys"):
        archive.folder(name)
    archive.device("dev/console", 5, 1)
    archive.file("bin/busybox", next(unpacked.glob("**/bin/busybox")).read_bytes(), 0o755)
    for name in APPLETS:
        archive.link(f"bin/{name}", "busybox")
    for number, content in enumerate(_modules(unpacked)):
        archive.file(f"modules/{number:02}.ko", content)  # the guest loads them by name, and so in this order
    made.archive.write_bytes(archive.whole())


def elf_of(image: bytes) -> bytes:
    """
    The ELF image in a bzImage.

    Raises:
        Unavailable: it is packed in a way that is new to us.
    """
    # Offset and length of what is packed, after the boot sectors, whose number less one is at 0x1f1.
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (image[0x1F1] + 1) * 512 + offset
    packed = image[start:start + length - 4]  # the last four bytes are its size unpacked
    if packed.startswith(b"\xfd7zXZ"):
        return lzma.decompress(packed)
    for magic, tool in ((b"\x02!L\x18", "lz4"), (b"\x28\xb5\x2f\xfd", "zstd")):
        if packed.startswith(magic):
            try:
                return subprocess.run([tool, "-dc"], input=packed, capture_output=True, check=True).stdout
            except FileNotFoundError:
                raise Unavailable(f"no {tool} here") from None
    raise Unavailable(f"a kernel packed by something that begins with {packed[:6].hex()}")


def _modules(unpacked: Path) -> list[bytes]:
    """The modules in MODULES and those that they need, in an order in which they can be loaded."""
    found = {path.name.partition(".ko")[0].replace("-", "_"): path for path in unpacked.glob("**/*.ko*")}
    taken: dict[str, bytes] = {}

    def take(name: str) -> None:
        if name in taken or name not in found:
            return
        content = found[name].read_bytes()
        if found[name].suffix == ".xz":
            content = lzma.decompress(content)
        needs = re.search(rb"\0depends=([^\0]*)\0", content)
        for needed in needs[1].decode().split(",") if needs else ():
            take(needed.replace("-", "_"))
        taken[name] = content

    for name in MODULES:
        take(name)
    return list(taken.values())
