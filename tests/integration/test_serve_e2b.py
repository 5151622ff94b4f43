"""`leeward serve e2b`: E2B's own clients as they are, what keeps tenants apart, and hostile requests."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import struct
import subprocess
import threading
from datetime import datetime
from pathlib import Path

import pytest

import leeward
from kit import egress_hosts, own_authority
from kit.features import ROOT
from kit.live_daemon import LiveDaemon
from kit.loopback import free_port
from kit.served import Served, client_python
from kit.waiting import poll_until

pytestmark = pytest.mark.needs("extra-serve")

CONFIGURATION = """\
pool_size = 2
pool_workers = 44
[profiles.e2b]
base = "workdir"
home = "/home/user"
terminal = true
max = 20
[egress.web]
allow = ["*.example.org"]
"""


@pytest.fixture(scope="module")
def served(daemon, tmp_path_factory):
    with Served(daemon.socket, tmp_path_factory.mktemp("serve"), "e2b", "opensandbox", "--profile", "e2b") as found:
        found.token = found.new_token("fast", "--quota", "rate=100000")  # a client that asks for events asks without a pause
        yield found


def as_client(served, *argv, patience=110, **more):
    env = {**os.environ, "E2B_API_URL": served.url, "E2B_SANDBOX_URL": served.url, "E2B_API_KEY": served.token, **more}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=patience, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.mark.needs("client-e2b")
@pytest.mark.parametrize("case", ["control", "paused", "copies", "sleepers", "commands", "files", "code", "asynchronous"])
def test_the_python_clients_work_as_they_are(served, case):
    as_client(served, client_python("e2b"), "-W", "ignore", str(ROOT / "tests/clients/e2b_python.py"), case)


@pytest.mark.needs("client-node")
def test_the_clients_for_node_work_as_they_are(served):
    as_client(served, "node", str(ROOT / "tests/clients/e2b_node.mjs"), str(ROOT / ".venv-client-node/package.json"))


@pytest.mark.needs("client-smolagents")
def test_smolagents_executor_works_as_it_is(served):
    as_client(served, client_python("smolagents"), "-W", "ignore", str(ROOT / "tests/clients/smolagents_executor.py"))


@pytest.mark.needs("client-crewai-tools")
def test_the_tools_of_crewai_work_as_they_are(served, tmp_path):
    as_client(served, client_python("crewai-tools"), "-W", "ignore", str(ROOT / "tests/clients/crewai_tools_e2b.py"),
              HOME=str(tmp_path), CREWAI_DISABLE_TELEMETRY="true", OTEL_SDK_DISABLED="true")


@pytest.mark.needs("client-litellm")
def test_the_code_interpreter_of_litellm_works_as_it_is(daemon, tmp_path):
    """It asks for names below a domain, by TLS."""
    authority, host = own_authority.certified(tmp_path, "lw.example")
    port = free_port()
    with Served(daemon.socket, tmp_path, "e2b", "--profile", "e2b", "--listen", f"127.0.0.1:{port}", "--tls-cert", str(host),
                "--tls-key", str(host), "--domain", f"lw.example:{port}") as served:
        as_client(served, client_python("litellm"), "-W", "ignore", str(ROOT / "tests/clients/litellm_interpreter.py"),
                  E2B_DOMAIN=f"lw.example:{port}", SSL_CERT_FILE=str(authority), LITELLM_LOCAL_MODEL_COST_MAP="True")


@pytest.mark.needs("client-openai-agents")
def test_the_clients_of_openai_agents_work_as_they_are(served):
    as_client(served, client_python("openai-agents"), "-W", "ignore", str(ROOT / "tests/clients/openai_agents_client.py"))


@pytest.mark.timeout(400)
@pytest.mark.needs("client-langchain-e2b")
def test_langchains_own_tests_pass(served, tmp_path):
    # As in tests/clients/e2b_python.py.
    ends = "import os, pytest, sys\ncode = pytest.main(sys.argv[1:])\nsys.stdout.flush()\nos._exit(code)"
    done = as_client(served, client_python("langchain-e2b"), "-c", ends, "-q", "--noconftest", "-p", "no:cacheprovider",
                     "-c", "/dev/null", "--rootdir", str(tmp_path), "-o", "asyncio_mode=auto",
                     str(ROOT / "tests/clients/langchain_e2b_suite.py"), patience=360)

    assert "86 passed" in done


@pytest.mark.needs("client-opensandbox")
def test_opensandboxs_sdk_works_as_it_is(served):
    as_client(served, client_python("opensandbox"), "-W", "ignore", str(ROOT / "tests/clients/opensandbox_python.py"),
              PLACE=served.url.removeprefix("http://"), KEY=served.token, OTHER=served.new_token("other"))


def opensandbox(served, method, path, body=None):
    return served.ask(method, path, body, "", Open_Sandbox_Api_Key=served.token)


@pytest.fixture(scope="module")
def its_box(served):
    """The routes of a sandbox of OpenSandbox's."""
    status, row = opensandbox(served, "POST", "/v1/sandboxes", {
        "image": {"uri": "opensandbox/code-interpreter"}, "timeout": 500})
    assert 202 == status, row
    yield f"/opensandbox/{row['id']}"
    assert 204 == opensandbox(served, "DELETE", f"/v1/sandboxes/{row['id']}")[0]


