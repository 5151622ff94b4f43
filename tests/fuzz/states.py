"""
Spoils states of kernels and loads them: `./dev fuzz --states [RUNS]`.

Runs in:   sandboxes of a daemon of its own. A spoiled state may do anything that a job may, so none is loaded elsewhere.

What must hold: the load fails, or gives a kernel, or ends that kernel; the kernel that was the source goes on, and so do one
in another sandbox and the daemon; and in the end nothing is left of them all. Some sandboxes do so at once: a state that
never ends is waited for beside others.
"""

from __future__ import annotations

import random
import signal
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for those without leeward in their environment
sys.path.append(str(Path(__file__).resolve().parents[1]))  # tests/kit

import leeward
from kit.forged_states import ANY, spoiled
from kit.live_daemon import LiveDaemon, descendants, held
from kit.waiting import poll_until

#: States after which the sandboxes are made anew, at most, and pairs of sandboxes at once.
_ROUND, _LANES = 200, 3


def main(runs: int, seed: int | None = None) -> int:
    """Load *runs* spoiled states, or as many as there is time for until an interrupt. Returns the exit status."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    ends = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="leeward-fuzz-") as folder:
        config = Path(folder, "config.toml")
        config.write_text(f"pool_size = {2 * _LANES}\nmax_jobs = {2 * _LANES}\nsession_grace = 0\n")
        with LiveDaemon(Path(folder), "--config", str(config)) as daemon:
            _rounds(daemon, f"{seed} first", _LANES, 1, Counter())
            before = _left(daemon)
            try:
                with suppress(KeyboardInterrupt):
                    _rounds(daemon, str(seed), runs, min(_ROUND, -(-runs // _LANES)), ends)
            finally:
                told = ", ".join(f"{count} {how}" for how, count in ends.most_common())
                print(f"Loaded {ends.total()} spoiled states, seed {seed}: {told}", file=sys.stderr)
            poll_until(lambda: all(now <= then for now, then in zip(_left(daemon), before, strict=True)),
                       f"{before} were there before")
    return 0


def _left(daemon: LiveDaemon) -> tuple[int, int, int]:
    """Snapshots, descriptors and processes that there are when nothing is asked."""
    daemon.idle(300)  # at the lowest priority beside a load of 60, six workers take 16 s to arm, whatever was loaded before
    pid = daemon.process.pid
    return len(leeward.Snapshot.list(socket=daemon.socket)), held(pid), len(descendants(pid))


def _rounds(daemon: LiveDaemon, seed: str, runs: int, size: int, ends: Counter[str]) -> None:
    """Count the ends of *runs* states, *size* of them one after the other. An interrupt, or an error, ends all of it."""
    over = threading.Event()
    with ThreadPoolExecutor(_LANES) as pool:
        counts = [Counter[str]() for _ in range(0, runs, size)]
        rounds = [pool.submit(_round, daemon, f"{seed} {number}", min(size, runs - number * size), count, over)
                  for number, count in enumerate(counts)]
        try:
            for each in as_completed(rounds):
                each.result()
        finally:
            over.set()
            try:
                pool.shutdown(cancel_futures=True)
            finally:  # a second interrupt, too
                ends.update(sum(counts, Counter()))


def _round(daemon: LiveDaemon, seed: str, count: int, ends: Counter[str], over: threading.Event) -> None:
    with leeward.Sandbox(socket=daemon.socket) as box, leeward.Sandbox(socket=daemon.socket, timeout=1) as other:
        kernel, beside = box.kernel(), other.kernel()
        kernel.execute("x = [6]")
        beside.execute("y = 7", timeout=60)  # a busy machine takes longer than a state may
        assert kernel.execute(spoiled(ANY, seed)).ok
        for number in range(count):
            if over.is_set():
                break
            ends[how := _load(kernel, other)] += 1
            try:
                assert "[6]" == kernel.execute("x").value
                assert "7" == beside.execute("y", timeout=60).value
            except BaseException as error:
                error.add_note(f"seed {seed}, state {number}: they {how}:\n{other.info()}")
                raise
    with daemon.client() as client:
        assert b"on\n" == client.execute("print('on')").stdout


def _load(kernel: leeward.Kernel, other: leeward.Sandbox) -> str:
    with kernel.snapshot() as snapshot:
        try:
            with other.kernel(snapshot=snapshot) as copy:
                return "go on" if "[6]" == copy.execute("x").value else "are others"
        except leeward.SnapshotFailed as refused:
            return "can't be loaded" if "can't be loaded" in str(refused) else "are refused"
        except leeward.SessionOver:
            return "end later"


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
