"""Time: no job outlasts its limit, whatever it does and whatever the host's clock does. Catalogue cases 57 and 58."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kit.box import Box, control, settle_all
from kit.features import ROOT
from kit.live_daemon import PATIENCE, LiveDaemon, descendants
from kit.sessions import Wire
from leeward.spec.outcome import Limit, Outcome

LIMIT_S = 0.1
LONGER_S = 0.3
#: Within this it is ended on any machine, however much else that does; each of them would stay for a thousand seconds.
SOON_S = PATIENCE


DEAF = "for number in set(range(1, 65)) - {9, 19, 32, 33}: signal.signal(number, signal.SIG_IGN)\n"

#: Ways not to end.
STAY = {
    "sleeps": "time.sleep(1000)",
    "spins": "while True: pass",
    "ignores all signals": DEAF + "while True: time.sleep(1000)",
    "blocks in a fifo": "os.mkfifo('/tmp/fifo')\nopen('/tmp/fifo')",
    "stops its process group": "os.kill(0, signal.SIGSTOP)",
    "stops pid 1": "for number in (signal.SIGSTOP, signal.SIGKILL):\n    try: os.kill(1, number)\n"
                   "    except OSError: pass\nwhile True: time.sleep(1000)",
    "leaves its children to it": DEAF + "os.fork(); os.fork()\nif os.getpid() != 2: os.setsid()\nwhile True: pass",
    "stops all but itself": "os.fork()\nos.kill(-1, signal.SIGSTOP)\nwhile True: time.sleep(1000)",
}


@pytest.mark.smoke
@pytest.mark.no_single_lock("the daemon ends it by its own clock")
@pytest.mark.parametrize("way", STAY)
def test_c057_cannot_outlast_its_time(box: Box, way: str) -> None:
    """A result by the limit, and then no process is left. It stays for as long as it is let."""
    code = "import os, signal, time\n" + STAY[way]
    settle_all()
    before = len(descendants(os.getpid()))

    def stays(seconds: float) -> float:
        got = box.run(code, limits={"time": seconds})
        assert (Outcome.TIMED_OUT, Limit.TIME, 124) == (got.outcome, got.limit, got.exit_code)
        return got.duration

    with control():  # with more time it stays for longer: what ends it is its limit
        assert LONGER_S <= stays(LONGER_S) <= SOON_S
    settle_all()
    assert before == len(descendants(os.getpid()))
    assert LIMIT_S <= stays(LIMIT_S) <= SOON_S
    settle_all()
    assert before == len(descendants(os.getpid()))


#: Ways not to end by an interrupt.
DEAF_TO_IT = {
    **{name: STAY[name] for name in ("ignores all signals", "stops its process group", "leaves its children to it")},
    "catches it again and again": "while True:\n    try: time.sleep(1000)\n    except BaseException: pass",
    "blocks it": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: time.sleep(1000)",
}


@pytest.mark.no_single_lock("the daemon ends it by its own clock")
@pytest.mark.parametrize("way", DEAF_TO_IT)
def test_c057_cannot_outlast_its_grace_in_a_session(way: str) -> None:
    """The interrupt at the limit gives it the grace, and no more."""
    def stays(grace: float) -> float:
        with Box(pool_size=2, spares=0, max_sessions=1, session_grace=grace) as box, Wire(box) as wire:
            peer = wire.peer()
            peer.open()
            got = peer.run(1, "import os, signal, time\n" + DEAF_TO_IT[way], limits={"time": LIMIT_S})
            assert ("timed_out", "time", 124) == (got["outcome"], got["limit"], got["exit_code"])
            assert "session_over" == peer.run(1, "pass")["kind"]
            duration: float = got["duration"]
            return duration

    with control():  # with a longer grace it stays for longer: what ends it is that
        assert LIMIT_S + LONGER_S <= stays(LONGER_S) <= SOON_S
    assert 2 * LIMIT_S <= stays(LIMIT_S) <= SOON_S


#: Clocks of a host whose wall clock jumps a day forth and a day back, at every look.
JUMPING = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int jumps;

static long jump(void)
{
	return __atomic_fetch_add(&jumps, 1, __ATOMIC_RELAXED) % 2 ? 86400 : -86400;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int got = (int)syscall(SYS_clock_gettime, clock, now);
	if (CLOCK_REALTIME == clock || CLOCK_REALTIME_COARSE == clock)
		now->tv_sec += jump();
	return got;
}

int gettimeofday(struct timeval *now, void *zone)
{
	struct timespec real;
	(void)zone;
	clock_gettime(CLOCK_REALTIME, &real);
	now->tv_sec = real.tv_sec;
	now->tv_usec = real.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *where)
{
	struct timespec real;
	clock_gettime(CLOCK_REALTIME, &real);
	if (where)
		*where = real.tv_sec;
	return real.tv_sec;
}
"""