def events(served, path, command):
    with served.asked("POST", path, {"command": command}, "", Open_Sandbox_Api_Key=served.token) as response:
        assert 200 == response.status, response.read()
        return [json.loads(row.removeprefix(b"data: ")) for row in response.read().split(b"\n\n") if row]


@pytest.mark.parametrize(("status", "method", "path", "body"), [
    (400, "GET", "/v1/sandboxes?pageSize=000000000000000100", None),
    (400, "GET", f"/v1/sandboxes?page={'0' * 15}{'1' * 5000}", None),
    (400, "GET", f"/sandboxes?limit=000000001{'0' * 5000}", None),
    (400, "POST", "{}/command", {"command": "true", "timeout": -1}),
    (400, "POST", "{}/files/mv", [{"src": "/tmp/a", "dest": "/tmp/b"}] * 1001),
    (413, "POST", "{}/files/replace", {"/tmp/a": {"old": "a", "new": "b" * 900_000}}),
    (413, "GET", "{}/files/download?path=/tmp/zeros&offset=1", None)])
def test_a_call_of_opensandboxs_has_bounds(served, its_box, status, method, path, body):
    """Numbers have a few digits; what a text would take is known before it is in memory."""
    if 413 == status:
        events(served, f"{its_box}/command", "head -c 1000000 /dev/zero | tr '\\0' a >/tmp/a; truncate -s 20M /tmp/zeros")

    assert status == served.ask(method, path.format(its_box), body, Open_Sandbox_Api_Key=served.token)[0]


@pytest.mark.parametrize(("shown", "said"), [("e2e-1.a:b", "e2e-1.a:b"), ("a b", None), ("a" * 129, None)])
def test_a_calls_own_id_is_said_again(served, shown, said):
    with served.asked("GET", "/v1/sandboxes/none", None, "", Open_Sandbox_Api_Key=served.token,
                      X_Request_ID=shown) as response:
        assert 404 == response.status
        assert said == response.headers["X-Request-ID"]


def test_a_pause_leaves_the_end_of_opensandboxs_sandbox_where_it_was(served, its_box):
    path = its_box.replace("/opensandbox", "/v1/sandboxes")
    before = opensandbox(served, "GET", path)[1]

    assert 202 == opensandbox(served, "POST", f"{path}/pause")[0]
    paused = opensandbox(served, "GET", path)[1]
    assert 202 == opensandbox(served, "POST", f"{path}/resume")[0]

    assert "Paused" == paused["status"]["state"]
    ends = [datetime.fromisoformat(row["expiresAt"]) for row in (before, paused, opensandbox(served, "GET", path)[1])]
    assert (max(ends) - min(ends)).total_seconds() < 5


def test_a_line_that_outlives_its_session_leaves_none(served, its_box):
    session = opensandbox(served, "POST", f"{its_box}/session", {})[1]["session_id"]
    run = f"{its_box}/session/{session}/run"
    events(served, run, "A=1; export A; cd /var")
    assert ["1 /var"] == [row["text"] for row in events(served, run, "echo $A $PWD") if "stdout" == row["type"]]

    events(served, run, f"rm /tmp/.opensandbox-{session}")

    assert 404 == opensandbox(served, "POST", run, {"command": "true"})[0]


