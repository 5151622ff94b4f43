"""`packaging/kubernetes`: the manifests, their commands, and the pod's rights, tried in a container that has no others."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kit.container import DOCKER_LIKE, Container
from kit.features import ROOT
from kit.live_daemon import PATIENCE, command, environment
from kit.ordinary_user import Installation

FOLDER = ROOT / "packaging/kubernetes"
MANIFESTS = [each for each in yaml.safe_load_all((FOLDER / "leeward.yaml").read_text()) if each]
FILTER = FOLDER / "leeward/files/leeward-seccomp.json"


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for each in MANIFESTS:
        if "template" in each.get("spec", {}):
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]


def containers() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for name, pod in pods():
        for each in (*pod.get("initContainers", ()), *pod["containers"]):
            yield f"{name}/{each['name']}", pod, each


def daemon_of() -> tuple[dict[str, Any], dict[str, Any]]:
    [(pod, found)] = [(pod, each) for name, pod, each in containers() if name == "leeward-nodes/daemon"]
    return pod, found


def test_the_filter_is_the_one_that_leeward_prints() -> None:
    printed = subprocess.run(command("doctor", "--profile", "seccomp"), env=environment(), capture_output=True, check=True,
                             text=True, timeout=PATIENCE).stdout
    [shown] = [each["data"]["leeward-seccomp.json"] for each in MANIFESTS
               if each["kind"] == "ConfigMap" and "leeward-seccomp.json" in each["data"]]

    assert json.loads(printed) == json.loads(FILTER.read_text()) == json.loads(shown)


def test_no_pod_has_more_than_it_needs() -> None:
    """No capability, no privilege, a root that can't be written to, no token of the cluster's; one folder of the host's."""
    for name, pod, each in containers():
        rights = each["securityContext"]
        assert (False, True, {"drop": ["ALL"]}) == (rights["allowPrivilegeEscalation"], rights["readOnlyRootFilesystem"],
                                                    rights["capabilities"]), name
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert not {"privileged"} & rights.keys()
        assert "memory" in each["resources"]["limits"], name
        if "seccomp" not in name:
            assert (True, 1000) == (rights["runAsNonRoot"], rights["runAsUser"]), name
    folders = [volume["hostPath"]["path"] for _, pod in pods() for volume in pod["volumes"] if "hostPath" in volume]
    unconfined = [name for name, _, each in containers() if each["securityContext"]["seccompProfile"]["type"] == "Localhost"]

    assert ["/var/lib/kubelet/seccomp"] == folders
    assert ["leeward-nodes/daemon"] == unconfined
    [policy] = [each["spec"] for each in MANIFESTS if each["kind"] == "NetworkPolicy"]
    assert (["Ingress", "Egress"], []) == (policy["policyTypes"], policy["egress"])


@pytest.mark.needs("extra-serve")
def test_the_servers_commands_are_leewards(tmp_path: Path) -> None:
    """Each option and face is known: what they lack is a token. The servers' nodes are the set's pods."""
    for name in ("leeward-nodes/serve", "leeward-servers/serve"):
        [each] = [each for found, _, each in containers() if found == name]
        fleet = {entry["name"]: entry.get("value", "") for entry in each["env"]}.get("LEEWARD_FLEET", "")
        done = subprocess.run(command(*each["args"], "--tokens", str(tmp_path / "none")), capture_output=True, text=True,
                              env=environment(LEEWARD_FLEET=fleet), timeout=60, check=False)
        assert "there is no token" in done.stderr, done.stderr
    service = next(each["metadata"]["name"] for each in MANIFESTS if each.get("spec", {}).get("clusterIP") == "None")
    replicas = next(each["spec"]["replicas"] for each in MANIFESTS if each["kind"] == "StatefulSet")
    assert [f"https://{service}-{number}.{service}.sandboxes.svc:8443" for number in range(replicas)] == fleet.split()


@pytest.mark.needs("kubernetes")
def test_the_manifests_are_the_charts() -> None:
    """Rendered and linted by Helm's library, and each field is in Kubernetes' schema."""
    done = subprocess.run([ROOT / ".venv-kubernetes/bin/python", FOLDER / "render.py", "--check"], capture_output=True,
                          text=True, check=False, timeout=120)

    assert (0, "") == (done.returncode, done.stderr)


@pytest.fixture
def pod(open_folder: Path, user_install: Installation) -> Any:
    """A container with the rights that the daemon's has in its pod, but for what is named."""
    about, daemon = daemon_of()
    rights = daemon["securityContext"]
    profile = {"Localhost": json.loads(FILTER.read_text()), "RuntimeDefault": DOCKER_LIKE}

    def made(proc: str = rights["procMount"], seccomp: str = rights["seccompProfile"]["type"]) -> Container:
        folder = Path(tempfile.mkdtemp(prefix="pod-", dir=open_folder))
        folder.chmod(0o755)
        return Container(folder, user_install.folder, seccomp=profile[seccomp], masked=proc != "Unmasked",
                         uid=rights["runAsUser"], mapped=about["hostUsers"] is False, bound=True)

    return made


#: As the pod has it: the daemon, a job that it runs, its ping, its drain, and the copy of a secret's tokens.
SCRIPT = """
export HOME=/tmp XDG_RUNTIME_DIR=/run
leeward {daemon} >/tmp/log 2>&1 &
until {ping} >/dev/null 2>&1; do kill -0 $! || {{ cat /tmp/log; exit 1; }}; sleep 0.1; done
leeward exec --socket /run/leeward/leeward.sock 'print(6 * 7)'
leeward status --socket /run/leeward/leeward.sock --json | tr -d ' \\n' >/tmp/status
{drain}
leeward fleet status -n unix:/run/leeward/leeward.sock | grep -o draining
cat /tmp/status
kill $!; wait $!
"""


@pytest.mark.needs("root", "runc", "user-namespaces", "landlock")
def test_the_daemon_starts_with_what_its_pod_has(pod: Any) -> None:
    _, daemon = daemon_of()
    args = [each for each in daemon["args"] if not each.startswith("--config")]
    drain = daemon["lifecycle"]["preStop"]["exec"]["command"][2].partition("&&")[0]
    script = SCRIPT.format(daemon=" ".join(args), ping=" ".join(daemon["readinessProbe"]["exec"]["command"]), drain=drain)
    done = pod().run(script)

    assert (0, ["42", "draining"]) == (done.returncode, done.stdout.splitlines()[:2]), done.stdout + done.stderr
    layers = json.loads(done.stdout.splitlines()[2])["layers"]
    assert {"active"} == {layers[name]["state"] for name in ("namespaces", "mounts", "landlock", "seccomp")}


@pytest.mark.needs("root", "runc", "user-namespaces", "landlock")
@pytest.mark.parametrize("without", [{"proc": "Default"}, {"seccomp": "RuntimeDefault"}])
def test_without_one_of_them_it_does_not(pod: Any, without: dict[str, str]) -> None:
    done = pod(**without).run("HOME=/tmp XDG_RUNTIME_DIR=/run leeward run 'print(6 * 7)'")

    assert 0 != done.returncode
    assert "cause:" in done.stderr, done.stdout + done.stderr
