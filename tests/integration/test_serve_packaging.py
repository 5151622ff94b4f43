"""What `packaging/serve` has: the unit, the proxy with TLS, run as it is, and the containers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import urllib.request

import pytest
import yaml

import leeward
from kit.far_network import certificate
from kit.features import ROOT, SBIN
from kit.live_daemon import PATIENCE, LiveDaemon, command, environment
from kit.served import Served
from kit.waiting import poll_until

FOLDER = ROOT / "packaging" / "serve"


def filled(name, **values):
    """A file as nginx's image and compose fill it in: what isn't named stays."""
    return re.sub(r"\$\{([A-Z_]+)\}", lambda found: values[found[1]], (FOLDER / name).read_text())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze isn't installed")
def test_systemd_takes_the_unit_and_finds_it_confined(tmp_path):
    text = (FOLDER / "leeward-serve.service").read_text().replace("/usr/bin/leeward ", f"{shutil.which('true')} ")
    unit = tmp_path / "leeward-serve.service"
    unit.write_text(text.replace("User=leeward-serve", "User=daemon"))

    def analysed(*words):
        done = subprocess.run(["systemd-analyze", *words, unit], capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    assert [] == [line for line in analysed("--recursive-errors=no", "--man=no", "verify").splitlines() if "leeward" in line]
    rated = analysed("security", "--offline=true", "--no-pager")
    assert 2.0 > float(re.search(r"exposure level for leeward-serve.service: (\d+\.\d)", rated)[1]), rated


@pytest.mark.needs("extra-serve")
def test_the_units_command_is_one_of_the_servers(tmp_path):
    """Each option and face is known: what it lacks is a token."""
    words = re.search(r"^ExecStart=/usr/bin/leeward (.*)$", (FOLDER / "leeward-serve.service").read_text(), re.M)[1]
    compose = re.search(r"command:\n((?:      - .*\n)+)", (FOLDER / "compose.yaml").read_text())[1]
    for given in (words.split(), [line.removeprefix("      - ") for line in compose.splitlines()]):
        given = [re.sub(r"\$\{LEEWARD_DOMAIN.*\}", "lw.example", word) for word in given]
        done = subprocess.run(command(*given, "--tokens", str(tmp_path / "none")), capture_output=True, text=True, timeout=60,
                              check=False)
        assert "there is no token" in done.stderr, done.stderr


def test_the_composes_schema_takes_it(tmp_path):
    """What an engine would refuse; none is here that could run it."""
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((FOLDER / "compose.yaml").read_text().replace("cap_drop:", "cap_dropped:"))
    for file, status in ((FOLDER / "compose.yaml", 0), (wrong, 1)):
        done = subprocess.run([sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", file],
                              capture_output=True, text=True, timeout=60, check=False)
        assert status == done.returncode, done.stdout


def test_blocks_of_caddys_configuration_open_at_the_end_of_a_line():
    """Caddy refuses others."""
    block = re.search(r"^    lw\.example.*?^    }$", (ROOT / "docs/serve.md").read_text(), re.M | re.S)[0]
    assert ["{", "{"] == [line.strip()[-1] for line in block.splitlines() if "{" in line]


def test_the_containers_have_the_socket_and_little_else():
    given = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    door, proxy = given["services"]["door"], given["services"]["proxy"]

    assert (["ALL"], True, ["no-new-privileges:true"]) == (door["cap_drop"], door["read_only"], door["security_opt"])
    assert ["/run/leeward:/run/leeward:ro", "state:/state"] == door["volumes"]
    assert "ports" not in door
    assert {"internal": True} == given["networks"]["inner"]
    assert not {"privileged", "network_mode", "pid", "devices"} & (door.keys() | proxy.keys())
    wanted = set(re.findall(r"\$\{([A-Z_]+)\}", (FOLDER / "leeward-serve.nginx").read_text().split("map ")[1]))
    assert wanted == proxy["environment"].keys()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A folder with a certificate for lw.localhost and the names below it, and the authority that has made it."""
    folder = tmp_path_factory.mktemp("certificates")
    certificate(folder, "DNS:localhost", "DNS:lw.localhost", "DNS:*.lw.localhost")
    return folder


