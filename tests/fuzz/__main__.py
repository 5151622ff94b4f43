"""
Feeds hostile replies to the C client's decoder: `python tests/fuzz [RUNS]`, by default 10 million.

Runs in:   anybody's shell; needs clang with libFuzzer (clang-14 and libclang-rt-14-dev on Debian 12).

Starts from real replies, and keeps nothing between runs. The seed is printed; FUZZ_SEED repeats it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLIENT = HERE.parent.parent / "leeward" / "_native" / "client"
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-fsanitize=fuzzer,address,undefined",
         "-fno-sanitize-recover=all", "-Dmunmap=lw_fuzz_unmap")


def compiler() -> str | None:
    """
    The clang to use, if there is one.
    """
    return next(filter(None, map(shutil.which, ("clang", "clang-14", "clang-15", "clang-16", "clang-19"))), None)


def build(target: Path) -> bool:
    """
    Compile the target; whether it could be.
    """
    clang = compiler()
    sources = [HERE / "replies.c", *(CLIENT / f"{stem}.c" for stem in ("reply", "text", "wire"))]
    return clang is not None and 0 == subprocess.run(
        [clang, *FLAGS, f"-I{CLIENT}", "-o", target, *sources], check=False).returncode


def seeds() -> list[bytes]:
    """
    Payloads as a daemon sends them.
    """
    sys.path.insert(0, str(HERE.parent.parent))
    from leeward.outcome import JobError, Limit, Outcome, Result
    from leeward.wire.frames import HEADER
    from leeward.wire.messages import encode_ok, encode_refusal, encode_result

    full = Result(b"out", b"err", 1, Outcome.RAISED, Limit.MEMORY, 0.5, 0.25, 1 << 20, {"mount": 2}, True,
                  ("landlock",), JobError("ValueError", "no", "Traceback"), {"a/b": b"x", "é": b""})
    frames = [
        encode_result(1, full),
        encode_result(2**53 - 1, full, stdout=(0, 0, 100), stderr=(1, 4000, 96), files={"f": (0, 3, 4)},
                      arenas=(100, 4096)),
        encode_ok(3, {"workers": {"total": 4}, "uptime": 1.5, "degraded": ["x", None, True, -70000, 2**64 - 1]}),
        encode_refusal(0, "busy", "full"),
    ]
    return [frame[HEADER:] for frame in frames]


def fuzz(target: Path, runs: int, folder: Path) -> int:
    """
    Run the target over *runs* inputs; its exit status.
    """
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds()):
        (corpus / str(number)).write_bytes(seed)
    seed = os.environ.get("FUZZ_SEED")
    command = [target, f"-runs={runs}", "-max_len=4096", f"-artifact_prefix={folder}/", "-print_final_stats=1",
               *([f"-seed={seed}"] if seed else []), corpus]
    return subprocess.run(command, check=False).returncode


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="leeward-fuzz-") as work:
        folder = Path(work)
        if not build(folder / "replies"):
            sys.exit("no clang with libFuzzer is here; on Debian: apt-get install clang-14 libclang-rt-14-dev")
        status = fuzz(folder / "replies", int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000, folder)
        for crash in folder.glob("*-*"):
            print(f"{crash.name}: {crash.read_bytes().hex()}")
        return status


if __name__ == "__main__":
    sys.exit(main())
