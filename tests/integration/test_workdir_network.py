"""
A folder with tools that has a policy of egress: `fetch`, curl, and `fetch` in JavaScript reach what it allows, and say
why they don't reach what it doesn't.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit import egress
from kit.egress import Servers
from kit.egress_hosts import AUTHORITY
from kit.live_daemon import LiveDaemon, command, environment
from kit.skip_policy import require

CONFIG = """\
pool_size = 1
allow_network = true
[egress.web]
allow = ["*.example.org:{http}", "*.example.org:{tls}"]
addresses = ["127.0.0.1/32"]
[egress.read]
allow = ["GET https://web.example.org:{tls}"]
addresses = ["127.0.0.1/32"]
authorities = "{authorities}"
"""

POLICY = {"allowed_domains": ["*.example.org"], "blocked_domains": ["api.example.org"], "deny_private_ips": False}

NODE = """\
const { WorkdirSandbox } = require(process.argv[1]);
const [socket, command, workDir, url, other] = process.argv.slice(2);
(async () => {
  const fetchPolicy = { allowed_domains: ['*.example.org'], deny_private_ips: false };
  const work = new WorkdirSandbox({ workDir, socket, command: JSON.parse(command), egress: 'web', fetchPolicy });
  const said = {};
  const got = await work.fetch(`${url}/node`, { method: 'POST', body: 'sent' });
  said.fetch = [got.status, got.ok, got.body.toString()];
  said.denied = await work.fetch(`${other}/`).catch((error) => [error.kind, error.cause, error.message]);
  said.curl = (await work.exec('curl', ['-sS', `${url}/curl`])).stdoutText;
  said.js = (await work.execJs(`console.log(fetchSync(${JSON.stringify(url)} + '/js').text())`)).stdoutText;
  const nothing = new WorkdirSandbox({ workDir, socket, command: JSON.parse(command), egress: 'web', fetchPolicy: {} });
  said.nothing = await nothing.fetch(`${url}/`).catch((error) => [error.kind, error.cause]);
  await nothing.destroy();
  await work.destroy();
  console.log(JSON.stringify(said));
})();
"""


@pytest.fixture(scope="module")
def daemon(host: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    folder = tmp_path_factory.mktemp("daemon")
    authorities = folder / "authorities.pem"
    authorities.write_text(AUTHORITY)
    config = CONFIG.format(http=host.http, tls=host.tls, authorities=authorities)
    with egress.live(folder, config) as made:
        yield made


@pytest.fixture(scope="module")
def work(daemon: LiveDaemon) -> Iterator[leeward.WorkdirSandbox]:
    with (tempfile.TemporaryDirectory(prefix="lw-workdir-") as made,
          leeward.WorkdirSandbox(made, (), {"GIVEN": "yes"}, fetch_policy=POLICY, egress="web",
                                 socket=daemon.socket) as work):
        yield work


def test_fetch_is_decided_by_the_policy(work: leeward.WorkdirSandbox, host: Servers) -> None:
    """A response where it allows; else an error of the kind `fetch`, which begins with the reason."""
    url = f"http://web.example.org:{host.http}"
    got = work.fetch(f"{url}/x", "POST", {"X-One": "1"}, "sent")
    assert (200, True, b"sent") == (got.status, got.ok, got.body)

    for asked, text, cause in ((f"http://evil.example.com:{host.http}/", "domain not in allowlist", "unlisted"),
                               (f"http://api.example.org:{host.http}/", "domain is blocked", "blocked"),
                               ("http://web.example.org:1/", "port not allowed", "port"),
                               ("ftp://web.example.org/", "scheme not allowed", "scheme"),
                               ("no url", "invalid URL", "url")):
        with pytest.raises(leeward.FetchError, match=rf"^{text}") as caught:
            work.fetch(asked)
        assert ("fetch", cause) == (caught.value.kind, caught.value.cause)


def test_curl_goes_by_the_policy(work: leeward.WorkdirSandbox, host: Servers) -> None:
    """As a command and in a line of the shell; what isn't allowed has no address, in curl's own words."""
    url, evil = f"http://web.example.org:{host.http}", f"http://evil.example.com:{host.http}"
    if "curl" not in work.available_tools():
        require("usr-curl")
    assert f"GET web.example.org:{host.http} /a" == work.exec("curl", ["-sS", f"{url}/a"]).text
    assert f"GET web.example.org:{host.http} /b\n" == work.exec(
        "sh", ["-c", f"curl -sS {url}/b | cat; echo"]).text
    got = work.exec("sh", ["-c", f"curl -sS {evil}/ || echo failed: $?"])
    assert ("failed: 6\n", True) == (got.text, "Could not resolve host" in got.stderr_text), got.stderr_text
    assert 6 == work.exec("curl", ["-sS", f"http://api.example.org:{host.http}/"]).exit_code


def test_the_environment_has_only_the_given_variables(work: leeward.WorkdirSandbox) -> None:
    """A policy whose TLS nobody ends adds no variable."""
    names = {line.partition("=")[0] for line in work.exec("env").text.splitlines()}

    assert {"PATH", "GIVEN"} == names


#: Code, and what it prints; URL, EVIL are replaced, and HOST.
SCRIPTS = {
    "the promise form": ("fetch('URL/p').then(r => r.text()).then(console.log)", "GET HOST /p\n"),
    "await": ("(async () => { const r = await fetch('URL/q'); console.log(r.status, r.ok, await r.text()) })()",
              "200 true GET HOST /q\n"),
    "a name that isn't allowed": ("fetch('EVIL/').catch(e => console.log(e instanceof TypeError, e.message))",
                                  "true fetch failed\n"),
    "the form that waits": ("const r = fetchSync('URL/s'); console.log(r.status, r.ok, r.text(), r.body.length)",
                            None),
    "its headers": ("console.log(fetchSync('URL/h').headers.get('Content-Length') > 0)", "true\n"),
    "its json": ("console.log(fetchSync('URL/e', {method: 'POST', body: JSON.stringify({a: [1, 2]})}).json())",
                 "{ a: [ 1, 2 ] }\n"),
    "bytes": ("console.log([...fetchSync('URL/e', {method: 'POST', body: new Uint8Array([0, 255, 1])}).body])",
              "[ 0, 255, 1 ]\n"),
    "two, one after the other": ("console.log(fetchSync('URL/1').text()); console.log(fetchSync('URL/2').text())",
                                 "GET HOST /1\nGET HOST /2\n"),
    "a name that isn't allowed, waiting": (("try { fetchSync('EVIL/') } catch (e) { console.log(e instanceof TypeError,"
                                           " e.message, e.message.endsWith(e.cause.message)) }"),
                                           "true fetch failed: getaddrinfo ENOTFOUND evil.example.com true\n"),
    "a port that nobody has, waiting": (("try { fetchSync('http://127.0.0.1:4999/') } catch (e)"
                                        " { console.log(/^fetch failed: .*ECONNREFUSED/.test(e.message)) }"), "true\n"),
    "a body that can't be sent": (("try { fetchSync('URL/', {method: 'POST', body: {}}) } catch (e)"
                                  " { console.log(e.name) }"), "TypeError\n"),
    "in a module": (("require('fs').writeFileSync('m.js', 'module.exports = fetchSync(\"URL/m\").text()');"
                    " console.log(require('./m.js'))"), "GET HOST /m\n"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_javascript_fetches_by_the_policy(work: leeward.WorkdirSandbox, host: Servers, name: str) -> None:
    """`fetch` is Node's own, and the process ends after `fetchSync` though its thread is still there."""
    if "node" not in work.available_tools():
        require("usr-node")
    code, says = SCRIPTS[name]
    at = f"web.example.org:{host.http}"
    code = code.replace("URL", f"http://{at}").replace("EVIL", f"http://evil.example.com:{host.http}")
    text = f"GET {at} /s"
    expected = f"200 true {text} {len(text)}\n" if says is None else says.replace("HOST", at)
    got = work.exec_js(code)

    assert (expected, 0, "") == (got.text, got.exit_code, got.stderr_text)


