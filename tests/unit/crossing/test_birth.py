"""The order of the locks, as far as it matters, told from the calls that are made."""

from __future__ import annotations

import errno
import resource
from dataclasses import replace

import pytest

from leeward._native.steps import Call
from leeward.crossing import birth
from leeward.isolation import landlock
from leeward.isolation.mounts import PROC_LINKS
from leeward.isolation.plan import WorkerPlan
from leeward.spec.sandbox import Bind, Root, Scratch, Text, View
from leeward.wire import control

VIEW = View(binds=(Bind("/usr", "/usr"),), texts=(), links=(), scratch=Scratch(("/tmp",)))


@pytest.fixture
def plan() -> WorkerPlan:
    return WorkerPlan(
        uid=1000, gid=1000, hostname="box", view=VIEW, scratch_bytes=1 << 20,
        rlimits=((resource.RLIMIT_NOFILE, 64, 64), (resource.RLIMIT_CORE, 0, 0)), landlock=landlock.plan(VIEW, 1),
        seccomp=bytes(8), init_seccomp=bytes(8))


def report(made: birth.Birth) -> dict[str, str]:
    said = control.decode(made.ready)
    assert isinstance(said, control.Ready)
    return said.report


def test_every_lock_is_set_before_the_locks_that_forbid_it(plan):
    """
    Mounts while Landlock allows them and there are capabilities; no_new_privs before the locks that need it; the
    filter last; and no proof before it.
    """
    made = birth.of(plan)
    calls = [step.call for step in made.table.steps]

    first, last = calls.index, lambda call: len(calls) - 1 - calls[::-1].index(call)
    assert first(Call.SETSID) < first(Call.UNSHARE) < first(Call.MOUNT)
    assert last(Call.MOUNT) < first(Call.CAPSET) < first(Call.LANDLOCK_RESTRICT_SELF) < first(Call.SECCOMP)
    assert first(Call.PRLIMIT64) < first(Call.CAPSET)
    assert first(Call.SECCOMP) < first(Call.SENDMSG) < first(Call.CHROOT)
    locks = [step.call for layer, step in zip(made.layers, made.table.steps, strict=True) if layer != "self-check"]
    assert 1 == locks.count(Call.SECCOMP) == calls.count(Call.LANDLOCK_RESTRICT_SELF) == calls.count(Call.CAPSET)


def test_the_limit_on_descriptors_comes_when_the_last_one_is_sent(plan):
    table = birth.of(plan).table
    limits = [number for number, step in enumerate(table.steps) if step.call is Call.PRLIMIT64]
    sent = next(number for number, step in enumerate(table.steps) if step.call is Call.SENDMSG)

    assert [table.steps[number].arguments[1] for number in limits] == [resource.RLIMIT_CORE, resource.RLIMIT_NOFILE]
    assert limits[0] < sent < limits[1]


def test_every_layer_has_steps_and_a_report(plan):
    made = birth.of(plan)
    assert [name for name, _ in birth.ORDER if name not in ("entrances", "signals")] == list(dict.fromkeys(made.layers))
    assert len(made.layers) == len(made.table.steps)
    assert {"namespaces", "mounts", "seccomp", "privileges", "landlock"} == set(report(made))


def test_without_landlock_no_report_says_that_it_holds(plan):
    made = birth.of(replace(plan, landlock=landlock.plan(VIEW, 0, allow_missing=True)))
    assert not {"landlock", "rules' paths"} & set(made.layers)
    assert "landlock" not in report(made)


def test_a_watched_job_sends_its_file_system_along(plan):
    """By a descriptor that can't be read through: O_PATH."""
    calls = [step.call for step in birth.of(replace(plan, watched=True)).table.steps]
    at = calls.index(Call.SECCOMP)
    assert [Call.OPENAT, Call.SENDMSG, Call.CLOSE, Call.CLOSE] == calls[at + 1 : at + 5]


def test_what_a_keeper_holds_for_landlock_is_closed_before_the_last_lock(plan):
    """All other descriptors are closed first of all, as in a runner for which nothing is held."""
    held = list(birth.held(plan).values())
    made = birth.of(plan)
    closed = [(layer, step.arguments) for layer, step in zip(made.layers, made.table.steps, strict=True)
              if step.call is Call.CLOSE_RANGE]

    assert [landlock.HELD] == held
    assert [("descriptors", (6, held[0] - 1, 0)), ("descriptors", (held[-1] + 1, 0xFFFF_FFFF, 0)),
            ("rules' paths", (held[0], held[-1], 0))] == closed
    order = list(dict.fromkeys(made.layers))
    assert ["landlock", "rules' paths", "seccomp"] == order[order.index("landlock"):][:3]


