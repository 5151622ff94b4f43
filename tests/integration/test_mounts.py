"""The mount table of a job is the intended list, line by line."""

from __future__ import annotations

import ctypes
import os
import subprocess
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from kit import features
from kit.attack import within
from kit.box import Box
from kit.running import running
from leeward._native import mounts as native
from leeward._native.mounts import MountAttr
from leeward._native.spawn import Clone, clone
from leeward._native.steps import Call, Table, returns
from leeward.crossing.home_folder import AgentHome, hide_all
from leeward.isolation import backstage, interpreter
from leeward.isolation.backstage import Backstage
from leeward.isolation.mounts import PROC_LINKS
from leeward.isolation.template import Template
from leeward.spec.sandbox import Bind, Scratch, View

MS_REC, MS_SHARED = 1 << 14, 1 << 20

OWN = {"/workspace", "/tmp", "/dev/shm"}

READ_ONLY = {"ro", "nosuid", "nodev"}
DEVICE = {"ro", "nosuid", "noexec"}
PROC = {"nosuid", "nodev", "noexec"}
SCRATCH = {"rw", "nosuid", "nodev"}


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with Box() as made:
        yield made


@dataclass(frozen=True)
class Mount:
    """A line of mountinfo; see proc(5)."""

    root: str
    target: str
    options: frozenset[str]
    shared: bool
    kind: str
    source: str
    super: frozenset[str]


def table(text: str) -> list[Mount]:
    """The mounts of a mountinfo, without the options about access times."""
    mounts = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        _, _, _, root, target, options, *tags = left.split()
        kind, source, above = right.split()
        mounts.append(Mount(root, target, frozenset(options.split(",")) - {"relatime", "noatime", "nodiratime"},
                            bool(tags), kind, source, frozenset(above.split(","))))
    return mounts


def intended(box: Box) -> list[tuple[str, frozenset[str]]]:
    """Targets and options, in the order in which they are mounted."""
    links, view = interpreter.root_links(), box.engine.spec.view
    assert not set(links) & {bind.target for bind in view.binds}
    binds = [(bind.target, frozenset(DEVICE if bind.device else READ_ONLY)) for bind in view.binds
             if os.path.lexists(bind.source) and not os.path.islink(bind.source)]
    own = [(target, frozenset(SCRATCH)) for target in view.scratch.targets]
    return [("/", frozenset(READ_ONLY)), *binds,
            ("/proc", frozenset({"ro", *PROC})), ("/dev/pts", frozenset(DEVICE)), ("/dev/pts/ptmx", frozenset(DEVICE)),
            ("/proc", frozenset({"rw", *PROC})),
            *((text.target, frozenset(READ_ONLY)) for text in view.proc),
            *((f"/proc/{name}", frozenset({"ro", *PROC})) for name in view.proc_live),
            *((f"/proc/{name}", frozenset(READ_ONLY)) for name in PROC_LINKS if view.proc or view.proc_live),
            own[0], *own]  # the first lies on the whole that they are parts of


def test_the_mount_table_is_the_list(box: Box) -> None:
    """
    Root, binds, a dead /proc with the job's own upon it and files upon that, the worker's terminals, a tmpfs with three
    folders of it: nothing else.
    """
    seen = table(within(box, 'tell(open("/proc/self/mountinfo").read())'))
    wanted = intended(box)

    below = {mount.target for mount in seen} - {target for target, _ in wanted}
    # A mount of the host's below a bind comes with it, as read-only as the bind.
    for target in below:
        assert any(target.startswith(bind + "/") for bind, _ in wanted[1:]), target
    assert wanted == [(mount.target, mount.options) for mount in seen if mount.target not in below]
    assert all("nosuid" in mount.options and not mount.shared for mount in seen)
    assert {mount.target for mount in seen if "rw" in mount.options} == OWN | {"/proc"}
    assert {mount.target for mount in seen if "nodev" not in mount.options} == {
        f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "pts", "pts/ptmx")}


