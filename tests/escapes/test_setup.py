"""
What is on the way while a sandbox's mounts are made. Catalogue cases 19 and 20.

Case 20 can't come from a job: nothing that a job writes is on the way to a mount, since
its writable folders are made anew, by descriptor, for each. What can move is the host's own; so
the tests are against isolation/template.py. And nobody else may move a python_env: the start refuses
one where somebody could.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from kit.attack import READ, make_environment, serves, within, without
from kit.box import Box, control
from leeward._native.spawn import Clone
from leeward._native.steps import Call, Table, returns
from leeward.errors import BadRequest, KernelRefusal, LeewardError, Unsupported
from leeward.isolation import interpreter
from leeward.isolation.template import Template
from leeward.spec.sandbox import Bind, Scratch, View

#: Why most of these are about no lock of a job's.
BEFORE = "a view is built by the keeper, before there is a job, and tested by itself"

#: How often a race is run.
TRIES = 2000 if os.environ.get("LEEWARD_LONG") else 20


def in_child(work: Callable[[], Any]) -> Any:
    """What *work* returns in a child with user and mount namespaces of its own, as a keeper has them."""
    reading, writing = os.pipe()
    uid, gid = os.getuid(), os.getgid()
    pid = os.fork()
    if 0 == pid:
        try:
            Table([returns(Call.UNSHARE, Clone.NEWUSER | Clone.NEWNS)]).run()
            for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {uid} 1"), ("gid_map", f"1000 {gid} 1")):
                Path("/proc/self", name).write_text(text)
            os.write(writing, json.dumps(work()).encode())
        except LeewardError as error:
            os.write(writing, json.dumps({"error": type(error).__name__, "text": str(error)}).encode())
        except BaseException:
            os.write(writing, json.dumps({"bug": traceback.format_exc()}).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = json.loads(pipe.read())
    os.waitpid(pid, 0)
    assert not isinstance(said, dict) or "bug" not in said, said["bug"]
    return said


def link_of(path: str) -> str:
    """Where the link at *path* leads, "" if there is none; somebody may be swapping it right now."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def built(*binds: Bind) -> Callable[[], dict[str, Any]]:
    """Work for `in_child`: build this view, pivot into it, and say what its mounts are."""
    def work() -> dict[str, Any]:
        view = View((Bind("/proc", "/host-proc"), *binds), (), (), Scratch(("/workspace",)))
        template = Template(view)
        template.open()
        template.build()
        table = Path("/host-proc/self/mountinfo").read_text().splitlines()
        return {"mounts": [line.split()[4] for line in table],
                "links": {bind.target: to for bind in binds if (to := link_of(bind.target))},
                "readable": {bind.target: os.access(bind.target, os.R_OK) for bind in binds}}
    return work


def shown(path: Path) -> list[str]:
    """Everything below *path*."""
    return sorted(str(each.relative_to(path)) for each in path.rglob("*"))


@pytest.fixture
def trap(folder: Path) -> Path:
    """A folder with a base tree and, beside it, a victim; links in the one lead to the other."""
    (folder / "victim").mkdir()
    (folder / "victim" / "canary").write_text("canary")
    base = folder / "base"
    for name in ("plain", "dev", "etc"):
        (base / name).mkdir(parents=True)
    for name in ("proc", "sys", "dev/null", "dev/pts", "dev/shm", "etc/ssl", "link"):
        (base / name).symlink_to(folder / "victim")
    return folder


@pytest.mark.no_single_lock(BEFORE)
@pytest.mark.parametrize("device", [False, True])
def test_c019_cannot_have_a_link_mounted_in_place_of_a_folder(trap: Path, device: bool) -> None:
    """A bind that must be there and is a link stops the start, and says so."""
    link = str(trap / "base" / "dev" / "null")
    with control():  # it leads to the victim, and a folder can be mounted
        assert (trap / "base" / "dev" / "null" / "canary").exists()
        plain = in_child(built(Bind(str(trap / "base" / "plain"), "/plain")))
        assert "/plain" in plain["mounts"]

    got = in_child(built(Bind(link, "/dev/null", device=device)))

    assert Unsupported.__name__ == got["error"]
    assert f"bind {link}" in got["text"]
    assert "a link to" in got["text"]


@pytest.mark.no_single_lock(BEFORE)
def test_c019_a_link_that_may_be_missing_leads_nowhere_but_inside(trap: Path) -> None:
    """It is shown as what it is; the victim isn't in the view, so it dangles."""
    with control():  # on the host it leads to the victim
        assert (trap / "base" / "etc" / "ssl" / "canary").exists()
    got = in_child(built(Bind(str(trap / "base" / "etc" / "ssl"), "/etc/ssl", optional=True)))

    assert {"/etc/ssl": str(trap / "victim")} == got["links"]
    assert {"/etc/ssl": False} == got["readable"]
    assert "/etc/ssl" not in got["mounts"]