@pytest.fixture(scope="module")
def jumping(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library that makes the wall clock of a process jump. The host's own isn't touched."""
    folder = tmp_path_factory.mktemp("jumping")
    (folder / "jumping.c").write_text(JUMPING)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "jumping.so", folder / "jumping.c"], check=True)
    return str(folder / "jumping.so")


@pytest.mark.needs("compiler")
@pytest.mark.no_single_lock("it is the daemon's and the client's clock that jumps")
def test_c058_a_clock_that_jumps_moves_no_limit(jumping: str, tmp_path: Path) -> None:
    """
    With a daemon and a client for whom a day passes at every look at the wall clock, a job neither ends
    early nor lasts.
    """
    look = "import time; print(abs(time.time() - time.time()) > 80000, time.monotonic() - time.monotonic() < 1)"
    seen = subprocess.run([sys.executable, "-c", look], env={**os.environ, "LD_PRELOAD": jumping}, check=True,
                          capture_output=True, text=True)
    with control():
        assert "True True\n" == seen.stdout

    with LiveDaemon(tmp_path, "--pool-size", "1", env={"LD_PRELOAD": jumping}) as daemon:
        for program, asked, outcome in (
            ("import time; time.sleep(0.3)", 20.0, Outcome.FINISHED),
            ("import time; time.sleep(1000)", 0.3, Outcome.TIMED_OUT),
        ):
            with daemon.client() as client:
                got = client.execute(program, timeout=asked)
            assert outcome is got.outcome
            assert 0.3 <= got.duration <= SOON_S
        done = daemon.run("exec", "--timeout", "0.3", "while True: pass")
        assert 124 == done.returncode


@pytest.mark.no_attack("what the source says")
def test_c058_limits_do_not_depend_on_the_wall_clock() -> None:
    """
    No line of the daemon, of a client and of what runs in a sandbox reads the wall clock but those that only show it:
    the log, the records of egress, of approvals and of requests that wait for an answer; those that compare the times
    of a host's files with that of an opening, or with now (docs/decisions/0043): there is no other clock for these;
    and those that write into certificates and manifests when they were made. Programs of the operator's that aren't
    the daemon show how long something lasts and when it was; a URL that `leeward serve` has signed, and a node that
    is drained by one of several programs, have an end by the wall clock; so have sandboxes that sleep, which outlive their
    daemon, and the approvals service's requests, which outlive it (0080).
    """
    asks = re.compile(r"\btime\.time\(|time_ns\(|datetime\.(now|utcnow|today)|CLOCK_REALTIME|\bgettimeofday\("
                      r"|\btime\(NULL\)|TFD_TIMER_ABSTIME|pthread_cond_timedwait|sem_timedwait")
    may = {ROOT / "leeward" / name for name in (
        "daemon/telling/log.py", "spec/folders.py", "daemon/serving/sandbox_calls.py", "daemon/serving/restoring.py",
        "client/folder_state.py", "client/changes.py", "client/snapshot_store.py",
        "egress/tenancy.py", "egress/sealing.py", "daemon/pool/seals.py", "daemon/pool/asks.py",
        "client/environments.py", "apps/audit/journal.py", "apps/audit/record.py",
        # Programs of the operator's.
        "apps/agents/running.py", "apps/approvals/box_rows.py", "apps/approvals/bridge/boxes.py",
        "apps/approvals/git/git_host.py",
        "apps/approvals/carrying/carrying.py", "apps/approvals/sync/live_sync.py",
        "apps/approvals/service.py", "apps/approvals/serving.py", "apps/approvals/web/feed.py",
        "apps/approvals/web/pages.py", "apps/approvals/web/held.py", "apps/images/store.py",
        "apps/serve/tokens.py", "apps/serve/calls.py", "apps/serve/e2b/envd.py", "apps/serve/e2b/control.py",
        "apps/serve/kernels.py", "apps/serve/jupyter_face.py", "apps/serve/opensandbox_face.py",
            "apps/fleet/aio_fleet.py", "apps/fleet/node_client.py", "_native/src/supervisor_charges.c")} | {
        ROOT / "cli/leeward_cli" / name for name in ("agent.py", "approvals_watch.py")}
    log = (ROOT / "leeward/daemon/telling/log.py").read_text()
    # The table of calls that a job may make names some of them.
    sources = [path for folder in ("leeward", "cli") for kind in ("*.py", "*.c", "*.h")
               for path in (ROOT / folder).rglob(kind)]

    with control():
        assert asks.search("until = time.time() + 1")
    assert len(sources) > 80
    assert may == {path for path in sources if asks.search(path.read_text())}
    assert [1] == [len(asks.findall(part)) for part in log.split("\n\n\n") if asks.search(part)]
    assert asks.search(log.partition("def stamp()")[2].partition("\n\n\n")[0])