def test_mounts_of_a_job_are_at_their_places(box: Box) -> None:
    """Binds show a path of the host at the same path; the rest are new filesystems, bounded in size."""
    seen = table(within(box, 'tell(open("/proc/self/mountinfo").read())'))

    kinds = {mount.target: mount for mount in seen}
    assert "tmpfs" == kinds["/"].kind
    assert {"size=1024k", "nr_inodes=512"} <= kinds["/"].super
    assert ["proc", "proc"] == [mount.kind for mount in seen if "/proc" == mount.target]
    assert "subset=pid" in kinds["/proc"].super  # the last one: on top
    own = [mount for mount in seen if mount.target in OWN]
    assert {"tmpfs"} == {mount.kind for mount in own}
    assert 1 == len({mount.super for mount in own})
    assert f"size={box.engine.confinement.plan.scratch_bytes >> 10}k" in own[0].super
    assert not {"sysfs", "cgroup", "cgroup2", "debugfs", "securityfs", "mqueue", "bpf"} & {mount.kind for mount in seen}
    assert ["/dev/pts"] == [mount.target for mount in seen if "devpts" == mount.kind]


@pytest.mark.needs("root")
def test_the_host_sees_the_same_table(box: Box) -> None:
    """The table that the job reads is the one that the kernel shows from outside, of init and job alike."""
    inside = within(box, 'tell(open("/proc/self/mountinfo").read())')
    with running(box) as family:
        outside = [Path(f"/proc/{pid}/mountinfo").read_text() for pid in (family.init, family.job)]
        keeper = Path(f"/proc/{family.keeper}/mountinfo").read_text()
        nobodys = os.listdir(f"/proc/{family.keeper}/root/proc")

    wanted = [(mount.target, mount.kind, mount.options) for mount in table(inside)]
    for text in outside:
        assert wanted == [(mount.target, mount.kind, mount.options) for mount in table(text)]
    # The keeper's is the template: nothing of the host's is left in it, and nothing of a job's is there.
    targets = sorted(mount.target for mount in table(keeper))
    assert targets == sorted({target for target, _, _ in wanted if not target.startswith("/proc/")} - OWN)
    assert "meminfo" in nobodys
    assert not [name for name in nobodys if name.isdigit()]  # its /proc is of a pid namespace that is dead


def test_the_templates_proc_shows_no_process() -> None:
    """What lies beneath a job's /proc belongs to a pid namespace that is dead."""
    # The only way to look: with the keeper's capabilities, which no job has.
    with Box(locks={"mounts"}) as box:
        got = within(box, """
assert "" == call("umount2", b"/proc", 2)
tell([name for name in os.listdir("/proc") if name.isdigit()])
os._exit(0)
""")

    assert [] == got


def test_the_templates_proc_is_one_for_all_workers() -> None:
    """The kernel keeps memory for each file system in every group of memory, so each one of a worker's own counts twice."""
    code = b"""if True:
        import signal
        print(*(line.split()[2] for line in open("/proc/self/mountinfo") if line.split()[4] == "/proc"), flush=True)
        signal.pause()
    """
    with Box(pool_size=2) as box, running(box, code) as first, running(box, code) as second:
        (shared, own), (other, others) = first.said.split(), second.said.split()

    assert first.keeper != second.keeper
    assert shared == other
    assert 3 == len({shared, own, others})


def test_mounts_of_a_job_do_not_change_the_daemons_table() -> None:
    """The daemon's own table doesn't change by a job. Others on this machine mount folders, but not in each try."""
    def tables() -> set[str]:
        seen = {Path("/proc/self/mountinfo").read_text()}
        with Box() as box, running(box):
            seen.add(Path("/proc/self/mountinfo").read_text())
        return seen | {Path("/proc/self/mountinfo").read_text()}

    assert any(1 == len(tables()) for _ in range(5))


# --- Linux before 5.12 --------------------------------------------------------


