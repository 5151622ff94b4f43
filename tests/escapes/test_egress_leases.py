"""
What one sandbox has for secrets and for TLS that the broker ends, in another one of the same policy. Catalogue cases
371 to 374.

Jobs, sessions, live sandboxes and their kernels: each lease has placeholders and an authority of its own. In each
control a sandbox uses what is its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import leeward
from kit.box import control, run_outside
from kit.egress_secrets import NAME, VALUE, Mirrors, live_sealed, mirrors
from kit.live_daemon import LiveDaemon
from leeward.spec.outcome import Outcome

SERVERS = mirrors
BROKER = pytest.mark.no_single_lock("the broker knows each lease by its own placeholders and its own authority")

CONFIG = """\
pool_size = 1
[egress.web]
allow = ["*.example.org:{tls}"]
addresses = ["127.0.0.1/32"]
authorities = "{authorities}"
secrets = {secrets}
"""

#: Prints what the sandbox has: its placeholder, and its authority's certificate.
OWN = f"""
import json, os
with open(os.environ["SSL_CERT_FILE"]) as file:
    last = file.read().rpartition("-----BEGIN CERTIFICATE-----")
print(json.dumps([os.environ["{NAME}"], last[1] + last[2]]))
"""

#: Asks `url`, with `key` in a header; prints what came back, or how it failed. `trust` is in place of what is trusted.
ASK = """
import ssl, urllib.request
context = ssl.create_default_context(cadata=trust) if trust else ssl.create_default_context()
asked = urllib.request.Request(url, headers={"X-Key": key})
try:
    with urllib.request.urlopen(asked, timeout=60, context=context) as got:
        print(got.read().decode())
except OSError as error:
    print(repr(error))
"""

#: A sandbox: runs code, and gives back what it printed.
Runs = Callable[[str], str]


@pytest.fixture(scope="module")
def daemon(host: Mirrors, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with live_sealed(tmp_path_factory.mktemp("daemon"), host, CONFIG) as daemon:
        yield daemon


def printed(result: leeward.Result) -> str:
    assert Outcome.FINISHED is result.outcome, result
    return result.stdout.decode()


@contextmanager
def job(daemon: LiveDaemon) -> Iterator[Runs]:
    """Each code is a sandbox of its own."""
    with leeward.Client(daemon.socket) as client:
        yield lambda code: printed(client.execute(code, egress="web"))


@contextmanager
def session(daemon: LiveDaemon) -> Iterator[Runs]:
    with leeward.Client(daemon.socket) as client, client.session(egress="web") as made:
        yield lambda code: printed(made.execute(code))


@contextmanager
def live(daemon: LiveDaemon) -> Iterator[Runs]:
    with leeward.Sandbox(socket=daemon.socket, egress="web") as box:
        yield lambda code: printed(box.execute(code))


@contextmanager
def kernel(daemon: LiveDaemon) -> Iterator[Runs]:
    with leeward.Sandbox(socket=daemon.socket, egress="web") as box:
        made = box.kernel()
        yield lambda code: printed(made.execute(code))


@contextmanager
def program(daemon: LiveDaemon) -> Iterator[Runs]:
    with leeward.Sandbox(socket=daemon.socket, egress="web") as box:
        yield lambda code: box.run(["python3", "-c", code]).stdout.decode()


KINDS = pytest.mark.parametrize("kind", [job, session, live, kernel, program])


def own(run: Runs) -> tuple[str, str]:
    placeholder, certificate = json.loads(run(OWN))
    return placeholder, certificate


def ask(run: Runs, url: str, key: str, trust: str = "") -> str:
    return run(f"url, key, trust = {url!r}, {key!r}, {trust!r}\n{ASK}")


@pytest.mark.smoke
@BROKER
@KINDS
def test_c371_cannot_use_the_placeholder_of_another_sandbox(
        daemon: LiveDaemon, host: Mirrors, kind: Callable[[LiveDaemon], Iterator[Runs]]) -> None:
    """In a header, the query and the body of requests to the secret's host, while the other one lives and afterwards."""
    url = f"https://api.example.org:{host.tls}/"
    # A job's own is in its own code: what it prints is of one that is over.
    mine = f"import os\nkey = os.environ['{NAME}']\nurl = {url!r} + '?' + key\ntrust = ''\n"
    with live(daemon) as other, kind(daemon) as run:
        foreign, _ = own(other)
        with control():
            said = run(mine + ASK)
            assert 2 == host.last().count("sk-live-0123456789"), said
            assert "sk-live" not in said
        said = ask(run, f"{url}?{foreign}", foreign)
        assert 2 == host.last().count(foreign), said
        assert "sk-live" not in host.last()
    with kind(daemon) as run:
        ended, _ = own(run)
    with kind(daemon) as run:
        for past in (foreign, ended):
            ask(run, f"{url}?{past}", past)
            assert 2 == host.last().count(past)
            assert "sk-live" not in host.last()
        with control():
            run(mine + ASK)
            assert 2 == host.last().count("sk-live-0123456789")


