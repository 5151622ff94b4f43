"""Egress through a real daemon: the configuration's policy, named by a job, a session, a sandbox and the command line."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit import egress
from kit.box import PATIENCE_S
from kit.egress import GET, Servers
from kit.live_daemon import PATIENCE, LiveDaemon, command, environment, first_line
from leeward.errors import RequestRejected
from leeward.wire.egress_control import PROXY

HOLD = """
import socket, sys
made = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("made")
try:
    made.recv(1)
except OSError as error:
    print(error)
"""

CONFIG = """\
pool_size = 1
allow_network = true
[egress.web]
allow = ["http://web.example.org:{port}", "127.0.0.1:{port}"]
addresses = ["127.0.0.1/32"]
"""


@pytest.fixture(scope="module")
def daemon(host: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with egress.live(tmp_path_factory.mktemp("daemon"), CONFIG.format(port=host.http)) as daemon:
        yield daemon


def test_listeners_of_a_policy_cannot_be_published(daemon: LiveDaemon) -> None:
    """They are the sandbox's way out, with its secrets, and every user of the host can connect to 127.0.0.1."""
    with leeward.Sandbox(socket=daemon.socket, egress="web") as box, box.publish(PROXY) as published:
        with socket.create_connection(("127.0.0.1", published.port), PATIENCE) as made, pytest.raises(ConnectionResetError):
            made.recv(1)
        with pytest.raises(RequestRejected, match="port 3128 of this sandbox is its way out"):
            published.wait(PATIENCE)


@pytest.mark.needs("x86-64")
def test_a_sandbox_that_slept_has_the_policy_of_today(host: Servers, tmp_path: Path) -> None:
    """Its client's is within that, and not within what the operator allowed the daemon before."""
    tmp_path.chmod(0o700)
    url = f"http://web.example.org:{host.http}"
    config = f'sleep_folder = "{tmp_path}/sleep"\n{CONFIG.format(port=host.http)}'
    fewer = config.replace("web.example.org", "other.example.org")
    policy = {"allow": [url], "addresses": ["127.0.0.1/32"]}

    def reaches(box: leeward.Sandbox) -> bool:
        got = box.run(["python", "-c", GET, f"{url}/x"]).stdout_text
        box.pause()
        return got == f"200 GET web.example.org:{host.http} /x\n"

    with egress.live(tmp_path, config) as daemon:
        box = leeward.Sandbox(socket=daemon.socket, egress="web", policy=policy)
        assert reaches(box)
    with egress.live(tmp_path, fewer):
        assert not reaches(box)
    with egress.live(tmp_path, config):
        assert reaches(box)
        box.close()


def test_a_policy_is_named_by_all_that_run_code(daemon: LiveDaemon, host: Servers) -> None:
    """A name that it allows is reached, another one isn't there; and without a policy nothing is."""
    allowed, denied = f"http://web.example.org:{host.http}/x", f"http://evil.example.org:{host.http}/"
    answer = f"200 GET web.example.org:{host.http} /x\n"
    with daemon.client() as client:
        assert answer == client.execute(GET, args=[allowed], egress="web").stdout_text
        assert "not known" in client.execute(GET, args=[denied], egress="web").stdout_text
        assert "200" not in client.execute(GET, args=[allowed]).stdout_text
        with client.session(egress="web") as session:
            assert answer == session.execute(GET, args=[allowed]).stdout_text
        with pytest.raises(RequestRejected, match="egress 'nothing' is unknown; this daemon has: network, web"):
            client.execute("1", egress="nothing")
    with leeward.Sandbox(socket=daemon.socket, egress="web") as box:
        assert answer == box.run(["python", "-c", GET, allowed]).stdout_text
        direct = box.run(["python", "-c", GET, f"http://127.0.0.1:{host.http}/x"])
        assert f"200 GET 127.0.0.1:{host.http} /x\n" == direct.stdout_text
        assert "not known" in box.run(["python", "-c", GET, denied]).stdout_text
    done = daemon.run("exec", "--egress", "web", GET, "--", allowed)
    assert answer.encode() == done.stdout, done


def test_short_jobs_of_a_named_pool_and_of_none_stay_apart(daemon: LiveDaemon) -> None:
    """On the fast path as well: those of a session and a kernel have the pool's way out, others don't."""
    code = f"""
import socket
try:
    print(socket.socket().connect_ex(("127.0.0.1", {PROXY})))
except OSError:
    print("none")
"""
    with (daemon.client() as client, client.session(egress="web") as session,
          leeward.Sandbox(socket=daemon.socket, egress="web") as box, box.kernel() as kernel):
        for _ in range(8):
            within = [session.execute(code), kernel.execute(code), box.execute(code), client.execute(code, egress="web")]
            assert {b"0\n"} == {each.stdout for each in within}
            assert b"0\n" != client.execute(code).stdout
        refused = "import ctypes; ctypes.CDLL(None).unshare(1 << 28)"
        assert [1, 1] == [each.execute(refused).denied["unshare"] for each in (session, kernel)]