def in_namespaces(function: Callable[[], object]) -> tuple[str, list[Mount]]:
    """
    Call *function* in a mount namespace of its own, with the rights to mount there.

    Returns:
        The traceback of what it raised, or "", and the mounts that are there then.
    """
    uid, gid = os.geteuid(), os.getegid()
    reading, writing = os.pipe()
    waiting, go = os.pipe()
    pid, pidfd = clone(Clone.NEWUSER | Clone.NEWNS)
    if 0 == pid:
        try:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"1000 {uid} 1")
            Path("/proc/self/gid_map").write_text(f"1000 {gid} 1")
            Table([native.private_step()]).run()
            function()
            said = ""
        except BaseException:
            said = traceback.format_exc()
        os.write(writing, said.encode())
        os.close(writing)
        os.close(go)
        os.read(waiting, 1)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read().decode()
    seen = table(Path(f"/proc/{pid}/mountinfo").read_text())
    for fd in (pidfd, waiting, go):
        os.close(fd)
    os.waitpid(pid, 0)
    return said, seen


def on(folder: Path, attributes: MountAttr) -> None:
    folder.mkdir()
    native.move_mount(native.filesystem("tmpfs", {}, attributes), str(folder))


def test_without_mount_setattr_every_mount_gets_the_same(tmp_path: Path) -> None:
    """A bind, one below it and one below that: read-only all of them, and what one had besides it keeps."""
    shown = tmp_path / "shown"
    (shown / "a folder").mkdir(parents=True)
    (shown / "device").touch()
    view = View((Bind(str(shown), "/shown"), Bind(str(shown / "device"), "/device", device=True)), (), (),
                Scratch(("/workspace",)))

    def build() -> None:
        on(shown / "a folder" / "b", MountAttr.NOEXEC)
        on(shown / "a folder" / "b" / "c\td", MountAttr.NOSUID)
        template = Template(view)
        template.open()
        template.build()

    with mock.patch.object(native, "sets_attributes", return_value=False):
        said, seen = in_namespaces(build)

    assert "" == said
    below = "/shown/a\\040folder/b"
    assert {"/": READ_ONLY, "/shown": READ_ONLY, below: READ_ONLY | {"noexec"}, f"{below}/c\\011d": READ_ONLY,
            "/device": DEVICE, "/proc": {"ro"} | PROC} == {mount.target: mount.options for mount in seen}
    assert 6 == len(seen)


def test_without_mount_setattr_an_unreachable_mount_stops_the_start(tmp_path: Path) -> None:
    """A mount under another on the same folder: it can't be made read-only, so it isn't left writable."""
    shown = tmp_path / "shown"
    shown.mkdir()
    view = View((Bind(str(shown), "/shown"),), (), (), Scratch(("/workspace",)))

    def build() -> None:
        on(shown / "twice", MountAttr(0))
        native.move_mount(native.filesystem("tmpfs", {}, 0), str(shown / "twice"))
        template = Template(view)
        template.open()
        template.build()

    if features.is_met("kernel>=5.12"):
        assert "" == in_namespaces(build)[0]  # control: with mount_setattr it is nothing special
        (shown / "twice").rmdir()
    with mock.patch.object(native, "sets_attributes", return_value=False):
        assert "another mount covers it" in in_namespaces(build)[0]


def test_without_mount_setattr_nothing_is_mounted_for_the_host() -> None:
    """Where the host's mounts are shared, as under systemd: what a zygote mounts in its copies of them stays there."""
    def build() -> None:
        assert 0 == ctypes.CDLL(None).mount(None, b"/", None, MS_REC | MS_SHARED, None)
        if pid := os.fork():
            assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            return
        code = 1
        try:
            view = View((Bind("/usr", "/usr"),), (), (), Scratch(("/workspace",)))
            for number in range(3, backstage.HOST):  # the next one has its number
                os.dup2(0, number)
            os.closerange(backstage.HOST, 1024)
            inside = backstage.steps(Backstage(Clone.NEWNS, setgroups=False), view, [Bind("/usr/bin", "/usr/bin")])
            Table([returns(Call.UNSHARE, Clone.NEWNS), *inside]).run()
            code = 0
        finally:
            os._exit(code)

    _, before = in_namespaces(lambda: None)
    with mock.patch.object(native, "sets_attributes", return_value=False):
        said, seen = in_namespaces(build)

    assert "" == said
    assert [mount.target for mount in before] == [mount.target for mount in seen]


