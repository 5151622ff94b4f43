"""
Spoils states of kernels and loads them: `./dev fuzz --states [RUNS]`.

Runs in:   a sandbox of a daemon of its own. A spoiled state may do anything that a job may, so none is loaded elsewhere.

What must hold: the load fails, or gives a kernel, or ends that kernel; the kernel that was the source goes on, and so do one
in another sandbox and the daemon.
"""

from __future__ import annotations

import random
import signal
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for those without leeward in their environment
sys.path.append(str(Path(__file__).resolve().parents[1]))  # tests/kit

import leeward
from kit.forged_states import SPOILS, spoiled
from kit.live_daemon import LiveDaemon

#: States after which the sandboxes are made anew.
_ROUND = 200


def main(runs: int, seed: int | None = None) -> int:
    """Load *runs* spoiled states, or as many as there is time for until an interrupt. Returns the exit status."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    chosen, ends = random.Random(seed), Counter[str]()
    with (tempfile.TemporaryDirectory(prefix="leeward-fuzz-") as folder, LiveDaemon(Path(folder)) as daemon,
          suppress(KeyboardInterrupt)):
        for first in range(0, runs, _ROUND):
            _round(daemon, chosen, min(_ROUND, runs - first), ends)
    told = ", ".join(f"{count} {how}" for how, count in ends.most_common())
    print(f"Loaded {ends.total()} spoiled states, seed {seed}: {told}", file=sys.stderr)
    return 0


def _round(daemon: LiveDaemon, chosen: random.Random, count: int, ends: Counter[str]) -> None:
    with leeward.Sandbox(socket=daemon.socket) as box, leeward.Sandbox(socket=daemon.socket) as other:
        kernel, beside = box.kernel(), other.kernel()
        kernel.execute("x = [6]")
        beside.execute("y = 7")
        for _ in range(count):
            how, number = chosen.choice(sorted(SPOILS)), chosen.randrange(1 << 32)
            assert kernel.execute(spoiled(SPOILS[how], number)).ok, (how, number)
            ends[_load(kernel, other)] += 1
            assert "[6]" == kernel.execute("x").value, (how, number)
            assert "7" == beside.execute("y").value, (how, number)
    with daemon.client() as client:
        assert b"on\n" == client.execute("print('on')").stdout


def _load(kernel: leeward.Kernel, other: leeward.Sandbox) -> str:
    with kernel.snapshot() as snapshot:
        try:
            with other.kernel(snapshot=snapshot) as copy:
                return "go on" if "[6]" == copy.execute("x", timeout=1).value else "are others"
        except leeward.SnapshotFailed as refused:
            return "can't be loaded" if "can't be loaded" in str(refused) else "are refused"
        except leeward.SessionOver:
            return "end later"


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
