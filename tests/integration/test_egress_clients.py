"""
The programs that people use, through the broker: each works with a name that the policy allows, and fails at once and
in its own words with another. They know nothing of leeward, and have no proxy variables. Those that take a proxy work
by it as well, where no address but its own leads anywhere.

What a row needs and this machine lacks is skipped by name; `./dev test` installs what it can.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import leeward
from kit import egress, packages
from kit.egress import Servers
from kit.egress_hosts import AUTHORITY, CERTIFICATE
from kit.live_daemon import LiveDaemon
from kit.loopback import serving_files

CONFIG = """\
pool_size = 1
[egress.web]
allow = ["web.example.org:{http}", "web.example.org:{tls}", "web.example.org:{files}",
         "https://web.example.org:{h2}"]
addresses = ["127.0.0.1/32"]
[environments.clients]
path = "{environment}"
"""

#: What prepares the daemon of a host on which the route can't be made, since no netlink socket can.
UNROUTED: dict[str, dict[str, object]] = {"kit.no_netlink": {}}

JAVA = """\
import java.net.*;
import java.net.http.*;

public class A {
    public static void main(String[] a) throws Exception {
        HttpRequest asked = HttpRequest.newBuilder(URI.create(a[0])).version(HttpClient.Version.HTTP_1_1).build();
        System.out.println(HttpClient.newHttpClient().send(asked, HttpResponse.BodyHandlers.ofString()).body());
    }
}
"""

GO = """\
package main

import ("fmt"; "io"; "net/http"; "os")

