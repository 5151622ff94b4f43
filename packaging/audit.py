"""
Checks that a wheel holds what the tags in its name promise.

    python packaging/audit.py WHEEL...

auditwheel looks at tags, abi3audit at Python's functions; this also looks at what is hardened, at the program and the
SDK, and at folders of the machine that built it. `./dev build --all` asks all three. It reads with `readelf`, which
knows every architecture. PEP 600 (manylinux), PEP 656 (musllinux), PEP 427 (WHEEL)
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

#: The texts of readelf for e_machine, by architecture.
MACHINES = {"x86_64": "Advanced Micro Devices X86-64", "aarch64": "AArch64"}

#: The libraries that leeward may need and that every host of a kind has.
LIBRARIES = {
    "manylinux": {"libc.so.6", "libpthread.so.0", "libdl.so.2", "libm.so.6",
                  "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"},
    "linux": {"libc.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"},
    "musllinux": {"libc.so"},
}

#: Functions that musl got after 1.2.0, which is all that musllinux_1_2 promises. Its symbols have no versions.
NEWER_THAN_MUSL_1_2_0 = frozenset((
    "_Fork", "gettid", "reallocarray",             # 1.2.2
    "qsort_r",                                     # 1.2.3
    "tcgetwinsize", "tcsetwinsize",                # 1.2.3
    "preadv2", "pwritev2", "statx",                # 1.2.5
    "renameat2",                                   # 1.2.6
))

#: What a wheel has for compilers and for the shell, and the extension module.
SHIM = "leeward/_native/_shim.abi3.so"
LIBRARY = "leeward/_native/sdk/lib/libleeward.so.0"
ARCHIVE = "leeward/_native/sdk/lib/libleeward.a"


def readelf(path: Path, *options: str) -> str:
    return subprocess.run(["readelf", "-W", *options, path], check=True, capture_output=True, text=True,
                          env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"}).stdout


def audit(wheel: Path) -> list[str]:
    _, _, python, abi, tag = wheel.stem.split("-")
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory(prefix="leeward-audit-") as work:
        archive.extractall(work)
        return list(_faults(Path(work), f"{python}-{abi}-{tag}", tag))


def _faults(folder: Path, tags: str, tag: str) -> Iterator[str]:
    if tag.startswith("macosx_"):
        for path in folder.rglob("*"):
            if path.is_file() and path.read_bytes().startswith(b"\x7fELF"):
                yield f"{path.name}: is for Linux"
        return
    found = re.fullmatch(r"(manylinux|musllinux|linux)_(?:(\d+)_(\d+)_)?(x86_64|aarch64)", tag)
    if not found:
        yield f"{tag} is no platform of leeward's"
        return
    kind, arch = found[1], found[4]
    newest = (int(found[2]), int(found[3])) if kind == "manylinux" else None
    (told,) = folder.glob("*.dist-info/WHEEL")
    if f"Tag: {tags}\n" not in told.read_text():
        yield f"its WHEEL doesn't say {tags}"
    (program,) = folder.glob("*.data/scripts/leeward")
    for path in (folder / SHIM, folder / LIBRARY):
        yield from (f"{path.name}: {fault}" for fault in _shared(path, kind, arch, newest))
    yield from (f"{program.name}: {fault}" for fault in _machine(program, arch))
    if "(NEEDED)" in readelf(program, "-d") and kind != "linux":
        yield "leeward: isn't linked statically"
    for fault in _machine(folder / ARCHIVE, arch):
        yield f"{ARCHIVE}: {fault}"
    # Python's and hatchling's are in .venv, zig in .venv-wheels. A wheel for this machine has what debuggers want.
    for path in sorted(folder.rglob("*")) if kind != "linux" else ():
        if path.is_file() and path.suffix != ".py" and b"/.venv" in path.read_bytes():
            yield f"{path.relative_to(folder)}: names a folder of the machine that built it"


def _machine(path: Path, arch: str) -> Iterator[str]:
    machines = set(re.findall(r"^ *Machine: +(.*)$", readelf(path, "-h"), re.MULTILINE))
    if {MACHINES[arch]} != machines:
        yield f"is for {', '.join(sorted(machines)) or 'nothing'}"


def _shared(path: Path, kind: str, arch: str, newest: tuple[int, int] | None) -> Iterator[str]:
    yield from _machine(path, arch)
    dynamic = readelf(path, "-d")
    for library in sorted(set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)) - LIBRARIES[kind]):
        yield f"needs {library}"
    for name in re.findall(r"\((RPATH|RUNPATH|TEXTREL)\)", dynamic):
        yield f"has {name}"
    if not re.search(r"\(FLAGS\).*BIND_NOW|\(BIND_NOW\)|\(FLAGS_1\).*NOW", dynamic):
        yield "binds symbols late"
    for line in readelf(path, "-l").splitlines():
        if "GNU_STACK" in line and re.search(r" RWE ", line):
            yield "wants an executable stack"
    symbols = readelf(path, "--dyn-syms")
    if newest:
        for version in sorted({tuple(map(int, text.split("."))) for text in re.findall(r"@GLIBC_([\d.]+)", symbols)}):
            if version > newest:
                yield f"needs GLIBC_{'.'.join(map(str, version))}"
    undefined = set(re.findall(r" UND ([^@\s]+)", symbols))
    if kind == "musllinux":
        for name in sorted(undefined & NEWER_THAN_MUSL_1_2_0):
            yield f"calls {name}, which musl 1.2.0 lacks"
        if "@GLIBC_" in symbols:
            yield "was linked with glibc"


if __name__ == "__main__":
    every = [(Path(argument).name, fault) for argument in sys.argv[1:] for fault in audit(Path(argument))]
    for name, fault in every:
        print(f"{name}: {fault}", file=sys.stderr)
    sys.exit(bool(every) if sys.argv[1:] else __doc__)
