"""
Escapes by the sandbox's init, which has the job's user id: its priority, scheduler, processors and limits. Case 174.

An init that gets no processor delays the end of its job and the worker's next one. Its signals are in test_signals.py,
and what can be read of it in test_procfs.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kit.attack import within
from kit.box import Box, control

Only = Callable[..., Box]


#: What the init is like; then each way to change that; then what it is like. `own` is the same on a child of the job's. The
#: values are worse than those of a test run that is nice itself.
SLOW_DOWN = """
import resource, struct
def state(pid):
    return [os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid), sorted(os.sched_getaffinity(pid))]
def change(pid, high=0):
    param = ctypes.create_string_buffer(struct.pack("i", 0))
    mask = ctypes.create_string_buffer((1).to_bytes(128, "little"))
    limit = ctypes.create_string_buffer(struct.pack("QQ", 1 << 40, 1 << 40))
    return [call("setpriority", os.PRIO_PROCESS, pid | high, 17),
            call("sched_setscheduler", pid | high, os.SCHED_IDLE, param),
            call("sched_setparam", pid | high, param), call("sched_setaffinity", pid | high, 128, mask),
            call("prlimit64", pid | high, resource.RLIMIT_FSIZE, limit, 0)]
before = state(1)
tried = [change(1), change(1, 1 << 32)]
everybody = call("setpriority", os.PRIO_USER, 0, 18)
io = call("ioprio_set", 1, 1, 3 << 13)
attributes = call("sched_setattr", 1, ctypes.create_string_buffer(struct.pack("IIQiIQQQ", 48, 5, 0, 0, 0, 0, 0, 0)), 0)
files = [attempt(os.open, f"/proc/1/{name}", os.O_WRONLY) for name in ("oom_score_adj", "autogroup", "sched")]
after = state(1)
child = os.fork()
if 0 == child:
    signal.pause()
own = change(child) + [call("setpriority", os.PRIO_PROCESS, 0, 18), attempt(os.nice, 1)]
os.kill(child, signal.SIGKILL)
tell({"before": before, "after": after, "tried": tried, "everybody": everybody, "io": io, "attributes": attributes,
      "files": files, "own": own})
"""


@pytest.mark.lock("seccomp", beside=("namespaces",), because="pid 1 is the init in a pid namespace alone")
@pytest.mark.smoke
def test_c174_cannot_slow_its_init_down(box: Box, only: Only) -> None:
    """Five calls by its number, and one by its user: refused; so are ioprio_set and sched_setattr, whoever is meant."""
    with control():
        loose = within(only("namespaces"), SLOW_DOWN)
        assert [["", "", "", "", ""]] * 2 == loose["tried"]
        assert loose["before"] != loose["after"]
        assert (18, 5) == tuple(loose["after"][:2])  # SCHED_IDLE
        assert {""} == {loose["everybody"], loose["io"], loose["attributes"]}

    for sandbox in (box, only("seccomp", "namespaces")):
        got = within(sandbox, SLOW_DOWN)

        assert got["before"] == got["after"]
        assert [["EACCES"] * 5] * 2 == got["tried"]
        assert {"EACCES"} == {got["everybody"], got["io"], got["attributes"]}


@pytest.mark.lock("seccomp", beside=("namespaces", "privileges"),
                  because="the init's files are root's, who isn't there")
def test_c174_may_slow_its_own_down(box: Box, only: Only) -> None:
    """nice, renice, taskset and prlimit of a process of its own work as ever; the init's files can't be written."""
    with control():
        assert ["", "", "", "", ""] == within(only("namespaces", "privileges"), SLOW_DOWN)["tried"][0]

    for sandbox in (box, only("seccomp", "namespaces", "privileges")):
        got = within(sandbox, SLOW_DOWN)
        assert ["", "", "", ""] == [got["own"][at] for at in (0, 1, 2, 4)]
        assert ["", ""] == got["own"][-2:]
    assert {"EACCES", "ENOENT"} >= set(within(box, SLOW_DOWN)["files"])