def test_fetch_by_a_sandboxs_policy(daemon: LiveDaemon, host: Servers) -> None:
    """From outside the sandbox, by its policy: a response, a large one by a memory file, and what is refused."""
    url = f"http://web.example.org:{host.http}"

    async def asynchronously() -> leeward.Fetched:
        async with leeward.AsyncSandbox(socket=daemon.socket, egress="web") as other:
            return await other.fetch(f"{url}/async", headers=[("X-One", "1"), ("X-One", "2")])

    with leeward.Sandbox(socket=daemon.socket, egress="web") as box:
        got = box.fetch(f"{url}/plain")
        assert (200, True, f"GET web.example.org:{host.http} /plain") == (got.status, got.ok, got.text)
        assert (f"{url}/plain", (), "127.0.0.1") == (got.url, got.history, got.address)
        large = os.urandom(1 << 20)
        assert large == box.fetch(f"{url}/echo", "POST", {"Content-Type": "text/plain"}, large).body
        with pytest.raises(leeward.FetchFailed, match=r"^domain not in allowlist: evil.example.org") as caught:
            box.fetch(f"http://evil.example.org:{host.http}/")
        assert ("unlisted", f"http://evil.example.org:{host.http}/") == (caught.value.cause, caught.value.url)
        shown = _rows(daemon, box.id, "denied")
        assert ("evil.example.org", host.http) == (shown[-1]["name"], shown[-1]["port"])
    assert f"GET web.example.org:{host.http} /async" == asyncio.run(asynchronously()).text
    with leeward.Sandbox(socket=daemon.socket) as without, pytest.raises(
            leeward.FetchFailed, match=r"^networking disabled: configure fetch_policy to enable$"):
        without.fetch(f"{url}/")


def test_a_fetch_ends_with_its_sandbox(daemon: LiveDaemon, host: Servers) -> None:
    """It is answered, and the broker serves on."""
    with leeward.Sandbox(socket=daemon.socket, egress="web") as box, ThreadPoolExecutor(1) as threads:
        waits = threads.submit(box.fetch, f"http://web.example.org:{host.http}/unanswered")
        _rows(daemon, box.id, "allowed")
        box.kill()
        with pytest.raises((leeward.FetchFailed, leeward.SandboxOver)):
            waits.result(PATIENCE_S / 2)  # before the server gives it up
    with leeward.Sandbox(socket=daemon.socket, egress="web") as box:
        assert box.fetch(f"http://web.example.org:{host.http}/").ok


def test_a_client_narrows_its_policy(daemon: LiveDaemon, host: Servers) -> None:
    """For what runs in its sandbox, and for its fetches; never beyond the operator's."""
    url, other = f"http://web.example.org:{host.http}", f"http://127.0.0.1:{host.http}"
    with leeward.Sandbox(socket=daemon.socket, egress="web", policy={
            "allow": ["*.example.org"], "ports": [host.http], "addresses": ["127.0.0.0/8"]}) as box:
        assert "200 GET" in box.run(["python", "-c", GET, f"{url}/x"]).stdout_text
        assert "200" not in box.run(["python", "-c", GET, f"{other}/x"]).stdout_text
        assert "not known" in box.run(["python", "-c", GET, f"http://evil.example.org:{host.http}/"]).stdout_text
        with pytest.raises(leeward.FetchFailed, match=r"^domain not in allowlist"):
            box.fetch(f"{other}/")
    with leeward.Sandbox(socket=daemon.socket, egress="web", fetch_policy={
            "allowed_domains": ["*.example.org"], "deny_private_ips": False, "allowed_methods": ["GET"],
            "blocked_domains": ["api.example.org"], "max_response_body": 40}) as box:
        assert "200 GET" in box.run(["python", "-c", GET, f"{other}/x"]).stdout_text
        for asked, method, text in ((f"{other}/", "GET", "domain not in allowlist"),
                                    (f"{url}/", "POST", "method not allowed"),
                                    (f"http://api.example.org:{host.http}/", "GET", "domain is blocked"),
                                    (f"{url}/" + 20 * "x", "GET", "response body too large"),
                                    (f"http://evil.example.org:{host.http}/", "GET", "domain not in allowlist")):
            with pytest.raises(leeward.FetchFailed, match=rf"^{text}"):
                box.fetch(asked, method)
    for options, text in (({"policy": {"allow": ["*"]}}, "name it by egress"),
                          ({"egress": "web", "policy": {"allow": ["a b"]}}, "policy.allow"),
                          ({"egress": "web", "policy": {"within": {}}}, "the operator's"),
                          ({"egress": "web", "fetch_policy": {"domains": []}}, "fetch_policy.domains: unknown"),
                          ({"egress": "nothing", "policy": {"allow": []}}, "egress 'nothing' is unknown"),
                          ({"egress": "web", "policy": {"secrets": {"K": {"hosts": ["x.org"]}}}}, "no such secret")):
        with leeward.Sandbox(socket=daemon.socket, **options) as box, pytest.raises(RequestRejected, match=text):
            box.info()


