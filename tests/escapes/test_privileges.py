"""
Privileges: no way back to a capability, an id or a dumpable process. Catalogue cases 6 to 10.

Not here: a set-id file that an overlay copied up (case 8): no job has an overlay yet.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.attack import make_environment, within, without
from kit.box import RUNS, TESTS, Box, Run, control
from leeward.errors import LeewardError

Only = Callable[..., Box]

NOBODY = 65534

#: Tried when PR_SET_* is not refused by number: what the attack changes, and how it would be seen.
PRCTL = {"PR_SET_PDEATHSIG": 1, "PR_SET_DUMPABLE": 4, "PR_SET_SECUREBITS": 28, "PR_CAPBSET_DROP": 24, "PR_SET_MM": 35,
         "PR_SET_CHILD_SUBREAPER": 36, "PR_SET_NO_NEW_PRIVS": 38, "PR_CAP_AMBIENT": 47, "PR_SET_PTRACER": 0x59616d61}


#: By a fresh program: /proc/self of one that isn't dumpable belongs to root, and that alone would refuse.
MAPS = """
import subprocess
program = '''
import json, os
said = {}
for name, text in {"setgroups": "allow", "uid_map": "0 %d 1", "gid_map": "0 %d 1"}.items():
    try:
        fd = os.open("/proc/self/" + name, os.O_WRONLY)
        os.write(fd, (text % os.getuid() if "%" in text else text).encode())
        said[name] = ""
    except OSError as error:
        said[name] = os.strerror(error.errno)
shown = {name: open("/proc/self/" + name).read().split() for name in ("setgroups", "uid_map", "gid_map")}
print(json.dumps({"said": said, "shown": shown, "id": os.getuid()}))
'''
nested = '''
import ctypes, os
uid = os.getuid()
os.getuid = lambda: uid if os.geteuid() == 65534 else os.geteuid()
assert 0 == ctypes.CDLL(None).unshare(0x10000000)
'''
print(subprocess.run([sys.executable, "-c", (nested if nest else "") + program], capture_output=True, text=True,
                     check=True).stdout)
"""


@pytest.mark.smoke
@pytest.mark.lock("privileges")
def test_c006_cannot_rewrite_its_id_maps(box: Box, only: Only) -> None:
    """One user, one group, setgroups denied; all three stay as they are."""
    with control():
        loose = within(only(), MAPS, nest=True)  # in a user namespace that the attack makes itself
        assert 0 == loose["id"]

    for sandbox in (box, only("privileges")):
        got = within(sandbox, MAPS, nest=False)

        assert "" not in got["said"].values()
        assert 1000 == got["id"]
        assert ["deny"] == got["shown"]["setgroups"]
        for name in ("uid_map", "gid_map"):
            inside, _, count = got["shown"][name]
            assert ["1000", "1"] == [inside, count]


IDS = """
calls = {"setuid": (0,), "setgid": (0,), "setreuid": (0, 0), "setregid": (0, 0), "setresuid": (0, 0, 0),
         "setresgid": (0, 0, 0), "setgroups": (1, (ctypes.c_uint32 * 1)(0)), "setfsuid": (0,), "setfsgid": (0,)}
before = [status(name) for name in ("Uid", "Gid", "Groups")]
said = {name: call(name, *args) for name, args in calls.items()}
none = call("setgroups", 0, 0)
tell({"said": said, "none": none, "capabilities": int(status("CapEff"), 16),
      "same": before == [status(name) for name in ("Uid", "Gid", "Groups")]})
"""


@pytest.mark.lock("privileges")
def test_c006_cannot_become_another_user(box: Box, only: Only) -> None:
    """No call that sets an id changes one, and no group can be given up or taken."""
    if 0 == os.geteuid():
        with control():  # root may
            assert without(IDS)["none"] == ""
    with control():  # may, if there were a 0
        bare = within(only(), IDS)["said"]
        assert {"EINVAL"} == {bare[name] for name in ("setuid", "setgid", "setresuid")}

    for sandbox in (box, only("privileges")):
        got = within(sandbox, IDS)

        assert got["same"]
        assert "EPERM" == got["none"]
        # The fs ids have no error: what they did is in "same".
        # EINVAL: there is no such id in its user namespace, which is asked first.
        assert {"EPERM", "EINVAL"} >= {error for name, error in got["said"].items() if "setfs" not in name}
        assert (1 << 6 | 1 << 7) & got["capabilities"] == 0


SYSCTLS = tuple(name for name in ("core_pattern", "modprobe", "panic") if Path("/proc/sys/kernel", name).exists())

OPEN_SYSCTLS = """
tell({name: attempt(os.open, f"/proc/sys/kernel/{name}", os.O_WRONLY) for name in names}
     | {"shadow": attempt(os.open, "/etc/shadow", os.O_RDONLY)})
