"""`leeward daemon run` without click: what it takes means what it means to click; click has all the rest."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leeward.daemon import early
from leeward.daemon import main as daemon
from leeward.daemon.config import Config
from leeward.errors import BadRequest
from leeward_cli import daemon_commands, detach, main
from leeward_cli.daemon import OPTIONS, Option, configuration, parse_run

RUN: Any = daemon_commands.daemon.commands["run"]


def by_click(argv: list[str]) -> dict[str, Any]:
    """The parameters that click finds, but for the one that this way doesn't know."""
    found: dict[str, Any] = dict(RUN.make_context("run", list(argv)).params)
    assert not found.pop("print_config")
    return found


def examples(option: Option) -> list[list[str]]:
    if bool is option.kind:
        return [[option.name], *([[f"--no-{option.name[2:]}"]] if option.off else [])]
    values = ["7"] if int is option.kind else list(option.kind) if isinstance(option.kind, tuple) else ["a b", "/x=y"]
    return [words for value in values for words in ([option.name, value], [f"{option.name}={value}"])]


@pytest.mark.parametrize("argv", [
    [], *(argv for option in OPTIONS for argv in examples(option)), ["--ready-fd=3"],
    ["--allow-degraded=landlock", "--allow-degraded", "landlock"], ["--pool-size=1", "--pool-size=2"],
    ["--no-fast-path", "--fast-path"], ["--socket=", "--spares=0", "--log-json", "--no-rehearse"],
], ids=" ".join)
def test_every_option_is_parsed_as_click_parses_it(argv: list[str]) -> None:
    """In each way to write it."""
    assert by_click(argv) == parse_run(argv)


@pytest.mark.parametrize("argv", [
    ["--help"], ["-h"], ["--print-config"], ["--pool"], ["--pool-siz=3"], ["--pool-size"], ["--io", "--log-json"],
    ["--pool-size=-1"], ["--pool-size=x"], ["--pool-size="], ["--io=epoll"], ["--io="], ["--log-json=yes"],
    ["--no-fast-path=no"], ["--no-log-json"], ["--no-io"], ["word"], ["--"], ["-"], [""], ["--allow-degraded=seccomp"],
    ["--allow-degraded=cgroup"],    ["--pool-size=\u0663"],
], ids=" ".join)
def test_the_rest_is_clicks(argv: list[str]) -> None:
    """Help, and whatever is to be complained of."""
    assert parse_run(argv) is None


def test_the_command_line_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a file that it names; a socket is where it was when the command was given."""
    file = tmp_path / "c.toml"
    file.write_text("pool_size = 5\nqueue_size = 6\nlog_level = 'debug'\n")
    file.chmod(0o600)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = told(f"--config={file}", "--pool-size=7", "--socket=here", "--allow-degraded=landlock",
                 "--allow-degraded=landlock", "--no-fast-path", "--io=socket", "--spares=0")

    assert (7, 6, "debug", str(tmp_path / "here"), ("landlock",), False, "socket", 0) == (
        found.pool_size, found.queue_size, found.log_level, found.socket, found.allow_degraded, found.fast_path,
        found.io, found.spares)


def told(*argv: str) -> Config:
    options = parse_run(argv)
    assert options is not None
    options.pop("ready_fd")
    return configuration(**options)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What a daemon was made of, in place of one."""
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(early, "start", lambda settings: ("bootstrap", settings))
    monkeypatch.setattr(daemon, "run", lambda config, ready, load, bootstrap: made.append((
        config, ready, load, bootstrap)))
    return made


def test_a_daemon_has_the_given_options(served: list[tuple[Any, ...]], tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it reads its configuration again; and it reports that it is ready, if a process waits for that."""
    detached: list[tuple[int, str]] = []
    monkeypatch.setattr(detach, "detach", lambda fd, path: detached.append((fd, path)))
    words = [f"--socket={tmp_path}/s", "--pool-size=7", "--log-level=debug", "--no-rehearse"]
    assert 0 == main.main(["daemon", "run", *words])
    assert 0 == main.main(["daemon", "run", *words, "--ready-fd=9"])

    for config, ready, load, bootstrap in served:
        assert told(*words) == config == load()
        assert ("bootstrap", early.settings(config)) == bootstrap
        ready()
    assert [(9, f"{tmp_path}/s")] == detached


@pytest.mark.parametrize(("error", "said"), [
    (BadRequest("no such interpreter"), "leeward: no such interpreter\n"),
    (OSError(errno.EMFILE, "Too many open files"), "leeward: [Errno 24] Too many open files\n")], ids=["ours", "host"])
def test_a_daemon_that_cant_begin_says_why(error: Exception, said: str, tmp_path: Path,
                                           served: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch,
                                           capfd: pytest.CaptureFixture[str]) -> None:
    """In a line, and its exit status says that it didn't serve."""
    def fail(_settings: object) -> None:
        raise error

    monkeypatch.setattr(early, "start", fail)

    assert 1 == main.main(["daemon", "run", f"--socket={tmp_path}/s"])
    assert said == capfd.readouterr().err
    assert not served


def test_a_daemon_imports_little(tmp_path: Any) -> None:
    """Nothing that takes long and that neither serving nor structlog needs; before the zygote nothing that can wait."""
    heavy = ("click", "asyncio", "ssl", "ctypes", "logging", "dataclasses", "inspect", "leeward.host", "leeward.client")
    early = (*heavy, "structlog", "leeward.daemon.main")
    program = ("import sys; from leeward_cli.daemon import parse_run, configuration; import leeward.daemon.early;"
               f"configuration(**{{k: v for k, v in parse_run(['--socket={tmp_path}/s']).items() if k != 'ready_fd'}});"
               f"print([name for name in {early} if name in sys.modules]);"
               "import structlog; library = set(sys.modules); import leeward.daemon.main;"
               f"print([name for name in {heavy} if name in set(sys.modules) - library])")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert "[]\n[]\n" == done.stdout