@pytest.mark.smoke
@pytest.mark.no_single_lock(BEFORE)
@pytest.mark.parametrize("way", ["link", "proc", "dev/shm", "link/deeper", "plain/../link"])
def test_c019_cannot_lead_a_mount_point_through_a_link(trap: Path, way: str) -> None:
    """A link in one bind, on the way to another's mount point, stops the start; nothing is made behind it."""
    before = shown(trap / "victim")
    with control():  # a bind in a bind is possible
        nested = in_child(built(Bind(str(trap / "base"), "/base"), Bind(str(trap / "victim"), "/base/plain")))
        assert "/base/plain" in nested["mounts"]

    got = in_child(built(Bind(str(trap / "base"), "/base"), Bind("/usr/bin", f"/base/{way}/point")))

    assert got["error"] in (KernelRefusal.__name__, "Bug")
    assert "mount" in got["text"] or "link" in got["text"]
    assert before == shown(trap / "victim")


@pytest.mark.lock("mounts")
def test_c019_links_in_an_environment_lead_nowhere_but_inside(box: Box, folder: Path, secret: tuple[Path, str]) -> None:
    """An environment may be given by a link, and hold links to anywhere: a job follows them in its own view."""
    path, text = secret
    packages = make_environment(folder / "environment")
    (packages / "link").symlink_to(path)
    (packages / "up").symlink_to("../" * 16 + str(path).lstrip("/"))
    (folder / "alias").symlink_to(folder / "environment")
    paths = [str(packages / "link"), str(packages / "up"), str(folder / "alias" / "pyvenv.cfg")]
    with control():
        assert [text, text] == without(READ, paths=paths)[:2]

    for locks in (None, {"mounts"}):
        with Box(locks=locks, python_env=str(folder / "alias")) as own:
            assert ["ENOENT"] * 3 == within(own, READ, paths=paths)
            assert str(folder / "environment") == within(own, "tell(sys.prefix)")


def can_swap(path: Path, uid: int) -> bool:
    """Whether *uid* can put something else in the place of *path*; it is put back."""
    child = os.fork()
    if 0 == child:
        try:
            os.setresuid(uid, uid, uid)
            path.rename(path.with_name("moved"))
            path.with_name("moved").rename(path)
            os._exit(0)
        finally:
            os._exit(1)
    return 0 == os.waitpid(child, 0)[1]


@pytest.mark.no_single_lock("the daemon looks before anything confines anybody")
def test_c020_cannot_start_on_an_environment_that_others_may_swap(folder: Path) -> None:
    """A folder on the way to it that others can write, by name or by where a link leads, stops the start."""
    way, link = folder / "way", folder / "link"
    make_environment(way / "environment")
    link.symlink_to(way / "environment")
    stranger = 4711 if 0 == os.geteuid() else os.geteuid()
    way.chmod(0o777)
    with control():
        assert can_swap(way / "environment", stranger)

    for path in (way / "environment", link):
        with pytest.raises(BadRequest, match=f"'{way}' can be written by others .*`chmod go-w {way}`"), \
                Box(python_env=str(path)):
            pass

    way.chmod(0o755)  # the cure
    assert os.geteuid() or not can_swap(way / "environment", stranger)
    with Box(python_env=str(link)) as own:
        assert serves(own)


def swap_for_ever(path: Path, target: Path) -> NoReturn:
    """Make *path* a folder and a link to *target* in turn, until killed."""
    folder, link = path.with_name("a-folder"), path.with_name("a-link")
    folder.mkdir()
    link.symlink_to(target)
    while True:
        folder.rename(path)
        path.rename(folder)
        link.rename(path)
        path.rename(link)


@pytest.mark.no_single_lock(BEFORE)
def test_c020_cannot_win_a_race_against_the_setup(trap: Path) -> None:
    """While a folder turns into a link and back, no mount and no folder lands behind the link."""
    base, victim = trap / "base", trap / "victim"
    swapped = base / "swapped"
    before = shown(victim)
    swapper = os.fork()
    if 0 == swapper:
        swap_for_ever(swapped, victim)
    outcomes: dict[str, int] = {}
    try:
        with control():  # who goes by the name lands there sooner or later
            while before == shown(victim):
                with contextlib.suppress(OSError):
                    (swapped / "made").mkdir()
            (victim / "made").rmdir()
            assert before == shown(victim)
        for _ in range(TRIES):
            for binds in ((Bind(str(base), "/base"), Bind("/usr/bin", "/base/swapped")),
                          (Bind(str(swapped), "/swapped"),)):
                got = in_child(built(*binds))
                outcomes[got.get("error", "mounted")] = 1 + outcomes.get(got.get("error", "mounted"), 0)
                if "error" not in got:
                    assert not any("victim" in mount for mount in got["mounts"])
            assert before == shown(victim)
    finally:
        os.kill(swapper, signal.SIGKILL)
        os.waitpid(swapper, 0)
    assert set(outcomes) <= {"mounted", "KernelRefusal", "Unsupported"}


@pytest.mark.no_single_lock("it is the start of the daemon that is refused")
def test_c019_a_prefix_that_would_show_the_host_is_refused(folder: Path) -> None:
    """An environment in a job's own /tmp would be hidden by it; one that is the root would be all of the host."""
    make_environment(folder / "environment")
    with control():
        assert str(folder / "environment") == interpreter.find(str(folder / "environment")).env

    with tempfile.TemporaryDirectory(dir="/tmp") as hidden:
        make_environment(Path(hidden, "environment"))
        with pytest.raises(LeewardError, match="can't show"):
            interpreter.find(str(Path(hidden, "environment")))