@BROKER
@KINDS
def test_c372_cannot_be_believed_by_the_authority_of_another_sandbox(
        daemon: LiveDaemon, host: Mirrors, kind: Callable[[LiveDaemon], Iterator[Runs]]) -> None:
    """
    What trusts another sandbox's authority, one that lives or the worker's last one, trusts nothing that the broker
    says here; and the own one is in no other's file.
    """
    url = f"https://api.example.org:{host.tls}/"
    with kind(daemon) as run:
        _, ended = own(run)
    with live(daemon) as other, kind(daemon) as run:
        _, living = own(other)
        file = "open(__import__('os').environ['SSL_CERT_FILE'])"
        last = f"{file}.read().rpartition('-----BEGIN CERTIFICATE-----')"
        with control():
            said = run(f"url, key, last = {url!r}, 'x', {last}\ntrust = last[1] + last[2]\n{ASK}")
            assert "GET /\n" in said, said
        for foreign in (ended, living):
            assert "CERTIFICATE_VERIFY_FAILED" in ask(run, url, "x", foreign)
            assert "False" == run(f"print({foreign!r}.strip() in {file}.read())").strip()


#: Tries to change the file at `path`; prints the ways that there are.
CHANGE = """
import json, os
def by_descriptor():
    fd = os.open(path, os.O_RDONLY)
    try:
        os.close(os.open(f"/proc/self/fd/{fd}", os.O_WRONLY))
    finally:
        os.close(fd)
ways = {"written": lambda: open(path, "r+").close(), "cut": lambda: os.truncate(path, 0),
        "allowed": lambda: os.chmod(path, 0o666), "by a descriptor": by_descriptor,
        "replaced": lambda: os.rename(path, path + ".old")}
done = []
for name, way in ways.items():
    try:
        way()
        done.append(name)
    except OSError:
        continue
print(json.dumps(done))
"""


@pytest.mark.no_single_lock("the file is on a mount that is read-only, and no rule of Landlock allows writing it")
def test_c373_cannot_plant_an_authority_for_the_next_job(daemon: LiveDaemon, tmp_path: Path) -> None:
    """The file belongs to the job's user, and is the worker's: the next job reads it."""
    file = tmp_path / "certificates.pem"
    file.touch()
    with control():
        assert 5 == len(json.loads(run_outside(f"path = {str(file)!r}\n{CHANGE}")))

    read = "import os\npath = os.path.realpath(os.environ['SSL_CERT_FILE'])\n"
    with job(daemon) as run:
        before = run(f"{read}print(open(path).read())")
        assert [] == json.loads(run(read + CHANGE))
        after = run(f"{read}print(open(path).read())")
    begins = "-----BEGIN CERTIFICATE-----"
    assert before != after
    assert before.rpartition(begins)[0] == after.rpartition(begins)[0]


@BROKER
def test_c374_cannot_have_its_client_fetch_with_the_placeholder_of_another(daemon: LiveDaemon, host: Mirrors) -> None:
    """`fetch` puts values in place of the sandbox's own placeholders alone."""
    url = f"https://api.example.org:{host.tls}/"
    with (leeward.Sandbox(socket=daemon.socket, egress="web") as box,
          leeward.Sandbox(socket=daemon.socket, egress="web") as other):
        mine, foreign = (each.run(["sh", "-c", f'printf %s "${NAME}"']).stdout_text for each in (box, other))
        with control():
            box.fetch(url, "POST", {"X-Key": mine}, mine)
            assert 2 == host.last().count(VALUE)
        assert box.fetch(url, "POST", {"X-Key": foreign}, foreign).text.count(foreign) == 2
        assert "sk-live" not in host.last()