func main() {
	got, err := http.Get(os.Args[1])
	if err != nil { fmt.Fprintln(os.Stderr, err); os.Exit(1) }
	body, _ := io.ReadAll(got.Body)
	fmt.Println(string(body))
}
"""


HTTP2 = """\
const http2 = require("http2"), pem = require("fs").readFileSync(process.argv[1]);
const server = http2.createSecureServer({key: pem, cert: pem, allowHTTP1: false}, (asked, given) => {
    given.end("h2 " + asked.url + "\\n");
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
"""


@dataclass(frozen=True)
class ClientRow:
    """
    One program.

    Attributes:
        line: for the shell; URL is in front of each path, TLS and FILES are the same by https, and of files; H2 is of a
            host that speaks HTTP/2 alone.
        says: what it prints with a name that is allowed.
        error: what it says with another.
        refused: what it says with another by the proxy; "" where it takes none.
    """

    name: str
    line: str
    says: str
    error: str
    needs: tuple[str, ...] = ()
    environment: str = ""
    refused: str = ""


def _python(code: str) -> str:
    return f"python -c '{code}'"


ROWS = (
    ClientRow("curl", "curl -fsS $URL/a", "GET web.example.org", "Could not resolve host", ("usr-curl",),
              refused="403"),
    ClientRow("curl tls", "curl -sS --cacert ca.pem $TLS/a", "GET web.example.org", "Could not resolve host",
              ("usr-curl",), refused="403"),
    ClientRow("curl chunked and keep-alive", "curl -sSv $URL/chunked $URL/b 2>&1", "one two three", "Could not resolve",
              ("usr-curl",)),
    ClientRow("curl http2", "curl -sS -w '%{http_version}' --http2 --cacert ca.pem $H2/a", "h2 /a\n2",
              "Could not resolve host", ("usr-curl", "usr-node"), refused="403"),
    ClientRow("wget", "wget -nv -t 1 -O - $URL/a", "GET web.example.org", "unable to resolve", ("usr-wget",),
              refused="403"),
    ClientRow("git", "rm -rf made; git clone -q $FILES/repo.git made && cat made/file", "content of a commit",
              "Could not resolve host", ("usr-git",), refused="403"),
    ClientRow("pip", "python -m pip --disable-pip-version-check download --retries 0 --no-deps -q"
              " --trusted-host web.example.org -i $FILES/simple/ tiny && ls", "tiny-1.0-py3-none-any.whl",
              "No matching distribution", refused="No matching distribution"),
    ClientRow("urllib", _python('import urllib.request as u,os;print(u.urlopen(os.environ["URL"]+"/a").read())'),
              "GET web.example.org", "not known", refused="403"),
    ClientRow("requests", _python("""
import requests, os
got = requests.get(os.environ["URL"] + "/a")
got.raise_for_status()
print(got.text)"""), "GET web.example.org", "NameResolutionError", ("real-packages",), "clients", refused="403"),
    ClientRow("requests tls",
              _python('import requests,os;print(requests.get(os.environ["TLS"]+"/a",verify="ca.pem").text)'),
              "GET web.example.org", "NameResolutionError", ("real-packages",), "clients", refused="403"),
    ClientRow("urllib3",
              _python('import urllib3,os;print(urllib3.request("GET",os.environ["URL"]+"/a",retries=False).data)'),
              "GET web.example.org", "NameResolutionError", ("real-packages",), "clients"),
    ClientRow("httpx", _python('import httpx,os;print(httpx.get(os.environ["URL"]+"/a").raise_for_status().text)'),
              "GET web.example.org", "ConnectError", ("real-packages",), "clients", refused="403"),
    ClientRow("aiohttp", _python("""
import aiohttp, asyncio, os
async def main():
    async with (aiohttp.ClientSession(trust_env=True, raise_for_status=True) as session,
                session.get(os.environ["URL"] + "/a") as got):
        print(await got.text())
asyncio.run(main())"""), "GET web.example.org", "ClientConnectorDNSError", ("real-packages",), "clients",
              refused="403"),
    ClientRow("node fetch", "node -e 'fetch(process.env.URL+\"/a\").then(r=>r.text()).then(console.log)'",
              "GET web.example.org", "ENOTFOUND", ("usr-node",)),
    ClientRow("apt http", "/usr/lib/apt/apt-helper -o Acquire::Retries=0 -o APT::Sandbox::User= download-file"
              " $URL/a got && cat got", "GET web.example.org", "Could not resolve", ("usr-apt",), refused="403"),
    ClientRow("apt https", "/usr/lib/apt/apt-helper -o Acquire::Retries=0 -o Acquire::https::CAInfo=/workspace/ca.pem"
              " -o APT::Sandbox::User= download-file $TLS/a got && cat got", "GET web.example.org", "Could not resolve",
              ("usr-apt",), refused="403"),
    ClientRow("java", "javac -J-Xmx200m -J-XX:+UseSerialGC A.java && java -Xmx100m -XX:+UseSerialGC A $URL/a",
              "GET web.example.org", "ConnectException", ("usr-java", "usr-javac")),
    ClientRow("go", "GOFLAGS=-p=1 GOCACHE=/tmp/c go run a.go $URL/a", "GET web.example.org", "no such host",
              ("usr-go",)),
)


@contextmanager
def files(folder: Path) -> Iterator[int]:
    """The port of a server of a repository and of an index of packages, in *folder*."""
    for argv in (("init", "-q", "work"), ("-C", "work", "add", "."), ("clone", "-q", "--bare", "work", "repo.git"),
                 ("-C", "repo.git", "update-server-info")):
        if "add" in argv:
            (folder / "work/file").write_text("content of a commit\n")
        subprocess.run(["git", *argv], cwd=folder, check=True, capture_output=True)
        if "add" in argv:
            subprocess.run(["git", "-C", "work", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"],
                           cwd=folder, check=True)
    index = folder / "simple/tiny"
    index.mkdir(parents=True)
    source = textwrap.dedent("""
        import sys, zipfile
        with zipfile.ZipFile(sys.argv[1], "w") as made:
            about = "tiny-1.0.dist-info/"
            made.writestr("tiny.py", "")
            made.writestr(about + "METADATA", "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n")
            made.writestr(about + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
            made.writestr(about + "RECORD", "")
    """)
    subprocess.run([sys.executable, "-c", source, str(index / "tiny-1.0-py3-none-any.whl")], check=True)
    (index / "index.html").write_text('<a href="tiny-1.0-py3-none-any.whl">tiny-1.0-py3-none-any.whl</a>')
    with serving_files(folder) as port:
        yield port


@contextmanager
def http2(folder: Path) -> Iterator[int]:
    """The port of a host that speaks HTTP/2 in TLS, and nothing else; 1 where there is no node."""
    node = shutil.which("node", path="/usr/local/bin:/usr/bin:/bin")
    if node is None:
        yield 1
        return
    certificate = folder / "host.pem"
    certificate.write_text(CERTIFICATE)
    with subprocess.Popen([node, "-e", HTTP2, str(certificate)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


@pytest.fixture(scope="module")
def ports(host: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    with files(tmp_path_factory.mktemp("served")) as port, http2(tmp_path_factory.mktemp("http2")) as h2:
        yield {"http": host.http, "tls": host.tls, "files": port, "h2": h2}


@contextmanager
def _daemon(ports: dict[str, int], shown: Path, folder: Path,
            build: dict[str, dict[str, object]] | None = None) -> Iterator[LiveDaemon]:
    with egress.live(folder, CONFIG.format(**ports, environment=shown), build=build) as made:
        yield made


@pytest.fixture(scope="module")
def clients(shown_packages: Callable[[Path], Path]) -> Path:
    """The environment with clients in Python."""
    return shown_packages(packages.PACKAGES) if packages.PACKAGES.exists() else Path(sys.prefix)


@pytest.fixture(scope="module")
def daemon(ports: dict[str, int], clients: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with _daemon(ports, clients, tmp_path_factory.mktemp("daemon")) as made:
        yield made


@pytest.fixture(scope="module")
def unrouted(ports: dict[str, int], clients: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    """Its sandboxes have no route, so nothing but the proxy."""
    with _daemon(ports, clients, tmp_path_factory.mktemp("unrouted"), UNROUTED) as made:
        yield made


def _rows(rows: Iterable[ClientRow] = ROWS) -> list[object]:
    return [pytest.param(row, id=row.name, marks=[pytest.mark.needs(*row.needs)] if row.needs else [])
            for row in rows]


def _said(daemon: LiveDaemon, ports: dict[str, int], row: ClientRow) -> tuple[leeward.Result, leeward.Result]:
    """The same line twice: with a name that is allowed, and with another."""
    with leeward.Sandbox(socket=daemon.socket, egress="web", environment=row.environment or None, memory="1G",
                         processes=100, timeout=120) as box:
        for name, text in (("ca.pem", AUTHORITY), ("A.java", JAVA), ("a.go", GO)):
            box.files.write(name, text)
        said = []
        for name in ("web.example.org", "other.example.org"):
            env = {"URL": f"http://{name}:{ports['http']}", "TLS": f"https://{name}:{ports['tls']}",
                   "FILES": f"http://{name}:{ports['files']}", "H2": f"https://{name}:{ports['h2']}", "HOME": "/tmp"}
            said.append(box.shell(row.line, env=env))
    allowed, denied = said
    assert allowed.ok, allowed
    assert row.says in allowed.stdout_text, allowed
    assert not denied.ok, denied
    return allowed, denied


@pytest.mark.parametrize("row", _rows())
def test_a_program_reaches_the_allowed_name_and_no_other(daemon: LiveDaemon, ports: dict[str, int],
                                                         row: ClientRow) -> None:
    """The second name doesn't resolve, so the program says so in its own words, and doesn't wait."""
    _, denied = _said(daemon, ports, row)
    assert row.error in denied.stdout_text + denied.stderr_text, denied


@pytest.mark.parametrize("row",
                         _rows(row for row in ROWS if row.refused))
def test_a_program_reaches_the_same_by_the_proxy_alone(unrouted: LiveDaemon, ports: dict[str, int],
                                                       row: ClientRow) -> None:
    """The proxy refuses the second name, and no variable has to be set by whoever calls the program."""
    _, denied = _said(unrouted, ports, row)
    assert row.refused in denied.stdout_text + denied.stderr_text, denied


def test_a_program_without_proxy_support_fails_at_once_without_the_route(unrouted: LiveDaemon,
                                                                         ports: dict[str, int]) -> None:
    """
    A name still resolves, to an address that leads nowhere; a written address leads nowhere either, and no other port
    is open.
    """
    code = """
        import os, socket, sys
        print(sorted(name for name in os.environ if name.lower().endswith("_proxy")))
        for name, port in (("web.example.org", int(sys.argv[1])), ("1.2.3.4", 443), ("127.0.0.1", int(sys.argv[1]))):
            try:
                socket.create_connection((name, port), 20)
            except OSError as error:
                print(type(error).__name__, error.errno)
    """
    with unrouted.client() as client:
        got = client.execute(textwrap.dedent(code), args=[str(ports["http"])], egress="web")
    unrouted.logged(lambda rows: [row for row in rows if "this host refuses the route" in row["event"]])
    names = [f"{each}_proxy" for each in ("all", "http", "https", "no")]
    first, *refused = got.stdout_text.splitlines()
    assert str(sorted(["NODE_USE_ENV_PROXY", *names, *map(str.upper, names)])) == first, got
    assert 3 == len(refused)
    assert {"OSError", "PermissionError", "ConnectionRefusedError"} >= {line.split()[0] for line in refused}, got