def test_a_policy_changes_while_the_sandbox_lives(daemon: LiveDaemon, host: Servers) -> None:
    """Never beyond the operator's; what is open ends, and what was counted stays so."""
    url, other = f"http://web.example.org:{host.http}/x", f"http://127.0.0.1:{host.http}/x"
    short: dict[str, Any] = {"deny_private_ips": False, "max_requests_per_minute": 5}
    with leeward.Sandbox(socket=daemon.socket, egress="web", policy={"allow": []}, metadata={"a": "1"}) as box:
        assert "not known" in box.run(["python", "-c", GET, url]).stdout_text
        box.extend(policy={"allowed_domains": ["*", "127.0.0.1"], **short}, metadata={"b": "2"})
        assert {"b": "2"} == box.extend(lifetime=60)["metadata"]
        assert "200 GET" in box.run(["python", "-c", GET, url]).stdout_text
        assert "200 GET" in box.run(["python", "-c", GET, other]).stdout_text
        assert "not known" in box.run(["python", "-c", GET, f"http://evil.example.org:{host.http}/"]).stdout_text
        holds = box.start(["python", "-uc", HOLD, str(host.http)])
        assert b"made\n" == first_line(holds)

        box.extend(policy={"allowed_domains": ["web.example.org"], **short})
        result = holds.wait(PATIENCE)
        assert result is not None
        assert "reset" in holds.result().stdout_text
        assert "200 GET" in box.run(["python", "-c", GET, url]).stdout_text
        assert "200" not in box.run(["python", "-c", GET, other]).stdout_text
        box.extend(policy={"allowed_domains": ["web.example.org"], **short})
        assert "200" not in box.run(["python", "-c", GET, url]).stdout_text  # five were made
        box.extend(policy={})
        assert "not known" in box.run(["python", "-c", GET, url]).stdout_text
        with pytest.raises(RequestRejected, match="the operator's"):
            box.extend(policy={"within": {}})
    with leeward.Sandbox(socket=daemon.socket) as box, pytest.raises(RequestRejected, match="name it by egress"):
        box.extend(policy={"allow": ["*"]})


def test_a_job_behind_another_one_connects_at_once(host: Servers, tmp_path: Path) -> None:
    """Also where the broker hears of both late: it is still being started when the second one connects."""
    config = tmp_path / "c.toml"
    config.write_text(CONFIG.format(port=host.http))
    config.chmod(0o600)
    with LiveDaemon(tmp_path, "--config", str(config)) as daemon, daemon.client() as client:
        client.execute("1", egress="web")
        got = client.execute(GET, args=[f"http://127.0.0.1:{host.http}/x"], egress="web", timeout=60)
        assert f"200 GET 127.0.0.1:{host.http} /x\n" == got.stdout_text


def test_jobs_and_sessions_narrow_their_policy(daemon: LiveDaemon, host: Servers) -> None:
    """Each its own: the next job of the same worker has the operator's again; a session keeps its one when it is reset."""
    url, other = f"http://web.example.org:{host.http}/x", f"http://127.0.0.1:{host.http}/x"
    narrower = {"allow": ["web.example.org"], "ports": [host.http], "addresses": ["127.0.0.0/8"], "methods": ["GET"]}
    with daemon.client() as client:
        for _ in range(2):
            for policy, reached in ((narrower, False), (None, True)):
                assert "200 GET" in client.execute(GET, args=[url], egress="web", policy=policy).stdout_text
                said = client.execute(GET, args=[other], egress="web", policy=policy).stdout_text
                assert reached == ("200 GET" in said), said
        with client.session(egress="web", policy=narrower) as session:
            for _ in range(2):
                assert "200 GET" in session.execute(GET, args=[url]).stdout_text
                assert "200 GET" not in session.execute(GET, args=[other]).stdout_text
                session.reset()
        beyond = {"allow": ["*"], "ports": [host.http], "addresses": ["127.0.0.0/8"]}
        evil = f"http://evil.example.org:{host.http}/"
        assert "not known" in client.execute(GET, args=[evil], egress="web", policy=beyond).stdout_text
        for options, text in (({"policy": {"allow": ["*"]}}, "name it by egress"),
                              ({"egress": "web", "policy": {"allow": ["a b"]}}, "policy.allow"),
                              ({"egress": "web", "policy": {"within": {}}}, "the operator's")):
            with pytest.raises(RequestRejected, match=text):
                client.execute("1", **options)
            with pytest.raises(RequestRejected, match=text), client.session(**options) as session:
                session.execute("1")


