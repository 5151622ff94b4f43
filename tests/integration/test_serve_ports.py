"""`leeward serve ports`: servers in sandboxes from outside, and what keeps them apart."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import tarfile

import pytest

import leeward
from kit.features import ROOT
from kit.live_daemon import PATIENCE
from kit.served import Served, client_python
from kit.waiting import poll_until

pytestmark = pytest.mark.needs("extra-serve")

CONFIGURATION = """\
pool_size = 1
pool_workers = 24
[profiles.e2b]
base = "workdir"
home = "/home/user"
terminal = true
max = 20
[profiles.e2b.limits]
memory = "1G"
files = "512M"
processes = 128
"""

#: Answers with what it was asked; `/broken` with no HTTP, `/sets` with heads that reach beyond it.
ECHO = r"""
import http.server, json
class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path == "/broken":
            self.wfile.write(b"HTTP/1.1 what\r\n\r\n")
            self.close_connection = True
            return
        found = json.dumps({"path": self.path, "method": self.command, "body": body.decode(),
                            "headers": {name.lower(): value for name, value in self.headers.items()}}).encode()
        self.send_response(201)
        self.send_header("Content-Length", str(len(found)))
        if self.path == "/sets":
            self.send_header("Set-Cookie", "a=own")
            self.send_header("Set-Cookie", "b=all; Domain=localhost")
            self.send_header("Clear-Site-Data", '"*"')
            self.send_header("Alt-Svc", 'h2="evil.test:443"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(found)
    do_GET = do_POST = do_HEAD = do_PUT = answer
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 3000), Echo).serve_forever()
"""
#: Says back what a WebSocket brings, with a subprotocol; refuses those without one.
WEBSOCKETS = r"""
import base64, hashlib, socket
server = socket.create_server(("127.0.0.1", 3001))
while True:
    sock, _ = server.accept()
    file, heads = sock.makefile("rwb", 0), {}
    asked = file.readline().split()[1]
    while line := file.readline().strip():
        name, _, value = line.partition(b":")
        heads[name.lower()] = value.strip()
    if b"sec-websocket-protocol" not in heads:
        file.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        sock.close()
        continue
    accept = base64.b64encode(hashlib.sha1(heads[b"sec-websocket-key"] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    file.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
               b"Sec-WebSocket-Protocol: " + heads[b"sec-websocket-protocol"] +
               b"\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
    told = b"%s %s" % (asked, heads.get(b"origin", b"-"))
    file.write(b"\x81" + bytes([len(told)]) + told)
    while (head := file.read(2)) and head[0] & 15 != 8:
        mask, data = file.read(4), file.read(head[1] & 127)
        file.write(bytes((head[0], len(data))) + bytes(each ^ mask[at % 4] for at, each in enumerate(data)))
    file.write(b"\x88\x00")
    sock.close()
"""


@pytest.fixture(scope="module")
def served(daemon, tmp_path_factory):
    with Served(daemon.socket, tmp_path_factory.mktemp("serve"), "e2b", "leeward", "ports",
                "--profile", "e2b") as found:
        yield found


def opened(served, token=None, **fields):
    status, row = served.ask("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 300, **fields}, token)
    assert 201 == status, row
    return row


def runs(served, box, *argv, port=0):
    """Start a program in a sandbox; come back when it listens on *port*, or has ended."""
    body = json.dumps({"process": {"cmd": argv[0], "args": argv[1:]}, "stdin": False}).encode()
    framed = b"\0" + len(body).to_bytes(4, "big") + body
    response = contextlib.ExitStack()
    answer = response.enter_context(served.asked(
        "POST", "/process.Process/Start", framed, "", Content_Type="application/connect+json",
        E2b_Sandbox_Id=box["sandboxID"], X_Access_Token=box["envdAccessToken"]))
    if not port:
        said = answer.read()
        assert b'"exitCode": 0' in said, [base64.b64decode(each) for each in re.findall(rb'"stderr": "([^"]*)', said)]
        response.close()
        return
    poll_until(lambda: 502 != get(served, box, port, E2b_Traffic_Access_Token=box["trafficAccessToken"]).status, 60)
    response.close()  # a client that goes ends no process


def get(served, box, port, path="/", method="GET", body=None, at_path=False, **headers):
    """The answer at a port of a sandbox, as an HTTPResponse with `content`."""
    name = "" if at_path else f"{port}-{box['sandboxID']}."
    connection = http.client.HTTPConnection(*served.address, timeout=PATIENCE)
    where = f"/ports/{box['sandboxID']}/{port}{path}" if at_path else path
    connection.request(method, where, body, {"Host": f"{name}localhost:{served.address[1]}", **{
        name.replace("_", "-"): each for name, each in headers.items()}})
    with contextlib.closing(connection):
        response = connection.getresponse()
        response.content = response.read()
        return response


@pytest.fixture(scope="module")
def box(served):
    found = opened(served)
    runs(served, found, "python3", "-c", ECHO, port=3000)
    return found


@pytest.mark.parametrize("at_path", [False, True])
def test_http_passes_in_both_forms(served, box, at_path):
    answer = get(served, box, 3000, "/a%2Fb?c=%20d", at_path=at_path, Accept="text/x", Cookie="c=1", X_Own="yes")
    asked = json.loads(answer.content)

    assert (201, "/a%2Fb?c=%20d", "GET") == (answer.status, asked["path"], asked["method"])
    assert ("text/x", "c=1", "yes") == tuple(asked["headers"][name] for name in ("accept", "cookie", "x-own"))
    assert ("sandbox" in answer.headers.get("content-security-policy", "")) is at_path
    assert "body" == json.loads(get(served, box, 3000, "/", "POST", b"body", at_path).content)["body"]
    assert (201, b"") == ((head := get(served, box, 3000, "/", "HEAD", at_path=at_path)).status, head.content)


def test_a_sandbox_of_leewards_own_client_has_its_ports_here_too(served):
    token = served.new_token("own", "--profile", "e2b")
    with leeward.Client(served.url, token=token) as client, \
            leeward.Sandbox(socket=client.socket, profile="e2b") as sandbox:
        box = {"sandboxID": sandbox.id}
        sandbox.start(["python3", "-c", ECHO])
        poll_until(lambda: 502 != get(served, box, 3000).status, 60)
        assert [201, 201] == [get(served, box, 3000, at_path=at_path).status for at_path in (False, True)]
    assert 502 == get(served, box, 3000).status


def test_the_two_headers_of_e2bs_clients_name_a_port_as_well(served, box):
    status, row = served.ask("GET", "/x", None, "", E2b_Sandbox_Id=box["sandboxID"], E2b_Sandbox_Port="3000")

    assert (201, "/x") == (status, row["path"])
    assert not {name for name in row["headers"] if name.startswith("e2b-")}


def test_a_large_body_passes_and_one_that_is_too_large_does_not(served, box):
    assert 5_000_000 == len(json.loads(get(served, box, 3000, "/", "POST", b"x" * 5_000_000).content)["body"])
    with socket.create_connection(served.address, PATIENCE) as raw:
        head = f"POST / HTTP/1.1\r\nHost: 3000-{box['sandboxID']}.localhost\r\nContent-Length: 99999999999\r\n\r\n"
        raw.sendall(head.encode())
        assert b" 413 " in raw.recv(4096)


def test_a_server_inside_sees_no_token(served, box):
    """Its own kind of authorization it does see."""
    asked = json.loads(get(served, box, 3000, "/", X_API_KEY=served.token, E2b_Traffic_Access_Token="t",
                           Authorization=f"Bearer {served.token}", Open_Sandbox_Api_Key=served.token,
                           X_EXECD_ACCESS_TOKEN=box["envdAccessToken"], X_Access_Token=box["envdAccessToken"]).content)
    assert served.token not in json.dumps(asked)
    assert box["envdAccessToken"] not in json.dumps(asked)
    assert "e2b-traffic-access-token" not in asked["headers"]
    asked = json.loads(get(served, box, 3000, "/", Authorization="Bearer own").content)
    assert "Bearer own" == asked["headers"]["authorization"]
    asked = json.loads(get(served, box, 3000, "/", X_API_KEY="own", X_Access_Token="own").content)
    assert ("own", "own") == (asked["headers"]["x-api-key"], asked["headers"]["x-access-token"])


def test_what_a_server_inside_says_holds_for_its_own_name_alone(served, box):
    at_name, at_path = (get(served, box, 3000, "/sets", at_path=each).headers for each in (False, True))

    assert ["a=own"] == at_name.get_all("set-cookie")
    assert at_path.get_all("set-cookie") is None
    for headers in (at_name, at_path):
        assert not {"clear-site-data", "alt-svc"} & {name.lower() for name in headers}


def test_a_closed_port_and_a_sandbox_that_is_none_are_answered_as_e2bs_proxy_does(served, box):
    closed = get(served, box, 3999)
    assert 502 == closed.status
    assert {"sandboxId": box["sandboxID"], "message": "The sandbox is running but port is not open", "port": 3999,
            "code": 502} == json.loads(closed.content)
    gone = get(served, {"sandboxID": "a" * 26}, 3000)
    assert (502, "The sandbox was not found") == (gone.status, json.loads(gone.content)["message"])


def test_an_end_that_a_connection_to_a_port_meets_is_in_the_log(daemon, tmp_path):
    with Served(daemon.socket, tmp_path, "e2b", "ports", "--profile", "e2b", "--log-calls") as served:
        box = opened(served)
        assert 502 == get(served, box, 3999).status  # from now on the server holds it
        with contextlib.closing(leeward.Sandbox.attach(box["sandboxID"], socket=daemon.socket)) as same:
            same.kill()
        answer = get(served, box, 3999)
        assert (502, "The sandbox was not found") == (answer.status, json.loads(answer.content)["message"])
    rows = [json.loads(line) for line in served.said.splitlines() if '"end"' in line]
    assert [(box["sandboxID"], "killed", "one")] == [(row["sandbox"], row["end"], row["tenant"]) for row in rows]


def test_a_server_that_speaks_no_http_is_answered_for(served, box):
    answer = get(served, box, 3000, "/broken")
    assert (502, "the server there speaks no HTTP, or broke off") == (answer.status, json.loads(answer.content)["message"])


def test_websockets_pass(served):
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    found = opened(served)
    runs(served, found, "python3", "-c", WEBSOCKETS, port=3001)
    host, address = f"3001-{found['sandboxID']}.localhost:{served.address[1]}", served.address
    for url in (f"ws://{host}/x?y=1", f"ws://localhost:{address[1]}/ports/{found['sandboxID']}/3001/x?y=1"):
        with connect(url, sock=socket.create_connection(address), subprotocols=["echo"], origin="http://page.test",
                     proxy=None) as ws:
            assert ("echo", "/x?y=1 http://page.test") == (ws.subprotocol, ws.recv(PATIENCE))
            ws.send("text")
            assert "text" == ws.recv(PATIENCE)
            ws.send(b"bytes")
            assert b"bytes" == ws.recv(PATIENCE)
    with pytest.raises(InvalidStatus) as caught:
        connect(f"ws://{host}/", sock=socket.create_connection(address), proxy=None)
    assert 502 == caught.value.response.status_code
    with pytest.raises(InvalidStatus) as caught:
        connect("ws://evil.test/", sock=socket.create_connection(address), proxy=None)
    assert 421 == caught.value.response.status_code


def test_a_private_sandbox_wants_its_token_or_its_tenants(served):
    found = opened(served, network={"allowPublicTraffic": False})
    runs(served, found, "python3", "-c", ECHO, port=3000)

    assert 401 == get(served, found, 3000).status
    assert 401 == get(served, found, 3000, at_path=True).status
    assert 401 == get(served, found, 3000, E2b_Traffic_Access_Token="0" * 64).status
    assert 201 == get(served, found, 3000, E2b_Traffic_Access_Token=found["trafficAccessToken"]).status
    assert 201 == get(served, found, 3000, X_API_KEY=served.token).status


def test_another_tenants_token_opens_no_port(served, box):
    """The control: the tenant's own does."""
    other = served.new_token("two")
    assert 201 == get(served, box, 3000, X_API_KEY=served.token).status
    answer = get(served, box, 3000, X_API_KEY=other)
    assert (502, "The sandbox was not found") == (answer.status, json.loads(answer.content)["message"])
    theirs = opened(served, other)
    answer = get(served, box, 3000, E2b_Traffic_Access_Token=theirs["trafficAccessToken"], X_API_KEY=other)
    assert 502 == answer.status


def test_a_sandbox_that_nobody_opened_here_has_no_port_here(daemon, served):
    import leeward

    with leeward.Sandbox(socket=daemon.socket, profile="e2b") as own:
        own.start(["python3", "-m", "http.server", "3000", "--bind", "127.0.0.1"])
        with own.publish(3000) as published:
            poll_until(lambda: _connects(published.port), 60)  # the control
            for at_path in (False, True):
                assert 502 == get(served, {"sandboxID": own.id}, 3000, at_path=at_path).status
                assert 502 == get(served, {"sandboxID": own.id}, 3000, at_path=at_path, X_API_KEY=served.token).status


def _connects(port):
    try:
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as there:
            there.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return bool(there.recv(1))
    except OSError:
        return False


def test_ports_are_served_only_where_they_were_asked_for(daemon, tmp_path):
    with Served(daemon.socket, tmp_path, "e2b", "--profile", "e2b") as without:
        found = opened(without)
        runs(without, found, "python3", "-c", "pass")
        assert 501 == get(without, found, 3000).status
        assert 404 == get(without, found, 3000, at_path=True).status


def test_a_pipelined_request_for_another_name_is_its_own(served, box):
    """One connection of a proxy's carries requests for many sandboxes."""
    other = opened(served)
    with socket.create_connection(served.address, PATIENCE) as raw:
        raw.sendall("".join(f"GET /{each['sandboxID']} HTTP/1.1\r\nHost: 3000-{each['sandboxID']}.localhost\r\n\r\n"
                            for each in (box, other)).encode())
        said = b""
        while b"port is not open" not in said:
            piece = raw.recv(65536)
            assert piece, said
            said += piece
    assert 1 == said.count(b" 201 ")
    assert other["sandboxID"].encode() not in said.partition(b" 502 ")[0]


def test_a_tenants_connections_to_ports_count_as_its_calls(served):
    """Whoever makes them: 429 beyond the quota, and there is room again when they are gone."""
    token = served.new_token("few", "--quota", "streams=3")
    found = opened(served, token)
    runs(served, found, "python3", "-c", ECHO, port=3000)
    head = f"POST / HTTP/1.1\r\nHost: 3000-{found['sandboxID']}.localhost\r\nContent-Length: 5\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        def crowded():
            stack.enter_context(socket.create_connection(served.address, PATIENCE)).sendall(head)
            return 429 == get(served, found, 3000).status

        poll_until(crowded, PATIENCE)
    poll_until(lambda: 201 == get(served, found, 3000).status, PATIENCE)


@pytest.mark.needs("client-e2b")
def test_get_host_of_e2bs_client_names_it(served, tmp_path):
    script = tmp_path / "s.py"
    script.write_text("import sys, e2b\nbox = e2b.Sandbox.create()\nbox.files.write('echo.py', open(sys.argv[1]).read())\n"
                      "box.commands.run('python3 echo.py', background=True)\nprint(box.get_host(3000))\n")
    (tmp_path / "echo.py").write_text(ECHO)
    env = {**os.environ, "E2B_API_URL": served.url, "E2B_SANDBOX_URL": served.url, "E2B_API_KEY": served.token}
    done = subprocess.run([client_python("e2b"), "-W", "ignore", script, tmp_path / "echo.py"], env=env, capture_output=True,
                          text=True, timeout=60, check=True)
    label, _, rest = done.stdout.strip().partition(".")
    assert f"localhost:{served.address[1]}" == rest
    found = {"sandboxID": label.partition("-")[2]}
    poll_until(lambda: 201 == get(served, found, 3000).status, 60)


# --- a dev server -----------------------------------------------------------------


@pytest.mark.timeout(240)
@pytest.mark.needs("vite", "chromium")
def test_a_dev_server_is_reloaded_in_a_browser_from_outside(served, tmp_path):
    """Vite, whose client hears by a WebSocket that a file has changed."""
    from kit.approvals_browser import chromium

    packed = tmp_path / "app.tar"
    with tarfile.open(packed, "w") as tar:
        tar.add(ROOT / ".venv-vite" / "node_modules", "app/node_modules",
                filter=lambda each: None if each.name.endswith((".map", ".d.ts", ".md")) else each)
    found = opened(served)
    shows = {"E2b_Sandbox_Id": found["sandboxID"], "X_Access_Token": found["envdAccessToken"]}

    def write(path, content):
        status, row = served.ask("POST", f"/files?path={path}", content, "", Content_Type="application/octet-stream", **shows)
        assert 200 == status, row

    write("/home/user/app.tar", packed.read_bytes())
    runs(served, found, "tar", "-xf", "/home/user/app.tar", "-C", "/home/user")
    write("/home/user/app/index.html",
          b"<!doctype html><link rel=icon href=data:,><p id=said></p><script type=module src=/main.js></script>")
    write("/home/user/app/main.js", b"document.querySelector('#said').textContent = 'first'")
    runs(served, found, "/bin/sh", "-c", "cd /home/user/app && exec node node_modules/vite/bin/vite.js --port 5173 "
         "--host 127.0.0.1", port=5173)

    with chromium() as browser:
        page = browser.new_page()
        with page.expect_websocket() as opening:
            page.goto(f"http://5173-{found['sandboxID']}.localhost:{served.address[1]}/")
        said = []
        opening.value.on("framereceived", lambda frame: said.append(str(frame)))
        page.wait_for_function("document.querySelector('#said').textContent == 'first'")
        write("/home/user/app/main.js", b"document.querySelector('#said').textContent = 'second'")
        page.wait_for_function("document.querySelector('#said').textContent == 'second'", timeout=60_000)

    assert any("full-reload" in each for each in said), said
