"""
Builds the C shim: leeward/_native/src/*.c, and what Python sees of it: HEADERS, and the kernel's names that it uses.

    python build_ffi.py            compile in place, as leeward/_native/_shim.abi3.so
    python build_ffi.py FOLDER     put it into FOLDER instead (sanitizer builds)
    python build_ffi.py --check    only let the compiler judge the C, every warning an error

With liburing's header and static library the shim has both transports, else the socket alone.

cffi API mode with the limited API: one build serves every CPython from 3.11 on.
LEEWARD_CFLAGS and LEEWARD_LDFLAGS are added to the flags, e.g. -fsanitize=address. With
LEEWARD_PLATFORM, a wheel's platform tag, CC and LDSHARED are compilers for that platform;
packaging/wheels.py sets all three.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
NATIVE = HERE / "leeward" / "_native"
MODULE = "leeward._native._shim"
FILE = "_shim.abi3.so"

LANGUAGE = ("-std=c11", "-D_GNU_SOURCE")
WARNINGS = ("-Wall", "-Wextra", "-Wconversion")

#: cffi's generated glue has unused parameters and narrowing casts of its own. Our C
#: gets the full set by --check, where the glue isn't in the way.
GLUE_WARNINGS = ("-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-conversion", "-Wno-sign-conversion")


#: The headers that Python sees, each behind those that it includes.
HEADERS = ("snapshot", "job", "steps", "spawn", "keeper", "privileges", "scout", "supervisor", "loop", "arguments",
           "heap", "threads", "state", "beneath", "last_use", "splice")


def declarations(header: str) -> str:
    """What cffi reads of a header: declarations, numbers, computed constants; not stand-ins for the kernel's headers."""
    lines, before = [], ""
    for line in re.sub(r"/\*.*?\*/", " ", header, flags=re.DOTALL).splitlines():
        constant = re.match(r"#define (\w+) +([^\s\"].*)", line)
        if constant and before != f"#ifndef {constant[1]}":
            value = constant[2].strip()
            lines.append(f"#define {constant[1]} {value if value.isdecimal() else '...'}")
        elif not line.startswith("#"):
            lines.append(line)
        before = line.strip()
    return "\n".join(lines)


def kernel_names() -> str:
    """The declarations of the constants of kernel headers that Python uses."""
    used = {name for module in NATIVE.glob("*.py") for name in re.findall(r"\blib\.([A-Z]\w+)", module.read_text())}
    return "".join(f"#define {name} ...\n" for name in sorted(used) if not name.startswith("LW_"))


def compiler() -> list[str]:
    own = shlex.split(os.environ.get("CC", ""))
    return own or shlex.split(sysconfig.get_config_var("CC") or "cc")[:1]  # after it come Python's own flags


def uring() -> tuple[list[str], list[str]]:
    """What compiler and linker need for io_uring: nothing where liburing 2.3 or newer isn't there as a static library."""
    flags = ["-DLW_URING"]
    library = ["-l:liburing.a"]
    if os.environ.get("LEEWARD_TRANSPORT") == "socket" or os.environ.get("LEEWARD_PLATFORM"):
        return [], []  # what this machine has of it is for this machine
    program = ("#include <liburing.h>\n"
               "int main(void) { struct io_uring ring; struct io_uring_buf_reg group = { 0 };"
               " return io_uring_queue_init(1, &ring, IORING_SETUP_DEFER_TASKRUN)"
               " + io_uring_register_buf_ring(&ring, &group, 0); }\n")
    with tempfile.TemporaryDirectory(prefix="leeward-shim-") as work:
        found = subprocess.run([*compiler(), "-fPIC", "-x", "c", "-", "-o", f"{work}/program", *library], input=program,
                               text=True, capture_output=True, check=False)
    return (flags, library) if found.returncode == 0 else ([], [])


def python_headers(folder: Path) -> Path:
    """
    Copy Python's headers to *folder*, for compilers of other machines; return it.

    Debian's pyconfig.h leads to one for each architecture, where a cross compiler doesn't look. This machine's own
    serves: the limited API asks it for the sizes of C's types, which x86_64 and aarch64 share.
    """
    include = Path(sysconfig.get_path("include"))
    shutil.copytree(include, folder)
    own = include.parent / (sysconfig.get_config_var("MULTIARCH") or "") / include.name / "pyconfig.h"
    if own.exists():
        shutil.copyfile(own, folder / "pyconfig.h")
    return folder


def uring_headers(folder: Path) -> list[str]:
    """Flags by which another platform's compiler finds this machine's headers of liburing, which are the same for all."""
    installed = Path("/usr/include")
    if not (installed / "liburing.h").exists():
        return []
    folder.mkdir()
    for name in ("liburing.h", "liburing"):
        (folder / name).symlink_to(installed / name)
    return ["-DLW_URING", "-isystem", str(folder)]


