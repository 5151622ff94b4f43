"""
Clients of a daemon on another machine: by `leeward serve leeward`, by ssh, and what keeps tenants apart. Clients are
tested twice: over this host's loopback, and with the daemon's side in another network.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import random
import re
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

import leeward
from clients import remote_python
from kit.far_network import FarNetwork, certificate
from kit.features import ROOT, SBIN
from kit.live_daemon import PATIENCE, LiveDaemon, command, environment
from kit.served import Served
from kit.skip_policy import require
from kit.waiting import poll_until
from leeward.client import over_ssh
from leeward.spec.paths import RemoteHost

CONFIG = """\
pool_size = 2
pool_workers = 16
[profiles.kept]
base = "workdir"
"""


@pytest.fixture(scope="module", params=["loopback", pytest.param("far", marks=pytest.mark.needs("veth"))])
def far(request):
    """The network of the daemon's side; None for this one."""
    with FarNetwork() if "far" == request.param else nullcontext() as made:
        yield made


#: What is the server's own, whatever network its callers come from.
HERE = pytest.mark.parametrize("far", ["loopback"], indirect=True)


@pytest.mark.needs("veth")
def test_a_run_that_is_killed_leaves_no_network():
    killed = ("import os, signal\nfrom kit.far_network import FarNetwork\nmade = FarNetwork().__enter__()\n"
              "print(made.enter[1], flush=True)\nos.kill(os.getpid(), signal.SIGKILL)")
    done = subprocess.run([sys.executable, "-c", killed], env={**os.environ, "PYTHONPATH": str(ROOT / "tests")}, text=True,
                          stdout=subprocess.PIPE, timeout=PATIENCE, check=False)
    path = done.stdout.strip().removeprefix("--net=")

    assert -signal.SIGKILL == done.returncode
    assert path
    poll_until(lambda: not os.path.exists(path), "the network is gone", PATIENCE)


@pytest.fixture(scope="module")
def daemon(far, tmp_path_factory):
    folder = tmp_path_factory.mktemp("daemon")
    (folder / "c.toml").write_text(CONFIG)
    (folder / "c.toml").chmod(0o600)
    with LiveDaemon(folder, "--config", str(folder / "c.toml"), enter=far.enter if far else ()) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def served(daemon, far, tmp_path_factory):
    """In another network with TLS, by an authority that this process and its children trust."""
    require("extra-serve")
    folder, options = tmp_path_factory.mktemp("serve"), ["leeward", "e2b", "ports"]
    with pytest.MonkeyPatch.context() as patched:
        if far:
            certificate(folder, f"IP:{far.address}")
            options += ["--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem")]
            for name in ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"):
                patched.setenv(name, str(folder / "ca.pem"))
        with Served(daemon.socket, folder, *options, far=far) as found:
            assert found.url.startswith(f"https://{far.address}:" if far else "http://127.0.0.1:")
            yield found


@pytest.fixture
def host(served):
    return RemoteHost(served.url, served.token)


@pytest.mark.parametrize("case", remote_python.CASES)
def test_the_client_for_python(host, case):
    remote_python.CASES[case](host)


@pytest.fixture(scope="session")
def for_macos(tmp_path_factory):
    """The wheel for macOS, installed as uv does there, but for what it depends on."""
    folder, there = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("macos")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    install = [str(Path(sys.executable).with_name("uv")), "pip", "install", "-q", "--no-cache", "--no-deps", "--no-index",
               "--find-links", str(folder), "--python-platform", "aarch64-apple-darwin", "--python", sys.executable,
               "--target", str(there), "leeward"]
    for argv in (build, install):
        subprocess.run(argv, cwd=ROOT, env={**os.environ, "LEEWARD_PLATFORM": "macosx_11_0_universal2"}, check=True,
                       capture_output=True, timeout=60)
    (made,) = folder.iterdir()
    assert [] == runpy.run_path(str(ROOT / "packaging/audit.py"))["audit"](made)
    return there


THE_CASES = "import runpy; runpy.run_module('clients.remote_python', run_name='__main__')"


def on_another_system(place, code, *words, **more):
    """The output of a program in Python that sees macOS, with leeward in *place*."""
    env = environment(**more) | {"PYTHONPATH": f"{place}:{ROOT / 'tests'}"}
    done = subprocess.run([sys.executable, "-c", f"import kit.other_system\n{code}", *words], env=env, capture_output=True,
                          text=True, timeout=PATIENCE * len(remote_python.CASES), check=False)
    assert (0, "") == (done.returncode, done.stderr), done
    return done.stdout