@pytest.mark.needs("extra-serve")
@pytest.mark.skipif(shutil.which("nginx", path=SBIN) is None, reason="nginx isn't installed")
def test_behind_the_proxy_all_faces_work_over_tls(tmp_path, certificates, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    faces = ("e2b", "leeward", "ports", "--behind-proxy", "--domain", f"lw.localhost:{port}")
    with LiveDaemon(tmp_path, "--pool-size", "1") as daemon, Served(daemon.socket, tmp_path, *faces) as served:
        (tmp_path / "site").write_text(filled(
            "leeward-serve.nginx", LEEWARD_DOMAIN="lw.localhost", LEEWARD_DOOR=f"{served.address[0]}:{served.address[1]}",
            LEEWARD_LISTEN=f"127.0.0.1:{port}", LEEWARD_CERTIFICATES=str(certificates)))
        (tmp_path / "nginx").write_text(
            f"daemon off;\npid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\n"
            f"access_log {tmp_path}/access;\n" + "".join(
                f"{what}_temp_path {tmp_path}/{what};\n" for what in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
            + f"include {tmp_path}/site;\n}}\n")
        nginx = [shutil.which("nginx", path=SBIN), "-p", tmp_path, "-e", "stderr", "-c", tmp_path / "nginx"]
        checked = subprocess.run([*nginx, "-t"], capture_output=True, text=True, timeout=30, check=False)
        assert 0 == checked.returncode, checked.stderr
        proxy = subprocess.Popen(nginx)
        try:
            poll_until(lambda: _listens(port), 30)
            monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "ca.pem"))
            _all_faces(served, port)
        finally:
            proxy.terminate()
            proxy.wait(30)
    assert "" == (tmp_path / "access").read_text()  # addresses can have tokens


def _listens(port):
    with socket.socket() as made:
        return not made.connect_ex(("127.0.0.1", port))


def _all_faces(served, port):
    def asked(path, name="localhost", **headers):
        """By an address: this machine need not know names below localhost."""
        connection, trusted = http.client.HTTPConnection(name, port), ssl.create_default_context()
        with contextlib.closing(connection):
            plain = socket.create_connection(("127.0.0.1", port), PATIENCE)
            connection.sock = trusted.wrap_socket(plain, server_hostname=name)
            connection.request("GET", path, headers={"Host": f"{name}:{port}", **headers})
            response = connection.getresponse()
            return response.status, response.read()

    assert (200, b"[]") == asked("/sandboxes", **{"X-API-KEY": served.token})
    assert 401 == asked("/sandboxes")[0]
    host = leeward.RemoteHost(f"https://localhost:{port}", served.token)
    with leeward.Sandbox(socket=host, profile="workdir") as box:
        box.files.write("f", b"x" * 3_000_000)
        box.start(["python3", "-u", "-m", "http.server", "8000", "--bind", "127.0.0.1"]).read(PATIENCE)
        status, content = asked("/f", f"8000-{box.id}.lw.localhost")
        assert (200, 3_000_000) == (status, len(content))
        assert [box.id] == [row["sandboxID"] for row in json.loads(asked("/sandboxes", **{"X-API-KEY": served.token})[1])]
        with box.publish(8000) as published, \
                urllib.request.urlopen(f"http://127.0.0.1:{published.port}/f", timeout=PATIENCE) as answer:
            assert 3_000_000 == len(answer.read())
    if shutil.which("node"):
        env = environment(LEEWARD_HOST=host, LEEWARD_TOKEN=host.token, LEEWARD_TEST_COMMAND="[]",
                          NODE_EXTRA_CA_CERTS=os.environ["SSL_CERT_FILE"])
        script = ROOT / "tests/clients/remote_node.js"
        done = subprocess.run(["node", script, "jobs"], env=env, capture_output=True, text=True,
                              timeout=90, check=False)
        assert 0 == done.returncode, done.stderr
    with pytest.raises(leeward.DaemonAway, match="certificate"), leeward.Client(
            leeward.RemoteHost(f"https://127.0.0.1:{port}", served.token)) as client:
        client.ping()
