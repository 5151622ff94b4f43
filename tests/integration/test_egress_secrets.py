"""Secrets: a job sees a placeholder, and the secret's hosts the value; with the programs that people use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import egress
from kit.attack import make_environment
from kit.box import Box
from kit.egress_secrets import NAME, VALUE, Mirrors, mirrors, policy, sealed
from kit.packages import shown_folder
from kit.skip_policy import require

SERVERS = mirrors
GET = """
    import os, sys, urllib.request, urllib.error
    asked = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + os.environ["API_KEY"]})
    try:
        with urllib.request.urlopen(asked, timeout=60) as got:
            print(got.status, got.read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
    except OSError as error:
        print(error)
"""

RUN = """
    import os, subprocess, sys
    os.environ["URL"] = sys.argv[2]
    done = subprocess.run(["sh", "-c", sys.argv[1]], capture_output=True, text=True)
    print(done.stdout + done.stderr)
"""

NODE = """node -e 'fetch(process.env.URL, {headers: {Authorization: "Bearer " + process.env.API_KEY}}).then(
    got => got.text()).then(text => console.log(text))'"""

PLACEHOLDER = "leeward-[0-9a-f]{32}"

CURL = 'curl -sS -H "Authorization: Bearer $API_KEY" "$URL"'


@pytest.fixture(scope="module")
def box(host: Mirrors, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with sealed(tmp_path_factory.mktemp("sealed"), host) as made:
        yield made


def test_a_host_gets_the_value_and_the_job_the_placeholder(box: Box, host: Mirrors) -> None:
    """Also in what the host gives back: the body, whole and in pieces, and the header."""
    for path in ("", "pieces"):
        got = box.run(GET, args=(f"https://api.example.org:{host.tls}/{path}",)).stdout.decode()

        assert f"authorization: Bearer {VALUE}\n" in host.last(), got
        assert got.startswith("200 "), got
        assert VALUE not in got
        assert re.search(f"authorization: Bearer {PLACEHOLDER}\n", got), got


#: Its own store has the sandbox's authority, without an option.
JAVA = """cat >/tmp/A.java <<'END'
import java.net.*;
public class A {
    public static void main(String[] a) throws Exception {
        URLConnection asked = URI.create(System.getenv("URL")).toURL().openConnection();
        asked.setRequestProperty("Authorization", "Bearer " + System.getenv("API_KEY"));
        asked.getInputStream().transferTo(System.out);
    }
}
END
java -Xmx100m -XX:+UseSerialGC /tmp/A.java"""


@pytest.mark.parametrize(("program", "command"), [("curl", CURL), ("node", NODE), ("java", JAVA), (
    "curl", 'curl -sS -u "me:$API_KEY" --compressed "$URL"')])
def test_programs_trust_the_authority(box: Box, host: Mirrors, program: str, command: str) -> None:
    require(f"usr-{program}")
    got = box.run(RUN, args=(command, f"https://api.example.org:{host.tls}/{program}"),
                  limits={"memory": 1 << 30, "processes": 64, "time": 60}).stdout.decode()

    assert f"GET /{program}\n" in got, got
    assert VALUE not in got
    if "Bearer" in command:
        assert VALUE in host.last()
        assert re.search(PLACEHOLDER, got), got


def test_a_module_of_the_pool_trusts_the_sandboxs_own_authority(host: Mirrors, tmp_path: Path) -> None:
    """One that has made its context when it was imported, before there was any sandbox; in one job as in the next."""
    got = """
        import early, os, sys, urllib.request
        asked = urllib.request.Request(sys.argv[1], headers={"X-Key": os.environ["API_KEY"]})
        print(urllib.request.urlopen(asked, timeout=60, context=early.context).read().decode())
    """
    with shown_folder() as folder:
        site = make_environment(folder / "environment")
        (site / "early.py").write_text("import ssl\ncontext = ssl.create_default_context()\n")
        own = {"python_env": str(folder / "environment"), "preload": ("early",)}
        with sealed(tmp_path, host, settings=own) as box:
            said = [box.run(got, args=(f"https://api.example.org:{host.tls}/",)).stdout.decode() for _ in range(2)]
    assert all("x-key: leeward-" in each for each in said)
    assert all(VALUE.encode() in each for each in host.said[-2:])


def test_query_and_body_get_the_value_where_the_policy_says_so(host: Mirrors, tmp_path: Path) -> None:
    command = 'curl -sS -d "{\\"key\\": \\"$API_KEY\\"}" -H "X: $API_KEY" "$URL?key=$API_KEY"'
    with sealed(tmp_path, host, **{"in": ["query", "body"]}) as box:
        got = box.run(RUN, args=(command, f"https://api.example.org:{host.tls}/q")).stdout.decode()
        assert "POST /q?key=sk-live-0123456789%2B%2F%3Dabcdef\n" in host.last(), got
        assert f'{{"key": "{VALUE}"}}' in host.last()
        assert re.search(f"x: {PLACEHOLDER}\n", host.last())
        assert 1 == host.last().count(VALUE)
        assert "sk-live" not in got


def test_an_error_of_the_source_is_reported_without_a_value(host: Mirrors, tmp_path: Path) -> None:
    with sealed(tmp_path, host, **{"from": "command:printf sk-live-0123; exit 3"}) as box:
        got = box.run(GET, args=(f"https://api.example.org:{host.tls}/x",)).stdout.decode()
        assert got.startswith(f"502 leeward: the secret {NAME} can't be had: its source has failed"), got
        assert "sk-live" not in repr(egress.rows(box))


def test_a_new_broker_gets_the_secrets_again(box: Box, host: Mirrors) -> None:
    connection = box.engine.exits.broker
    assert connection is not None
    assert connection._process is not None
    starts = connection.starts
    connection._process.kill()
    box.reactor.run(lambda: connection.starts > starts)

    box.run(GET, args=(f"https://api.example.org:{host.tls}/again",))
    assert "GET /again" in host.last()
    assert VALUE in host.last()


def test_rules_for_methods_and_paths_hold_in_tls(host: Mirrors, tmp_path: Path) -> None:
    """And other names' TLS isn't ended."""
    table = policy(tmp_path, host) | {
        "allow": [f"GET https://api.example.org:{host.tls}/v1/*", f"other.example.org:{host.tls}"],
        "deny": [f"https://api.example.org:{host.tls}/v1/private/*"], "secrets": {}}
    with egress.reaching(table, spares=0) as box:
        def curl(rest: str, name: str = "api") -> str:
            return box.run(RUN, args=(f'curl -sS {rest}', f"https://{name}.example.org:{host.tls}")).stdout.decode()

        assert "GET /v1/x\n" in curl('"$URL/v1/x"')
        assert "path not allowed" in curl('"$URL/v2/x"')
        assert "domain is blocked" in curl('"$URL/v1/private/x"')
        assert "method not allowed" in curl('-X PUT -d x "$URL/v1/x"')
        assert "issuer: CN=leeward test authority" in curl('-v "$URL/v1/x"', "other")  # its own certificate
        assert "issuer: CN=leeward test authority" not in curl('-v "$URL/v1/x"')


def test_a_host_with_an_unknown_certificate_is_refused(host: Mirrors, tmp_path: Path) -> None:
    table = policy(tmp_path, host) | {"authorities": "", "allow": [f"GET https://api.example.org:{host.tls}"],
                                      "secrets": {}}
    with egress.reaching(table, spares=0) as box:
        got = box.run(RUN, args=('curl -sS "$URL"', f"https://api.example.org:{host.tls}/")).stdout.decode()
        assert "leeward: TLS: the host's certificate: " in got, got
