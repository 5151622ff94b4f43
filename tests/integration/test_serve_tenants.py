"""What keeps tenants of `leeward serve` apart, and what its operator learns of each of them."""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import leeward
from kit.live_daemon import PATIENCE
from kit.loopback import free_port
from kit.served import Served
from kit.waiting import poll_until
from leeward.apps.serve.tokens import TokenFile

pytestmark = [pytest.mark.needs("extra-serve"), pytest.mark.usefixtures("all_ended")]

CONFIGURATION = "pool_size = 2\npool_workers = 16\n[profiles.boxes]\nbase = 'workdir'\nmax = 12\n"


@pytest.fixture(scope="module")
def served(daemon, tmp_path_factory):
    with Served(daemon.socket, tmp_path_factory.mktemp("serve"), "e2b", "run-code", "--profile", "boxes") as found:
        yield found


def status_of(served, path, token="", **headers):
    with served.asked("GET", path, None, token, **headers) as answer:
        return answer.status


def opened(served, token):
    status, row = served.ask("POST", "/sandboxes", {"timeout": 100}, token)
    assert 201 == status, row
    return row


def shows(box):
    return {"E2b_Sandbox_Id": box["sandboxID"], "X_Access_Token": box["envdAccessToken"]}


def test_ids_and_tokens_cannot_be_guessed(served):
    """Of a sandbox that isn't the caller's it learns no more than of one that isn't there."""
    alice, mallory = served.new_tenant("alice"), served.new_tenant("mallory")
    box, own = opened(served, alice), opened(served, mallory)
    none = {**shows(own), "E2b_Sandbox_Id": "a" * 26}
    theirs = box["sandboxID"]
    for identity in (theirs, theirs.upper(), theirs[:-1], f"{theirs}=", "../x", "*", "%", "a" * 26, f"{theirs},{theirs}"):
        for path in ("/health", "/files?path=/etc/hostname", "/contexts"):
            strange = {**shows(own), "E2b_Sandbox_Id": identity}
            assert 401 == status_of(served, path, **none) == status_of(served, path, **strange)
            assert 502 == status_of(served, path, mallory, **{**strange, "X_Access_Token": ""})
    for token in (secrets.token_hex(32), own["envdAccessToken"][:-1] + "0", "", "\xff" * 64):
        assert 401 == status_of(served, "/health", **{**shows(box), "X_Access_Token": token})
    assert 200 == status_of(served, "/contexts", **shows(box))


def test_another_tenants_files_are_not_read_by_a_path_or_a_link(served):
    alice, mallory = served.new_tenant("alice2"), served.new_tenant("mallory2")
    box, own = opened(served, alice), opened(served, mallory)
    with served.asked("POST", "/files?path=secret", b"alices", "", Content_Type="application/octet-stream", **shows(box)):
        pass
    for path in ("/workspace/secret", "/proc/1/root/workspace/secret", f"/../{box['sandboxID']}/workspace/secret",
                 "/proc/self/cwd/secret"):
        assert status_of(served, f"/files?path={path}", **shows(own)) in (403, 404)
    link = "/files?path=secret&signature=v1_" + "A" * 43
    assert 401 == status_of(served, link) == status_of(served, link, mallory, **shows(own))
    with served.asked("GET", "/files?path=secret", token="", **shows(box)) as answer:
        assert b"alices" == answer.read()


@pytest.mark.parametrize("port", ["3000", "49983", "0", "x", "99999", "-1"])
def test_another_tenants_ports_are_not_reached(served, port):
    mallory = served.new_tenant(f"mallory-{port}")
    box = opened(served, served.new_tenant(f"alice-{port}"))
    host = f"{port}-{box['sandboxID']}.localhost"
    assert served.ask("GET", "/health", token=mallory, Host=host)[0] in (401, 404, 501, 502)
    served.ask("DELETE", f"/sandboxes/{box['sandboxID']}", token="", **shows(box))


def test_tenants_that_create_and_end_at_the_same_time_see_their_own(served):
    tokens = [served.new_tenant(f"race{number}", sandboxes=2) for number in range(4)]

    def work(token):
        made = set[str]()
        for _ in range(6):
            status, row = served.ask("POST", "/sandboxes", {"timeout": 60}, token)
            if status == 201:
                made.add(row["sandboxID"])
                listed = {each["sandboxID"] for each in served.ask("GET", "/sandboxes", token=token)[1]}
                assert row["sandboxID"] in listed <= made
                assert 204 == served.ask("DELETE", f"/sandboxes/{row['sandboxID']}", token=token)[0]
        return made

    with ThreadPoolExecutor(len(tokens)) as pool:
        found = list(pool.map(work, tokens))
    assert all(found)
    assert sum(map(len, found)) == len(set().union(*found))


