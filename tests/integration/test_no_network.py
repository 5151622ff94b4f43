"""A sandbox without a network, as programs and their users see it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kit.live_daemon import LiveDaemon, environment
from kit.skip_policy import require

HINT = b"leeward: the job asked for the network, and there is none in the sandbox"

NAMES = """
import socket, urllib.error, urllib.request
for call in (lambda: socket.getaddrinfo("example.com", 80), lambda: socket.gethostbyname("example.com"),
             lambda: socket.create_connection(("example.com", 80), 2)):
    try:
        call()
    except socket.gaierror as error:
        print(type(error).__name__)
try:
    urllib.request.urlopen("http://example.com", timeout=2)
except urllib.error.URLError as error:
    print(type(error.reason).__name__)
print(socket.gethostbyname("localhost"))
"""

DAEMON = ("--pool-size", "2")


@pytest.mark.smoke
def test_a_name_cant_be_resolved(daemon: LiveDaemon) -> None:
    """The error is the one that programs know, and the result counts what was asked for."""
    with daemon.client() as client:
        result = client.execute(NAMES)

    assert "gaierror\n" * 4 + "127.0.0.1\n" == result.text
    assert result.duration < 20  # no time-out of glibc's comes before it: 10 s for each of the four
    assert result.denied["network"] == result.denied["socket"] > 0


def test_an_address_cant_be_reached(daemon: LiveDaemon) -> None:
    """An OSError; a Unix socket is no network."""
    program = "import socket\nsocket.socket(socket.AF_UNIX)\nsocket.socketpair()\n{}"
    with daemon.client() as client:
        refused = client.execute(program.format("socket.create_connection(('192.0.2.1', 80), 2)"))
        control = client.execute(program.format(""))
        with client.session() as session:
            in_session = session.execute(program.format("socket.socket()"))

    assert refused.error is not None
    assert "PermissionError" == refused.error.type
    assert {"socket": 1, "network": 1} == dict(refused.denied) == dict(in_session.denied)
    assert {} == dict(control.denied)


def commands(daemon: LiveDaemon, c_build: Path | None, *argv: str) -> bytes:
    program = [str(c_build / "leeward")] if c_build else None
    if program is None:
        return daemon.run(*argv).stderr
    return subprocess.run([*program, *argv], env=environment(daemon.socket), capture_output=True, timeout=120,
                          check=False, stdin=subprocess.DEVNULL).stderr


@pytest.mark.parametrize("which", ["python", "c"])
def test_the_command_line_says_it_in_a_line(daemon: LiveDaemon, which: str, request: pytest.FixtureRequest) -> None:
    """Of its own, after the job's; not of a job that came to terms with it."""
    if "c" == which:
        require("compiler")
    c_build = request.getfixturevalue("c_build") if "c" == which else None
    failing = "import socket; socket.create_connection(('example.com', 80))"

    said = commands(daemon, c_build, "exec", failing).splitlines()
    assert said[-1].startswith(HINT)
    assert b"gaierror" in said[-2]
    assert 1 == sum(line.startswith(b"leeward: ") for line in said)
    assert b"leeward: " not in commands(daemon, c_build, "exec", f"try:\n    {failing}\nexcept OSError: pass")
    assert b"leeward: " not in commands(daemon, c_build, "exec", "1/0")
