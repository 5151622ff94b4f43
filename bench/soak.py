"""
Many jobs on one daemon, some of them hostile, while its processes are killed: finds lost or wrong answers, and leaks.

    .venv/bin/python bench/soak.py [--jobs N] [--hostile PART] [--kills PART] [--vanish PART] [--seed S] [--json]

Starts a daemon of its own. CLIENTS asynchronous clients each keep AT_ONCE jobs in flight. An ordinary job carries a
number and must bring exactly that number back, by stdout, by a collected file, in an exception's text, or in 200 kB of
output. A hostile job does what an attack does, and only has to end in its time. The part `--kills` of the jobs is
followed by a SIGKILL to a process below the daemon, chosen at random: a zygote, a keeper, an init or a job. The part
`--vanish` is followed by a connection that sends a request, a piece of one, or bytes that are none, and goes away.
SIGUSR1 to this process pauses it when the jobs under way are over, and a second one lets it go on: a million jobs take
hours, for part of which the machine may be wanted.

Exit status 1, with a line that says what happened, if

* a job has no answer, or a wrong one;
* more jobs are lost than processes were killed (a kill costs one job at most);
* the daemon is another process at the end;
* after the last job something is there that wasn't after the first tenth: descriptors, memory files that no process
  maps, processes,
  cgroups, mounts, or memory of the daemon's own, beyond what ROOM says.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import leeward
from bench.sandboxes import below
from leeward.base.closing import OwnedFd
from leeward.wire.requests import Execute, encode_request
from leeward_cli.bench.figures import percentile
from leeward_cli.bench.ours import daemon

CLIENTS, AT_ONCE, WORKERS = 4, 2, 4
#: What there may be more of at the end than after the first tenth. The daemon's own memory is in KiB. Workers keep some
#: empty groups for later jobs, with a few descriptors each; how many they need shows after thousands of jobs. Of keepers who
#: have outlived their zygote each has that one's memory file; whether they map it root alone can read.
ROOM = {"KiB of the daemon": 4 << 10, "groups": 4 * WORKERS, "descriptors": 14 * WORKERS,
        "memory files": WORKERS if os.geteuid() else 0}
#: Seconds that any single job may take from call to answer: a hostile job's time limit, and what a remade worker takes.
PATIENCE_S = 60.0
HOSTILE_TIME_S = 0.2
#: Seconds for the daemon to come to rest after the last answer.
REST_S = 30.0

#: Each ends by itself or by a limit. None may harm another job or the daemon.
HOSTILE = (
    """import os, signal
while True:
    try: os.fork()
    except OSError: signal.pause()""",
    "kept = [bytearray(16 << 20) for _ in range(64)]",
    "import os; os.kill(-1, 9)",
    "import os; os.kill(os.getppid(), 9); os._exit(0)",
    """import os
for fd in range(64):
    try: os.write(fd, b'\\x81\\xa5limit\\x80' * 200)
    except OSError: pass""",
    """import os
for fd in range(64):
    try: os.close(fd)
    except OSError: pass""",
    "import ctypes; ctypes.string_at(0)",
    """import sys
while True: sys.stdout.write('x' * 65536)""",
    "while True: pass",
    """import ctypes
for call in range(512):
    if call not in (34, 57, 60, 231): ctypes.CDLL(None).syscall(call, -1, -1, -1, -1, -1, -1)""",
    """import os
for number in range(3000):
    try: open(f'/workspace/{number}', 'wb').write(b'x' * 4096)
    except OSError: break""",
    """import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
if os.fork(): signal.pause()
os.setsid()
while True: pass""",
    """import threading, time
