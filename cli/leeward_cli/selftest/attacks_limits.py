"""Attacks on limits, and on later jobs. Each has a bound of its own, so that it does no harm if a limit is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leeward.outcome import Outcome
from leeward.spec.limits import KIB, MIB
from leeward_cli.selftest.attack import Attack, Seen

if TYPE_CHECKING:
    from leeward_cli.selftest.canaries import Canaries


def _taken(canaries: Canaries, seen: Seen) -> str:
    """Judge by the program's report: it has taken several times its limit, and still runs."""
    return f"took {seen.any}" if seen.any else ""


def _wrote(canaries: Canaries, seen: Seen) -> str:
    length = len(seen.results[0].stdout)
    return f"{length} bytes came, of 65536 that were allowed" if length > 64 * KIB else ""


def _ran_on(canaries: Canaries, seen: Seen) -> str:
    duration = seen.results[0].duration
    return f"it ran for {duration:.1f} s, of 1 s that was allowed" if seen.any or duration > 6.0 else ""


def _alike(canaries: Canaries, seen: Seen) -> str:
    drawn = [did for did in seen.did if did]
    return "two jobs drew the same numbers" if len(set(drawn)) < len(drawn) else ""


def _left(canaries: Canaries, seen: Seen) -> str:
    return canaries.left_behind()


_STOPPED = (Outcome.OUT_OF_MEMORY, Outcome.SIGNALLED)

LIMITS = (
    Attack("c053", "limits", "take three times its memory, in one process", ("limits", "rlimits"), """
def attack():
    taken = bytearray(192 << 20)
    for at in range(0, len(taken), 4096):
        taken[at] = 1
    return "192 MiB"
""", _taken, options={"memory": 64 * MIB, "timeout": 20.0}, ends=_STOPPED, only="limits"),
    Attack("c053", "limits", "take three times its memory, in six processes", ("limits",), """
import signal
def attack():
    read, write = os.pipe()
    for _ in range(6):
        if 0 == os.fork():
            taken = bytearray(32 << 20)
            for at in range(0, len(taken), 4096):
                taken[at] = 1
            os.write(write, b"+")
            signal.pause()
    os.close(write)
    done = 0
    while done < 6 and os.read(read, 1):
        done += 1
    if done < 6:
        raise OSError(errno.ENOMEM, "fork")
    return "192 MiB"
""", _taken, options={"memory": 64 * MIB, "timeout": 20.0}, ends=(*_STOPPED, Outcome.TIMED_OUT), only="limits"),
    Attack("c055", "limits", "start twice as many processes as it may have", ("limits", "rlimits"), """
import signal
def attack():
    for _ in range(32):
        if 0 == os.fork():
            signal.pause()
    return "32 processes"
""", _taken, options={"processes": 16, "timeout": 20.0}, only="limits"),
    Attack("c056", "limits", "compute on more processors than it may have", ("limits",), """
import time
def attack():
    try:
        os.sched_setaffinity(0, range(1024))
    except OSError:
        pass
    start = time.monotonic()
    children = range(max(4, len(os.sched_getaffinity(0))))
    for _ in children:
        if 0 == os.fork():
            while time.monotonic() < start + 1.0:
                pass
            os._exit(0)
    for _ in children:
        os.wait()
    times = os.times()
    share = (times.children_user + times.children_system) / (time.monotonic() - start)
    return f"{share:.1f} processors" if share > 1.3 * given["cpu"] / 100 else ""
""", options={"processes": 64, "timeout": 20.0}, needs="controllers"),
    Attack("c057", "limits", "run on when its time is over", ("the daemon's clock",), """
import signal, time
def attack():
    for number in range(1, 32):
        if number not in (9, 19):
            signal.signal(number, signal.SIG_IGN)
    until = time.monotonic() + 8.0
    while time.monotonic() < until:
        pass
    return "8 s"
""", _ran_on, options={"timeout": 1.0}, ends=(Outcome.TIMED_OUT,)),
    Attack("c059", "limits", "write four times as much as it may", ("pipes",), """
def attack():
    for _ in range(256):
        os.write(1, b"x" * 1024)
    return "256 KiB"
""", _wrote, options={"output": 64 * KIB}, ends=(Outcome.OUTPUT_LIMIT,)),
    Attack("c060", "limits", "fill its folders with twice its memory", ("mounts", "limits"), """
def attack():
    size = 0
    for number, folder in enumerate(("/workspace", "/tmp", "/dev/shm") * 2):
        try:
            with open(f"{folder}/{given['mark']}-{number}", "wb", buffering=0) as file:
                for _ in range(22):
                    size += file.write(b"x" * (1 << 20))
        except OSError as error:
            refused = error
    if size < 128 << 20:
        raise refused
    return f"{size >> 20} MiB"
""", _taken, options={"memory": 64 * MIB, "timeout": 20.0}, ends=_STOPPED),
    Attack("c061", "limits", "open 4,096 descriptors", ("rlimits",), """
def attack():
    for _ in range(4096):
        os.dup(1)
    return "4096 descriptors"
""", _taken, only="rlimits"),
)

LEFTOVERS = (
    Attack("c090", "the job before", "find a file that an earlier job has left", ("mounts",), """
def attack():
    names = [f"{folder}/{given['mark']}-left" for folder in ("/workspace", "/tmp", "/dev/shm", "/var/tmp")]
    if not given["turn"]:
        made = [name for name in names if not refusal(lambda: open(name, "x").close())]
        if not made:
            raise RuntimeError("no folder is writable")
        return
    return ", ".join(filter(os.path.exists, names))
""", repeat=3, only="mounts"),
    Attack("c089", "the job before", "leave a process behind", ("namespaces",), """
import subprocess
def attack():
    # A session of its own, and a parent that is gone.
    subprocess.Popen(["/bin/sh", "-c", f"trap '' HUP TERM INT; (sleep 30; : {given['mark'][::-1]}-left) & sleep 0.2"],
                     start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                     stderr=subprocess.DEVNULL).wait()
""", _left),
    Attack("c088", "the job before", "change the interpreter for the next job", ("a process for each job",), """
import builtins
def attack():
    if given["turn"]:
        return "the change is there" if hasattr(builtins, given["mark"]) or given["mark"] in os.environ else ""
    setattr(builtins, given["mark"], True)
    os.environ[given["mark"]] = "1"
    os.umask(0)
""", repeat=3),
    Attack("c095", "the job before", "draw the same random numbers as another job", ("randomness",), """
import random
def attack():
    return random.random()
""", _alike, repeat=3, only="randomness"),
)
