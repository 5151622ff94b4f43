"""
leeward in a container made from nothing but a Debian's files: with the engine's defaults, and with the flags of
docs/containers.md.

The engine is runc. Docker and Podman give their containers to it or to crun; what they add of
their own (a filter, AppArmor's profile) is in kit/container.py as far as it can be had here.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit import features
from kit.beside import NOT_HIS
from kit.container import DOCKER_LIKE, Container
from kit.ordinary_user import Installation

pytestmark = pytest.mark.needs("root", "runc", "user-namespaces", "landlock")

Make = Callable[..., Container]

#: For a container with tests in it: the short form takes some 15 s; of the long one, on a busy machine, CPython's tests
#: seven minutes and no other file more than three.
SUITE_S = 1200

#: The README's way through, with a word before each answer.
DEMO = """
leeward doctor --json >/tmp/doctor || echo "doctor $?"
leeward run 'print(6 * 7)'
leeward daemon start >/dev/null
leeward exec 'import os; print("pid", os.getpid(), "uid", os.getuid())'
leeward exec --json 'import socket; socket.create_connection(("127.0.0.1", 1))' | grep -o '"outcome": "raised"'
leeward status --json >/tmp/status
leeward daemon stop
cat /tmp/doctor /tmp/status
"""


@pytest.fixture
def make(open_folder: Path, user_install: Installation) -> Make:
    def container(**settings: Any) -> Container:
        folder = Path(tempfile.mkdtemp(prefix="container-", dir=open_folder))
        folder.chmod(0o755)  # a user namespace's root has to get through
        return Container(folder, user_install.folder, **settings)

    return container


@pytest.fixture
def profile(user_install: Installation) -> dict[str, Any]:
    """As somebody gets it who does what the documentation says."""
    printed = subprocess.run([user_install.leeward, "doctor", "--profile", "seccomp"], check=True, capture_output=True)
    found: dict[str, Any] = json.loads(printed.stdout)
    return found


def told(text: str) -> dict[str, dict[str, str]]:
    return {feature["name"]: feature for feature in json.loads(text)["features"]}


CAPABILITIES_OF_ROOT = ("CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID")
ROOT = {"uid": 0, "capabilities": CAPABILITIES_OF_ROOT}
USER = {"uid": 1000}

#: Each layer against an attack, and more of two that an engine has as well.
SHORT = ("tests/vm/test_layers.py tests/escapes/test_mounts.py tests/integration/test_privileges.py",)
#: All that isn't about the checkout, a file at a time: a container is made in no time, and it can be said where one is.
WHOLE = tuple(str(path.relative_to(features.ROOT)) for path in (
    features.ROOT / "tests/vm/test_layers.py", *sorted(features.ROOT.glob("tests/escapes/test_*.py")),
    *sorted(features.ROOT.glob("tests/integration/test_*.py"))) if path.name not in (*NOT_HIS, "test_containers.py"))

LONG = bool(os.environ.get("LEEWARD_LONG"))


def shown(checkout: Path, installation: Path) -> dict[Path, Path]:
    """The checkout, and in it the real packages, which nobody wants to copy, if they are for the Python in *installation*."""
    name = ".venv-realpackages"
    (version,) = (path.name for path in installation.glob("lib/python*"))
    ready = (features.ROOT / name / "lib" / version).exists()
    if ready:
        (checkout / name).mkdir(exist_ok=True)
    return {checkout: checkout} | ({checkout / name: features.ROOT / name} if ready else {})


@pytest.mark.timeout(SUITE_S)
@pytest.mark.parametrize("tests", WHOLE if LONG else SHORT, ids=WHOLE if LONG else ["short"])
@pytest.mark.parametrize("who", [{"uid": 0}, USER], ids=["root", "user"])
def test_the_suite_passes_with_the_documented_flags(make: Make, profile: dict[str, Any], open_checkout: Path,
                                                    user_install: Installation, who: dict[str, Any], tests: str,
                                                    capfd: pytest.CaptureFixture[str]) -> None:
    """
    Integration and escape tests, but for those that say what they'd need: no filter around leeward's own, a file
    system of its own as root, capabilities of a host's root, or a tool that the container doesn't have.
    """
    container = make(seccomp=profile, masked=False, cgroups=True, **who,
                     shown=shown(open_checkout, user_install.folder))

    # Not as the first process, nor as one with a number that a job's own may have.
    done = container.run(f"cd {open_checkout}; for n in 1 2 3 4 5 6 7 8; do /bin/true; done; "
                         f"PYTHONDONTWRITEBYTECODE=1 pytest -q -p no:cacheprovider {tests}; exit $?", SUITE_S)

    said = done.stdout.strip().splitlines() or ["no word"]
    with capfd.disabled():
        print("\nin a container:", *(line for line in said[:-1] if line.startswith("SKIPPED")), said[-1], sep="\n  ")
    assert 0 == done.returncode, done.stdout + done.stderr


def test_the_cure_that_the_doctor_prints_is_all_that_it_takes(make: Make, profile: dict[str, Any]) -> None:
    """By hand, as for an engine without a name: with the defaults nothing starts, with the printed line a job runs."""
    container = make(seccomp=DOCKER_LIKE)
    (container.folder / "leeward-seccomp.json").write_text(json.dumps(profile))
    refused = container.run("leeward run 'print(6 * 7)'; GITLAB_CI=true leeward doctor --json; leeward doctor --json")
    of_gitlab, plain = (json.loads(line) for line in refused.stdout.splitlines() if line.startswith("{"))
    told = {about["have"]: about["cure"] for found in (of_gitlab, plain) for about in found["features"]
            if "container" == about["name"]}

    assert ["a container of an OCI runtime, of GitLab CI", "a container of an OCI runtime"] == list(told)
    assert "42" not in refused.stdout.splitlines()
    subprocess.run(told["a container of an OCI runtime"], shell=True, cwd=container.folder, check=True)
    assert "42\n" == container.run("leeward run 'print(6 * 7)'").stdout


ENGINES = ["runc", pytest.param("crun", marks=pytest.mark.needs("crun"))]

#: Of a daemon that is started from a shell: version 2 lets nobody be in the group that a daemon divides.
FROM_A_SHELL = "v1" if features.have("cgroup-v1-controllers") else "none"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("who", "cgroup"), [
    (ROOT, {FROM_A_SHELL}),
    (USER, {"none"}),
    ({"uid": 0, "mapped": True}, {"v2", "none"}),  # version 1 can't be given to a user namespace
], ids=["root", "user", "root of a user namespace"])
def test_the_demo_runs_with_the_documented_flags(make: Make, profile: dict[str, Any], who: dict[str, Any],
                                                 cgroup: set[str], engine: str) -> None:
    """The seccomp profile that is shipped, /proc not covered, cgroups that may be written."""
    done = make(seccomp=profile, masked=False, cgroups=True, engine=engine, **who).run(DEMO)

    assert (0, "") == (done.returncode, done.stderr)
    run, executed, outcome, doctor, status = done.stdout.splitlines()
    assert ("42", "pid 2 uid 1000", '"outcome": "raised"') == (run, executed, outcome)
    assert not [name for name, feature in told(doctor).items() if "does not start" in feature["without"]]
    layers = json.loads(status)["layers"]
    assert {"active"} == {layers[name]["state"] for name in ("namespaces", "mounts", "landlock", "seccomp")}
    assert layers["cgroup"]["driver"] in cgroup


@pytest.mark.needs("cgroup-v2-controllers")
@pytest.mark.parametrize("engine", ENGINES)
def test_version_2_holds_the_limits_of_a_daemon_that_is_the_first_process(make: Make, profile: dict[str, Any],
                                                                          engine: str) -> None:
    """And who starts one from a shell there is told so."""
    who = {"uid": 0, "capabilities": (*CAPABILITIES_OF_ROOT, "CAP_CHOWN")}
    container = make(seccomp=profile, masked=False, cgroups=True, engine=engine, **who)
    from_a_shell = container.run("leeward doctor --json")
    with container.running(["leeward", "daemon", "run", "--log-json"], ready='"event": "ready"') as first:
        status = json.loads(container.exec("leeward status --json").stdout)
        ended = json.loads(container.exec("leeward exec --json 'len(bytearray(600 << 20))'").stdout)
        after = container.exec("leeward exec 'print(6 * 7)'")

    cgroup = told(from_a_shell.stdout)["cgroup"]
    assert "EBUSY" in cgroup["have"]
    assert '.process.args=["leeward","daemon","run"]' in cgroup["cure"]
    assert ("active", "v2") == (status["layers"]["cgroup"]["state"], status["layers"]["cgroup"]["driver"])
    assert ("out_of_memory", "memory", []) == (ended["outcome"], ended["limit"], ended["degraded"])
    assert (0, "42\n", 0) == (after.returncode, after.stdout, first.returncode)


def test_with_an_engines_defaults_the_doctor_names_the_reasons(make: Make) -> None:
    """And so does what doesn't start."""
    done = make(seccomp=DOCKER_LIKE).run("leeward doctor --json; leeward run 1; leeward daemon start; echo $?")

    doctor, status = done.stdout.splitlines()
    features = told(doctor)
    assert "an OCI runtime" in features["kernel"]["have"]
    assert "refused: ENOSYS (the seccomp filter of an OCI runtime)" == features["namespace.user"]["have"]
    assert features["namespace.user"]["cure"].startswith("leeward doctor --profile seccomp")
    assert "refused: EPERM" == features["io_uring"]["have"]
    assert "limited" == features["cgroup"]["state"]
    assert '"/sys/fs/cgroup"' in features["cgroup"]["cure"]
    assert "1" == status
    assert 2 == done.stderr.count("leeward: cause: namespace.user: refused: ENOSYS (the seccomp filter of an OCI")