def test_each_mount_takes_one_call(plan):
    """By mount(2). By descriptors a mount namespace is made for a moment: links need it, which mount(2) follows."""
    view = replace(VIEW, scratch=Scratch(("/workspace", "/tmp", "/dev/shm")), proc=(Text("/proc/meminfo", b"x"),),
                   proc_live=("uptime",), terminals=4)
    made = birth.of(replace(plan, view=view, landlock=landlock.plan(view, 1)))
    steps = [step for layer, step in zip(made.layers, made.table.steps, strict=True) if "mounts" == layer]
    calls = [step.call for step in steps]

    by_descriptors = (Call.OPEN_TREE, Call.MOVE_MOUNT, Call.CLOSE)
    assert {Call.MOUNT, Call.MKDIRAT, Call.FCHMODAT, Call.CHDIR, *by_descriptors} == set(calls)
    assert [len(PROC_LINKS)] * 3 == [calls.count(call) for call in by_descriptors]
    # three file systems, of which /proc is changed once more; two files of /proc, one of them changed; three folders
    assert 10 == calls.count(Call.MOUNT)


def test_the_folders_of_the_tmpfs_are_reached_by_the_current_folder(plan):
    """The first folder covers the whole, and no path leads to the others then."""
    view = replace(VIEW, scratch=Scratch(("/workspace", "/tmp")))
    steps = birth.of(replace(plan, view=view)).table.steps
    mounts = [step.arguments[:3] if step.call is Call.MOUNT else step.arguments for step in steps
              if step.call in (Call.MOUNT, Call.CHDIR)]

    assert [("none", "/proc", "proc"), ("none", "/workspace", "tmpfs"), ("/workspace",), ("0", "/workspace", 0),
            ("1", "/tmp", 0), ("/workspace",)] == mounts


def test_only_the_question_to_the_supervisor_is_a_first_runners(plan, monkeypatch):
    """It is no lock, and the filter is asked in each runner."""
    made = birth.of(plan)
    after = made.table.steps[made.once + 1]

    assert ("self-check", Call.CHROOT) == (made.layers[made.once], made.table.steps[made.once].call)
    assert ("self-check", Call.SECCOMP, (-errno.EACCES,)) == (made.layers[made.once + 1], after.call, after.answers)
    monkeypatch.setattr(birth, "PROVE_ONCE", False)
    assert 0 == birth.of(plan).once


def test_an_images_root_is_entered_before_landlock_and_proved_by_a_detached_mount(plan):
    """
    The overlay of its layers, the uppermost first, on a tmpfs; the old root is unmounted; the file that shows that
    Landlock holds is on a mount that no rule covers, made while mounts may be copied, and let go at the end.
    """
    view = replace(VIEW, binds=(), scratch=Scratch(("/dev/shm",)), root=Root(("/a", "/b"), (Text("/etc/hosts", b"x"),)))
    made = birth.of(replace(plan, view=view, landlock=landlock.plan(view, 1)))
    rows = list(zip(made.layers, made.table.steps, strict=True))
    text = [str(step) for _, step in rows]
    [overlay] = [row for row in text if "'overlay'" in row]

    assert "lowerdir=/.layers/1:/.layers/0,upperdir=/.scratch/upper" in overlay
    assert [("mounts", "pivot_root('.', '.')"), ("mounts", "umount2('.', 2)")] == [
        (layer, str(step)) for layer, step in rows if step.call in (Call.PIVOT_ROOT, Call.UMOUNT2)]
    [copied] = [layer for layer, step in rows if step.into is not None and "a detached /proc" == step.into.name]
    [tried] = [number for number, row in enumerate(text) if row.startswith("openat(a detached /proc, 'self/stat'")]
    assert ("mounts", "self-check") == (copied, made.layers[tried])
    assert (-errno.EACCES,) == made.table.steps[tried].answers
    assert "close(a detached /proc)" == text[tried + 1]
    assert not birth.held(replace(plan, view=view, landlock=landlock.plan(view, 1)))
    assert {"landlock": "a detached /proc: EACCES", "mounts": "/dev is read-only"}.items() <= report(made).items()
