"""`leeward egress test`: which rule decides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kit.configured import written
from leeward_cli.full import app, cli

POLICY = """\
[egress.build]
allow = ["example.org", "10.1.0.0/16:5432", "GET https://api.example.org/v1/*", "http://plain.example.org"]
deny = ["*.example.net"]
ask = ["ask.org"]
"""

UNSEEN = ("protocol not allowed: tls to api.example.org:443, the rule 'GET https://api.example.org/v1/*' is for"
          ' requests that can be seen; allow = ["api.example.org:443"] would allow it')
OTHERS = "method not allowed: POST api.example.org:443, the rule 'GET https://api.example.org/v1/*' is for others"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A configuration with a policy, and no other that this user has."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return str(written(tmp_path / "leeward.toml", POLICY))


def said(config: str, *arguments: str) -> tuple[int, str]:
    """Exit status and output."""
    result = CliRunner().invoke(cli, ["egress", "test", "--policy", "build", "--config", config, *arguments],
                                standalone_mode=False)
    assert not isinstance(result.exception, SystemExit)
    if result.exception is not None:
        raise result.exception
    return result.return_value, result.output


@pytest.mark.parametrize(("arguments", "status", "line"), [
    (["https://Example.org/a"], 0,
     "allow  https://example.org/a by 'example.org': to public addresses, and those that the policy names"),
    (["--address", "1.1.1.1", "https://example.org"], 0, "allow  https://example.org/ by 'example.org'"),
    (["--address", "127.1", "https://example.org"], 1,
     "deny   https://example.org/: private IP blocked: example.org leads to 127.0.0.1, loopback (127.0.0.0/8)"),
    (["tcp://10.1.2.3:5432"], 0, "allow  tcp://10.1.2.3:5432/ by '10.1.0.0/16:5432'"),
    (["http://evil.org"], 1,
     'deny   http://evil.org/: domain not in allowlist: evil.org:80; allow = ["evil.org:80"] would allow it'),
    (["http://a.example.net"], 1,
     "deny   http://a.example.net/: domain is blocked: a.example.net:80, by the rule '*.example.net'"),
    (["https://ask.org"], 1, "ask    https://ask.org/: ask.org waits for approval"),
    (["https://api.example.org/v1/x"], 1, f"deny   https://api.example.org/v1/x: {UNSEEN}"),
    (["--fetch", "--address", "1.1.1.1", "https://api.example.org/v1/x"], 0,
     "allow  https://api.example.org/v1/x by 'GET https://api.example.org/v1/*'"),
    (["--fetch", "--method", "post", "https://api.example.org/v1/x"], 1,
     f"deny   https://api.example.org/v1/x: {OTHERS}"),
])
def test_check_names_the_deciding_rule(config: str, arguments: list[str], status: int, line: str) -> None:
    """A line for each URL; the exit status says whether all are allowed."""
    assert (status, line + "\n") == said(config, *arguments)


def test_several_as_json(config: str) -> None:
    """An object a line."""
    status, output = said(config, "--json", "http://plain.example.org/x", "tcp://plain.example.org:22")

    assert status == 1
    assert [json.loads(line)["verdict"] for line in output.splitlines()] == ["allow", "deny"]
    assert json.loads(output.splitlines()[1])["would"] == "plain.example.org:22"


@pytest.mark.parametrize(("arguments", "reason"), [
    (["example.org"], "no scheme and host"), (["ftp://example.org:21/"], "the scheme must be"),
    (["--address", "example.org", "http://example.org"], "is not an address"),
    (["--fetch", "tcp://example.org:22"], "must be http or https"),
    (["--policy", "other", "http://example.org"], "there is no policy 'other'"),
])
def test_a_malformed_question_is_an_error(config: str, arguments: list[str], reason: str,
                                          capfd: pytest.CaptureFixture[str]) -> None:
    """No URL, no address, no such policy."""
    status = app(["egress", "test", "--policy", "build", "--config", config, *arguments])

    assert status == 1
    assert reason in capfd.readouterr().err