def test_a_sandbox_shows_volumes_and_its_network_and_metadata_change(served, tmp_path):
    (tmp_path / "data" / "below").mkdir(parents=True)
    token = served.new_token("volumes", "--volume", f"data={tmp_path}/data", "--egress", "web")

    def ask(method, path, body=None):
        return served.ask(method, path, body, "", Open_Sandbox_Api_Key=token)

    def said(line):
        with served.asked("POST", f"{inside}/command", {"command": line}, "", Open_Sandbox_Api_Key=token) as got:
            return [json.loads(each[6:]).get("text") for each in got.read().split(b"\n\n") if b'"stdout"' in each]

    def known():
        return [name for name in "ab" if said(f"getent hosts {name}.example.org && echo")]

    status, row = ask("POST", "/v1/sandboxes", {
        "image": {"uri": "opensandbox/code-interpreter"}, "timeout": 100, "metadata": {"a": "1", "b": "2"},
        "networkPolicy": {"egress": [{"action": "allow", "target": "a.example.org"}]},
        "volumes": [{"name": "v", "pvc": {"claimName": "data"}, "subPath": "below", "mountPath": "/mnt/data"}]})
    assert 202 == status, row
    inside = f"/opensandbox/{row['id']}"
    try:
        assert ["x"] == said("echo x | tee /mnt/data/new")
        assert "x\n" == (tmp_path / "data" / "below" / "new").read_text()

        assert ["a"] == known()
        policy = f"{inside}/egress/policy"
        assert 200 == ask("PATCH", policy, [{"action": "deny", "target": "a.example.org"},
                                            {"action": "allow", "target": "b.example.org"}])[0]
        assert ["b"] == known()
        assert 200 == ask("DELETE", policy, ["b.example.org", "none.example.org"])[0]
        assert [] == known()
        assert {"defaultAction": "deny", "egress": [{"action": "deny", "target": "a.example.org"}]} == ask(
            "GET", policy)[1]["policy"]
        assert 204 == served.ask("PUT", f"/sandboxes/{row['id']}/network", {"allowOut": ["a.example.org"]}, token)[0]
        assert ["a"] == known()
        for method, rows in (("GET", None), ("PATCH", [{"action": "deny", "target": "c.example.org"}]), ("DELETE", ["c"])):
            assert 409 == ask(method, policy, rows)[0]  # what it would know is that all is allowed
        assert ["a"] == known()

        path = f"/v1/sandboxes/{row['id']}"
        assert {"b": "3", "c": "4"} == ask("PATCH", f"{path}/metadata", {"a": None, "b": "3", "c": "4"})[1]["metadata"]
        assert {"b": "3", "c": "4"} == ask("GET", path)[1]["metadata"]
        assert 400 == ask("PATCH", f"{path}/metadata", {"a": 1})[0]
        assert 404 == opensandbox(served, "PATCH", f"{path}/metadata", {"a": "5"})[0]
        assert 400 == ask("POST", f"{path}/pause")[0]
        assert [400] == [each["error"]["code"] for each in served.ask("POST", f"/sandboxes/{row['id']}/fork", {}, token)[1]]
    finally:
        assert 204 == ask("DELETE", f"/v1/sandboxes/{row['id']}")[0]


# --- tenants --------------------------------------------------------------------