def test_a_key_that_is_repeated_makes_no_other_tenants_sandbox(served):
    one, two = served.new_tenant("key1"), served.new_tenant("key2")
    first, second = (served.ask("POST", "/sandboxes", {}, token, Idempotency_Key="same")[1]["sandboxID"]
                     for token in (one, two))
    assert first != second
    assert first == served.ask("POST", "/sandboxes", {}, one, Idempotency_Key="same")[1]["sandboxID"]


def test_what_goes_on_is_ended_when_its_token_is_revoked(served):
    token, ended = served.new_tenant("revoked"), threading.Event()
    box = opened(served, token)

    def follow():
        start = b'{"process": {"cmd": "/bin/sleep", "args": ["100"]}}'
        frame = len(start).to_bytes(5, "big") + start
        with served.asked("POST", "/process.Process/Start", frame, "", Content_Type="application/connect+json",
                          **shows(box)) as answer:
            begun.set()
            with contextlib.suppress(OSError, http.client.IncompleteRead):  # the answer has no end
                answer.read()
        ended.set()

    begun = threading.Event()
    thread = threading.Thread(target=follow)
    thread.start()
    assert begun.wait(PATIENCE)
    assert TokenFile(str(served.tokens)).revoke("revoked")
    assert ended.wait(PATIENCE)
    thread.join()
    assert 401 == served.ask("GET", "/health", token="", **shows(box))[0]


def test_connections_are_bounded_by_tenant(served):
    few, held = served.new_tenant("few", connections=2), list[socket.socket]()
    request = b"GET /sandboxes HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: %s\r\n\r\n" % few.encode()
    try:
        for status in (b"200", b"200", b"429"):
            connection = served.raw()
            held.append(connection)
            connection.sendall(request)
            assert status == connection.recv(65536).split()[1]
        assert 200 == served.ask("GET", "/sandboxes")[0]
    finally:
        for connection in held:
            connection.close()
    poll_until(lambda: 200 == served.ask("GET", "/sandboxes", token=few)[0], "the end of the connections")


def test_its_operator_learns_counts_and_ends_by_tenant(daemon, tmp_path):
    place = tmp_path / "metrics.sock"
    with Served(daemon.socket, tmp_path, "e2b", "run-code", "leeward", "--profile", "boxes", "--log-calls", "--metrics",
                str(place)) as served:
        other = served.new_tenant("other")
        for _ in range(2):
            served.ask("POST", "/run_code", {"language": "python", "code": "1"})
        served.ask("GET", f"/sandboxes/{'a' * 26}", token=other)
        killed = opened(served, other)["sandboxID"]
        late = served.ask("POST", "/sandboxes", {"timeout": 1}, other)[1]["sandboxID"]
        served.ask("DELETE", f"/sandboxes/{killed}", token=other)
        with leeward.Sandbox(socket=leeward.RemoteHost(served.url, other)) as box:
            far = box.id
        poll_until(lambda: not served.ask("GET", "/sandboxes", token=other)[1], "the sandbox's end")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(place))
            connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            text = served.ended_by(connection).decode()
    assert 'leeward_serve_calls_total{tenant="one",status="200"} 2\n' in text
    assert 'leeward_serve_calls_total{tenant="other",status="404"} 1\n' in text
    assert 'leeward_serve_sandboxes{tenant="other"} 0\n' in text
    assert 'leeward_serve_jobs{tenant="one"} 0\n' in text
    rows = [json.loads(line) for line in served.said.splitlines()]
    assert {(killed, "killed", "other"), (late, "lifetime", "other"), (far, "killed", "other")} == {
        (row["sandbox"], row["end"], row["tenant"]) for row in rows if "end" in row}


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", b"200"), ("evil.example", b"421")])
def test_counts_are_told_on_loopback_to_who_names_it(daemon, tmp_path, host, status):
    port = free_port()
    with (Served(daemon.socket, tmp_path, "run-code", "--metrics", f"127.0.0.1:{port}") as served,
          socket.create_connection(("127.0.0.1", port), PATIENCE) as connection):
        connection.sendall(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert status == served.ended_by(connection).split()[1]