def test_with_the_filter_lifted_it_is_proc_that_is_covered(make: Make, profile: dict[str, Any]) -> None:
    """What hid behind the first reason."""
    done = make(seccomp=profile).run("leeward doctor --json; leeward run 1; echo $?")

    doctor, status = done.stdout.splitlines()
    features = told(doctor)
    stops = [name for name, feature in features.items() if "does not start" in feature["without"]]
    assert ["mount.proc"] == stops
    assert "refused: EPERM (something is mounted on /proc/" in features["mount.proc"]["have"]
    assert "| .linux.maskedPaths=[] |" in features["mount.proc"]["cure"]
    assert "1" == status
    assert "leeward: cause: mount.proc: refused: EPERM" in done.stderr


def test_root_without_a_capability_is_told_which(make: Make) -> None:
    """One of those that engines leave it."""
    done = make(masked=False).run("setpriv --bounding-set=-setpcap --inh-caps=-setpcap leeward doctor --json")

    root = told(done.stdout)["root"]
    assert ("missing", "without CAP_SETPCAP") == (root["state"], root["have"])
    assert 1 == done.returncode


def test_an_image_without_the_dynamic_linkers_cache_will_do(make: Make) -> None:
    """Where nobody has run ldconfig no library is found by its name: leeward looks for none."""
    container = make(masked=False)
    os.unlink(container.folder / "rootfs/etc/ld.so.cache")

    done = container.run("leeward doctor --json >/dev/null; echo $?; leeward run 'print(6 * 7)'")

    assert (0, "", "0\n42\n") == (done.returncode, done.stderr, done.stdout)