def test_the_command_line_fetches(daemon: LiveDaemon, host: Servers) -> None:
    """The body on standard output, the status in the exit status, and what was refused on standard error."""
    url = f"http://web.example.org:{host.http}"
    done = daemon.run("fetch", "--policy", "web", "-i", "-d", "hello", "-H", "X-One: 1", f"{url}/post")
    assert (b"HTTP/1.1 200\n", b"\n\nhello") == (done.stdout[:13], done.stdout[-7:]), done
    done = daemon.run("fetch", "--policy", "web", f"http://evil.example.org:{host.http}/")
    assert (1, b"leeward: domain not in allowlist: evil.example.org") == (done.returncode, done.stderr[:50]), done


def test_the_network_is_the_operators_to_allow(daemon: LiveDaemon, host: Servers) -> None:
    """The policy `network` is there where he says so; the tests' names lead to addresses that it doesn't reach."""
    denied = f"http://web.example.org:{host.http}/"
    with daemon.client() as client:
        got = client.execute(GET, args=["http://web.example.org/"], allow_network=True).stdout_text
        assert "403 leeward: private IP blocked: web.example.org leads to 127.0.0.1" in got, got
        assert "200" not in client.execute(GET, args=[denied], allow_network=True).stdout_text
        with pytest.raises(RequestRejected, match="egress='web' or allow_network"):
            client.execute("1", egress="web", allow_network=True)
    done = daemon.run("exec", "--network", GET, "--", "http://web.example.org/")
    assert b"403 leeward: private IP blocked" in done.stdout, done
    with leeward.Sandbox(socket=daemon.socket, allow_network=True) as box, pytest.raises(
            leeward.FetchFailed, match=r"^private IP blocked"):
        box.fetch("http://web.example.org/")


def test_attempts_are_listed_and_explained(daemon: LiveDaemon, host: Servers, tmp_path: Path) -> None:
    """
    A row each, by job and sandbox, with the names as a file; and the line of policy that would have allowed a denied
    one.
    """
    allowed, denied = f"http://web.example.org:{host.http}/logged", f"http://logged.example.org:{host.http}/"
    with daemon.client() as client:
        refused = client.execute(GET, args=[denied], egress="web", label="refused")
        client.execute(GET, args=[allowed], egress="web", label="fetches")
        with client.session(egress="web") as session:
            in_session = session.execute(GET, args=[denied], label="in-a-session")
    with leeward.Sandbox(socket=daemon.socket, egress="web") as box:
        box.run(["python", "-c", GET, denied])
        box.run(["python", "-c", GET, allowed])
        mine = _rows(daemon, box.id, "closed")
    assert {("denied", "logged.example.org", 0), ("allowed", "web.example.org", host.http),
            ("closed", "web.example.org", host.http)} <= {(row["verdict"], row["name"], row["port"]) for row in mine}
    [closed] = [row for row in mine if "closed" == row["verdict"]]
    assert closed["sent"] > 0 < closed["received"]
    assert ("sandbox", "web", os.geteuid()) == (closed["kind"], closed["policy"], closed["user"])
    names = tmp_path / "names"
    assert 0 == daemon.run("egress", "log", "--names", str(names), box.id).returncode
    assert "allowed web.example.org\ndenied logged.example.org\n" == names.read_text()
    [row] = _rows(daemon, str(refused.job), "denied")
    assert ("job", "logged.example.org") == (row["kind"], row["name"])
    for job in (refused.job, in_session.job):
        said = daemon.run("explain", str(job)).stdout.decode()
        assert 'in [egress.web]: allow = ["logged.example.org"]' in said, said
    shown = daemon.run("egress", "log", str(refused.job)).stdout.decode()
    assert f"job {refused.job}  denied   logged.example.org  domain not in allowlist" in shown


def _rows(daemon: LiveDaemon, asked: str, until: str) -> list[dict[str, Any]]:
    """What the log has of *asked*, followed until a row with the verdict *until*."""
    found = []
    with subprocess.Popen(command("egress", "log", "-f", "--json", asked), env=environment(daemon.socket),
                          stdout=subprocess.PIPE) as log:
        assert log.stdout is not None
        for line in log.stdout:
            found.append(json.loads(line))
            if until == found[-1]["verdict"]:
                break
        log.terminate()
    return found
