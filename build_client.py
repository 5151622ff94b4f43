"""
Builds the C client: libleeward.so, libleeward.a, leeward.pc and the program `leeward`.

    python build_client.py FOLDER             compile into FOLDER
    python build_client.py --in-place PATH    what a wheel holds: libraries into the package, the program to PATH
    python build_client.py --prefix PREFIX    install header, libraries and leeward.pc under PREFIX
    python build_client.py --check            only let the compilers judge the C, every warning an error

Needs a C compiler and binutils, nothing of Python but its standard library. CC, LD, AR, OBJCOPY, STRIP,
LEEWARD_CFLAGS and LEEWARD_LDFLAGS are taken from the environment, e.g. -fsanitize=address; and
LEEWARD_PROGRAM_CC, which compiles the program where another C library than CC's can be linked statically.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
CAPI = HERE / "leeward" / "clients" / "c"

#: Where the package has header and libraries for `leeward config`: below it as below a prefix.
SDK = Path("leeward/_native/sdk")

#: The sources of the library, and of the program, in whose folder the library's headers are found as well.
LIBRARY = ("answer", "calls", "client", "connection", "exchange", "fault", "file", "map", "mount", "place", "process",
           "reply", "request", "sandbox", "sha256", "snapshot", "text", "wire")
PROGRAM = ("command/exec", "command/exec_job", "command/line")

SONAME = "libleeward.so.0"
LANGUAGE = ("-std=c11", "-D_GNU_SOURCE", f"-I{CAPI}")
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wpedantic")
CLANG = ("clang", *(f"clang-{version}" for version in range(21, 13, -1)))
HARDENED = ("-fstack-protector-strong", "-D_FORTIFY_SOURCE=2")


def version() -> str:
    match = re.search(r'^__version__ = "([^"]+)"$', (HERE / "leeward" / "__init__.py").read_text(), re.MULTILINE)
    assert match is not None
    return match[1]


def _tool(name: str) -> list[str]:
    return shlex.split(os.environ.get(name.upper()) or name)


def _define() -> str:
    return f'-DLEEWARD_LIBRARY_VERSION="{version()}"'


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def _from_environment(name: str) -> list[str]:
    return shlex.split(os.environ.get(name, ""))


def _objects(work: Path, stems: Sequence[str], by: Sequence[str] = ()) -> list[Path]:
    """Compile sources into *work*, as many at once as there are processors; those that are there stay."""
    flags = _from_environment("LEEWARD_CFLAGS")
    common = [*(by or _tool("cc")), "-c", *LANGUAGE, *WARNINGS, "-O2", "-g", "-fPIC", "-fvisibility=hidden",
              *([] if flags else HARDENED), _define(), *flags]
    made = [work / f"{Path(stem).name}.o" for stem in stems]
    todo = [(source, target) for source, target in zip(stems, made, strict=True) if not target.exists()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(lambda pair: _run(*common, "-o", pair[1], CAPI / f"{pair[0]}.c"), todo):
            pass
    return made


def _archive(work: Path, objects: Sequence[Path], target: Path) -> None:
    # One object whose inner names are its own: nobody's program clashes with them.
    _run(*_tool("ld"), "-r", "-o", work / "leeward.o", *objects)
    _run(*_tool("objcopy"), "--localize-hidden", work / "leeward.o")
    _run(*_tool("ar"), "rcsD", target, work / "leeward.o")


def build_library(folder: Path, work: Path, strip: bool = False) -> None:
    """Compile libleeward.so.0, libleeward.a and leeward.h into *folder*; *work* keeps objects for other functions here."""
    folder.mkdir(parents=True, exist_ok=True)
    objects = _objects(work, LIBRARY)
    shared, archive = work / SONAME, work / "libleeward.a"
    _run(*_tool("cc"), "-shared", "-o", shared, f"-Wl,-soname,{SONAME}",
         f"-Wl,--version-script={CAPI / 'leeward.map'}", "-Wl,-z,relro,-z,now", "-Wl,-z,defs",
         *_from_environment("LEEWARD_CFLAGS"), *_from_environment("LEEWARD_LDFLAGS"), *objects)
    _archive(work, objects, archive)
    if strip:
        _run(*_tool("strip"), "--strip-unneeded", shared)
        _run(*_tool("strip"), "--strip-debug", "--enable-deterministic-archives", archive)
    for made in (shared, archive):
        _place(made, folder / made.name)
    (folder / "libleeward.so").unlink(missing_ok=True)
    (folder / "libleeward.so").symlink_to(SONAME)
    _place(CAPI / "leeward.h", folder / "leeward.h")


def build_program(path: Path, work: Path) -> None:
    """Compile the program `leeward`, statically where the C library can be: loading one is a third of its time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    by = _from_environment("LEEWARD_PROGRAM_CC")
    if by:
        work = work / "program"  # its objects are another library's
        work.mkdir()
    flags, made = _from_environment("LEEWARD_CFLAGS"), work / "leeward"
    command: list[str | Path] = [*(by or _tool("cc")), "-o", made, *(flags or ("-s",)),
                                 *_from_environment("LEEWARD_LDFLAGS"), *_objects(work, (*PROGRAM, *LIBRARY), by)]
    if flags or subprocess.run([*command, "-static"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
        _run(*command)
    _place(made, path, mode=0o755)


def install(prefix: Path, work: Path, movable: bool = False) -> None:
    """Put header, libraries and leeward.pc below *prefix*; a *movable* leeward.pc finds the rest by where it lies itself."""
    lib, include = prefix / "lib", prefix / "include"
    for folder in (lib / "pkgconfig", include):
        folder.mkdir(parents=True, exist_ok=True)
    build_library(lib, work, strip=not os.environ.get("LEEWARD_CFLAGS"))
    (lib / "leeward.h").replace(include / "leeward.h")
    text = (CAPI / "leeward.pc.in").read_text().replace("@version@", version())
    where = "${pcfiledir}/../.." if movable else str(prefix)
    (lib / "pkgconfig" / "leeward.pc").write_text(text.replace("@prefix@", where))


def _place(made: Path, path: Path, mode: int = 0o644) -> None:
    """A whole file under the last name, so that a process that has the old one mapped keeps it."""
    arriving = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        shutil.copyfile(made, arriving)
        arriving.chmod(mode)
        arriving.replace(path)
    finally:
        arriving.unlink(missing_ok=True)


def check() -> int:
    """Let every compiler that is here judge each C file, and the header as C++; return the worst exit status."""
    worst = 0
    # With CC of another platform, that one alone.
    other = bool(os.environ.get("LEEWARD_PLATFORM"))
    clang = None if other else next(filter(None, map(shutil.which, CLANG)), None)
    compilers = [_tool("cc"), *([[clang]] if clang else [])]
    for command in compilers:
        for stem in (*LIBRARY, *PROGRAM):
            worst = max(worst, subprocess.run([*command, "-c", "-o", os.devnull, "-O2", *LANGUAGE, *WARNINGS, "-Werror",
                                               _define(), CAPI / f"{stem}.c"], check=False).returncode)
    for name in filter(None, (None if other else shutil.which("g++"), clang)):
        worst = max(worst, subprocess.run([name, "-x", "c++", "-std=c++17", "-fsyntax-only", *WARNINGS, "-Werror",
                                           "-include", CAPI / "leeward.h", os.devnull], check=False).returncode)
    return worst


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(check())
    last = Path(sys.argv[-1])
    with tempfile.TemporaryDirectory(prefix="leeward-client-") as made_of:
        if len(sys.argv) == 3 and sys.argv[1] == "--prefix":
            install(last.resolve(), Path(made_of))
        elif len(sys.argv) == 3 and sys.argv[1] == "--in-place":
            install(HERE / SDK, Path(made_of), movable=True)
            build_program(last.absolute(), Path(made_of))
        elif len(sys.argv) == 2 and not sys.argv[1].startswith("-"):
            build_library(last.resolve(), Path(made_of))
            build_program(last.resolve() / "leeward", Path(made_of))
        else:
            sys.exit(__doc__)
