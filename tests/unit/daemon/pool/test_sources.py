"""Where secrets come from: what the broker can read, from each kind of source."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kit.reference_reactor import ReferenceReactor
from leeward.daemon.pool import seals, ways_out
from leeward.daemon.pool.ways_out import OpenSeal
from leeward.errors import BadRequest
from leeward.spec.egress_policy import Secret, parse_policy
from leeward.spec.egress_tls import Seal
from leeward.spec.sandbox import TRUST, TRUST_JAVA, Bind, SandboxSpec, Scratch, Symlink, Text, View, has_trust

SEAL = Seal("", b"", b"", ("KEY",))


class Log:
    details = False

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def warning(self, event: str, /, **fields: object) -> None:
        self.lines.append((event, fields))

    debug = info = warning


def told(source: str, log: Log, until: int = 0) -> bytes:
    """What a broker would read of this source; and so many lines of the log waited for."""
    reactor = ReferenceReactor()
    try:
        made = OpenSeal(reactor, log, SEAL, (Secret("KEY", ("a.org",), source),))
        with made.opened() as fds:
            out = os.dup(fds[0])
        reactor.run(lambda: len(log.lines) >= until and not reactor._callbacks)
        os.set_blocking(out, True)
        with open(out, "rb") as file:
            return file.read()
    finally:
        reactor.close()


def test_a_value_comes_with_its_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("sk-live-0123\n")
    monkeypatch.setenv("A_KEY", "sk-live-0123")
    for source in (f"file:{tmp_path}/key", "env:A_KEY", "command:echo $A_KEY", "command:echo sk-live-0123; true"):
        log = Log()
        assert b"sk-live-0123" == told(source, log).rstrip(b"\n\0")
        assert told(source, log).endswith(b"\0")
        assert not log.lines


@pytest.mark.parametrize(("source", "lines"), [
    ("env:NO_SUCH_KEY", 0), ("file:/no/such/file", 1), ("file:/dev/zero", 0), ("command:echo sk-live-0123; exit 3", 1),
    ("command:no-such-program", 1)])
def test_a_failed_source_is_logged_without_its_value(source: str, lines: int) -> None:
    log = Log()
    assert not told(source, log, lines).endswith(b"\0")
    assert lines == len(log.lines)
    assert "live" not in repr(log.lines)


def test_a_command_that_takes_too_long_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways_out, "COMMAND_S", 0.05)
    log = Log()

    assert b"" == told("command:sleep 3600", log, 2)
    assert ["took too long", "has failed"] == [line.partition("secret ")[2] for line, _ in log.lines]


@pytest.mark.parametrize(("table", "why"), [
    ({"secrets": {"KEY": {"hosts": ["a.org"], "from": "env:NO_SUCH_KEY"}}}, "KEY can't be had: .*no variable"),
    ({"secrets": {"KEY": {"hosts": ["a.org"], "from": "file:/no/such"}}}, "KEY can't be had: .*No such file"),
    ({"methods": ["GET"], "authorities": "/no/such"}, "authorities, '/no/such': No such file"),
    ({"methods": ["GET"], "authorities": "/etc/passwd"}, "authorities, '/etc/passwd': "),
])
def test_a_pool_is_refused_whose_files_are_not_there(table: dict[str, Any], why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        seals.make(parse_policy(table))


def test_no_authority_where_no_tls_is_ended() -> None:
    assert seals.make(parse_policy({"allow": ["*"]})) is None


def test_a_sandbox_has_one_file_of_certificates_which_is_its_own() -> None:
    """The zygote, which imports modules before there is a sandbox, has the host's in its place."""
    seal = Seal("/etc/passwd", b"certificates", b"", ("KEY",))
    view = View((Bind("/etc/ssl/certs", "/etc/ssl/certs"), Bind("/usr", "/usr")), (Text("/etc/hosts", b""),), (),
                Scratch(()))
    spec = seals.trusting(SandboxSpec("python", view, "/usr/bin/python3", (), environment=(("A", "1"),)), seal)

    assert ["/usr"] == [bind.target for bind in spec.view.binds]
    assert {Text(TRUST, b""), Text(TRUST_JAVA, b"")} <= set(spec.view.texts)
    assert Symlink("/etc/ssl/cert.pem", TRUST) in spec.view.links
    variables = dict(spec.environment)
    assert (TRUST, "1") == (variables["SSL_CERT_FILE"], variables["A"])
    assert {TRUST} == {variables[name] for name in ("REQUESTS_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS",
                                                    "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO")}
    behind = seals.backstage(spec.view, seal)
    assert Bind("/etc/passwd", TRUST, file=True) in behind.binds
    assert has_trust(spec.view)
    assert not has_trust(behind)
    assert spec.view == seals.backstage(spec.view, Seal("", b"", b"", ()))


def test_leases_share_no_placeholder_or_certificate() -> None:
    one, other = seals.make_for_lease(2), seals.make_for_lease(2)

    assert 4 == len({*one.placeholders, *other.placeholders})
    assert len("leeward-") + 32 == len(one.placeholders[0])
    assert one.certificate != other.certificate
    assert one.key != other.key
    assert b"PRIVATE" not in one.certificate