def opened(served, token=None, **fields):
    status, row = served.ask("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 100, **fields}, token)
    assert 201 == status, row
    return row


def shows(box):
    """The headers of a call for a sandbox."""
    return {"E2b_Sandbox_Id": box["sandboxID"], "X_Access_Token": box["envdAccessToken"]}


def ran(served, box, code, context=None):
    """The texts of the results of code."""
    with served.asked("POST", "/execute", {"code": code, "context_id": context}, "", **shows(box)) as response:
        rows = [json.loads(line) for line in response.read().splitlines()]
    assert not [row for row in rows if "error" == row["type"]], rows
    return [row["text"] for row in rows if "result" == row["type"]]


def rpc(served, box, method, body=b"{}", **headers):
    return served.ask("POST", f"/{method}", body, "", Content_Type="application/json", E2b_Sandbox_Id=box["sandboxID"],
                      **({"X_Access_Token": box["envdAccessToken"]} | headers))


def test_a_tenant_has_its_own_sandboxes_only(served):
    mallory = served.new_token("mallory")
    box = opened(served)
    try:
        own, path = opened(served, mallory), f"/sandboxes/{box['sandboxID']}"
        unknown = served.ask("GET", f"/sandboxes/{'a' * 26}", token=mallory)

        assert 404 == unknown[0]
        for method, more in (("GET", ""), ("DELETE", ""), ("POST", "/timeout"), ("POST", "/connect"), ("GET", "/metrics")):
            assert unknown == served.ask(method, path + more, {} if method == "POST" else None, mallory)
        assert [own["sandboxID"]] == [row["sandboxID"] for row in served.ask("GET", "/v2/sandboxes", token=mallory)[1]]
        assert 401 == rpc(served, box, "process.Process/List", X_Access_Token=own["envdAccessToken"])[0]
        assert 401 == rpc(served, box, "process.Process/List", X_Access_Token="")[0]
        assert 502 == rpc(served, box, "process.Process/List", X_Access_Token="", X_API_KEY=mallory)[0]
        assert 200 == rpc(served, box, "process.Process/List")[0]
        assert 200 == served.ask("GET", path)[0]
    finally:
        served.ask("DELETE", f"/sandboxes/{box['sandboxID']}")
        served.ask("DELETE", f"/sandboxes/{own['sandboxID']}", token=mallory)


def test_a_token_of_the_same_name_is_another_tenant(served):
    """Whoever gets the name later doesn't get the sandboxes."""
    first = served.new_token("again")
    box = opened(served, first)
    served.revoke("again")
    second = served.new_token("again")

    assert [] == served.ask("GET", "/v2/sandboxes", token=second)[1]
    assert 404 == served.ask("GET", f"/sandboxes/{box['sandboxID']}", token=second)[0]


def test_a_sandbox_of_the_user_that_no_tenant_has_opened_is_unknown(served, daemon):
    import leeward

    with leeward.Sandbox(socket=daemon.socket) as box:
        assert 404 == served.ask("GET", f"/sandboxes/{box.id}")[0]
        assert box.id not in str(served.ask("GET", "/v2/sandboxes")[1])


def test_a_tenants_quota_holds_for_requests_at_the_same_time(served):
    token, statuses = served.new_token("small", "--quota", "sandboxes=2"), []
    threads = [threading.Thread(target=lambda: statuses.append(served.ask("POST", "/v2/sandboxes", {}, token)[0]))
               for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    rows = served.ask("GET", "/v2/sandboxes", token=token)[1]
    assert 1 <= statuses.count(201) == len(rows) <= 2
    assert {201, 429} == {*statuses}
    for row in rows:
        served.ask("DELETE", f"/sandboxes/{row['sandboxID']}", token=token)


def test_a_server_that_starts_anew_has_forgotten_nothing(daemon, tmp_path):
    with Served(daemon.socket, tmp_path, "e2b", "--profile", "e2b") as first:
        box = opened(first, metadata={"a": "b"})
        assert 200 == rpc(first, box, "filesystem.Filesystem/MakeDir", b'{"path": "kept"}')[0]
        named = first.ask("POST", "/contexts", {"cwd": "/tmp"}, "", **shows(box))[1]["id"]
        for context in (named, None):
            assert [] == ran(first, box, f"kept = {context!r}", context)
    with first.again() as second:
        assert {"a": "b"} == second.ask("GET", f"/sandboxes/{box['sandboxID']}")[1]["metadata"]
        status, found = rpc(second, box, "filesystem.Filesystem/Stat", b'{"path": "kept"}')
        assert (200, "FILE_TYPE_DIRECTORY") == (status, found["entry"]["type"])
        for context in (named, None):
            assert [str(context)] == ran(second, box, "class Plain(str):\n    __repr__ = str.__str__\nPlain(kept)", context)
        with second.asked("POST", "/execute", {"code": "1", "context_id": "context-99"}, "", **shows(box)) as response:
            assert 404 == response.status
        assert 204 == second.ask("DELETE", f"/sandboxes/{box['sandboxID']}")[0]


def test_a_snapshot_is_its_tenants_and_outlives_the_server(daemon, tmp_path):
    """Another tenant's guess is answered as what doesn't exist."""
    with Served(daemon.socket, tmp_path, "e2b", "--profile", "e2b") as first:
        box = opened(first)
        assert [] == ran(first, box, "x = 1")
        status, kept = first.ask("POST", f"/sandboxes/{box['sandboxID']}/snapshots", {"name": "warm"})
        assert (201, ["warm"]) == (status, kept["names"])
        stranger, name = first.new_token("stranger"), kept["snapshotID"]
        assert [] == first.ask("GET", "/snapshots", token=stranger)[1]
        for template in (name, "warm"):
            assert 400 == first.ask("POST", "/v2/sandboxes", {"templateID": template}, token=stranger)[0]
            assert 404 == first.ask("DELETE", f"/templates/{template}", token=stranger)[0]
        for who in (stranger, first.token):
            assert 404 == first.ask("GET", f"/sandboxes/{name}", token=who)[0]
            assert 404 == first.ask("DELETE", f"/sandboxes/{name}", token=who)[0]
        assert 404 == first.ask("POST", f"/sandboxes/{box['sandboxID']}/fork", {}, token=stranger)[0]
        for count in (0, 21, "2"):
            assert 400 == first.ask("POST", f"/sandboxes/{box['sandboxID']}/fork", {"count": count})[0]
        assert [] == ran(first, box, "import threading\nthreading.Thread(target=threading.Event().wait).start()")
        status, kept = first.ask("POST", f"/sandboxes/{box['sandboxID']}/snapshots", {})
        assert (400, True) == (status, "thread" in kept["message"])  # not 503: trying again changes nothing
        assert 400 == first.ask("POST", f"/sandboxes/{box['sandboxID']}/fork", {})[1][0]["error"]["code"]
    with first.again() as second:
        status, made = second.ask("POST", "/v2/sandboxes", {"templateID": "warm"})
        assert 201 == status
        assert ["1"] == ran(second, made, "x")
        assert 501 == second.ask("POST", f"/sandboxes/{box['sandboxID']}/fork", {})[0]
        asks = {"templateID": "warm", "envVars": {"GIVEN": "here"}, "network": {"allowPublicTraffic": False}}
        again = [second.ask("POST", "/v2/sandboxes", asks, idempotency_key="again")[1] for _ in range(2)]
        assert again[0]["sandboxID"] == again[1]["sandboxID"]
        rows = {row["sandbox"]: row["metadata"] for row in leeward.Sandbox.list(socket=daemon.socket)}
        assert [False, True] == ["serve.private" in rows[each["sandboxID"]] for each in (made, again[0])]
        status, context = second.ask("POST", "/contexts", {}, "", **shows(again[0]))
        assert ["'here'"] == ran(second, again[0], "import os; os.environ['GIVEN']", context["id"])
        for each in (box, made, again[0]):
            assert 204 == second.ask("DELETE", f"/sandboxes/{each['sandboxID']}")[0]
        assert 204 == second.ask("DELETE", f"/templates/{name}")[0]
        assert [] == second.ask("GET", "/snapshots")[1]


def test_each_call_is_a_line_with_its_tenant(daemon, tmp_path):
    with Served(daemon.socket, tmp_path, "e2b", "--log-calls") as served:
        served.ask("GET", "/sandboxes")
        served.ask("DELETE", f"/sandboxes/{'a' * 26}")
        served.ask("GET", "/sandboxes", token="")
        rows = [json.loads(served.process.stderr.readline()) for _ in range(3)]
        fcntl.fcntl(served.process.stderr, fcntl.F_SETPIPE_SZ, 4096)
        for _ in range(60):  # nobody reads the log, and calls are answered all the same
            assert 200 == served.ask("GET", "/sandboxes")[0]

    assert len(served.said.splitlines()) < 60
    assert [("one", "GET /sandboxes", 200), ("one", "DELETE /sandboxes/{id}", 404), ("", "GET /sandboxes", 401)] == [
        (row["tenant"], row["call"], row["status"]) for row in rows]


# --- hostile requests -------------------------------------------------------------


@pytest.fixture(scope="module")
def box(served):
    found = opened(served)
    yield found
    served.ask("DELETE", f"/sandboxes/{found['sandboxID']}")


@pytest.mark.parametrize("body", [
    b"{", b"[]", b"\xff", b'{"path": 1}', b'{"path": {}}', b'{"path": "\\u0000"}', b'{"path": ""}', b"[" * 40_000,
    b'{"path":' * 1000, b'{"process": {"pid": -1}}', b'{"process": {"pid": 99999999999999999999}}'])
@pytest.mark.parametrize("method", ["filesystem.Filesystem/Stat", "process.Process/SendInput"])
def test_a_hostile_message_is_refused_in_the_form_of_the_protocol(served, box, method, body):
    status, row = rpc(served, box, method, body)

    assert status in (400, 404)
    assert row["code"] in ("invalid_argument", "not_found")
    assert {"code", "message"} == row.keys()


@pytest.mark.parametrize("method", ["filesystem.Filesystem/Stat", "process.Process/SendInput"])
def test_a_message_with_too_many_values_is_refused_in_the_form_of_the_protocol(served, box, method):
    status, row = rpc(served, box, method, b"[" * 100_000)

    assert (413, "resource_exhausted") == (status, row["code"])


@pytest.mark.parametrize("body", [
    b"", b"\0", b"\0\xff\xff\xff\xff", b"\x01\0\0\0\x02{}", b"\0\0\0\0\x01{", b"\0\0\0\0\x10{}", b"\x02\0\0\0\x02{}"])
def test_a_hostile_frame_is_refused(served, box, body):
    status, row = served.ask("POST", "/process.Process/Start", body, "", Content_Type="application/connect+json",
                             E2b_Sandbox_Id=box["sandboxID"], X_Access_Token=box["envdAccessToken"])

    assert status in (400, 413)
    assert {"code", "message"} == row.keys()


@pytest.mark.parametrize(("path", "body", "status"), [
    ("/v2/sandboxes", {"templateID": 1}, 400), ("/v2/sandboxes", {"metadata": {"a": 1}}, 400),
    ("/v2/sandboxes", {"timeout": -1}, 400), ("/v2/sandboxes", {"timeout": 1e99}, 400), ("/v2/sandboxes", b"{", 400),
    ("/v2/sandboxes", {"volumeMounts": [1]}, 501), ("/v2/sandboxes", {"network": {"allowOut": [1]}}, 400),
    ("/sandboxes/../x", {}, 404), ("/sandboxes/%00", {}, 404), ("/templates", {}, 501), ("/v3/templates/x", {}, 501),
    ("/nothing", {}, 404)])
def test_a_hostile_call_of_the_api_is_refused_in_its_form(served, path, body, status):
    found, row = served.ask("POST", path, body)

    assert status == found or (404 == status and 405 == found)
    assert found == row["code"]
    assert row["message"]


def test_it_says_that_its_daemon_is_away_and_goes_on_with_another_one(tmp_path):
    with LiveDaemon(tmp_path) as daemon, Served(daemon.socket, tmp_path, "e2b", "run-code") as served:
        box = opened(served)
        daemon.end()
        for method, path in (("POST", "/v2/sandboxes"), ("GET", "/sandboxes"), ("GET", f"/sandboxes/{box['sandboxID']}")):
            status, row = served.ask(method, path, {} if method == "POST" else None)
            assert (503, 503) == (status, row["code"])
        status, row = rpc(served, box, "process.Process/List")
        assert (503, "unavailable") == (status, row["code"])
        assert "SandboxError" == served.ask("POST", "/run_code", {"language": "python", "code": "1"})[1]["status"]
        with LiveDaemon(tmp_path):
            assert "Success" == served.ask("POST", "/run_code", {"language": "python", "code": "1"})[1]["status"]
            assert 404 == served.ask("GET", f"/sandboxes/{box['sandboxID']}")[0]
            assert 502 == rpc(served, box, "process.Process/List")[0]
            assert 204 == served.ask("DELETE", f"/sandboxes/{opened(served)['sandboxID']}")[0]


def test_a_head_that_does_not_come_ends_its_connection(served):
    """The first one of a connection, or the next; while other calls are answered."""
    slow = [served.raw() for _ in range(50)]
    for number, each in enumerate(slow):
        each.sendall(b"GET /health HTTP/1.1\r\nHost: evil\r\n\r\n" * (number % 2) + b"GET /sandboxes HTTP/1.1\r\nHost: local")
    assert 200 == served.ask("GET", "/sandboxes")[0]
    for number, each in enumerate(slow):
        answers = served.ended_by(each).split(b"HTTP/1.1 ")
        assert [b""] + [b"421"] * (number % 2) + [b"408"] == [answer[:3] for answer in answers]
        each.close()


def test_a_body_is_not_read_from_strangers(served):
    with served.raw() as connection:
        connection.sendall(b"POST /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n")

        assert served.ended_by(connection).startswith(b"HTTP/1.1 401 ")


def test_a_gzip_bomb_is_not_unpacked(served, box):
    """100 MB of zeros are 100 KB of gzip."""
    import gzip

    bomb = gzip.compress(bytes(100 << 20))
    status, row = served.ask("POST", "/files?path=bomb", bomb, "", Content_Type="application/octet-stream",
                             Content_Encoding="gzip", E2b_Sandbox_Id=box["sandboxID"], X_Access_Token=box["envdAccessToken"])

    assert (413, 413) == (status, row["code"])
    assert 404 == rpc(served, box, "filesystem.Filesystem/Stat", b'{"path": "bomb"}')[0]


def test_a_form_may_have_a_file_as_text(served, box):
    """As a page sends it that has no file."""
    body = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nh\xc3\xa4\r\n--b--\r\n'
    kind = "multipart/form-data; boundary=b"
    status, rows = served.ask("POST", "/files?path=text", body, "", Content_Type=kind, **shows(box))
    assert (200, ["text"]) == (status, [each["name"] for each in rows])
    with served.asked("GET", "/files?path=text", token="", **shows(box)) as answer:
        assert "hä".encode() == answer.read()


def test_code_that_runs_counts_as_its_tenants_job(served):
    few = served.new_token("few", "--quota", "jobs=1")
    box = opened(served, few)

    def ran(code):
        with served.asked("POST", "/execute", {"code": code}, "", **shows(box)) as answer:
            return answer.status, answer.read()

    slow = {"code": "print(1, flush=True)\nimport time\ntime.sleep(99)"}
    with served.asked("POST", "/execute", slow, "", **shows(box)) as begun:
        assert ["number_of_executions", "stdout"] == [json.loads(begun.readline())["type"] for _ in range(2)]
        assert (429, b"1 jobs run") == (ran("1")[0], ran("1")[1][:10])
    poll_until(lambda: ran("1")[0] == 200, 30)


def test_protobuf_is_as_good_as_json(served, box):
    from leeward.apps.serve.e2b.messages import CLASSES

    asked = CLASSES["filesystem.StatRequest"](path="/tmp").SerializeToString()
    with served.asked("POST", "/filesystem.Filesystem/Stat", asked, "", Content_Type="application/proto",
                      E2b_Sandbox_Id=box["sandboxID"], X_Access_Token=box["envdAccessToken"]) as response:
        found = CLASSES["filesystem.StatResponse"].FromString(response.read())

    assert ("application/proto", "tmp", 2) == (response.headers["content-type"], found.entry.name, found.entry.type)


@pytest.mark.needs("client-e2b")
def test_the_messages_are_those_of_the_client():
    """Number, name and kind of each field."""
    import ast
    import re

    from google.protobuf import descriptor_pb2

    from leeward.apps.serve.e2b.messages import CLASSES

    places = Path(ROOT, ".venv-client-e2b").glob("lib/python3*/site-packages/e2b/envd/*/*_pb.py")

    def fields(message):
        return {(each.number, each.name, each.type, each.label, each.type_name.rpartition(".")[2]) for each in message.field}

    def walk(message, name):
        yield name, fields(message)
        for inner in message.nested_type:
            if not inner.options.map_entry:
                yield from walk(inner, f"{name}.{inner.name}")

    theirs, ours = {}, {}
    for place in places:
        literal = re.search(r"file_desc\(\n    (b'.*?'),\n    \[", place.read_text(), re.DOTALL)[1]
        file = descriptor_pb2.FileDescriptorProto.FromString(ast.literal_eval(literal))
        for message in file.message_type:
            theirs.update(walk(message, f"{file.package}.{message.name}"))
    for name, kind in CLASSES.items():
        message = descriptor_pb2.DescriptorProto()
        kind.DESCRIPTOR.CopyToProto(message)
        ours[name] = fields(message)

    assert theirs == ours


def test_a_sandbox_has_names_below_the_domain(served, box):
    """As E2B's clients use them with a wildcard name."""
    host, token = f"{{}}-{box['sandboxID']}.localhost:1", {"X_Access_Token": box["envdAccessToken"]}

    with served.asked("GET", "/health", token="", Host=host.format(49983), **token) as response:
        assert 204 == response.status
    with served.asked("POST", "/execute", {"code": "6 * 7"}, "", Host=host.format(49999),
                      E2B_Traffic_Access_Token=box["trafficAccessToken"]) as response:
        assert b'"text": "42"' in response.read()
    status, row = served.ask("GET", "/", token="", Host=host.format(3000), **token)
    assert (501, box["sandboxID"]) == (status, row["sandboxId"])


def test_it_serves_tls_below_its_names(daemon, tmp_path):
    """And nothing to who doesn't speak it."""
    pem = tmp_path / "host.pem"
    pem.write_text(egress_hosts.CERTIFICATE)
    tls = ("--tls-cert", str(pem), "--tls-key", str(pem))
    with Served(daemon.socket, tmp_path, "e2b", "--domain", "example.org", *tls) as served:
        assert served.url.startswith("https://")
        for name, status in (("api.example.org", b"200"), ("49983-x.example.org", b"200"), ("evil.example", b"421")):
            with egress_hosts.trusting().wrap_socket(served.raw(), server_hostname="api.example.org") as connection:
                connection.sendall(f"GET /sandboxes HTTP/1.1\r\nHost: {name}\r\nX-API-KEY: {served.token}\r\n"
                                   "Connection: close\r\n\r\n".encode())
                assert status == served.ended_by(connection).split()[1]
        with served.raw() as connection:
            connection.sendall(b"GET /sandboxes HTTP/1.1\r\nHost: api.example.org\r\n\r\n")
            assert not served.ended_by(connection).startswith(b"HTTP/1.1 2")


def test_a_stream_of_input_is_typed_in_its_order(served, box):
    more = {"Content_Type": "application/connect+json", **shows(box)}
    start = frame(b'{"process": {"cmd": "/usr/bin/head", "args": ["-c", "6"]}, "stdin": true}')
    with served.asked("POST", "/process.Process/Start", start, "", **more) as output:
        pid = messages_of(output, 1)[0]["event"]["start"]["pid"]
        typed = [b'{"start": {"process": {"pid": %d}}}' % pid, b'{"keepalive": {}}',
                 b'{"data": {"input": {"stdin": "YWJj"}}}', b'{"data": {"input": {"stdin": "ZGVm"}}}']
        with served.asked("POST", "/process.Process/StreamInput", b"".join(map(frame, typed)), "", **more) as answer:
            assert [{}, {}] == messages_of(answer)
        events = [each["event"] for each in messages_of(output) if "event" in each]
    assert "YWJjZGVm" == "".join(each["data"]["stdout"] for each in events if "data" in each)
    for wrong in (typed[2:], [*typed[:1], b"{"], [b'{"start": {"process": {"pid": 1}}}']):
        with served.asked("POST", "/process.Process/StreamInput", b"".join(map(frame, wrong)), "", **more) as answer:
            assert "message" in messages_of(answer)[0]["error"]


def test_a_slow_reader_does_not_keep_another_from_the_output(served, box):
    """Each has a queue of its own, which is bounded."""
    start = frame(b'{"process": {"cmd": "/bin/sh", "args": ["-c", "read x; seq 300000; echo over"]}}')
    more = {"Content_Type": "application/connect+json", "E2b_Sandbox_Id": box["sandboxID"],
            "X_Access_Token": box["envdAccessToken"]}
    with served.asked("POST", "/process.Process/Start", start, "", **more) as slow:
        pid = messages_of(slow, 1)[0]["event"]["start"]["pid"]
        with served.asked("POST", "/process.Process/Connect", frame(b'{"process": {"pid": %d}}' % pid), "", **more) as quick:
            messages_of(quick, 1)
            typed = b'{"process": {"pid": %d}, "input": {"stdin": "Cg=="}}' % pid
            assert 200 == rpc(served, box, "process.Process/SendInput", typed)[0]
            events = [each["event"] for each in messages_of(quick) if "event" in each]
    said = b"".join(base64.b64decode(each["data"]["stdout"]) for each in events if "data" in each)

    assert said.endswith(b"300000\nover\n")
    assert 0 == events[-1]["end"].get("exitCode", 0)


def test_readers_of_a_large_file_who_stop_reading_cost_little(served, box):
    def resident():
        return int(Path(f"/proc/{served.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    ran(served, box, "open('/workspace/large', 'wb').truncate(1 << 30)")
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in shows(box).items())
    before, readers = resident(), [served.raw() for _ in range(40)]
    for each in readers:
        each.sendall(f"GET /files?path=/workspace/large HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode())
    for each in readers:
        assert each.recv(15) == b"HTTP/1.1 200 OK"
    grown = resident() - before
    for each in readers:
        each.close()
    assert grown < len(readers) << 20


def frame(data):
    return struct.pack(">BI", 0, len(data)) + data


def messages_of(response, most=None):
    """The messages of a stream, *most* of them at most."""
    found = []
    while len(found) != most and (head := response.read(5)):
        found.append(json.loads(response.read(struct.unpack(">BI", head)[1])))
    return found
