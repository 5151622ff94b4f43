"""
What `leeward doctor` finds on this machine, and where something is taken away from it; and its cures, typed.

In containers: test_containers.py. Hosts that can't be had: tests/unit/apps/host/test_records.py.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import pickle
import re
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit import features
from kit.container import DOCKER_LIKE
from kit.live_daemon import command, environment
from kit.unclosed import close_garbage
from leeward._native import mounts
from leeward._native.spawn import Clone
from leeward._native.steps import Call, Table, returns
from leeward.apps import host
from leeward.apps.host.facts import facts_of, from_object
from leeward.apps.host.findings import Feature, Support, judge
from leeward.apps.host.probe import look
from leeward.apps.host.profiles import text
from leeward.isolation.cgroup import hierarchy

pytestmark = pytest.mark.needs("user-namespaces")

PR_SET_DUMPABLE = 4


def found() -> dict[str, Feature]:
    return {feature.name: feature for feature in host.features()}


def stops() -> set[str]:
    """What keeps leeward from starting here, by itself."""
    return {name for name, feature in found().items() if feature.stops and not feature.cure.startswith("see ")}


def in_child(job: Callable[[], object]) -> object:
    """What *job* returns in a forked child."""
    reading, writing = os.pipe()
    pid = os.fork()
    if 0 == pid:
        try:
            os.write(writing, pickle.dumps(job()))
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        value = pickle.loads(pipe.read())
    os.waitpid(pid, 0)
    return value


def test_doctor_agrees_with_the_tests_on_features():
    """Asked by other code: tests/kit/features.py."""
    got = found()

    assert all(got[name].state is Support.OK for name in ("namespace.user", "namespace.uts", "memfd.seals"))
    assert (Support.OK is got["mount.proc"].state) is features.is_met("kernel>=5.2")
    assert (Support.OK is got["kernel"].state) is features.is_met("kernel>=5.13")
    assert (Support.OK is got["io_uring"].state) is bool(features.have("io-uring"))
    assert (Support.MISSING is got["landlock"].state) is not bool(features.have("landlock"))
    assert (Support.MISSING is got["seccomp.notification"].state) is not bool(features.have("seccomp-notify"))
    held = features.have("cgroup-v2-controllers") or (features.have("cgroup-v1-controllers") and features.have("root"))
    assert (Support.OK is got["cgroup"].state) is bool(held)


def test_looking_leaves_no_trace():
    """No group, no process, no descriptor; and it can be done twice."""
    def held() -> tuple[list[str], str, str]:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()  # other tests may have left some
        return os.listdir("/proc/self/fd"), Path("/proc/self/cgroup").read_text(), children

    close_garbage()
    before = held()

    first, second = look(), look()

    assert held() == before
    assert [path for each in hierarchy.here() for path in Path(each.own).glob(f"leeward-{os.getpid()}-*")] == []
    assert first == second


@pytest.mark.parametrize(("switch", "name"), [
    ("max_user_namespaces", "namespace.user"),
    ("max_net_namespaces", "namespace.network"),
    ("max_pid_namespaces", "namespace.pid"),
    ("max_mnt_namespaces", "namespace.mount"),
    ("max_ipc_namespaces", "namespace.ipc"),
    ("max_uts_namespaces", "namespace.uts"),
    ("max_cgroup_namespaces", "namespace.cgroup"),
])
def test_a_host_that_allows_no_more_namespaces(switch, name):
    """The switches are those of a user namespace: turned off in one of our own, for real."""
    def job() -> tuple[Feature, Feature]:
        become_root_of(Clone.NEWUSER)
        Path("/proc/sys/user", switch).write_text("0")
        wanting = found()[name]
        type_it(wanting.cure)
        assert "of a user namespace with too few ids" == found()["root"].have
        return wanting, found()[name]

    wanting, cured = in_child(job)

    assert Support.MISSING is wanting.state
    assert "ENOSPC" in wanting.have
    assert wanting.cure.startswith(f"sysctl -w user.{switch}=15000")
    assert "ENOSPC" not in cured.have


def become_root_of(namespaces: int) -> None:
    """Uid 0 in namespaces of one's own, as far as it goes: one id is too few for leeward, which the doctor says as well."""
    uid, gid = os.geteuid(), os.getegid()
    Table([returns(Call.UNSHARE, namespaces)]).run()
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def type_it(cure: str) -> None:
    """A cure, in a shell, as the user that it was given to."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"  # as sudo has it
    subprocess.run(["/bin/sh", "-ec", cure], check=True, capture_output=True, env={**os.environ, "PATH": path})


@pytest.mark.needs("may-set-switches")
@pytest.mark.parametrize(("switch", "off", "name"), [
    ("io_uring_disabled", "2", "io_uring"),
    ("unprivileged_userns_clone", "0", "namespace.user"),  # Debian's kernels
])
def test_switches_of_the_whole_kernel(switch: str, off: str, name: str):
    """For a moment, in a long run that was told that it may."""
    path = Path("/proc/sys/kernel", switch)
    if not path.exists():
        return  # nothing that could be switched off

    def somebody() -> Feature:
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # as what he starts
        return found()[name]

    before = path.read_text()
    try:
        path.write_text(off)
        wanting = in_child(somebody)
        type_it(wanting.cure.removeprefix("sudo "))
        cured = in_child(somebody)
    finally:
        path.write_text(before)

    assert Support.MISSING is wanting.state
    assert f"(kernel.{switch} is {off})" in wanting.have
    assert Support.OK is cured.state


@pytest.mark.needs("guest", "root", "cgroup-v2-controllers")
def test_a_group_that_is_delegated_without_the_cpu_controller() -> None:
    """As older systemd delegates to a user. Enabled above it, which is what the line that is given asks systemd for."""
    above = Path(os.environ["LEEWARD_TEST_GROUPS"], "above")
    inner = above / "inner"
    inner.mkdir(parents=True)

    def job() -> Feature:
        (inner / "cgroup.procs").write_text("0")
        return found()["cgroup"]

    (above / "cgroup.subtree_control").write_text("+memory +pids")
    wanting = in_child(job)
    (above / "cgroup.subtree_control").write_text("+cpu")
    cured = in_child(job)
    inner.rmdir()
    above.rmdir()

    assert Support.LIMITED is wanting.state
    assert "version 2 without the cpu controller" in wanting.have
    assert "Delegate=cpu memory pids" in wanting.cure
    assert Support.OK is cured.state


def put_filter(profile: dict[str, Any]) -> None:
    """The OCI runtime specification's linux.seccomp around this process, as an engine would."""
    import pyseccomp

    actions = {"SCMP_ACT_ALLOW": lambda _: pyseccomp.ALLOW, "SCMP_ACT_ERRNO": pyseccomp.ERRNO}
    default = actions[profile["defaultAction"]](profile.get("defaultErrnoRet", errno.EPERM))
    made = pyseccomp.SyscallFilter(default)
    for row in profile["syscalls"]:
        action = actions[row["action"]](row.get("errnoRet", errno.EPERM))
        tests = [pyseccomp.Arg(each["index"], pyseccomp.MASKED_EQ, each["value"], each["valueTwo"])
                 for each in row.get("args", ())]
        for name in row["names"]:
            number = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
            if number >= 0 and action != default:  # what the library doesn't know it can't name, as in an engine
                made.add_rule(action, number, *tests)
    made.load()