for _ in range(100):
    try: threading.Thread(target=time.sleep, args=(9,)).start()
    except RuntimeError: break""",
)


@dataclass
class Soak:
    """What has happened so far; `times` and `pauses` in seconds. `wrong` has lines that say what should not have been."""

    path: str
    rng: random.Random
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    going: asyncio.Event = field(default_factory=asyncio.Event)
    pauses: float = 0.0
    _since: float = 0.0

    def toggle(self) -> None:
        if self.going.is_set():
            self.going.clear()
            self._since = time.monotonic()
        else:
            self.going.set()
            self.pauses += time.monotonic() - self._since if self._since else 0.0
        print(f"soak: {'goes on' if self.going.is_set() else 'pauses'} after {len(self.times)} ordinary jobs",
              file=sys.stderr)

    def say(self, what: str) -> None:
        self.wrong.append(what)
        print(f"soak: {what}", file=sys.stderr)


# --- jobs ---------------------------------------------------------------------


def by_output(number: int) -> dict[str, Any]:
    return {"code": f"print({number})"}


def by_file(number: int) -> dict[str, Any]:
    return {"code": "open('answer', 'w').write(input())", "stdin": str(number).encode(), "collect": ["answer"]}


def by_exception(number: int) -> dict[str, Any]:
    return {"code": f"raise ValueError({number})"}


def by_much_output(number: int) -> dict[str, Any]:
    return {"code": f"print('{number} ' * (200_000 // {len(str(number)) + 1}))"}


def by_child(number: int) -> dict[str, Any]:
    return {"code": f"import os\nif os.fork(): os.wait()\nelse: os.write(1, b'{number}\\n'); os._exit(0)"}


Check = Callable[[leeward.Result, int], bool]
ORDINARY: tuple[tuple[Callable[[int], dict[str, Any]], Check], ...] = (
    (by_output, lambda got, number: got.stdout == b"%d\n" % number),
    (by_file, lambda got, number: got.files.get("answer") == b"%d" % number),
    (by_exception, lambda got, number: got.error is not None and got.error.message == str(number)),
    (by_much_output, lambda got, number: set(got.stdout.split()) == {b"%d" % number} and len(got.stdout) > 100_000),
    (by_child, lambda got, number: got.stdout == b"%d\n" % number),
)


async def ordinary(soak: Soak, client: leeward.AsyncClient, number: int) -> None:
    make, check = ORDINARY[number % len(ORDINARY)] if number % 3 else ORDINARY[0]
    start = time.monotonic()
    try:
        got = await asyncio.wait_for(client.execute(**make(number), timeout=30.0), PATIENCE_S)
    except TimeoutError:
        soak.say(f"job {number} has no answer after {PATIENCE_S:g} s")
        return
    except leeward.Busy:
        soak.counts["busy"] += 1
        return
    except leeward.LeewardError as error:
        soak.say(f"job {number}: {type(error).__name__}: {error}")
        return
    soak.times.append(time.monotonic() - start)
    if got.outcome in (leeward.Outcome.FINISHED, leeward.Outcome.RAISED) and check(got, number):
        soak.counts["right"] += 1
    elif got.outcome in (leeward.Outcome.INTERNAL, leeward.Outcome.SIGNALLED):
        soak.counts["lost"] += 1  # must be a kill's: counted at the end
    elif by_child is make and soak.counts["killed"]:
        soak.counts["lost"] += 1  # the child was killed, and its parent is none the wiser
    else:
        soak.say(f"job {number} has a wrong answer: {got!r}")


async def hostile(soak: Soak, client: leeward.AsyncClient) -> None:
    code = soak.rng.choice(HOSTILE)
    try:
        await asyncio.wait_for(client.execute(code, timeout=HOSTILE_TIME_S, memory="64M", processes=16), PATIENCE_S)
        soak.counts["hostile"] += 1
    except TimeoutError:
        soak.say(f"a hostile job has no answer after {PATIENCE_S:g} s: {code!r}")
    except leeward.Busy:
        soak.counts["busy"] += 1
    except leeward.LeewardError as error:
        soak.say(f"a hostile job: {type(error).__name__}: {error}: {code!r}")


def vanish(soak: Soak) -> None:
    """A connection that is closed with a request in flight, after a part of one, or after malformed bytes."""
    request = encode_request(Execute(1, code=b"while True: pass"))
    data = soak.rng.choice((request, request[:soak.rng.randrange(len(request))], soak.rng.randbytes(200), b""))
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as one:
        one.connect(soak.path)
        one.send(data)
    soak.counts["vanished"] += 1


def kill_one(soak: Soak, pid: int) -> None:
    found = below(pid)[1:]
    if not found:
        return
    victim = soak.rng.choice(found)
    with contextlib.suppress(ProcessLookupError), OwnedFd(os.pidfd_open(victim)) as fd:
        if victim in below(pid)[1:]:  # its number wasn't given to another process meanwhile
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            soak.counts["killed"] += 1


# --- what is there ------------------------------------------------------------


def there(pid: int) -> dict[str, int]:
    """The resources in which a leak would show."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    targets, files = [], set[int]()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            targets.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
            if "memfd:" in targets[-1]:
                files.add(os.stat(f"/proc/{pid}/fd/{fd}").st_ino)
    groups = sum(1 for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()
                 for _ in groups_of(pid, line.split(":", 2)))
    processes = below(pid)[1:]
    return {"descriptors": len(targets), "memory files": len(files.difference(*map(mapped, processes))),
            "processes": len(processes), "groups": groups,
            "mounts": len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines()),
            "KiB of the daemon": int(status["RssAnon"].split()[0])}


