"""`leeward bug-report`: what is in the file, and what isn't."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from kit.live_daemon import LiveDaemon, command, environment
from leeward_cli import bug_report
from leeward_cli.bug_report import hidden

CONFIG = """\
pool_size = 1
environments_index = "https://me:s3cret@s3cret-login@index.example/s3cret-path/simple"
[profiles.build]
variables = { TOKEN = "s3cret-variable" }
[egress.api]
allow = ["api.example:443", "POST https://hooks.example/s3cret-hook"]
secrets = { KEY = { from = "command:echo s3cret-command", hosts = ["api.example:443"], in = ["header"] } }
"""


def test_the_report_has_what_a_fault_needs_and_no_secret(tmp_path: Path) -> None:
    file = tmp_path / ".config/leeward/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(CONFIG)
    file.chmod(0o600)
    own = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": "", "LEEWARD_TOKEN": "s3cret-token"}
    with LiveDaemon(tmp_path, "--pool-size", "1") as daemon:
        daemon.run("exec", "--label", "s3cret-label", "--timeout", "1", "print('s3cret-output')\nwhile True: pass")
        done, again = (subprocess.run(command("bug-report", "r.json"), env=environment(daemon.socket, **own), cwd=tmp_path,
                                      stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
                       for _ in range(2))
    text = (tmp_path / "r.json").read_text()
    found = json.loads(text)

    assert b"r.json: " in done.stdout, done.stderr
    assert 0o600 == (tmp_path / "r.json").stat().st_mode & 0o777
    assert 1 == again.returncode
    assert b"leeward: r.json is there already; name another FILE, or - for standard output\n" == again.stderr
    assert {"versions", "variables", "doctor", "configuration", "daemon", "ends"} == set(found)
    assert "LEEWARD_TOKEN" in found["variables"]
    assert "kernel" == found["doctor"]["features"][0]["name"]
    assert 'environments_index = "https://...@index.example/..."' in found["configuration"]
    assert ["timed_out"] == [row["outcome"] for row in found["ends"]]
    assert "pool" in str(found["daemon"])
    assert "s3cret" not in text


@pytest.mark.parametrize("away", [{}, {"LEEWARD_HOST": "https://me:s3cret@lw.example/s3cret?key=s3cret"},
                                  {"LEEWARD_HOST": "https://127.0.0.1:9", "LEEWARD_TOKEN": "s3cret"}])
def test_without_a_daemon_the_rest_is_there(tmp_path: Path, away: dict[str, str]) -> None:
    """Also where the variable that names it is wrong."""
    done = subprocess.run(command("bug-report", "-"), env=environment(tmp_path / "none.sock", **away),
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)
    found = json.loads(done.stdout)

    assert "error" in found["daemon"]
    assert found["doctor"]["features"]
    assert b"s3cret" not in done.stdout


@pytest.mark.parametrize(("line", "shown"), [
    ('secrets = {"A" = {"from" = "env:A"}}', 'secrets = "hidden"'), ("variables = {}", "variables = {}"),
    ('mirror = "http://u:p@h/"', 'mirror = "http://...@h/..."'), ('a = "ftp://h"', 'a = "ftp://h"'),
    ('a = ["https://u:p/q@r s@h?key=p", "GET https://h/hook"]', 'a = ["https://...", "GET https://h/..."]'),
    ('a = ["https://h/a@p", "https://u:p", "https://h\\p@h", "https://u:p h@h"]',
     'a = ["https://...", "https://...", "https://...", "https://..."]'),
    ('a = ["https://*.h:8443", "https://u@[fd6c::1]:80#p"]', 'a = ["https://*.h:8443", "https://...@[fd6c::1]:80/..."]'),
    ("pool_size = 1", "pool_size = 1"), (r'a = "https://h/\"s3cret"', 'a = "https://h/..."'),
])
def test_what_is_hidden_of_a_configuration(line: str, shown: str) -> None:
    assert shown == hidden(line)


@pytest.mark.parametrize(("text", "place"), [
    ('[profiles.a]\nvariables = { KEY = "s3cret", N = 5 }', "profiles.a.variables: must be a table of text"),
    ('[profiles.a]\nvariables = { KEY = "s3cret"', "Unclosed inline table (at "),
    ('[egress.a]\nsecrets = { KEY = { from = "s3cret", hosts = ["a:1"] } }', "egress.a.secrets.KEY.from: "),
    ('metrics = "s3cret"', "metrics: ")])
def test_a_configuration_that_is_wrong_is_told_by_its_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str,
                                                            place: str) -> None:
    """The error that the daemon gives has what is there, which may be what nobody else is to know."""
    file = tmp_path / ".config/leeward/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    file.chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    told = bug_report._configuration()["error"]
    assert place in told
    assert str(file) in told
    assert "s3cret" not in told