def without(errors: dict[str, int]) -> dict[str, Any]:
    """A filter that answers calls with an errno."""
    return {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        {"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": code} for name, code in errors.items()]}


def test_a_filter_like_dockers_and_the_profile_in_its_place():
    """Neither namespaces nor a ring; with the profile that is shipped there is nothing left to say."""
    def like_docker() -> tuple[set[str], dict[str, Feature]]:
        put_filter(DOCKER_LIKE)
        return stops(), found()

    def with_ours() -> tuple[set[str], dict[str, Feature]]:
        put_filter(json.loads(text("seccomp")))
        return stops(), found()

    before = stops()  # an older kernel has no Landlock
    stopped, by_name = in_child(like_docker)
    cured, after = in_child(with_ours)

    assert before | {"namespace.user"} == stopped
    assert "refused: ENOSYS (the seccomp filter of" in by_name["namespace.user"].have
    assert "this process is under a seccomp filter" in by_name["modules"].have
    assert (Support.MISSING, "refused: EPERM") == (by_name["io_uring"].state, by_name["io_uring"].have)
    assert by_name["io_uring"].cure == by_name["namespace.user"].cure
    assert before == cured
    assert after["io_uring"].state is found()["io_uring"].state


@pytest.mark.parametrize(("errors", "name", "have"), [
    ({"landlock_create_ruleset": errno.EOPNOTSUPP}, "landlock", "not among the active security modules"),
    ({"landlock_create_ruleset": errno.EPERM}, "landlock", "none"),
    ({"seccomp": errno.ENOSYS}, "seccomp.notification", "no SECCOMP_RET_USER_NOTIF"),
    ({"memfd_create": errno.ENOSYS}, "memfd.seals", "refused: ENOSYS"),
    ({"fsopen": errno.ENOSYS}, "mount.proc", "no mount API of Linux 5.2"),
])
@pytest.mark.needs("landlock", "seccomp-notify", "kernel>=5.12")
def test_doctor_names_exactly_the_missing_features(errors: dict[str, int], name: str, have: str):
    def job() -> tuple[set[str], Feature]:
        put_filter(without(errors))
        return stops(), found()[name]

    stopped, feature = in_child(job)

    assert stops() | {name} == stopped
    assert have in feature.have
    assert feature.cure


