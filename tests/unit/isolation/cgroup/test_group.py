"""One group, and the names that a daemon gives its own."""

from __future__ import annotations

import errno
import os

import pytest

from leeward.errors import KernelRefusal, Unsupported
from leeward.isolation.cgroup import choose, daemon_group
from leeward.isolation.cgroup.group import Group, field, kill, may_give, pidfd_of

GONE = 2**22 + 1  # no kernel gives a pid that large


def test_field_finds_a_number_by_its_whole_name():
    """oom is not oom_kill; what isn't there is 0."""
    events = "low 0\noom 3\noom_kill 2\noom_group_kill 1\n"

    assert (field(events, "oom"), field(events, "oom_kill"), field(events, "high")) == (3, 2, 0)


@pytest.mark.parametrize(("uid", "capabilities", "may"), [
    (0, "000001ffffffffff", True), (0, "00000000000001c1", True), (0, "00000000000001c0", False),
    (1000, "0000000000000000", True)])
def test_root_may_give_groups_away_with_cap_chown_alone(tmp_path, monkeypatch, uid, capabilities, may):
    """Root with CAP_CHOWN; others needn't."""
    status = tmp_path / "status"
    status.write_text(f"Name:\tleeward\nCapPrm:\t000001ffffffffff\nCapEff:\t{capabilities}\nSeccomp:\t0\n")
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr("leeward.isolation.cgroup.group.STATUS", str(status))

    assert may is may_give()


def test_errors_name_the_file_and_the_written_value(tmp_path):
    """Not only an errno."""
    group = Group.at(str(tmp_path))
    (tmp_path / "w0").mkdir()

    with pytest.raises(KernelRefusal, match=r"open\(.*/pids\.max\): ENOENT"):
        group.write("pids.max", "5")
    with pytest.raises(KernelRefusal, match=r"mkdir\(.*/w0\): EEXIST"):
        group.make("w0")
    with pytest.raises(KernelRefusal, match=r"open\(.*/missing\): ENOENT"):
        group.child("missing")
    with pytest.raises(KernelRefusal, match="ENOENT"):
        Group.at(f"{tmp_path}/missing")
    group.close()
    group.close()  # once more does no harm


def test_a_link_is_not_a_group(tmp_path):
    """Whoever owns the folder can't lead a sweep elsewhere."""
    (tmp_path / "leeward-1-1").symlink_to("/etc")

    with pytest.raises(KernelRefusal):
        Group.at(f"{tmp_path}/leeward-1-1")


def test_children_are_the_folders(tmp_path):
    """Control files are none, links neither."""
    (tmp_path / "w0").mkdir()
    (tmp_path / "cgroup.procs").write_text("12\n13\n")
    (tmp_path / "link").symlink_to("w0")
    group = Group.at(str(tmp_path))

    assert (group.children(), group.processes()) == (["w0"], [12, 13])
    group.close()


def test_removing_a_group_that_has_gone_is_done(tmp_path):
    """Somebody was quicker."""
    parent = Group.at(str(tmp_path))
    group = parent.make("w0")
    (tmp_path / "w0").rmdir()

    assert group.remove()
    assert group.fd == -1
    parent.close()


def test_a_process_that_has_gone_is_not_killed():
    """Nor one that isn't meant any more."""
    assert pidfd_of(GONE) == -1
    kill(GONE, lambda: pytest.fail("there is nobody to ask about"))
    kill(os.getpid(), lambda: False)


def test_going_on_an_older_kernel_is_gone(monkeypatch):
    """EINVAL, where newer ones say ESRCH; any other errno is told."""
    def refuse(pid: int) -> int:
        raise OSError(refusal, "")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    refusal = errno.EINVAL
    assert pidfd_of(1) == -1
    refusal = errno.EMFILE
    with pytest.raises(KernelRefusal, match="EMFILE"):
        pidfd_of(1)


def test_a_home_is_named_for_its_daemon_s_life():
    """Two daemons with one pid, one after the other, have two names."""
    pid, start = daemon_group.name().removeprefix("leeward-").split("-")

    assert int(pid) == os.getpid()
    assert int(start) > 0
    assert daemon_group.name(GONE).endswith("-0")


def test_sweeping_finds_homes_alone(tmp_path):
    """By name and owner; groups inside a home aren't searched for homes."""
    from leeward.isolation.cgroup.hierarchy import Hierarchy

    dead, alive = f"leeward-{GONE}-7", daemon_group.name()
    for name in (dead, f"a/b/{dead}8", alive, f"{alive}/leeward-{GONE}-9", "leeward-x-1", f"x{dead}"):
        (tmp_path / name).mkdir(parents=True)
    hierarchy = Hierarchy(2, frozenset(), str(tmp_path), str(tmp_path))

    assert daemon_group.sweep([hierarchy, hierarchy]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["a", alive, "leeward-x-1", f"x{dead}"])
    assert list((tmp_path / "a/b").iterdir()) == []
    assert (tmp_path / alive / f"leeward-{GONE}-9").is_dir()


def test_the_driver_is_the_first_that_can_serve(monkeypatch):
    """The others are named, with their reasons."""
    def cannot(name: str):
        def driver(hierarchies: object, passed_over: object, *, pinned: bool) -> object:
            raise Unsupported(name, have=f"no {name}", need="more")
        return driver

    monkeypatch.setattr(choose, "V2Driver", cannot("a"))
    monkeypatch.setattr(choose, "V1Driver", cannot("b"))

    assert choose.choose().passed_over == (("v2", "no a; needs more"), ("v1", "no b; needs more"))
    with pytest.raises(Unsupported, match="v1: no b"):
        choose.choose("v1")