def test_an_empty_policy_allows_no_host(daemon: LiveDaemon, host: Servers, tmp_path: Path) -> None:
    """For a folder as for a sandbox; and without fetch_policy the operator's holds as it is."""
    url = f"http://web.example.org:{host.http}/"
    with leeward.WorkdirSandbox(tmp_path, fetch_policy={}, egress="web", socket=daemon.socket) as nothing:
        with pytest.raises(leeward.FetchError, match=r"^domain not in allowlist"):
            nothing.fetch(url)
        assert 6 == nothing.exec("curl", ["-sS", url]).exit_code
    for options in ({"policy": {}}, {"fetch_policy": {}}):
        with (leeward.Sandbox(socket=daemon.socket, egress="web", **options) as box,  # type: ignore[arg-type]
              pytest.raises(leeward.FetchFailed, match=r"^domain not in allowlist")):
            box.fetch(url)
    with leeward.WorkdirSandbox(tmp_path, egress="web", socket=daemon.socket) as all_of_it:
        assert all_of_it.fetch(url).ok


def test_a_policy_needs_an_operators(daemon: LiveDaemon, host: Servers, tmp_path: Path) -> None:
    """`network` where none is named, which reaches no address that is private; and a wrong key is said."""
    with (leeward.WorkdirSandbox(tmp_path, fetch_policy=POLICY, socket=daemon.socket) as public,
          pytest.raises(leeward.FetchError, match=r"^private IP blocked")):
        public.fetch("http://web.example.org/")
    for options, text in (({"fetch_policy": {"domains": []}}, "policy.domains: unknown"),
                          ({"fetch_policy": {"allowed_domains": [1]}}, "policy.allowed_domains"),
                          ({"egress": "nothing"}, "egress 'nothing' is unknown")):
        with (leeward.WorkdirSandbox(tmp_path, socket=daemon.socket, **options) as work,  # type: ignore[arg-type]
              pytest.raises(leeward.WorkdirRuntimeError, match=text)):
            work.fetch("http://web.example.org/")
    with pytest.raises(leeward.RequestRejected, match="fetch_policy takes a map"):
        leeward.WorkdirSandbox(tmp_path, fetch_policy=["*"], socket=daemon.socket)  # type: ignore[arg-type]