def test_nothing_of_a_masked_proc_is_in_the_one_for_all_keepers() -> None:
    """There is none, and each keeper says why it has none either."""
    def build() -> None:
        fd = backstage.proc_of_nobody()
        assert fd >= 0  # control
        os.close(fd)
        native.move_mount(native.filesystem("tmpfs", {}, 0), "/proc/sys")
        assert -1 == backstage.proc_of_nobody()

    assert "" == in_namespaces(build)[0]


@pytest.mark.parametrize("mount_setattr", [pytest.param(True, marks=pytest.mark.needs("kernel>=5.12")), False])
def test_a_mount_is_attached_with_its_attributes(tmp_path: Path, mount_setattr: bool) -> None:
    """And with those that it had; nothing that the host mounts there later propagates to it."""
    shown, place = tmp_path / "shown", tmp_path / "place"
    place.mkdir()

    def build() -> None:
        on(shown, MountAttr.NOEXEC)
        assert 0 == ctypes.CDLL(None).mount(None, bytes(shown), None, MS_REC | MS_SHARED, None)
        fd = os.open(place, os.O_PATH)
        native.attach(native.copy(str(shown)), str(place), MountAttr.RDONLY)
        native.attach(native.copy(str(place)), fd, MountAttr.NOSUID)
        on(shown / "later", MountAttr(0))

    with mock.patch.object(native, "sets_attributes", return_value=mount_setattr):
        said, seen = in_namespaces(build)

    assert "" == said
    assert [{"ro", "noexec"}, {"ro", "noexec", "nosuid"}] == [
        set(mount.options) & {"ro", "noexec", "nosuid"} for mount in seen if str(place) == mount.target]
    assert not [mount for mount in seen if mount.target.startswith(str(place))
                and (mount.shared or str(place) != mount.target)]


@pytest.mark.parametrize("mount_setattr", [pytest.param(True, marks=pytest.mark.needs("kernel>=5.12")), False])
def test_later_mounts_of_the_host_stay_outside(tmp_path: Path, mount_setattr: bool) -> None:
    """On a host whose mounts are shared, which systemd sees to: a copy in another namespace would follow them."""
    shown = tmp_path / "shown"
    shown.mkdir()
    view = View((Bind(str(shown), "/shown"),), (), (), Scratch(("/workspace",)))
    libc = ctypes.CDLL(None)

    def build() -> None:
        on(shown / "before", MountAttr(0))
        assert 0 == libc.mount(None, b"/", None, MS_REC | MS_SHARED, None)
        template = Template(view)
        template.open()
        assert 0 == libc.unshare(Clone.NEWNS)
        assert all(mount.shared for mount in table(Path("/proc/self/mountinfo").read_text()))  # control
        template.build()

    with mock.patch.object(native, "sets_attributes", return_value=mount_setattr):
        said, seen = in_namespaces(build)

    assert "" == said
    assert {"/", "/shown", "/shown/before", "/proc"} == {mount.target for mount in seen}
    assert not any(mount.shared for mount in seen)


# --- names that are hidden in a running sandbox -------------------------------


def covering(project: Path, before: Callable[[], object]) -> Callable[[], None]:
    """Hide `secret` in *project*; *before* is called when the name was opened, and nothing is mounted on it yet."""
    def attach(mount: int, to: str | int, attributes: MountAttr) -> None:
        if isinstance(to, int):
            before()
        real(mount, to, attributes)

    def hide() -> None:
        home = project.parent / "home"
        made = AgentHome(native.filesystem("tmpfs", {"mode": "0755"}, MountAttr(0)), str(home), {})
        with mock.patch.object(native, "attach", attach):
            hide_all(made.scratch, [str(project / "secret")], {})

    real = native.attach
    project.mkdir()
    (project / "secret").write_text("a secret")
    return hide