@pytest.mark.needs("root")
def test_the_client_for_python_needs_no_linux(served, for_macos):
    """Nor the shim: all the cases, the command, and what only a daemon of this machine would do. Once, for every user."""
    there = {"LEEWARD_HOST": served.url, "LEEWARD_TOKEN": served.token}
    on_another_system(for_macos, THE_CASES, *remote_python.CASES, **there)
    command = f"import runpy; runpy.run_path({str(for_macos / 'bin/leeward')!r})"
    assert "42\n" == on_another_system(for_macos, command, "exec", "print(6 * 7)", **there)
    box = on_another_system(for_macos, command, "sandbox", "new", **there).strip()
    assert "kept" == on_another_system(for_macos, command, "sandbox", "attach", box, "--", "printf", "kept", **there)
    on_another_system(for_macos, command, "sandbox", "kill", box, **there)
    assert "needs Linux" in on_another_system(
        for_macos, "import leeward\ntry: leeward.Client().ping()\nexcept leeward.DaemonAway as error: print(error)")
    assert "for Linux alone" in on_another_system(
        for_macos, "import leeward\ntry: leeward.WorkdirSandbox\nexcept ImportError as error: print(error)")


def test_packages_say_where_they_are_installed(host):
    with leeward.Client(host) as client, pytest.raises(leeward.Forbidden, match="the daemon's machine"):
        client.execute("1", packages=["x"])
    with pytest.raises(leeward.Forbidden, match="the daemon's machine"), leeward.Sandbox(socket=host, packages=["x"]) as box:
        box.shell("true")


