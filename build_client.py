"""
Builds the C client: libleeward.so, libleeward.a, leeward.pc and the program `leeward`.

    python build_client.py FOLDER             compile into FOLDER
    python build_client.py --program PATH     compile the program `leeward` alone, to PATH
    python build_client.py --prefix PREFIX    install header, libraries and leeward.pc under PREFIX
    python build_client.py --check            only let the compilers judge the C, every warning an error

Needs a C compiler and binutils, nothing of Python but its standard library. CC, LEEWARD_CFLAGS
and LEEWARD_LDFLAGS are taken from the environment, e.g. -fsanitize=address.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLIENT = HERE / "leeward" / "_native" / "client"

#: The sources of the library, and of the program beside it.
LIBRARY = ("client", "fault", "link", "reply", "request", "text", "wire")
PROGRAM = ("exec", "exec_job", "exec_status")

SONAME = "libleeward.so.0"
LANGUAGE = ("-std=c11", "-D_GNU_SOURCE")
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wpedantic")
HARDENED = ("-fstack-protector-strong", "-D_FORTIFY_SOURCE=2")


def version() -> str:
    """
    That of the package, without importing it.
    """
    match = re.search(r'^__version__ = "([^"]+)"$', (HERE / "leeward" / "__init__.py").read_text(), re.MULTILINE)
    assert match is not None
    return match[1]


def compiler() -> list[str]:
    return shlex.split(os.environ.get("CC") or "cc")


def _define() -> str:
    return f'-DLEEWARD_LIBRARY_VERSION="{version()}"'


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def build_library(folder: Path) -> None:
    """
    Compile libleeward.so.0, libleeward.a and leeward.h into *folder*.
    """
    flags, link = (shlex.split(os.environ.get(name, "")) for name in ("LEEWARD_CFLAGS", "LEEWARD_LDFLAGS"))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="leeward-client-") as work:
        objects = [Path(work, f"{stem}.o") for stem in LIBRARY]
        for stem, made in zip(LIBRARY, objects, strict=True):
            _run(*compiler(), "-c", "-o", made, *LANGUAGE, *WARNINGS, "-O2", "-g", "-fPIC", "-fvisibility=hidden",
                 *([] if flags else HARDENED), _define(), *flags, CLIENT / f"{stem}.c")
        _run(*compiler(), "-shared", "-o", Path(work, SONAME), f"-Wl,-soname,{SONAME}",
             f"-Wl,--version-script={CLIENT / 'leeward.map'}", "-Wl,-z,relro,-z,now", "-Wl,-z,defs", *flags, *link,
             *objects)
        # One object whose inner names are its own: nobody's program clashes with them.
        _run("ld", "-r", "-o", Path(work, "leeward.o"), *objects)
        _run("objcopy", "--localize-hidden", Path(work, "leeward.o"))
        _run("ar", "rcsD", Path(work, "libleeward.a"), Path(work, "leeward.o"))
        for name in (SONAME, "libleeward.a"):
            _place(Path(work, name), folder / name)
    _link(folder / "libleeward.so", SONAME)
    _place(CLIENT / "leeward.h", folder / "leeward.h")


def build_program(path: Path) -> None:
    """
    Compile the program `leeward` to *path*.

    It is linked statically where the C library can be: loading a shared one is a third of
    its time.
    """
    flags, link = (shlex.split(os.environ.get(name, "")) for name in ("LEEWARD_CFLAGS", "LEEWARD_LDFLAGS"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="leeward-client-") as work:
        made = Path(work, "leeward")
        command: list[str | Path] = [
            *compiler(), "-o", made, *LANGUAGE, *WARNINGS, "-O2", *(flags or (*HARDENED, "-s")), _define(), *link,
            *(CLIENT / f"{stem}.c" for stem in (*PROGRAM, *LIBRARY))]
        static = [*command, "-static"]
        if flags or 0 != subprocess.run(static, check=False, stderr=subprocess.DEVNULL).returncode:
            _run(*command)
        _place(made, path, mode=0o755)


def install(prefix: Path) -> None:
    """
    Put header, libraries and leeward.pc where compilers look below *prefix*.
    """
    lib, include = prefix / "lib", prefix / "include"
    for folder in (lib / "pkgconfig", include):
        folder.mkdir(parents=True, exist_ok=True)
    build_library(lib)
    (lib / "leeward.h").replace(include / "leeward.h")
    text = (CLIENT / "leeward.pc.in").read_text()
    (lib / "pkgconfig" / "leeward.pc").write_text(text.replace("@prefix@", str(prefix)).replace("@version@", version()))


def _place(made: Path, path: Path, mode: int = 0o644) -> None:
    """
    A whole file under the last name, so that a process that has the old one mapped keeps it.
    """
    arriving = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        shutil.copyfile(made, arriving)
        arriving.chmod(mode)
        arriving.replace(path)
    finally:
        arriving.unlink(missing_ok=True)


def _link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def check() -> int:
    """
    Let every compiler that is here judge each C file, and the header as C++; return the worst exit status.
    """
    worst = 0
    compilers = [compiler(), *([name] for name in ("clang", "clang-14") if shutil.which(name))]
    for command in compilers:
        for stem in (*LIBRARY, *PROGRAM):
            worst = max(worst, subprocess.run([*command, "-c", "-o", os.devnull, "-O2", *LANGUAGE, *WARNINGS, "-Werror",
                                               _define(), CLIENT / f"{stem}.c"], check=False).returncode)
    for name in ("g++", "clang++", "clang++-14"):
        if shutil.which(name):
            worst = max(worst, subprocess.run([name, "-x", "c++", "-std=c++17", "-fsyntax-only", *WARNINGS, "-Werror",
                                               "-include", CLIENT / "leeward.h", os.devnull], check=False).returncode)
    return worst


if __name__ == "__main__":
    if ["--check"] == sys.argv[1:]:
        sys.exit(check())
    if 3 == len(sys.argv) and "--prefix" == sys.argv[1]:
        install(Path(sys.argv[2]).resolve())
    elif 3 == len(sys.argv) and "--program" == sys.argv[1]:
        build_program(Path(sys.argv[2]).absolute())
    elif 2 == len(sys.argv) and not sys.argv[1].startswith("-"):
        build_library(Path(sys.argv[1]).resolve())
        build_program(Path(sys.argv[1]).resolve() / "leeward")
    else:
        sys.exit(__doc__)
