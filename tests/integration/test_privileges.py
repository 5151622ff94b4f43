"""Privileges of zygote, keeper, init and job, as the host's /proc tells them, and python-prctl from within."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.attack import make_environment, within
from kit.box import Box
from kit.running import Running, running, status

SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
NONE = f"{0:016x}"


@pytest.fixture(scope="module")
def family() -> Iterator[Running]:
    """A running job and what is above it."""
    with Box() as box, running(box) as made:
        yield made


@pytest.mark.needs("unfiltered")
def test_init_and_job_have_no_capability(family: Running) -> None:
    """No capability in any set, no_new_privs, one filter each."""
    for pid in (family.init, family.job):
        shown = status(pid)

        assert dict.fromkeys(SETS, NONE) == {name: shown[name] for name in SETS}
        assert ("1", "2", "1") == (shown["NoNewPrivs"], shown["Seccomp"], shown["Seccomp_filters"])
        assert "1" == shown["Threads"]


@pytest.mark.needs("unfiltered")
def test_the_keeper_has_capabilities_of_its_own_namespace_only(family: Running) -> None:
    """None in the bounding set, so that none comes back by an exec; no_new_privs; no filter."""
    shown = status(family.keeper)

    assert {name: NONE for name in SETS if name not in ("CapPrm", "CapEff")} == {
        name: shown[name] for name in SETS if name not in ("CapPrm", "CapEff")}
    assert ("1", "0", "1") == (shown["NoNewPrivs"], shown["Seccomp"], shown["Threads"])


def test_the_zygote_has_no_capability(family: Running) -> None:
    """Though root's own, if root runs the daemon: it needs to read root's interpreter, no more."""
    shown = status(family.zygote)

    assert {NONE} == {shown[name] for name in SETS if name != "CapBnd"}
    if 0 == os.geteuid():
        assert (NONE, "") == (shown["CapBnd"], shown["Groups"])
    assert ("1", "1") == (shown["NoNewPrivs"], shown["Threads"])


def test_keeper_init_and_job_are_not_dumpable(family: Running) -> None:
    """The kernel gives the files of an undumpable process to root."""
    for pid in (family.keeper, family.init, family.job):
        assert (0, 0) == (os.stat(f"/proc/{pid}/environ").st_uid, os.stat(f"/proc/{pid}/environ").st_gid)
    if 0 != os.geteuid():
        assert os.geteuid() == os.stat(f"/proc/{os.getpid()}/environ").st_uid  # control
        for pid in (family.keeper, family.init, family.job):
            with pytest.raises(PermissionError):
                os.listdir(f"/proc/{pid}/fd")


@pytest.mark.needs("root", "unreduced")
def test_init_and_job_hold_only_their_own_descriptors(family: Running) -> None:
    """The init has none; the job its three streams, and the pipe for its reply."""
    assert [] == os.listdir(f"/proc/{family.init}/fd")
    held = {int(name): os.readlink(f"/proc/{family.job}/fd/{name}") for name in os.listdir(f"/proc/{family.job}/fd")}
    assert {0, 1, 2, 4} == set(held)
    assert "/dev/null" == held[0]
    assert all(held[fd].startswith("pipe:") for fd in (1, 2, 4))
    assert 3 == len(set(held.values())) - 1


@pytest.mark.needs("python-prctl")
def test_python_prctl_agrees() -> None:
    """An independent witness, called by the job itself, reads back what the shim has set."""
    spec = importlib.util.find_spec("prctl")
    native = importlib.util.find_spec("_prctl")
    assert spec is not None
    assert native is not None
    assert spec.origin is not None
    assert native.origin is not None
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        packages = make_environment(folder)
        shutil.copy(spec.origin, packages)
        shutil.copy(native.origin, packages)
        witness = """
import prctl
names = sorted(name for name in dir(prctl.cap_effective) if not name.startswith("_") and name not in
               ("drop", "limit"))
tell({"capabilities": [name for kind in (prctl.cap_effective, prctl.cap_permitted, prctl.cap_inheritable)
                       for name in names if getattr(kind, name) is True],
      "known": len(names), "dumpable": prctl.get_dumpable(), "nnp": prctl.get_no_new_privs(),
      "filtered": prctl.get_seccomp(), "pdeathsig": prctl.get_pdeathsig()})
"""
        with Box(python_env=str(folder)) as box:
            got = within(box, witness)
        with Box(python_env=str(folder), locks={"mounts", "namespaces"}) as box:
            control = within(box, witness)
    finally:
        shutil.rmtree(folder)

    assert control["capabilities"]
    assert got["known"] > 30
    assert [] == got["capabilities"]
    assert (False, True, True, 9) == tuple(got[name] for name in ("dumpable", "nnp", "filtered", "pdeathsig"))