def test_the_command_takes_a_host_from_the_environment(served):
    env = environment(LEEWARD_HOST=served.url, LEEWARD_TOKEN=served.token)
    done = subprocess.run(command("exec", "print(6 * 7)"), env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (0, "42\n") == (done.returncode, done.stdout), done.stderr
    done = subprocess.run(command("ping"), env=env, capture_output=True, text=True, timeout=60, check=False)
    assert 0 == done.returncode, done.stderr


@pytest.mark.parametrize("token", ["", "e2b_" + "0" * 64])
def test_a_wrong_token_is_told(served, token):
    with leeward.Client(served.url, token=token) as client, \
            pytest.raises(leeward.DaemonAway, match="wants another token") as caught:
        client.ping()
    assert not caught.value.may_have_run


def test_a_host_that_is_none_is_told(served):
    with leeward.Client("http://127.0.0.1:1", token="x") as client, \
            pytest.raises(leeward.DaemonAway, match="no daemon answers at"):
        client.ping()


# --- tenants --------------------------------------------------------------------


@pytest.fixture(scope="module")
def other(served):
    quotas = [word for each in ("sandboxes=2", "jobs=2", "lifetime=100", "memory=128M") for word in ("--quota", each)]
    return RemoteHost(served.url, served.new_token("other", *quotas))


@HERE
def test_a_tenant_sees_its_own_sandboxes_alone(daemon, host, other):
    """The control: the daemon's own user sees and has them all."""
    with leeward.Sandbox(socket=host) as box, leeward.Sandbox(socket=daemon.socket) as own:
        box.files.write("secret", b"s")
        own.shell("true")
        assert box.id in {row["sandbox"] for row in leeward.Sandbox.list(socket=daemon.socket)}
        assert [] == leeward.Sandbox.list(socket=other)
        with leeward.Sandbox.attach(box.id, socket=daemon.socket) as control:
            assert b"s" == control.files.read("secret")
            control.detach()
        for theirs in (box.id, own.id):
            with pytest.raises(leeward.SandboxOver) as caught:
                leeward.Sandbox.attach(theirs, socket=other)
            with pytest.raises(leeward.SandboxOver) as unknown:
                leeward.Sandbox.attach("b" * 26, socket=other)
            assert str(unknown.value) == str(caught.value)


@HERE
def test_every_operation_about_another_tenants_sandbox_is_refused(host, other):
    from leeward.client.connection import BlockingConnection
    from leeward.wire.requests import OPERATIONS

    with leeward.Sandbox(socket=host, profile="workdir") as box:
        box.shell("true")
        link = BlockingConnection(other)
        for op in sorted(op for op, found in OPERATIONS.items() if "sandbox" in found.checks):
            fields = {"sandbox": box.id, **_FIELDS.get(op, {})}
            with pytest.raises((leeward.SandboxOver, leeward.RequestRejected)) as caught:
                link.call(op, fields, retry=False)
            assert isinstance(caught.value, leeward.SandboxOver) or "needs a" in str(caught.value), (op, caught.value)
        link.close()
        assert "here" == box.shell("printf here").stdout_text


#: What these operations need beside a sandbox.
_FIELDS = {
    "process_run": {"argv": ["id"]}, "process_start": {"argv": ["id"]}, "sandbox_execute": {"code": b"1"},
    "sandbox_fetch": {"url": "http://x.test/"}, "sandbox_connect": {"port": 80}, "sandbox_hide": {"hide": ["/x"]},
    **{f"kernel_{what}": {"kernel": 1} for what in ("interrupt", "reset", "fork", "bind", "close")},
    **{f"process_{what}": {"process": 1} for what in ("read", "write", "wait", "kill")},
    "process_signal": {"process": 1, "signal": 15}, "process_resize": {"process": 1, "rows": 1, "columns": 1},
}


@HERE
@pytest.mark.parametrize(("op", "fields"), [
    ("shutdown", {}), ("status", {}), ("egress_log", {}), ("egress_asks", {}), ("recall", {"job": 1}), ("sandbox_dock", {})])
def test_what_is_the_operators_is_refused(served, op, fields):
    """By a client that passes on what it likes."""
    kind, _ = raw(served, served.token, {"op": op, **fields})
    assert "forbidden" == kind


def raw(served, token, *messages):
    """The kind of the refusal, or "", and the reply to the last message, over the WebSocket itself."""
    from websockets.sync.client import connect

    from leeward.wire.frames import FrameReader, decode, encode

    with connect(served.url.replace("http", "ws") + "/leeward", additional_headers={"Authorization": f"Bearer {token}"},
                 proxy=None) as ws:
        reader = FrameReader()
        for number, message in enumerate(messages, 1):
            ws.send(encode({"v": 1, "id": number, **message}))
            found: list[bytes] = []
            while not found:
                found = reader.feed(ws.recv(PATIENCE))
        reply = decode(found[0])
        return reply.get("error", {}).get("kind", ""), reply


@HERE
def test_profiles_and_policies_are_those_of_the_token(served, other):
    for wrong in ({"profile": "kept"}, {"profile": "shell"}, {"environment": "x"}, {"egress": "x"}):
        assert "bad_request" == raw(served, other.token, {"op": "sandbox_open", **wrong})[0], wrong
    for wrong in ({"profile": "kept"}, {"egress": "x"}):
        assert "bad_request" == raw(served, other.token, {"op": "execute", "code": b"1", **wrong})[0], wrong
        assert "bad_request" == raw(served, other.token, {"op": "session_open", **wrong})[0], wrong
    assert "bad_request" == raw(served, other.token, {"op": "sandbox_open", "lifetime": 101.0})[0]
    allowed = RemoteHost(served.url, served.new_token("profiled", "--profile", "kept"))
    with leeward.Sandbox(socket=allowed, profile="kept") as box:
        assert "kept" == box.info()["profile"]


@HERE
def test_quotas_hold(served, other):
    with leeward.Sandbox(socket=other, memory="1G", retry_busy=False) as box, \
            leeward.Client(other, retry_busy=False) as client, client.session() as session:
        assert (128 << 20, True) == (box.info()["memory_limit"], box.info()["left"] <= 100)
        session.execute("1")
        with pytest.raises(leeward.Busy, match="2 sandboxes and sessions"), \
                leeward.Sandbox(socket=other, retry_busy=False) as third:
            third.shell("true")
        session.close()
        with leeward.Sandbox(socket=other, retry_busy=False) as second:
            second.shell("true")


@HERE
def test_hostile_bytes_end_their_own_connection_alone(served, host):
    """Messages of random bytes, of text, frames of all sizes, requests whose fields have any type; other clients go on."""
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    from leeward.apps.serve.wire_face import COUNTED, PLAIN
    from leeward.wire.frames import encode

    chance = random.Random(7)
    values = [None, True, -1, 0, 2**63, 1.5, "", "x" * 200, b"\xff" * 200, [], [1, "a"], {}, {"a": {"b": 1}}, "a" * 26]
    names = ["v", "id", "op", "sandbox", "target", "code", "limits", "profile", "metadata", "lifetime", "session", "mounts"]
    ops = [*sorted(PLAIN | COUNTED), "execute", "sandbox_list", "sandbox_extend", "process_read", "nothing"]

    def message():
        kind = chance.randrange(4)
        if kind == 0:
            return chance.randbytes(chance.randrange(300))
        if kind == 1:
            return chance.randrange(1 << 32).to_bytes(4, "big") + chance.randbytes(20)
        given = {chance.choice(names): chance.choice(values) for _ in range(chance.randrange(5))}
        return encode({"v": 1, "id": chance.randrange(1, 9), "op": chance.choice(ops), **(given if kind == 2 else {
            name: value for name, value in given.items() if name not in ("v", "id", "op")})})

    url, heads = served.url.replace("http", "ws") + "/leeward", {"Authorization": f"Bearer {host.token}"}
    for _ in range(150):
        with connect(url, additional_headers=heads, proxy=None, open_timeout=PATIENCE) as ws, suppress(ConnectionClosed):
            for _ in range(8):
                ws.send(message() if chance.randrange(50) else "text")
    with connect(url, additional_headers=heads, proxy=None, open_timeout=PATIENCE) as ws:
        ws.send(b"\xff" * 8)  # a frame of 4 GiB
        with pytest.raises(ConnectionClosed):
            ws.recv(PATIENCE)
    with leeward.Client(host) as client:
        assert "fine\n" == client.execute("print('fine')").stdout_text
    for row in leeward.Sandbox.list(socket=host):
        leeward.Sandbox.attach(row["sandbox"], socket=host).close()


@HERE
def test_a_flood_is_paced_and_its_quota_is_given_back(served):
    """So many requests at once as the quota has streams; then there is room again."""
    flooded = RemoteHost(served.url, served.new_token("flood", "--quota", "streams=4", "--quota", "rate=50"))

    async def main():
        async with leeward.AsyncClient(flooded, retry_busy=False) as client:
            found = await asyncio.gather(*(client.ping() for _ in range(40)), return_exceptions=True)
            assert all(isinstance(each, (float, leeward.Busy)) for each in found), found
        async with leeward.AsyncClient(flooded) as client:
            for _ in range(3):
                await client.ping()

    asyncio.run(main())


@HERE
def test_a_forged_mark_is_the_callers_own_text(served, host, other):
    """Metadata say whose a sandbox is."""
    mark = {"serve.tenant": "0" * 16}
    with leeward.Sandbox(socket=other, metadata=mark) as box:
        assert mark == dict(box.info()["metadata"])
        assert [] == [row for row in leeward.Sandbox.list(socket=host) if row["sandbox"] == box.id]


@HERE
def test_a_revoked_token_ends_the_connection(served):
    token = served.new_token("short")
    with leeward.Client(served.url, token=token, retry=False) as client:
        client.ping()
        served.revoke("short")
        until = threading.Event()
        for _ in range(100):
            try:
                client.ping()
            except leeward.DaemonAway:
                break
            until.wait(0.1)
        else:
            raise AssertionError("it goes on")


@HERE
def test_both_faces_have_the_same_sandboxes(served, host):
    with leeward.Sandbox(socket=host) as box:
        box.shell("true")
        status, row = served.ask("GET", f"/sandboxes/{box.id}")
        assert (200, box.id) == (status, row["sandboxID"])


# --- Node -------------------------------------------------------------------------


NODE, NODES = ROOT / "tests/clients/remote_node.js", ["jobs", "sandboxes", "ports", "folders", "tokens"]


def node(host, token, *words, **more):
    env = environment(**{"LEEWARD_TEST_COMMAND": json.dumps(command()), "LEEWARD_HOST": host, "LEEWARD_TOKEN": token, **more})
    done = subprocess.run(["node", *words], env=env, capture_output=True, text=True, timeout=90, check=False)
    assert (0, "") == (done.returncode, done.stdout), done.stdout + done.stderr


@pytest.mark.needs("node>=18")
@pytest.mark.parametrize("case", NODES)
def test_nodes_package(served, case):
    node(served.url, served.token, NODE, case)


@pytest.mark.needs("node>=18", "root")
def test_nodes_package_needs_no_linux(served, for_macos, tmp_path):
    """Nor does the command that it runs for ports and folders."""
    (tmp_path / "macos.js").write_text("Object.defineProperty(process, 'platform', { value: 'darwin' });\n"
                                       "const { openSync } = require('node:fs');\n"
                                       "require('node:fs').openSync = (path, flags, ...more) => {\n"
                                       "  if (typeof flags === 'number' && flags & 0o10000000) throw new Error('O_PATH');\n"
                                       "  return openSync(path, flags, ...more);\n};\n")
    program = [sys.executable, "-c", f"import kit.other_system, runpy; runpy.run_path({str(for_macos / 'bin/leeward')!r})"]
    node(served.url, served.token, "--require", tmp_path / "macos.js", NODE, *NODES,
         LEEWARD_TEST_COMMAND=json.dumps(program), PYTHONPATH=f"{for_macos}:{ROOT / 'tests'}")


@pytest.mark.needs("node>=18", "sshd")
def test_nodes_package_by_ssh(daemon, ssh):
    node(f"{ssh[1]}{daemon.socket}", "", NODE, "jobs", "ports", LEEWARD_SSH=ssh[0])


#: Of the package's own tests those about this machine's folders and packages, which another machine can't show.
LOCAL = {"the profile shell: the current folder, the variables, and no secrets",
         "packages: by the command, and refused where the operator names no index",
         "a held sandbox ends with its program, unless it was detached"}
OWN: list[tuple[str, set[str]]] = [("client", set()), ("sandbox", LOCAL)]


@pytest.mark.needs("node>=18", "sshd")
@pytest.mark.parametrize("far", [pytest.param("far", marks=pytest.mark.needs("veth"))], indirect=True)
@pytest.mark.parametrize(("file", "local"), OWN if os.environ.get("LEEWARD_LONG") else OWN[:1])
@pytest.mark.timeout(400)
def test_the_packages_own_tests_from_another_network(daemon, ssh, file, local):
    env = environment(LEEWARD_TEST_SOCKET=f"{ssh[1]}{daemon.socket}", LEEWARD_TEST_COMMAND=json.dumps(command()),
                      LEEWARD_SSH=ssh[0])
    done = subprocess.run(["node", "--test", "--test-reporter=tap", ROOT / f"tests/node/{file}.test.js"], env=env,
                          capture_output=True, text=True, check=False, timeout=360)

    assert local == set(re.findall(r"^not ok \d+ - (.*)$", done.stdout, re.MULTILINE)), done.stdout[-6000:]
    assert 10 < len(re.findall(r"^ok \d+", done.stdout, re.MULTILINE))


# --- ssh --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ssh(far, daemon, tmp_path_factory):
    """
    An sshd of this user's, which lets a key of its own in, and names the daemon's socket; gives what LEEWARD_SSH has to be,
    and the URL.
    """
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("host", "own"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True, timeout=30)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    address = far.address if far else "127.0.0.1"
    (folder / "sshd").write_text(f"Port {port}\nListenAddress {address}\nHostKey {folder}/host\nUsePAM no\nStrictModes no\n"
                                 f"SetEnv LEEWARD_SOCKET={daemon.socket}\nAuthorizedKeysFile {folder}/own.pub\n"
                                 "PidFile none\nPermitRootLogin yes\n")
    key = (folder / "host.pub").read_text()
    (folder / "known").write_text(f"[{address}]:{port} {key}")
    (folder / "config").write_text(f"IdentityFile {folder}/own\nUserKnownHostsFile {folder}/known\nBatchMode yes\n"
                                   "IdentitiesOnly yes\n")
    if not os.geteuid():
        os.makedirs("/run/sshd", 0o755, exist_ok=True)
    enter = far.enter if far else ()
    server = subprocess.Popen([*enter, shutil.which("sshd", path=SBIN), "-D", "-e", "-f", folder / "sshd"],
                              stderr=subprocess.PIPE)
    try:
        assert server.stderr is not None
        assert b"listening on" in (line := server.stderr.readline()), line
        yield f"ssh -F {folder}/config", f"ssh://{getpass.getuser()}@{address}:{port}"
    finally:
        over_ssh.close()
        server.terminate()
        server.communicate(timeout=30)


@pytest.mark.needs("sshd")
def test_ssh_forwards_the_daemons_socket(daemon, ssh, monkeypatch):
    monkeypatch.setenv("LEEWARD_SSH", ssh[0])
    where = f"{ssh[1]}{daemon.socket}"
    with leeward.Client(where) as client:
        assert "42\n" == client.execute("print(6 * 7)").stdout_text
        large = client.execute("print('x' * 5_000_000)", output="16M")
        assert 5_000_001 == len(large.stdout)
    with leeward.Sandbox(socket=where, profile="workdir") as box:
        assert "a" == box.shell("printf a").stdout_text


@pytest.mark.needs("sshd", "root")
def test_ssh_needs_no_linux_at_the_clients_end(daemon, ssh, for_macos):
    on_another_system(for_macos, THE_CASES, "jobs", "ports", "folders", LEEWARD_HOST=f"{ssh[1]}{daemon.socket}",
                      LEEWARD_SSH=ssh[0])


@pytest.mark.needs("sshd")
def test_ports_come_by_ssh(daemon, ssh, monkeypatch):
    monkeypatch.setenv("LEEWARD_SSH", ssh[0])
    where = f"{ssh[1]}{daemon.socket}"
    remote_python.ports(RemoteHost(where))
    with leeward.Sandbox(socket=where, profile="workdir") as box:
        echo = ("import socket\nwith socket.create_server(('127.0.0.1', 8000)) as made:\n    print('ready', flush=True)\n"
                "    got, _ = made.accept()\n    data = b''\n    while piece := got.recv(65536):\n        data += piece\n"
                "    got.sendall(data)\n")
        box.start(["python3", "-c", echo]).read(PATIENCE)
        with box.publish(8000) as published, socket.create_connection(("127.0.0.1", published.port), PATIENCE) as made:
            sent = bytes(range(256)) * 2048
            made.sendall(sent)
            made.shutdown(socket.SHUT_WR)  # an end of one direction is passed on, too
            assert sent == b"".join(iter(lambda: made.recv(65536), b""))
    with pytest.raises(leeward.SandboxOver), leeward.Sandbox.attach("a" * 26, socket=where):
        pass
    begun = next(each.result().ssh for each in over_ssh._ports.values())
    over_ssh.close()  # and so does what runs at the other end
    assert 0 == begun.returncode


@pytest.mark.needs("sshd")
def test_ports_by_ssh_say_what_they_need(daemon, ssh, monkeypatch):
    """Whatever a shell there prints is no path."""
    monkeypatch.setenv("LEEWARD_SSH", ssh[0])
    monkeypatch.setattr(over_ssh, "_PORTS", "echo; exec nonexistent")
    with leeward.Sandbox(socket=f"{ssh[1]}{daemon.socket}", profile="workdir") as box, box.publish(8000) as published:
        with pytest.raises(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{published.port}/", timeout=PATIENCE)
        with pytest.raises(leeward.RequestRejected, match="python3"):
            published.wait(PATIENCE)


@pytest.mark.needs("sshd")
def test_ssh_finds_the_socket_that_clients_there_would_take(daemon, ssh, tmp_path_factory):
    """By a command of its own, so that nothing of ssh is left when it has ended."""
    folder = tmp_path_factory.mktemp("t")
    env = environment(LEEWARD_SSH=ssh[0], LEEWARD_HOST=ssh[1], TMPDIR=str(folder))
    done = subprocess.run(command("exec", "print(1)"), env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (0, "1\n") == (done.returncode, done.stdout), done.stderr
    env["LEEWARD_HOST"] += f"{daemon.socket}.none"
    done = subprocess.run(command("ping"), env=env, capture_output=True, text=True, timeout=60, check=False)
    assert 0 != done.returncode
    assert "no daemon answers at ssh://" in done.stderr
    assert [] == list(folder.iterdir())


@pytest.mark.needs("sshd")
def test_a_program_is_sent_by_ssh_as_the_page_for_other_systems_has_it(daemon, ssh, tmp_path):
    """With what stands for the names of the host and of the command there."""
    page = (ROOT / "docs/other-systems.md").read_text()
    (line,) = re.findall(r"^    (ssh me@lw\.example leeward exec - <program\.py)$", page, re.MULTILINE)
    (tmp_path / "program.py").write_text("print(6 * 7)\n")
    env = environment(daemon.socket)
    there = shlex.join(["env", *(f"{name}={env[name]}" for name in ("PYTHONPATH", "LEEWARD_SOCKET")), *command()])
    typed = line.replace("ssh me@lw.example leeward", f"{ssh[0]} {ssh[1]} {shlex.quote(there)}")
    done = subprocess.run(["sh", "-c", typed], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (0, "42\n") == (done.returncode, done.stdout), done.stderr


@pytest.mark.needs("sshd")
def test_an_ssh_that_gets_nowhere_is_told(monkeypatch):
    monkeypatch.setenv("LEEWARD_SSH", "ssh -o BatchMode=yes")
    with leeward.Client("ssh://127.0.0.1:1") as client, pytest.raises(leeward.DaemonAway, match="ssh has ended"):
        client.ping()
    monkeypatch.setenv("LEEWARD_SSH", "/nonexistent/ssh")
    with leeward.Client("ssh://127.0.0.1:2") as client, pytest.raises(leeward.DaemonAway, match="no such file"):
        client.ping()
