"""Large files that a job brings back: what the daemon takes for them, and jobs that lie about them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kit.live_daemon import LiveDaemon, open_files
from leeward import LeftOutReason, Limit, Outcome
from leeward.spec.outcome import Result

PIECES = 60
#: What a decoded reply and the figures of four jobs may take of the daemon's memory, whatever comes back.
ROOM = 24 << 20
#: Bytes that have no room in a job's reply, and that it can bring in half a second.
LATE = 3 << 20

#: Not all zeros, and no two pieces alike: a piece that is missing or doubled shows.
MAKE = f"""
block = bytes(range(250)) * 4000
with open('big', 'wb') as file:
    for number in range({PIECES}):
        file.write(b'%d' % number + block)
open('small', 'w').write('s')
open('none', 'w').close()
"""
BIG = b"".join(b"%d" % number + bytes(range(250)) * 4000 for number in range(PIECES))

DAEMON = ("--pool-size", "4")


def peak(daemon: LiveDaemon) -> int:
    """Bytes of memory that the daemon has had of its own, at most."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))


def collected(daemon: LiveDaemon, together: int) -> list[Result]:
    results: list[Result] = []

    def one() -> None:
        with daemon.client() as client:
            results.append(client.execute(MAKE, collect=["*"], timeout=120.0))

    threads = [threading.Thread(target=one) for _ in range(together)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("together", [2, 4])
def test_the_daemons_memory_doesnt_grow_with_the_files(daemon: LiveDaemon, together: int) -> None:
    """They go from the job's pipe into the memory file that the client gets."""
    with daemon.client() as client:
        assert client.execute("open('small', 'w').write('s')", collect=["*"]).ok
    before = peak(daemon)
    for result in collected(daemon, together):
        assert Outcome.FINISHED is result.outcome, result
        assert ["big", "none", "small"] == list(result.files)
        assert (True, b"", b"s") == (BIG == result.files["big"], result.files["none"], result.files["small"])

    assert peak(daemon) < before + ROOM
    assert not [name for name in open_files(daemon.process.pid) if "leeward_results" in name]




def test_a_session_and_a_job_whose_time_is_up_bring_them_too(daemon: LiveDaemon) -> None:
    """The session goes on."""
    with daemon.client() as client:
        late = client.execute(f"open('a', 'wb').write(bytes({LATE}))\nimport time; time.sleep(60)", collect=["a"],
                              timeout=1.0)
        assert (Outcome.TIMED_OUT, Limit.TIME) == (late.outcome, late.limit)
        assert bytes(LATE) == late.files.get("a", bytes(LATE))  # half a second for it may be too little
        assert late.files or [LeftOutReason.ENDED] == [one.reason for one in late.left_out]
        with client.session() as session:
            for _ in range(2):
                assert BIG == session.execute(MAKE, collect=["big", "small"], timeout=60.0).files["big"]
            assert b"1\n" == session.execute("print(1)").stdout


@pytest.mark.parametrize("results", ["inline", "memfd"])
def test_large_files_come_as_the_switch_says(tmp_path: Path, results: str) -> None:
    """Within the reply as far as there is room, or by descriptor."""
    with LiveDaemon(tmp_path, "--pool-size=1", f"--results={results}") as daemon, daemon.client() as client:
        for size in (5, 3 << 20, 20 << 20):
            got = client.execute(f"open('a', 'wb').write(bytes({size})); open('b', 'w').write('b')", collect=["*"])
            assert ({"a": bytes(size), "b": b"b"}, "finished") == (dict(got.files), got.outcome)