def test_a_limit_of_the_size_of_files_leaves_no_room_for_a_snapshot():
    def job() -> Feature:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        return found()["snapshot"]

    feature = in_child(job)

    assert (Support.MISSING, "refused: EFBIG", False) == (feature.state, feature.have, feature.stops)
    assert "ulimit -f" in feature.cure
    assert Support.OK is found()["snapshot"].state  # control


def test_without_memory_files_there_is_no_snapshot():
    def job() -> Feature:
        put_filter(without({"memfd_create": errno.ENOSYS}))
        return found()["snapshot"]

    feature = in_child(job)

    assert (Support.MISSING, "refused: ENOSYS") == (feature.state, feature.have)


@pytest.mark.needs("kernel>=5.12")
def test_something_on_top_of_a_part_of_proc():
    """As engines do it; and taken off again by the line that is given."""
    def job() -> tuple[set[str], Feature, set[str]]:
        become_root_of(Clone.NEWUSER | Clone.NEWNS)
        Table([mounts.private_step()]).run()
        subprocess.run(["mount", "--bind", "/dev/null", "/proc/timer_list"], check=True)
        subprocess.run(["mount", "--bind", "/dev/null", "/proc/keys"], check=True)
        stopped, feature = stops() - {"root"}, found()["mount.proc"]
        type_it(re.sub("^jq .*", "umount /proc/keys /proc/timer_list", feature.cure))
        return stopped, feature, stops() - {"root"}

    before = stops()
    stopped, feature, cured = in_child(job)

    assert before | {"mount.proc"} == stopped
    assert "refused: EPERM" in feature.have
    assert "/proc/timer_list, /proc/keys" in feature.have
    assert before == cured


