"""
Feeds hostile bytes to every decoder: `./dev fuzz [RUNS]`, by default 10 million to each that is Python (decoders.py)
and as many to the C client. `--python`, `--egress` (what the broker of egress decodes), `--web` (what the page of
approvals decodes), `--images` (what `leeward image` decodes), `--serve` (a fifth as many requests to the faces of
`leeward serve`) and `--c` feed the one or the other alone; `--only=request,stream` feeds only decoders in Python with
these names. `--states` loads spoiled snapshots instead, 100,000 by default (states.py).

Runs in:   anybody's shell; the C client's needs clang with libFuzzer (clang-14 and libclang-rt-14-dev on Debian 12).

Two targets of the C client under ASan and UBSan share the runs: `replies` decodes one reply, `session` is the whole
library over a kernel that is played, from connect to disconnect. They start from real
replies, and keep nothing between runs. The seed is printed; FUZZ_SEED repeats it.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import decoders
import egress_decoders
import image_decoders
import serve_faces
import states
import web_decoders

SIDES, ONLY = {"--python", "--egress", "--web", "--images", "--serve", "--c"}, "--only="
STATES = "--states"
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))  # for those without leeward in their environment
CLIENT = HERE.parent.parent / "leeward" / "clients" / "c"
FLAGS = ("-std=c11", "-D_GNU_SOURCE", '-DLEEWARD_LIBRARY_VERSION="fuzz"', "-O1", "-g",
         "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all", "-Wall", "-Wextra")

#: By the name of its source: what it is compiled with, and what of the library.
TARGETS = {
    "replies": (("-Dmunmap=lw_fuzz_unmap",), ("reply", "text", "wire")),
    "session": (("-include", str(HERE / "host.h")),
                runpy.run_path(str(HERE.parent.parent / "build_client.py"))["LIBRARY"]),
}

#: Bytes of an input: every length in it is a claim and not the thing, so that longer ones are only slower.
MAX_LENGTH = {"replies": 512, "session": 1536}

#: What the target `session` takes for its kernel: 16 equal bytes, for which session.c has each read bring all
#: there is, 16 bytes of it, just one frame, one frame and a file of 16 bytes, the same with seals that lack one,
#: one frame and no memory file, or one frame and two files of 4,096 bytes.
AT_ONCE, IN_DROPS, BY_FRAME, WITH_FILE, UNSEALED, NO_FILE, WITH_FILES = (
    bytes([choice]) * 16 for choice in (0x00, 0x02, 0x0f, 0x1f, 0x9f, 0xdf, 0x2f))

#: Of 20 inputs, how many each target gets: they run beside each other, and one of `session` costs as much as ten.
OF_20 = {"replies": 18, "session": 2}


def compiler() -> str | None:
    """The clang to use, if there is one."""
    names = ("clang", *(f"clang-{version}" for version in range(21, 13, -1)))
    return next(filter(None, map(shutil.which, names)), None)


def build(name: str, target: Path) -> bool:
    """Compile the target; whether it could be."""
    clang = compiler()
    flags, stems = TARGETS[name]
    sources = [HERE / f"{name}.c", *(CLIENT / f"{stem}.c" for stem in stems)]
    return clang is not None and 0 == subprocess.run(
        [clang, *FLAGS, *flags, f"-I{CLIENT}", "-o", target, *sources], check=False).returncode


def frames(first: int = 1) -> list[bytes]:
    """Frames as a daemon sends them in session.c, to the requests *first* and those after it."""
    from leeward.spec.outcome import JobError, Limit, Outcome, Result
    from leeward.wire.answers import encode_ok, encode_refusal, encode_result

    full = Result(b"out", b"err", 1, Outcome.RAISED, Limit.MEMORY, 0.5, 0.25, 1 << 20, {"mount": 2}, True,
                  ("landlock",), JobError("ValueError", "no", "Traceback"), {"a/b": b"x", "é": b""})
    return [
        encode_refusal(first + 1, "cancelled", "as it was asked"),
        encode_ok(first + 2, {"cancelled": True}),
        encode_result(first, full, stdout=(0, 0, 100), stderr=(0, 4000, 96), files={"f": (0, 3, 4)}, arenas=(4096,)),
        encode_ok(first + 3, {"json": '{"workers": {"total": 4}}', "more": [1.5, "x", None, True, -70000, 2**64 - 1]}),
        encode_ok(first + 4, {"version": "0", "wire": 1}),
        encode_result(first + 5, full),
    ]


def sandbox_frames() -> list[bytes]:
    """Frames to the requests that session.c sends of a live sandbox, in their order."""
    from leeward.spec.outcome import Outcome, Result
    from leeward.wire.answers import encode_ok, encode_refusal, encode_result
    from leeward.wire.frames import HEADER, decode

    name = "abcdefghijklmnopqrstuvwx27"
    done = Result(b"out", b"", 0, Outcome.FINISHED, results=({"text/plain": "1", "image/png": b"x"},), value="1")
    fields = decode(encode_result(1, done)[HEADER:])["ok"]
    about = {"sandbox": name, "profile": "python", "metadata": {"a": "b"}, "age": 1.0, "idle": 60, "unused": 0.5,
             "left": 9.0, "processes": 1, "calls": 0, "memory_limit": 1 << 28, "memory_peak": 0, "cpu_time": 0.1,
             "environment": "", "egress": "", "held": False, "memory": 0, "oom_kills": 0, "forks_refused": 0, "denied": {}}
    file, link = [b"a", "file", 0o644, 3, 1, b""], [b"b", "link", 0o777, 1, -1, b"\xff"]
    piece = {"data": b"abc", "at": 0, "end": 3, "handle": 0, "mode": 0o644, "time": 1}
    answers = [
        {"sandbox": name, "idle": 60.0, "lifetime": 600.0}, {"process": 1},
        {"chunks": [[1, 1, 0.5, b"out"], [2, 2, 0.75, b"err"]], "over": False}, {"written": 1},
        {"over": True, **{key: value for key, value in fields.items() if key not in ("stdout", "stderr")}},
        fields, fields, piece, {"handle": 0, "size": 1}, {"rows": [file], "more": True},
        {"rows": [link], "more": False}, {"row": file},
        {"names": [b"a", b"b/\xff"], "more": True}, {"rows": [[b"a", 1, b"line\xff"]], "more": False}, {"found": 2}, {},
        {"sandboxes": [about]}, {}]
    return [*(encode_ok(number, answer) for number, answer in enumerate(answers, 1)),
            encode_ok(8, {"errno": 2, "why": ""}), encode_refusal(2, "sandbox_over", "idle"),
            encode_ok(8, {**piece, "end": 6, "handle": 4}), encode_ok(9, {**piece, "at": 3, "end": 6})]


def known_replies() -> list[bytes]:
    """The shorter frames of the conformance file, those among them that are wrong by a hair."""
    replies = json.loads((HERE.parent / "conformance" / "frames.json").read_text())["replies"]
    found = [b"".join(bytes.fromhex(part) for part in reply["frame"]) for reply in replies
             if all(isinstance(part, str) for part in reply["frame"])]
    return [frame for frame in found if len(frame) <= MAX_LENGTH["replies"]]


def seeds(name: str) -> list[bytes]:
    """What a target starts from."""
    from leeward.wire.answers import encode_ok, encode_refusal
    from leeward.wire.frames import HEADER

    answers = frames()
    if "replies" == name:
        return [frame[HEADER:] for frame in (*answers, *frames(2**53 - 6), encode_refusal(0, "busy", "full"),
                                             *known_replies())]
    sandbox = sandbox_frames()
    endless = (900).to_bytes(HEADER, "big") + b"x" * 900  # it is cut off, and comes slower than a deadline
    return [*(script + b"".join(some) for script in (AT_ONCE, IN_DROPS, BY_FRAME, WITH_FILES)
              for some in (answers, answers[:2], answers[2:3])),
            *(script + frame for script in (BY_FRAME, WITH_FILE, UNSEALED, NO_FILE) for frame in known_replies()),
            *(script[:15] + b"\x0a" + b"".join(sandbox[:count]) for script in (AT_ONCE, BY_FRAME)
              for count in (18, *range(1, 18))),
            *(BY_FRAME[:15] + b"\x0a" + b"".join((*sandbox[:other - 1], frame)) for other, frame in (
                (8, sandbox[18]), (2, sandbox[19]), (8, sandbox[20] + sandbox[21]))),
            *(script[:15] + b"\x0b" + encode_ok(1, {"dock": 1, "socket": True})
              + encode_ok(2, {"sandbox": "abcdefghijklmnopqrstuvwx27", "idle": 60.0, "lifetime": 600.0})
              for script in (NO_FILE, BY_FRAME, WITH_FILE)),
            IN_DROPS + endless]


def start(name: str, runs: int, folder: Path) -> subprocess.Popen[bytes]:
    """Begin a target's run over *runs* inputs; what it says goes to a file of its name."""
    target, corpus = folder / name, folder / f"corpus-{name}"
    corpus.mkdir()
    for number, content in enumerate(seeds(name)):
        (corpus / str(number)).write_bytes(content)
    seed = os.environ.get("FUZZ_SEED")
    command = [target, f"-runs={runs}", f"-max_len={MAX_LENGTH[name]}", f"-artifact_prefix={folder}/{name}-",
               "-timeout=60", "-print_final_stats=1", *([f"-seed={seed}"] if seed else []), corpus]
    with open(folder / f"{name}.log", "wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def main() -> int:
    known = re.compile("|".join((r"\d+", f"{ONLY}.+", STATES, *SIDES)))
    if not all(map(known.fullmatch, sys.argv[1:])):
        print(__doc__)
        return 0 if {"-h", "--help"} & set(sys.argv[1:]) else 2
    if STATES in sys.argv:
        numbers = [int(text) for text in sys.argv[1:] if text != STATES]
        return states.main(numbers[0] if numbers else 100_000,
                           int(os.environ["FUZZ_SEED"]) if "FUZZ_SEED" in os.environ else None)
    sides = SIDES & set(sys.argv[1:]) or SIDES
    only = [name for text in sys.argv[1:] if text.startswith(ONLY) for name in text.removeprefix(ONLY).split(",")]
    numbers = [int(text) for text in sys.argv[1:] if text not in sides and not text.startswith(ONLY)]
    runs = numbers[0] if numbers else 10_000_000
    worst = 0
    names = [name for name in decoders.TARGETS
             if ("--egress" if name in egress_decoders.TARGETS else "--web" if name in web_decoders.TARGETS
                 else "--images" if name in image_decoders.TARGETS else "--python") in sides and (not only or name in only)]
    seed = int(os.environ["FUZZ_SEED"]) if "FUZZ_SEED" in os.environ else None
    if names:
        worst = decoders.main(runs, seed, names)
    if "--serve" in sides:
        worst = max(worst, serve_faces.main(runs // 5, seed))
    return max(worst, feed_client(runs)) if "--c" in sides else worst


def feed_client(runs: int) -> int:
    with tempfile.TemporaryDirectory(prefix="leeward-fuzz-") as work:
        folder = Path(work)
        with ThreadPoolExecutor(len(TARGETS)) as pool:
            if not all(pool.map(lambda name: build(name, folder / name), TARGETS)):
                sys.exit("no clang with libFuzzer is here; on Debian: apt-get install clang-14 libclang-rt-14-dev")
        print(f"feeding {runs:,} inputs; a million take a quarter of a minute", file=sys.stderr, flush=True)
        running = {name: start(name, runs * OF_20[name] // 20, folder) for name in TARGETS}
        worst = max(process.wait() for process in running.values())
        for name in TARGETS:
            log = (folder / f"{name}.log").read_text(errors="replace")
            # Without the line for each input that found something new: nobody reads hundreds of them.
            told = [line for line in log.splitlines()
                    if not re.match(r"#\d+\t(NEW|REDUCE|RELOAD|pulse)|.*# Uses", line)]
            print(f"--- {name}", *told, sep="\n", file=sys.stderr)
        for found in folder.glob("*-*-*"):
            if "slow-unit" not in found.name:  # a slow machine
                print(f"{found.name}: {found.read_bytes().hex()}")
        return worst


if __name__ == "__main__":
    sys.exit(main())
