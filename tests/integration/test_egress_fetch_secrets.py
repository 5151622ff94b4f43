"""Secrets in `fetch`, and hosts with certificates of the policy's authorities, through a real daemon."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import leeward
from kit.egress_secrets import NAME, VALUE, Mirrors, live_sealed, mirrors
from kit.live_daemon import LiveDaemon
from leeward.daemon.worker.idmaps import STRIDE, WORKER_UID_BASE

SERVERS = mirrors
CONFIG = """\
pool_size = 1
[egress.web]
allow = ["*.example.org:{tls}", "*.example.org:{http}"]
addresses = ["127.0.0.1/32"]
authorities = "{authorities}"
secrets = {secrets}
[egress.known]
allow = ["*.example.org:{tls}"]
addresses = ["127.0.0.1/32"]
authorities = "{authorities}"
[egress.unknown]
allow = ["*.example.org:{tls}"]
addresses = ["127.0.0.1/32"]
"""


@pytest.fixture(scope="module")
def daemon(host: Mirrors, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with live_sealed(tmp_path_factory.mktemp("daemon"), host, CONFIG) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def box(daemon: LiveDaemon) -> Iterator[leeward.Sandbox]:
    with leeward.Sandbox(socket=daemon.socket, egress="web") as made:
        yield made


@pytest.fixture(scope="module")
def placeholder(box: leeward.Sandbox) -> str:
    return box.run(["sh", "-c", f'printf %s "${NAME}"']).stdout_text


def test_a_host_gets_the_value_and_the_client_the_placeholder(box: leeward.Sandbox, host: Mirrors,
                                                              placeholder: str) -> None:
    """In the head, the query and the body; and what the host gives back has the placeholder again."""
    url = f"https://api.example.org:{host.tls}/pieces?key={placeholder}"
    got = box.fetch(url, "POST", {"Authorization": f"Bearer {placeholder}"}, f"key={placeholder}")

    said = host.last().lower()
    assert f"authorization: bearer {VALUE}\n".lower() in said
    assert "post /pieces?key=sk-live-0123456789%2b%2f%3dabcdef\n" in said
    assert said.endswith(f"key={VALUE}")
    assert VALUE not in got.text
    assert (url, f"Bearer {placeholder}") == (got.url, got.header("x-given"))
    assert got.text.endswith(f"key={placeholder}")


def test_the_secret_reaches_no_other_host(box: leeward.Sandbox, host: Mirrors, placeholder: str) -> None:
    """Another host, the same one without TLS, and one behind a redirect."""
    fields = {"Authorization": f"Bearer {placeholder}", "User-Agent": placeholder}
    for url in (f"https://other.example.org:{host.tls}/?{placeholder}", f"http://api.example.org:{host.http}/",
                f"https://api.example.org:{host.tls}/away/other.example.org:{host.tls}/"):
        before = len(host.said)
        assert box.fetch(url, "GET", fields).ok
        assert VALUE not in host.last()
        assert (VALUE in host.said[before].decode()) == ("/away/" in url)


def test_a_response_that_cannot_be_searched_is_refused(box: leeward.Sandbox, host: Mirrors) -> None:
    with pytest.raises(leeward.FetchFailed, match=r"^HTTP error: .*the response is compressed"):
        box.fetch(f"https://api.example.org:{host.tls}/compressed")


def test_fetches_that_take_less_keep_the_secrets(daemon: LiveDaemon, host: Mirrors) -> None:
    short = {"allowed_domains": ["api.example.org"], "deny_private_ips": False}
    with leeward.Sandbox(socket=daemon.socket, egress="web", fetch_policy=short) as box:
        placeholder = box.run(["sh", "-c", f'printf %s "${NAME}"']).stdout_text
        assert box.fetch(f"https://api.example.org:{host.tls}/", "GET", {"X-Key": placeholder}).ok
        assert VALUE in host.last()


def test_the_policys_authorities_verify_hosts(daemon: LiveDaemon, host: Mirrors) -> None:
    """Without them nobody knows that certificate."""
    with leeward.Sandbox(socket=daemon.socket, egress="known") as box:
        assert box.fetch(f"https://api.example.org:{host.tls}/").ok
    with leeward.Sandbox(socket=daemon.socket, egress="unknown") as box, pytest.raises(
            leeward.FetchFailed, match=r"^HTTP error: .*TLS: the host's certificate"):
        box.fetch(f"https://api.example.org:{host.tls}/")


def _holds(pid: int, text: bytes) -> bool:
    """Is *text* in the writable memory of a process?"""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            place, rights, *_ = line.split()
            first, last = (int(end, 16) for end in place.split("-"))
            if not rights.startswith("rw"):
                continue
            try:
                memory.seek(first)
                found = memory.read(last - first)
            except (OSError, ValueError):  # [vvar] and its like
                continue
            if text in found:
                return True
    return False


def _broker(daemon: int) -> int:
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == daemon and b"egress_names" in (entry / "cmdline").read_bytes():
                return int(entry.name)
    raise AssertionError("no broker")


def test_a_value_from_a_file_is_in_no_memory_but_the_brokers(host: Mirrors, tmp_path: Path) -> None:
    """Nor in what the daemon says of itself."""
    value = "sk-file-" + secrets.token_hex(16)
    key = tmp_path / "key"
    key.write_text(f"{value}\n")
    code = f"""
import os, urllib.request
asked = urllib.request.Request("https://api.example.org:{host.tls}/", headers={{"X-Key": os.environ["{NAME}"]}})
print(urllib.request.urlopen(asked, timeout=60).read().decode())
"""
    with live_sealed(tmp_path, host, CONFIG, f"file:{key}") as daemon, daemon.client() as client:
        got = client.execute(code, egress="web", timeout=120)
        assert value in host.last(), got
        said = repr(client.status()) + repr(daemon.log) + repr(got)
        if 0 == os.geteuid():  # nobody else may look into the broker
            assert _holds(_broker(daemon.process.pid), value.encode())
            assert not _holds(daemon.process.pid, value.encode())
    assert "sk-file-" not in said


def test_the_broker_has_no_privilege_and_leaves_no_core(daemon: LiveDaemon, box: leeward.Sandbox,
                                                        host: Mirrors) -> None:
    """As the kernel tells of it; its daemon's own user can't look into it either."""
    assert box.fetch(f"https://api.example.org:{host.tls}/").ok  # its locks come before anything that it does
    pid = _broker(daemon.process.pid)
    rows = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    assert {"0" * 16} == {rows[name].strip() for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")}
    assert ("1", "2") == (rows["NoNewPrivs"], rows["Seccomp"])
    core = next(line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if line.startswith("Max core"))
    assert ["0", "0"] == core.split()[4:6]
    if 0 == os.geteuid():
        assert "0" * 16 == rows["CapBnd"]
        (user,) = {*rows["Uid"].split(), *rows["Gid"].split()}
        assert 0 == (int(user) + 1 - WORKER_UID_BASE) % STRIDE  # the one before the ids of its daemon's workers
        assert not rows["Groups"].strip()
    else:
        with pytest.raises(PermissionError):
            _holds(pid, b"")