"""


@pytest.mark.needs("root")
@pytest.mark.no_single_lock("the host uid is that of the user namespace, which every sandbox has")
def test_c007_cannot_open_files_of_root_where_root_runs_the_daemon(box: Box, only: Only) -> None:
    """A worker's host uid is never 0: without a capability, root's own files would still open."""
    with control():  # opened, not written
        assert {""} == set(without(OPEN_SYSCTLS, names=SYSCTLS).values())

    before = [Path("/proc/sys/kernel", name).read_bytes() for name in SYSCTLS]
    assert {"ENOENT"} == set(within(box, OPEN_SYSCTLS, names=SYSCTLS).values())
    # With the host's own tree in sight and all locks off, the id alone refuses.
    assert {"EACCES"} == set(within(only(), OPEN_SYSCTLS, names=SYSCTLS).values())
    assert before == [Path("/proc/sys/kernel", name).read_bytes() for name in SYSCTLS]


RUN = """
import subprocess
def run(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        return errno.errorcode[error.errno]
    return done.stdout + done.stderr
"""


@pytest.mark.smoke
@pytest.mark.needs("root")
@pytest.mark.lock("privileges")
@pytest.mark.lock("mounts")
def test_c008_cannot_gain_by_a_set_id_file_or_a_file_capability(folder: Path) -> None:
    """Neither bit does anything inside; both do outside, for any user."""
    make_environment(folder)
    set_id, capable = folder / "bin" / "set-id", folder / "bin" / "capable"
    shutil.copy("/usr/bin/id", set_id)
    set_id.chmod(0o6755)
    shutil.copy("/bin/cat", capable)
    net_raw = 1 << 13
    os.setxattr(capable, "security.capability", struct.pack("<5I", 0x02000001, net_raw, 0, 0, 0))
    attack = RUN + 'tell([run(set_id, "-u").strip(), run(capable, "/proc/self/status")])'

    def as_nobody(*command: str | Path) -> str:
        RUNS.append(Run(outside=True))
        return subprocess.run(command, capture_output=True, text=True, check=True, user=NOBODY, group=NOBODY,
                              extra_groups=[]).stdout

    with control():
        assert "0" == as_nobody(set_id, "-u").strip()
        assert f"CapEff:\t{net_raw:016x}" in as_nobody(capable, "/proc/self/status")

    for locks in (None, {"privileges"}, {"mounts"}):
        with Box(locks=locks, python_env=str(folder)) as box:
            uid, status = within(box, attack, set_id=str(set_id), capable=str(capable))

        assert "1000" == uid
        # Without the lock on privileges the job has the keeper's own, over its own namespaces; an exec drops them.
        # EPERM: the kernel runs no file for a capability that nobody here may have.
        assert f"CapEff:\t{0:016x}" in status or (locks and "EPERM" == status)


SET_ID_BITS = """
import threading
ready = threading.Barrier(4)
done = threading.Event()
def wait():
    ready.wait()
    done.wait()
threads = [threading.Thread(target=wait) for _ in range(3)]
for thread in threads:
    thread.start()
ready.wait()
def each(name):
    return [line.split()[1] for tid in os.listdir("/proc/self/task")
            for line in open(f"/proc/self/task/{tid}/status") if line.startswith(name + ":")]
tell({"nnp": each("NoNewPrivs"), "mounts": [line.split()[5] for line in open("/proc/self/mountinfo")]})
done.set()
"""


@pytest.mark.lock("mounts")
@pytest.mark.lock("privileges")
def test_c008_every_mount_ignores_set_id_bits(box: Box, only: Only) -> None:
    """The real su, if there is one, starts as nobody special; and no mount would let it."""
    with control():
        loose = without(SET_ID_BITS)
        assert ["0"] * 4 == loose["nnp"]
        assert not all("nosuid" in options.split(",") for options in loose["mounts"])

    for sandbox in (box, only("privileges")):
        assert ["1"] * 4 == within(sandbox, SET_ID_BITS)["nnp"]
    for sandbox in (box, only("mounts")):
        mounts = within(sandbox, SET_ID_BITS)["mounts"]
        assert mounts
        assert all("nosuid" in options.split(",") for options in mounts)


CONTROL_OF_PRCTL = """
said = {}
for name, args in {"PR_SET_PDEATHSIG": (0,), "PR_SET_DUMPABLE": (1,), "PR_SET_CHILD_SUBREAPER": (1,),
                   "PR_SET_PTRACER": (os.getppid(),), "PR_SET_NO_NEW_PRIVS": (0,), "PR_CAP_AMBIENT": (2, 10, 0, 0),
                   "PR_CAPBSET_DROP": (10,), "PR_SET_SECUREBITS": (1,), "PR_SET_MM": (6, 0x10000, 0, 0)}.items():
    said[name] = call("prctl", numbers[name], *args, *[0] * (4 - len(args)))
tell({"said": said, "dumpable": libc.prctl(3), "nnp": status("NoNewPrivs"),
      "caps": {name: int(status(name), 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd")}})
"""


@pytest.mark.smoke
@pytest.mark.lock("seccomp")
def test_c009_cannot_change_its_posture_by_prctl(box: Box, only: Only) -> None:
    """Capabilities stay none, no_new_privs stays set, the process stays undumpable and nobody's tracee."""
    with control():
        loose = within(only(), CONTROL_OF_PRCTL, numbers=PRCTL)
        assert 1 == loose["dumpable"]
        assert "" == loose["said"]["PR_SET_DUMPABLE"] == loose["said"]["PR_SET_CHILD_SUBREAPER"]
        # Yama's PR_SET_PTRACER is EINVAL where Yama isn't.
        assert loose["caps"]["CapEff"]

    got = within(box, CONTROL_OF_PRCTL, numbers=PRCTL)

    assert {"dumpable": 0, "nnp": "1", "caps": dict.fromkeys(got["caps"], 0)} == {
        name: got[name] for name in ("dumpable", "nnp", "caps")}
    allowed = {"PR_SET_PDEATHSIG": "", "PR_SET_NO_NEW_PRIVS": "EINVAL"}  # clearing the latter is nothing the kernel has
    assert {name: allowed.get(name, "EACCES") for name in PRCTL} == got["said"]
    alone = within(only("seccomp"), CONTROL_OF_PRCTL, numbers=PRCTL)
    assert got["said"] == alone["said"]
    assert loose["caps"] == alone["caps"]


@pytest.mark.lock("privileges")
def test_c009_cannot_raise_a_capability_without_the_filter(box: Box, only: Only) -> None:
    """The kernel itself refuses, once the sets are empty."""
    with control():
        loose = within(only(), CONTROL_OF_PRCTL, numbers=PRCTL)
        assert "" == loose["said"]["PR_CAPBSET_DROP"] == loose["said"]["PR_SET_SECUREBITS"]

    got = within(only("privileges"), CONTROL_OF_PRCTL, numbers=PRCTL)

    assert "EPERM" == got["said"]["PR_SET_SECUREBITS"]
    assert got["caps"] == within(box, CONTROL_OF_PRCTL, numbers=PRCTL)["caps"]
    assert "EPERM" == got["said"]["PR_CAP_AMBIENT"] == got["said"]["PR_CAPBSET_DROP"] == got["said"]["PR_SET_MM"]
    assert dict.fromkeys(got["caps"], 0) == got["caps"]
    assert "1" == got["nnp"]


#: A daemon with a job that tries to outlive it. Says the pids of the job and of its child, as the host sees them.
DAEMON = """
import os, sys
sys.path.insert(0, {tests!r})
from kit import points
points.build()
from kit.attack import PRELUDE
from kit.box import Box
from leeward.daemon.run.runner import job_of
attack = PRELUDE + '''
call("prctl", 1, 0, 0, 0, 0)
for number in range(1, 32):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
if 0 == os.fork():
    os.setsid()
    call("prctl", 1, 0, 0, 0, 0)
os.write(1, b"x" * 65537)
while True:
    signal.pause()
'''
box = Box(locks={locks!r})
box.__enter__()
from leeward.spec.job import Job
from leeward.spec.limits import Limits
box.engine.main.pool.submit(Job(code=attack.encode(), limits=Limits()), print, 60.0)
def children(pid):
    return [int(child) for child in open(f"/proc/{{pid}}/task/{{pid}}/children").read().split()]
def family():
    runner = next((w.leasing.running for w in box.engine.main.pool.workforce.workers if w.leasing.running), None)
    job = children(runner.pid) if runner else []
    return [runner.pid, *job, *(grandchild for child in job for grandchild in children(child))] if runner else []
box.reactor.run(lambda: len(family()) >= 3)
print(*family(), flush=True)
while True:
    box.reactor.turn(1.0)
"""


@pytest.mark.lock("namespaces")
def test_c009_cannot_outlive_its_daemon(box: Box) -> None:
    """A job that cleared its death signal, ignores all others and forked goes with a daemon that is killed."""
    with control():  # an ordinary child lives on
        RUNS.append(Run(outside=True))
        parent = ("import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', 'input()'], stdout=2)\n"
                  "print(child.pid, flush=True)\ninput()")
        survivor = subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, text=True)
        assert survivor.stdin is not None
        assert survivor.stdout is not None
        child = os.pidfd_open(int(survivor.stdout.readline()))
        survivor.kill()
        survivor.wait()
        assert not select.select([child], [], [], 0)[0]
        survivor.stdin.close()
        survivor.stdout.close()
        os.close(child)

    for locks in (None, frozenset({"namespaces"})):
        code = DAEMON.format(tests=str(TESTS), locks=locks)
        daemon = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=TESTS.parent,
                                  env=os.environ | {"PYTHONPATH": str(TESTS.parent)})
        RUNS.append(Run(locks))
        assert daemon.stdout is not None
        pids = [int(word) for word in daemon.stdout.readline().split()]
        assert len(pids) >= 3
        fds = [os.pidfd_open(pid) for pid in pids]
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()
        daemon.stdout.close()

        for fd in fds:
            assert select.select([fd], [], [], 30)[0], "it lives on"
            os.close(fd)


THREADS = """
import threading
ready, done = threading.Barrier(9), threading.Event()
def wait():
    ready.wait()
    done.wait()
for _ in range(8):
    threading.Thread(target=wait).start()
ready.wait()
seen = {tuple(line.strip() for line in open(f"/proc/self/task/{tid}/status")
              if line.startswith(("Cap", "Seccomp", "NoNewPrivs", "Uid", "Gid", "Groups")))
        for tid in os.listdir("/proc/self/task")}
names = "cgroup ipc mnt net pid user uts".split()
spaces = {tuple(os.readlink(f"/proc/self/task/{tid}/ns/{name}") for name in names)
          for tid in os.listdir("/proc/self/task")}
tell([len(os.listdir("/proc/self/task")), sorted(seen), len(spaces)])
done.set()
"""


@pytest.mark.no_single_lock("a posture is all locks together")
def test_c010_no_thread_has_another_posture(box: Box, only: Only) -> None:
    """All threads of a job have the same locks; what brought it there had one thread only."""
    with control():
        loose = within(only(), THREADS)
        assert "Seccomp:\t2" in loose[1][0]
        assert any(line.startswith("CapEff") and not line.endswith("0" * 16) for line in loose[1][0])

    count, postures, spaces = within(box, THREADS)

    assert 9 == count
    assert 1 == len(postures) == spaces
    assert {"NoNewPrivs:\t1", "Seccomp:\t2", f"CapEff:\t{0:016x}", f"CapBnd:\t{0:016x}"} <= set(postures[0])
    zygote, (worker,) = box.engine.main.zygotes.current, box.engine.main.pool.workforce.workers
    assert zygote is not None
    box.reactor.run(lambda: bool(worker.arming.store))
    for pid in (zygote.pid, worker.keeper.pid, *(runner.pid for runner in worker.arming.store)):
        assert 1 == len(os.listdir(f"/proc/{pid}/task"))


@pytest.mark.no_single_lock("it is the start of the daemon that is refused")
def test_c010_cannot_start_a_thread_in_the_zygote(folder: Path) -> None:
    """A module that is imported beforehand and starts a thread stops the start."""
    packages = make_environment(folder)
    (packages / "quiet.py").write_text("")
    (packages / "threads.py").write_text("import threading\nevent = threading.Event()\n"
                                         "threading.Thread(target=event.wait, daemon=True).start()\n")
    with control(), Box(python_env=str(folder), preload=("quiet",)) as box:
        assert within(box, 'tell("quiet" in sys.modules)')

    with pytest.raises(LeewardError, match="threads starts a thread"), \
            Box(python_env=str(folder), preload=("threads",)):
        pass