def alone(work: Path) -> str:
    """Compile src/alone, an object without a C library; return C that has its bytes."""
    made = work / "alone.so"
    subprocess.run([*compiler(), *LANGUAGE, *WARNINGS, "-O2", "-shared", "-fPIC", "-ffreestanding", "-fvisibility=hidden",
                    "-fno-stack-protector", "-fno-tree-loop-distribute-patterns", "-U_FORTIFY_SOURCE", "-nostdlib",
                    "-Wl,-z,defs,-z,relro,-z,now,-z,noexecstack,-z,max-page-size=4096", "-Wl,--build-id=none",
                    "-Wl,--hash-style=both", "-s", "-o", str(made), str(NATIVE / "src" / "alone" / "state.c")], check=True)
    return f"const unsigned char lw_state_alone[] = {{{', '.join(map(str, made.read_bytes()))}}};\n"


def ffibuilder(headers: Path | None = None) -> FFI:
    """The declarations and sources, ready to compile; *headers* are Python's, where they aren't this machine's."""
    ffi = FFI()
    flags, libraries = uring()
    with tempfile.TemporaryDirectory(prefix="leeward-alone-") as work:
        alone_object = alone(Path(work))
    ffi.cdef("extern const unsigned char lw_state_alone[...];")
    for header in HEADERS:
        ffi.cdef(declarations((NATIVE / "src" / f"{header}.h").read_text()))
    ffi.cdef(kernel_names())
    ffi.set_source(
        MODULE,
        "".join(f'#include "{header.name}"\n' for header in sorted(NATIVE.glob("src/*.h"))) + alone_object,
        sources=[str(source) for source in sorted(NATIVE.glob("src/*.c"))],
        include_dirs=[str(NATIVE / "src"), *([str(headers)] if headers else [])],
        extra_compile_args=[*LANGUAGE, *flags, *GLUE_WARNINGS, "-O2", "-g", "-fvisibility=hidden",
                            *shlex.split(os.environ.get("LEEWARD_CFLAGS", ""))],
        # now: a process between clone3 and its last lock must not stop to resolve a symbol.
        extra_link_args=["-pthread", "-ldl", "-Wl,-z,relro,-z,now", *libraries,
                         *shlex.split(os.environ.get("LEEWARD_LDFLAGS", ""))],
        py_limited_api=True,
    )
    return ffi


def build(folder: Path = NATIVE, verbose: bool = False) -> Path:
    """
    Compile into *folder*; return the extension's path. Works in a folder of its own, so that a read-only checkout will
    do, and moves the result into place: a process that has the old one mapped keeps it whole.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="leeward-shim-") as work:
        other = os.environ.get("LEEWARD_PLATFORM")
        headers = python_headers(Path(work, "python")) if other else None
        made = Path(ffibuilder(headers).compile(tmpdir=work, verbose=verbose))
        arriving = folder / f".{FILE}.{os.getpid()}"
        try:
            arriving.write_bytes(made.read_bytes())
            arriving.chmod(0o755)
            arriving.replace(folder / FILE)
        finally:
            arriving.unlink(missing_ok=True)
    which = "for another platform" if other else "2.3 or newer"
    transport = "io_uring and socket" if uring()[0] else f"socket only, as liburing {which} isn't here to link"
    print(f"leeward: shim built; transport: {transport}", file=sys.stderr)
    return folder / FILE


def check() -> int:
    """Let the compiler judge each C file by itself; return its exit status."""
    with tempfile.TemporaryDirectory(prefix="leeward-check-") as work:
        other = bool(os.environ.get("LEEWARD_PLATFORM"))
        # -isystem: other people's headers are not ours to judge.
        flags = ["-isystem", str(python_headers(Path(work, "python")) if other else sysconfig.get_path("include")),
                 *(uring_headers(Path(work, "uring")) if other else uring()[0])]
        worst = 0
        for source in sorted(NATIVE.glob("src/**/*.c")):
            # -O2: without it the compiler doesn't follow values, and misses what is used unset.
            command = [*compiler(), "-c", "-o", os.devnull, "-O2", *LANGUAGE, *flags, *WARNINGS, "-Werror",
                       f"-I{NATIVE / 'src'}", str(source)]
            worst = max(worst, subprocess.run(command, check=False).returncode)
    return worst


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "-v"]
    if arguments == ["--check"]:
        sys.exit(check())
    print(build(Path(arguments[0]).resolve() if arguments else NATIVE, verbose="-v" in sys.argv))