def mapped(pid: int) -> set[int]:
    """The inodes of the memory files that a process maps, as far as its maps may be read."""
    with contextlib.suppress(OSError):
        return {int(line.split()[4]) for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/memfd:" in line}
    return set()


def groups_of(pid: int, fields: list[str]) -> list[Path]:
    """The groups that the daemon has made below its own, in the hierarchy of these *fields* of /proc/PID/cgroup."""
    mounts = [f"/sys/fs/cgroup/{name}" for name in (fields[1] or "unified").split(",")] + ["/sys/fs/cgroup"]
    for mount in mounts:
        folder = Path(mount + fields[2])
        if folder.is_dir():
            return [each for home in (folder, folder.parent) for each in home.glob(f"leeward-{pid}-*/**/")]
    return []


async def at_rest(soak: Soak, client: leeward.AsyncClient) -> dict[str, int]:
    """What is there once nothing is under way: all workers idle, each with as many armed runners as it is to keep."""
    until = time.monotonic() + REST_S
    last: tuple[int, ...] = ()
    since = time.monotonic()
    while time.monotonic() < until:
        status: Any = await client.status()
        seen = (status["workers"]["idle"], status["runners_armed"], status["runners_arming"], status["runners_made"])
        if seen != last or seen[:3] != (WORKERS, status["runners_kept"], 0):
            last, since = seen, time.monotonic()
        elif time.monotonic() > since + 1.0:
            return there(status["pid"])
        await asyncio.sleep(0.05)
    soak.say(f"the daemon isn't at rest after {REST_S:g} s: {status}")
    return there(status["pid"])


# --- the run ------------------------------------------------------------------


async def run(soak: Soak, options: argparse.Namespace, jobs: int, first: int, pid: int) -> None:
    numbers = iter(range(first, first + jobs))

    async def one_after_the_other(client: leeward.AsyncClient) -> None:
        for number in numbers:
            await soak.going.wait()
            if soak.rng.random() < options.hostile:
                await hostile(soak, client)
            else:
                await ordinary(soak, client, number)
            if soak.rng.random() < options.kills:
                kill_one(soak, pid)
            if soak.rng.random() < options.vanish:
                vanish(soak)
            if len(soak.wrong) >= 20:
                return

    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(leeward.AsyncClient(soak.path)) for _ in range(CLIENTS)]
        await asyncio.gather(*(one_after_the_other(client) for client in clients for _ in range(AT_ONCE)))


async def soaked(soak: Soak, options: argparse.Namespace) -> dict[str, Any]:
    async with leeward.AsyncClient(soak.path) as client:
        pid = int((await client.status())["pid"])
        tenth = max(1, options.jobs // 10)
        soak.going.set()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, soak.toggle)
        start = time.monotonic()
        await run(soak, options, tenth, 1, pid)
        before = await at_rest(soak, client)
        middle, paused = time.monotonic(), soak.pauses
        await run(soak, options, options.jobs - tenth, 1 + tenth, pid)
        seconds = time.monotonic() - middle - (soak.pauses - paused)
        after = await at_rest(soak, client)
        if int((await client.status())["pid"]) != pid:
            soak.say("the daemon is another process")
        for name, count in after.items():
            if count > before[name] + ROOM.get(name, 0):
                soak.say(f"{name}: {before[name]} after the first tenth, {count} at the end")
        if soak.counts["lost"] > soak.counts["killed"]:
            soak.say(f"{soak.counts['lost']} jobs are lost, and {soak.counts['killed']} processes were killed")
        times = soak.times or [0.0]
        status: Any = await client.status()
        return {"jobs": options.jobs, "seconds": round(time.monotonic() - start - soak.pauses, 1),
                "a second": round((options.jobs - tenth) / seconds), **soak.counts,
                "p50 ms": round(1e3 * percentile(times, 50), 2),
                "p99 ms": round(1e3 * percentile(times, 99), 1), "most ms": round(1e3 * max(times)),
                "driver": status["layers"]["cgroup"].get("driver", "none"), "faults": status["faults"],
                "after the first tenth": before, "at the end": after, "wrong": len(soak.wrong)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--hostile", type=float, default=0.05)
    parser.add_argument("--kills", type=float, default=0.005)
    parser.add_argument("--vanish", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1 << 30)
    with daemon(None, "--pool-size", str(WORKERS)) as path:
        soak = Soak(path, random.Random(seed))
        row: Any = asyncio.run(soaked(soak, options))
    row["seed"] = seed
    if options.json:
        print(json.dumps(row))
    else:
        print("\n".join(f"{name:22} {value}" for name, value in row.items()))
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
