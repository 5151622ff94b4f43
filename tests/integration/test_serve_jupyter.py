"""`leeward serve jupyter`: kernels as Open WebUI, nbclient, JupyterLab and a hostile client see them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import leeward
from kit import features, runs
from kit.live_daemon import PATIENCE, environment
from kit.loopback import free_port
from kit.served import Served, client_python

pytestmark = [pytest.mark.needs("extra-serve"), pytest.mark.usefixtures("all_ended")]

JUPYTER = features.ROOT / ".venv-framework-jupyter"
LATE = "print('begun', flush=True)\nwhile True: pass"

DAEMON = ("--pool-size", "1")


@pytest.fixture(scope="module")
def served(daemon, tmp_path_factory):
    with Served(daemon.socket, tmp_path_factory.mktemp("serve"), "jupyter", "e2b") as found:
        yield found


@pytest.fixture
def kernel(served):
    """The id of a kernel."""
    status, row = served.ask("POST", "/api/kernels")
    assert 201 == status, row
    return row["id"]


def socket_to(served, kernel, token=None):
    from websockets.sync.client import connect

    place = f"{served.url.replace('http', 'ws', 1)}/api/kernels/{kernel}/channels"
    return connect(f"{place}?token={served.token if token is None else token}", open_timeout=PATIENCE, max_size=None)


def ask(socket, kind, channel="shell", **content):
    socket.send(json.dumps({"header": {"msg_id": kind, "msg_type": kind}, "channel": channel, "content": content}))


def answers(socket):
    """The kinds and contents of messages, up to the end of a request."""
    found = []
    while ("status", {"execution_state": "idle"}) not in found:
        message = json.loads(socket.recv(PATIENCE))
        found.append((message["msg_type"], message["content"]))
    return found


def said(socket, code):
    """What the code prints, its value, and the name of its exception."""
    ask(socket, "execute_request", code=code)
    return "".join(content.get("text", "") + content.get("ename", "") + content.get("data", {}).get("text/plain", "")
                   for kind, content in answers(socket) if kind in ("stream", "error", "execute_result"))


def test_code_is_answered_as_jupyter_does(served, kernel):
    with socket_to(served, kernel) as socket:
        ask(socket, "execute_request", code="import sys\nprint('out'); print('err', file=sys.stderr)\n"
                                            "from IPython.display import HTML, display; display(HTML('<b>x</b>'))\n6 * 7")
        found = answers(socket)
        assert "ZeroDivisionError" == said(socket, "1/0")
        ask(socket, "complete_request", code="import zli", cursor_pos=10)
        completed = answers(socket)[1]
        ask(socket, "kernel_info_request", "control")
        info = answers(socket)[1]
        assert "EOFError" == said(socket, "input('?')").removeprefix("?")

    assert [{"name": "stderr", "text": "err\n"}, {"name": "stdout", "text": "out\n"}] == sorted(
        (content for kind, content in found if "stream" == kind), key=lambda each: each["name"])
    assert ["<b>x</b>"] == [content["data"]["text/html"] for kind, content in found if "display_data" == kind]
    assert ["42"] == [content["data"]["text/plain"] for kind, content in found if "execute_result" == kind]
    assert ("execute_reply", "ok", 1) == (found[-2][0], found[-2][1]["status"], found[-2][1]["execution_count"])
    assert ("complete_reply", 7) == (completed[0], completed[1]["cursor_start"])
    assert info[1]["language_info"]["version"].startswith("3.")


def test_an_interrupt_keeps_the_state_and_a_restart_does_not(served, kernel):
    with socket_to(served, kernel) as socket:
        said(socket, "kept = 42")
        for interrupt in (lambda: served.ask("POST", f"/api/kernels/{kernel}/interrupt", {}),
                          lambda: ask(socket, "interrupt_request", "control")):
            ask(socket, "execute_request", code=LATE)
            while "stream" != json.loads(socket.recv(PATIENCE))["msg_type"]:
                pass
            assert "busy" == served.ask("GET", f"/api/kernels/{kernel}")[1]["execution_state"]
            interrupt()
            assert "KeyboardInterrupt" in [content.get("ename") for _, content in answers(socket)]
        assert "42" == said(socket, "kept")

        assert 200 == served.ask("POST", f"/api/kernels/{kernel}/restart", {})[0]
        assert "NameError" == said(socket, "kept")


def test_code_whose_client_goes_is_interrupted(served, kernel):
    with socket_to(served, kernel) as socket:
        said(socket, "kept = 42")
        ask(socket, "execute_request", code=LATE)
        while "stream" != json.loads(socket.recv(PATIENCE))["msg_type"]:
            pass

    with socket_to(served, kernel) as socket:
        assert "42" == said(socket, "kept")
    assert "idle" == served.ask("GET", "/api/kernels")[1][0]["execution_state"]


def test_a_clients_code_is_interrupted_by_no_other_client(served, daemon, kernel):
    """Not by one that asks for a completion meanwhile, nor by one that goes with code that waits."""
    long = "import os\nprint('begun', flush=True)\nwhile not os.path.exists('/workspace/over'): pass\nprint('whole')"
    with socket_to(served, kernel) as first:
        ask(first, "execute_request", code=long)
        while "stream" != json.loads(first.recv(PATIENCE))["msg_type"]:
            pass
        with socket_to(served, kernel) as second:
            ask(second, "complete_request", code="zi", cursor_pos=2)
            assert [] == answers(second)[1][1]["matches"]
            ask(second, "execute_request", code="lost = 1")
            assert "execute_input" == [json.loads(second.recv(PATIENCE))["msg_type"] for _ in range(2)][1]
        with leeward.Sandbox.attach(kernel.replace("-", ""), socket=daemon.socket) as box:
            box.files.write("/workspace/over", b"")
            found = answers(first)
            assert "NameError" == said(first, "lost")

    assert "whole\n" == "".join(content["text"] for kind, content in found if "stream" == kind)
    assert "ok" == found[-2][1]["status"]


def test_a_deleted_kernel_is_gone_and_so_is_one_whose_sandbox_ends(served, daemon, kernel):
    from websockets.exceptions import InvalidStatus

    def gone(kernel):
        assert 404 == served.ask("GET", f"/api/kernels/{kernel}")[0]
        with pytest.raises(InvalidStatus, match="404"):
            socket_to(served, kernel)

    assert 204 == served.ask("DELETE", f"/api/kernels/{kernel}")[0]
    assert [] == leeward.Sandbox.list(socket=daemon.socket)
    gone(kernel)

    other = served.ask("POST", "/api/kernels")[1]["id"]
    with socket_to(served, other) as socket:
        leeward.Sandbox.attach(other.replace("-", ""), socket=daemon.socket).close()
        assert "SandboxOver" == said(socket, "1")
    gone(other)
    assert [] == served.ask("GET", "/api/kernels")[1]


def test_a_kernel_is_its_tenants(served, kernel):
    from websockets.exceptions import InvalidStatus

    other = served.new_token("other")
    box = served.ask("POST", "/sandboxes", {"timeout": 60})[1]["sandboxID"]

    assert 200 == served.ask("GET", f"/api/kernels/{kernel}", token="", Authorization=f"token {served.token}")[0]
    assert 200 == served.ask("GET", f"/api/kernels/{kernel}?token={served.token}", token="")[0]
    for token, theirs, status in ((other, kernel, 404), ("", kernel, 401), ("x", kernel, 401), (served.token, box, 404)):
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/interrupt"), ("POST", "/restart")):
            assert status == served.ask(method, f"/api/kernels/{theirs}{path}", token=token)[0]
        with pytest.raises(InvalidStatus, match=str(status)):
            socket_to(served, theirs, token)
    assert [] == served.ask("GET", "/api/kernels", token=other)[1]
    assert [kernel] == [row["id"] for row in served.ask("GET", "/api/kernels")[1]]
    assert 404 == served.ask("POST", "/api/kernels", {"name": "ir"})[0]


def test_a_kernel_counts_as_a_sandbox(served):
    token = served.new_token("few", "--quota", "sandboxes=1")

    assert [201, 429] == [served.ask("POST", "/api/kernels", token=token)[0] for _ in range(2)]


@pytest.mark.parametrize("message", [b"\0", "[]", '{"header": 1}', "[" * 99999, '{"header": {"msg_id": "%s"}}' % ("x" * 999)])
def test_a_hostile_message_ends_its_socket(served, kernel, message):
    from websockets.exceptions import ConnectionClosed

    with socket_to(served, kernel) as socket:
        socket.send(message)
        with pytest.raises(ConnectionClosed):
            socket.recv(PATIENCE)
    with socket_to(served, kernel) as socket:
        assert "42" == said(socket, "6 * 7")


def test_a_server_that_starts_anew_finds_kernels(served, kernel):
    with socket_to(served, kernel) as socket:
        said(socket, "kept = 42")
    with served.again() as another, socket_to(another, kernel) as socket:
        assert "42" == said(socket, "kept")


@pytest.mark.needs("client-open-webui")
def test_open_webuis_own_client(served, daemon):
    source = features.ROOT / ".venv-client-open-webui/source"
    run = [client_python("open-webui"), features.ROOT / "tests/clients/open_webui_jupyter.py",
           source, served.url, served.token]

    done = subprocess.run(run, capture_output=True, text=True, check=False,
                          timeout=2 * PATIENCE, stdin=subprocess.DEVNULL)

    assert 0 == done.returncode, done.stderr
    assert [] == leeward.Sandbox.list(socket=daemon.socket)
    version = next(line for line in (source / "METADATA").read_text().splitlines() if line.startswith("Version: "))
    runs.record("frameworks", "open-webui", version.removeprefix("Version: "), package="open-webui", passed=1)


@pytest.mark.needs("framework-jupyter")
def test_a_notebook_by_nbclient(daemon, tmp_path):
    """Its client for gateways opens its WebSocket without a token, and as a page of the server's."""
    place = f"127.0.0.1:{free_port()}"
    with Served(daemon.socket, tmp_path, "jupyter", "--open", "--listen", place, "--origin", f"http://{place}") as served:
        done = subprocess.run(
            [str(JUPYTER / "bin/python"), str(features.ROOT / "tests/clients/jupyter_gateway.py")],
            env={**environment(), "JUPYTER_GATEWAY_URL": served.url, "HOME": str(tmp_path)}, capture_output=True, text=True,
            check=False, timeout=2 * PATIENCE, stdin=subprocess.DEVNULL)

    assert 0 == done.returncode, done.stderr
    assert [] == leeward.Sandbox.list(socket=daemon.socket)
    runs.record_package("nbclient", "nbclient", JUPYTER, passed=1)


@pytest.mark.needs("framework-jupyter", "jupyterlab", "chromium")
def test_a_notebook_in_jupyterlab(served, tmp_path: Path) -> None:
    from kit.jupyterlab import shown

    env = {**os.environ, "HOME": str(tmp_path), "JUPYTER_GATEWAY_AUTH_TOKEN": served.token}
    shown(tmp_path, env, "python3", f"--gateway-url={served.url}")