@pytest.mark.needs("kernel>=6.6", "root", "unreduced")  # the switch is for who has rights over the pid namespace
def test_a_host_where_no_memory_file_may_be_run(tmp_path: Path):
    """vm.memfd_noexec is each pid namespace's own. leeward's memory files were never meant to be run: all works."""
    job = "print('x' * 300_000)"  # more than goes without a memory file
    script = f"echo 2 >/proc/sys/vm/memfd_noexec; {' '.join(command('doctor', '--json'))} >doctor; exec \"$@\""

    done = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "sh", "-ec", script, "sh",
                           *command("run", job)], cwd=tmp_path, env=environment(), capture_output=True, check=False)

    assert 0 == done.returncode, done.stderr
    assert 300_001 == len(done.stdout)
    told = {feature["name"]: feature for feature in json.loads((tmp_path / "doctor").read_text())["features"]}
    assert ("ok", "vm.memfd_noexec is 2") == (told["memfd.noexec"]["state"], told["memfd.noexec"]["have"])
    assert "ok" == told["memfd.seals"]["state"]


@pytest.mark.needs("landlock")  # else there is one cause more
@pytest.mark.parametrize("argv", [("run", "1"), ("daemon", "start")], ids=["run", "daemon start"])
def test_a_start_that_fails_names_the_cause_in_the_host(argv: tuple[str, ...], tmp_path: Path):
    """The finding of the doctor, with its line."""
    def job() -> tuple[int, bytes, str]:
        put_filter(DOCKER_LIKE)
        done = subprocess.run(command(*argv), env=environment(tmp_path / "l.sock"), stdin=subprocess.DEVNULL,
                              capture_output=True, check=False)
        return done.returncode, done.stderr, found()["namespace.user"].cure

    status, told, cure = in_child(job)

    assert 1 == status
    (line,) = [line for line in told.decode().splitlines() if line.startswith("leeward: cause: ")]
    assert line.startswith("leeward: cause: namespace.user: refused: ENOSYS (the seccomp filter of")
    assert line.endswith(f"; to get it: {cure}")


@pytest.mark.needs("landlock")
def test_a_daemon_whose_engine_refuses_rings_serves_by_epoll(tmp_path: Path):
    """As under Docker 25 and newer."""
    socket = tmp_path / "l.sock"

    def job() -> tuple[Feature, bool, bytes]:
        put_filter(without({"io_uring_setup": errno.EPERM, "io_uring_enter": errno.EPERM}))
        said = [subprocess.run(command(*argv), env=environment(socket), stdin=subprocess.DEVNULL, capture_output=True,
                               check=True).stdout
                for argv in (("daemon", "start"), ("exec", "print(6 * 7)"), ("daemon", "stop"))]
        return found()["io_uring"], bool(stops()), said[1]

    feature, stopped, said = in_child(job)

    assert (Support.MISSING, False, b"42\n") == (feature.state, stopped, said)
    assert "by epoll" in feature.without


def test_the_record_in_json_is_enough_to_say_the_same(tmp_path: Path):
    """So a user can send what his host is like, and anybody can see what the doctor made of it."""
    done = subprocess.run(command("doctor", "--json"), env=environment(), capture_output=True, check=True)
    told = json.loads(done.stdout)
    again = judge(facts_of(from_object(told["record"])))

    assert [(each["name"], each["state"], each["have"], each["cure"]) for each in told["features"]] == [
        (each.name, str(each.state), each.have, each.cure) for each in again]
    assert not [line for line in told["record"]["files"]["/proc/self/mountinfo"].splitlines()
                if not re.match(r"/(proc|dev|etc|run/.containerenv)\b", line.split(" ")[4])]


def test_the_apparmor_profile_names_a_program_without_links_on_the_way():
    """AppArmor knows files by where they are. The other profile is printed, and used, in test_containers.py."""
    done = subprocess.run(command("doctor", "--profile", "apparmor"), env=environment(), capture_output=True, text=True,
                          check=True)

    (path,) = re.findall(r'^profile leeward "(/[^"]+/leeward)" flags=\(unconfined\) \{$', done.stdout, re.MULTILINE)
    assert os.path.realpath(path) == path