@pytest.mark.parametrize("place", ["a", "a/b"])
def test_a_link_in_a_home_that_was_kept_is_in_no_mounts_place(tmp_path: Path, place: str) -> None:
    """Nor above one. What isn't at its path when all is mounted is an error, too: something has moved it."""
    home, kept, elsewhere = tmp_path / "home", tmp_path / "kept", tmp_path / "elsewhere"
    (kept / "a").mkdir(parents=True)
    (elsewhere / "b").mkdir(parents=True)

    def build(mounts: bool) -> None:
        made = AgentHome(native.filesystem("tmpfs", {"mode": "0755"}, MountAttr(0)), str(home), {f"{home}/a/b": False},
                         native.copy(str(kept)))
        if mounts:
            native.attach(native.copy(str(elsewhere)), f"{home}/a/b", MountAttr(0))
        made.check()

    said, seen = in_namespaces(lambda: build(True))
    assert "" == said
    assert {str(home), f"{home}/a", f"{home}/a/b"} <= {mount.target for mount in seen}
    assert "was moved" in in_namespaces(lambda: build(False))[0]
    (kept / "a/b").rmdir()
    if place == "a":
        (kept / "a").rmdir()
    (kept / place).symlink_to(elsewhere)
    assert "something else is there" in in_namespaces(lambda: build(True))[0]


@pytest.mark.parametrize("attack", ["mv a c", "mv a c; mv b a; mv c b", "mv a c; mkdir a"])
def test_no_name_stays_readable_in_a_mount_that_another_sandbox_moves(tmp_path: Path, attack: str) -> None:
    """It has the same home, and other mounts: what is a mount point here is none there. It may move it back afterwards."""
    home, kept, shown = tmp_path / "home", tmp_path / "kept", [tmp_path / "shown", tmp_path / "other"]
    for folder in (kept / "a", kept / "b", *shown):
        folder.mkdir(parents=True)
    (shown[0] / "secret").touch()
    places = [f"{home}/a", f"{home}/b"]
    tops = {place: (source.stat().st_dev, source.stat().st_ino) for place, source in zip(places, shown, strict=True)}

    def build(then: Callable[[], object]) -> None:
        made = AgentHome(native.filesystem("tmpfs", {"mode": "0755"}, MountAttr(0)), str(home), dict.fromkeys(places, False),
                         native.copy(str(kept)))
        for place, source in zip(places, shown, strict=True):
            native.attach(native.copy(str(source)), place, MountAttr(0))
        made.check()
        then()
        assert 1 == hide_all(made.scratch, [f"{places[0]}/secret"], tops)

    assert "" == in_namespaces(lambda: build(lambda: None))[0]
    with subprocess.Popen(["sh", "-ec", f"read go; {attack}; echo done"], cwd=kept, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as other:
        streams = [stream.fileno() for stream in (other.stdin, other.stdout) if stream is not None]
        said, _ = in_namespaces(lambda: build(lambda: (os.write(streams[0], b"\n"), os.read(streams[1], 5))))
    assert "was moved" in said


def replace(name: Path) -> None:
    """As an editor does when it saves."""
    name.with_name("new").write_text("a secret")
    name.with_name("new").rename(name)


def test_a_name_that_is_gone_before_its_cover_is_no_error(tmp_path: Path) -> None:
    name = tmp_path / "project/secret"

    said, seen = in_namespaces(covering(name.parent, name.unlink))

    assert "" == said
    assert not [mount for mount in seen if "project" in mount.target]


def test_a_name_that_is_replaced_before_its_cover_is_covered(tmp_path: Path) -> None:
    """By another file that is renamed over it, or made in its place, once and again."""
    name, acts = tmp_path / "project/secret", list[Callable[[], object]]()

    def act() -> None:
        if acts:
            acts.pop()()

    def anew() -> None:
        name.unlink()
        name.write_text("a secret")

    acts += [lambda: replace(name), anew, lambda: replace(name)]
    said, seen = in_namespaces(covering(name.parent, act))

    assert "" == said
    assert [str(name)] == [mount.target for mount in seen if "project" in mount.target]


def test_a_name_that_is_replaced_all_the_time_is_an_error(tmp_path: Path) -> None:
    """So that its folder is covered, or the agent ended."""
    name = tmp_path / "project/secret"

    assert "ENOENT" in in_namespaces(covering(name.parent, lambda: replace(name)))[0]
