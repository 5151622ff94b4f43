"""
Builds leeward's wheels for every platform that leeward runs on, and that with its clients alone for macOS, and audits
each: `./dev build --all`.

    python packaging/wheels.py DIST TOOLS [PLATFORM...]

TOOLS is a virtual environment with the extra `wheels` of pyproject.toml: ziglang as compiler and linker, auditwheel and
abi3audit. GNU binutils for each architecture are found by the names that Debian gives them
(binutils-aarch64-linux-gnu).

One zig compiles for glibc of any version and for musl. The program `leeward` is linked statically with musl in every
wheel. liburing for another platform isn't at hand, so these wheels have the socket transport only, and the build says
so.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from audit import audit

HERE = Path(__file__).resolve().parent.parent

#: Platform tags of wheels, with the target of zig that makes them true; none for pure Python. glibc 2.17: the oldest that pip
#: still serves.
PLATFORMS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
    "macosx_11_0_universal2": "",
}


def architecture(tag: str) -> str:
    return next(name for name in ("x86_64", "aarch64") if tag.endswith(f"_{name}"))


def binutil(name: str, arch: str) -> str:
    """The path of a program of GNU binutils that reads and writes objects of *arch*."""
    found = shutil.which(f"{arch}-linux-gnu-{name}") or (shutil.which(name) if platform.machine() == arch else None)
    if not found:
        sys.exit(f"leeward: no {arch}-linux-gnu-{name}: apt-get install binutils-{arch.replace('_', '-')}-linux-gnu")
    return found


def environment(tag: str, zig: Path, cache: Path) -> dict[str, str]:
    """The environment in which the build compiles for *tag*, and takes nothing from this machine."""
    if not PLATFORMS[tag]:
        return {**os.environ, "LEEWARD_PLATFORM": tag}
    arch = architecture(tag)
    compiler = f"'{zig}' cc -target {PLATFORMS[tag]}"
    kept = {name: value for name, value in os.environ.items()
            if name not in ("CFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH")}
    return {
        **kept,
        "LEEWARD_PLATFORM": tag,
        "CC": compiler,
        # In full, since Python's own may name folders of the machine that it was built on.
        # No debugging information: it would name folders of this one.
        "LDSHARED": f"{compiler} -shared -Wl,--strip-debug",
        "LEEWARD_PROGRAM_CC": f"'{zig}' cc -target {arch}-linux-musl",
        **{name.upper(): binutil(name, arch) for name in ("ld", "ar", "objcopy", "strip")},
        "ZIG_GLOBAL_CACHE_DIR": str(cache),
        "ZIG_LOCAL_CACHE_DIR": str(cache),
    }


def build(tag: str, zig: Path, into: Path, cache: Path) -> Path:
    with tempfile.TemporaryDirectory(prefix="leeward-wheels-") as work:
        done = subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", work], cwd=HERE,
                              env=environment(tag, zig, cache), check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{done.stdout}{done.stderr}leeward: no wheel for {tag}")
        # Not the compiler's warnings about macros in musl's headers; ours are ./dev lint's business.
        print(*(line for line in done.stderr.splitlines() if line.startswith("leeward: ")), sep="\n", file=sys.stderr)
        (made,) = Path(work).glob("*.whl")
        return Path(shutil.move(made, into / made.name))


def second_opinions(made: Path, tools: Path) -> list[str]:
    faults: list[str] = []
    if "-none-" in made.name:
        return faults
    done = subprocess.run([tools / "bin/abi3audit", "--strict", "--report", made], check=False, capture_output=True,
                          text=True)
    if done.returncode:
        faults.append(f"abi3audit: {(done.stdout + done.stderr).strip()}")
    tag = made.stem.split("-")[-1]
    if tag.startswith("manylinux"):  # of musl it knows only what the host has of it
        done = subprocess.run([tools / "bin/auditwheel", "show", made], check=False, capture_output=True, text=True)
        if done.returncode or f'the following platform tag: "{tag}"' not in done.stdout.replace("\n", " "):
            faults.append(f"auditwheel: {' '.join((done.stdout + done.stderr).split())}")
    return faults


def main(into: Path, tools: Path, *tags: str) -> int:
    (zig,) = tools.resolve().glob("lib/python3*/site-packages/ziglang/zig")
    # Beside TOOLS, which is made anew for new versions: two C libraries for two architectures take minutes.
    cache = Path(os.environ.get("ZIG_GLOBAL_CACHE_DIR") or tools.resolve().with_name(".venv-zig-cache"))
    into.mkdir(parents=True, exist_ok=True)
    worst = 0
    for tag in tags or PLATFORMS:
        made = build(tag, zig, into, cache)
        faults = [*audit(made), *second_opinions(made, tools)]
        for fault in faults:
            print(f"{made.name}: {fault}", file=sys.stderr)
        worst = max(worst, bool(faults))
        print(f"{made.name}: {'NOT what its tag says' if faults else 'audited'}, {made.stat().st_size >> 10} KiB",
              flush=True)
    return worst


if __name__ == "__main__":
    if len(sys.argv) < 3 or not set(sys.argv[3:]) <= set(PLATFORMS):
        sys.exit(f"{__doc__}\nPLATFORM: {' '.join(PLATFORMS)}")
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
