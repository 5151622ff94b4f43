"""`leeward daemon run` without click: its options, and what it does with them."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from leeward.daemon import early
from leeward.daemon import main as daemon
from leeward.daemon.config import Config
from leeward.errors import LIMITS, BadRequest
from leeward_cli import daemon as starting
from leeward_cli import main, options
from leeward_cli.daemon import configuration
from leeward_cli.full import cli
from leeward_cli.options import OPTIONS, Option, UsageError, parse


def examples(option: Option) -> list[list[str]]:
    if option.kind is options.flag:
        return [[option.name], *([[f"--no-{option.name[2:]}"]] if option.off else [])]
    values = (["7"] if option.kind is options.number else ["landlock"] if option.kind is options.layer else
              option.kind if isinstance(option.kind, tuple) else ["a b", "/x=y"])
    return [words for value in values for words in ([option.name, value], [f"{option.name}={value}"])]


@pytest.mark.parametrize("argv", [[], *(argv for option in OPTIONS["daemon run"] for argv in examples(option)), ["-s", "s"]],
                         ids=" ".join)
def test_every_option_is_taken(argv: list[str]) -> None:
    """In each way to write it; the others are as if they weren't there."""
    name, _, value = (argv or [""])[0].removeprefix("--no-").lstrip("-").partition("=")
    name = {"config": "config_file", "s": "socket"}.get(name, name.replace("-", "_"))
    wanted: Any = value or (argv[1] if argv[1:] else "--no-" not in "".join(argv))
    if name in ("pool_size", "max_jobs", "spares", "idle_exit", "ready_fd"):
        wanted = int(wanted)
    found = parse("daemon run", argv).parameters()

    assert {name: (wanted,) if "allow_degraded" == name else wanted} == {
        key: value for key, value in found.items() if value not in (None, ())} if argv else not any(found.values())


def test_the_last_one_counts() -> None:
    """So what a script gives can be replaced by what its user adds."""
    found = parse("daemon run", ["--pool-size=1", "--pool-size=2", "--no-fast-path", "--fast-path",
                                 "--allow-degraded=landlock", "--allow-degraded", "landlock"])

    assert 2 == found.value("--pool-size")
    assert True is found.value("--fast-path")
    assert ["landlock", "landlock"] == found.values("--allow-degraded")


@pytest.mark.parametrize("argv", [
    ["--pool"], ["--pool-siz=3"], ["--pool-size"], ["--io", "--log-json"],
    ["--pool-size=-1"], ["--pool-size=x"], ["--pool-size="], ["--io=epoll"], ["--io="], ["--log-json=yes"],
    ["--no-fast-path=no"], ["--no-log-json"], ["--no-io"], ["word"], ["-"], [""], ["--allow-degraded=seccomp"],
    ["--allow-degraded=cgroup"], ["--pool-size=\u0663"], ["--", "word"], ["--now"],
], ids=" ".join)
@pytest.mark.parametrize("command", ["run", "start"])
def test_mistakes_are_refused(command: str, argv: list[str]) -> None:
    """Where click only shows the error as well."""
    with pytest.raises(UsageError) as caught:
        parse(f"daemon {command}", argv)

    done = CliRunner().invoke(cli, ["daemon", command, *argv])
    assert 2 == done.exit_code
    assert f"Usage: leeward daemon {command} [OPTIONS]\n" in done.output
    assert str(caught.value) in done.output


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_is_clicks(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main.main(["daemon", "run", word])
    assert "--fast-path / --no-fast-path" in capsys.readouterr().out


def test_a_mistake_ends_with_the_usage(capfd: pytest.CaptureFixture[str]) -> None:
    assert 2 == main.main(["daemon", "run", "--pool-siz=3"])
    assert ("leeward: daemon run has no option '--pool-siz'; did you mean --pool-size?\n"
            "leeward: usage: leeward daemon run [OPTIONS]\n") == capfd.readouterr().err


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
    return configuration(**parse("daemon start", argv).parameters())


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
    monkeypatch.setattr(starting, "detach", lambda fd, path: detached.append((fd, path)))
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
    (OSError(errno.EMFILE, "Too many open files"), f"leeward: {LIMITS[errno.EMFILE]}\n")], ids=["ours", "host"])
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
    heavy = ("click", "asyncio", "ssl", "ctypes", "logging", "dataclasses", "inspect", "leeward.apps.host", "leeward.client")
    early = (*heavy, "structlog", "leeward.daemon.main")
    program = ("import sys; from leeward_cli.daemon import configuration, parse; import leeward.daemon.early;"
               f"configuration(**parse('daemon start', ['--socket={tmp_path}/s']).parameters());"
               f"print([name for name in {early} if name in sys.modules]);"
               "import structlog; library = set(sys.modules); import leeward.daemon.main;"
               f"print([name for name in {heavy} if name in set(sys.modules) - library])")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert "[]\n[]\n" == done.stdout