def test_tls_that_the_broker_ends_is_trusted(daemon: LiveDaemon, host: Servers, tmp_path: Path) -> None:
    """By curl and Node, whose environment is clean but for the variables that say so; a method that no rule allows isn't."""
    url = f"https://web.example.org:{host.tls}/t"
    with leeward.WorkdirSandbox(tmp_path, egress="read", socket=daemon.socket) as work:
        assert f"GET web.example.org:{host.tls} /t" == work.exec("curl", ["-sS", url]).text
        assert "403" in work.exec("curl", ["-sS", "-d", "x", "-w", "%{http_code}", url]).text
        assert f"GET web.example.org:{host.tls} /t\n" == work.exec_js(f"console.log(fetchSync('{url}').text())").text
        assert "NODE_EXTRA_CA_CERTS=" in work.exec("env").text


def test_asyncio_and_node_do_the_same(daemon: LiveDaemon, host: Servers, tmp_path: Path) -> None:
    """The object for asyncio, and that of the npm package."""
    url, evil = f"http://web.example.org:{host.http}", f"http://evil.example.com:{host.http}"

    async def asynchronously() -> str:
        async with leeward.AsyncWorkdirSandbox(tmp_path, fetch_policy=POLICY, egress="web",
                                               socket=daemon.socket) as other:
            return (await other.fetch(f"{url}/async")).text

    assert f"GET web.example.org:{host.http} /async" == asyncio.run(asynchronously())
    require("usr-node")
    package = Path(__file__).parents[2] / "leeward/clients/node"
    done = subprocess.run(["node", "-e", NODE, "--", str(package), str(daemon.socket), json.dumps(command()),
                           str(tmp_path), url, evil], capture_output=True, text=True, timeout=120,
                          env=environment())
    assert 0 == done.returncode, done.stderr
    at = f"web.example.org:{host.http}"
    said = json.loads(done.stdout)
    assert {"fetch": [200, True, "sent"], "curl": f"GET {at} /curl", "js": f"GET {at} /js\n",
            "nothing": ["fetch", "unlisted"]} == {key: value for key, value in said.items() if "denied" != key}
    assert ["fetch", "unlisted"] == said["denied"][:2]
    assert said["denied"][2].startswith("domain not in allowlist: evil.example.com")
