"""`leeward shell`, `sandbox attach`, `python` and `top` by a person at a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import leeward
from kit.features import ROOT
from kit.live_daemon import PATIENCE, LiveDaemon, command, environment, run
from kit.operator_terminal import OperatorTerminal
from kit.waiting import poll_until

pytestmark = pytest.mark.needs("user-namespaces")


@pytest.fixture(scope="module", params=["uring", "socket"])
def daemon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with LiveDaemon(tmp_path_factory.mktemp("daemon"), "--pool-size", "2", "--io", request.param) as made:
        yield made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def on_terminal(daemon: LiveDaemon, home: Path) -> Callable[..., OperatorTerminal]:
    def start(*argv: str, size: tuple[int, int] = (24, 80), **env: str) -> OperatorTerminal:
        given = environment(daemon.socket, HOME=str(home), XDG_STATE_HOME=str(home), **env)
        return OperatorTerminal(command(*argv), given, size)
    return start


@pytest.fixture
def box(daemon: LiveDaemon) -> Iterator[leeward.Sandbox]:
    with leeward.Sandbox(socket=daemon.socket) as made:
        assert made.id
        yield made
    daemon.idle()


def is_raw(screen: OperatorTerminal) -> bool:
    return screen.usual != screen.modes()


def becomes_raw(screen: OperatorTerminal) -> None:
    poll_until(lambda: is_raw(screen), "a terminal's modes are set without a word")


def _brought_back(screen: OperatorTerminal, shown: str) -> None:
    """
    Type `fg` until the program is back, which *shown* says. Bash now and then loses what is typed right behind a
    Ctrl-Z, on any pseudo-terminal.
    """
    for _ in range(10):
        screen.types("fg\r")
        if screen.shows(shown, 3.0):
            break
    screen.until(shown)


def test_a_shell_of_its_own(daemon: LiveDaemon, on_terminal: Callable[..., OperatorTerminal]) -> None:
    """
    Size and kind of the caller's terminal, a new size, Ctrl-C for the program and not for us, Ctrl-Z and fg; its exit
    status, and the terminal as it was. The sandbox is gone with it.
    """
    with on_terminal("shell", size=(31, 97), TERM="vt100") as screen:
        screen.until(r"\$ ")
        assert is_raw(screen)
        screen.types("stty size; echo $TERM\r")
        screen.until("31 97\r\nvt100\r\n")
        screen.types("sh -c \"trap 'stty size' WINCH; echo wa''its; while :; do sleep 0.05; done\"\r")
        screen.until("waits\r\n")
        screen.resize(40, 120)
        screen.until("40 120\r\n")
        screen.types("\x03")
        screen.until(r"\^C.*\$ ")
        screen.types("sh -c 'echo star\"\"ted; tr a-z A-Z'\r")
        screen.until("started\r\n")
        screen.types("one\r")
        screen.until("ONE\r\n")
        screen.types("\x1a")
        screen.until(r"Stopped.*\$ ")
        _brought_back(screen, "tr a-z A-Z'\r\n")
        screen.types("two\r")
        screen.until("TWO\r\n")
        screen.types("\x03")
        screen.until(r"\^C.*\$ ")
        screen.types("exit 3\r")

        assert 3 == screen.end()
        assert not is_raw(screen)
    daemon.idle()


def test_a_command_in_a_sandbox_that_is_there(box: leeward.Sandbox,
                                              on_terminal: Callable[..., OperatorTerminal]) -> None:
    """By `shell ID` and by `sandbox attach ID`; it stays."""
    box.shell("echo kept > note")
    for words in (("shell",), ("sandbox", "attach")):
        with on_terminal(*words, box.id, "--", "sh", "-c", "test -t 0 && cat note; exit 5") as screen:
            screen.until("kept\r\n")
            assert 5 == screen.end()
            assert not is_raw(screen)
    assert b"kept\n" == box.run(["cat", "note"]).stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_ends_it_and_the_terminal_is_as_before(daemon: LiveDaemon, number: signal.Signals,
                                                        on_terminal: Callable[..., OperatorTerminal]) -> None:
    with on_terminal("shell", "--", "sh", "-c", "echo ready; sleep 1000") as screen:
        screen.until("ready\r\n")
        assert is_raw(screen)
        screen.process.send_signal(number)

        assert -number == screen.end()
        assert not is_raw(screen)
    daemon.idle()


@pytest.mark.parametrize(("words", "end", "status"), [
    (["shell", "--workdir", "PROJECT", "--overlay", "--", "sh", "-c", "rm old; echo new >made; exit 3"], None, 3),
    (["shell", "--mount", "PROJECT:/p:overlay", "--", "sh", "-c", "rm /p/old; echo new >/p/made; echo begun; sleep 60"],
     signal.SIGTERM, -signal.SIGTERM),
    (["python", "--workdir", "PROJECT", "--overlay"], None, 0)])
def test_changes_in_a_copy_are_kept_at_the_end(daemon: LiveDaemon, tmp_path: Path, words: list[str],
                                               end: signal.Signals | None, status: int) -> None:
    """Nobody can decide about them later, since the sandbox ends with the command."""
    project, state = tmp_path / "project", tmp_path / "state"
    project.mkdir()
    (project / "old").touch()
    code = "import os; os.remove('old'); print('new', file=open('made', 'w'), flush=True)"
    with subprocess.Popen(command(*(word.replace("PROJECT", str(project)) for word in words)), stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=environment(daemon.socket, XDG_STATE_HOME=str(state))) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        if end is not None:
            assert "begun\n" == shell.stdout.readline()
            shell.send_signal(end)
        _, said = shell.communicate(code, timeout=PATIENCE)
    assert status == shell.returncode
    folder, = (state / "leeward/agents/kept").iterdir()
    assert f"2 changes are not applied, but kept in {folder}" in said
    assert "new\n" == (folder / "files/made").read_text()
    assert "old\0" == (folder / "deleted").read_text()
    assert ["old"] == [each.name for each in project.iterdir()]


def test_a_copy_without_changes_ends_in_silence(daemon: LiveDaemon, tmp_path: Path) -> None:
    done = run(daemon.socket, "shell", "--workdir", str(tmp_path), "--overlay", "--", "true")
    assert (0, b"") == (done.returncode, done.stderr)


def test_a_shell_can_be_stopped_and_goes_on(on_terminal: Callable[..., OperatorTerminal]) -> None:
    """SIGTSTP from outside: the terminal is as before meanwhile."""
    with on_terminal("shell", "--", "cat") as screen:
        becomes_raw(screen)  # until then the terminal outside echoes, too
        screen.types("one\r")
        screen.until("one\r\none\r\n")
        screen.process.send_signal(signal.SIGTSTP)
        os.waitid(os.P_PID, screen.process.pid, os.WSTOPPED | os.WNOWAIT)
        assert not is_raw(screen)
        screen.process.send_signal(signal.SIGCONT)
        becomes_raw(screen)
        screen.types("two\r")
        screen.until("two\r\ntwo\r\n")
        screen.types("\x04")
        assert 0 == screen.end()


def test_without_its_daemon(tmp_path: Path) -> None:
    """Killed while somebody is on a terminal: a message, and the terminal as it was."""
    with LiveDaemon(tmp_path, "--pool-size", "1") as daemon, \
            OperatorTerminal(command("shell", "--", "sh", "-c", "echo ready; sleep 1000"),
                             environment(daemon.socket)) as screen:
        screen.until("ready\r\n")
        daemon.process.kill()

        assert 1 == screen.end()
        assert not is_raw(screen)
        assert "leeward: " in screen.all


def test_a_sandbox_that_ends_meanwhile(box: leeward.Sandbox, on_terminal: Callable[..., OperatorTerminal]) -> None:
    with on_terminal("shell", box.id, "--", "sh", "-c", "echo ready; sleep 1000") as screen:
        screen.until("ready\r\n")
        box.kill()

        assert 1 == screen.end()
        assert not is_raw(screen)
        assert "killed" in screen.all


def test_c189_output_on_pipes_is_escaped(daemon: LiveDaemon, on_terminal: Callable[..., OperatorTerminal]) -> None:
    """Output on a terminal of a program that has none, unless it is asked for; a character that came in two pieces, too."""
    line = r"printf '\342\200'; sleep 0.2; printf '\256\033]0;owned\007\342\200\213.\303'"
    with on_terminal("shell", "--no-terminal", "--", "sh", "-c", line) as screen:
        assert 0 == screen.end()
        assert r"\u202e\x1b]0;owned\x07\u200b.\xc3" == screen.all
    with on_terminal("shell", "--no-terminal", "--raw", "--", "sh", "-c", line) as screen:
        assert 0 == screen.end()
        assert "\x1b]0;owned\x07" in screen.all
    done = run(daemon.socket, "shell", "--terminal", "--", "true")
    assert (2, True) == (done.returncode, b"not a terminal" in done.stderr)


def test_c189_an_answer_of_the_terminal_is_discarded(daemon: LiveDaemon) -> None:
    """
    The program's last words are questions to the terminal; the answers come before we end, and nobody after us reads
    them.
    """
    after = "import sys, termios, select; print('left', select.select([0], [], [], 0.1)[0])"
    line = " ".join([*map(_quoted, command("shell", "--", "printf", r"\033[6n")), ";",
                     *map(_quoted, [sys.executable, "-c", after])])
    with OperatorTerminal(["sh", "-c", line], environment(daemon.socket)) as screen:
        screen.answers["\x1b[6n"] = "\x1b[1;1R\r"
        screen.until(r"left \[\]")
        assert 0 == screen.end()


def test_c321_answers_to_many_questions_are_discarded(daemon: LiveDaemon) -> None:
    """The terminal is slow, or far away, and takes longer for the answers than leeward waits after the last one."""
    after = "import sys, termios, select; print('left', select.select([0], [], [], 0.1)[0])"
    line = " ".join([*map(_quoted, command("shell", "--", "printf", r"\033[c%.0s", *map(str, range(200)))), ";",
                     *map(_quoted, [sys.executable, "-c", after])])
    with OperatorTerminal(["sh", "-c", line], environment(daemon.socket)) as screen:
        screen.answers = {"nothing": ""}
        screen.until(r"\x1b\[5n")
        for _ in range(200):
            screen.types("\x1b[?62c")
            assert not screen.shows("left", 0.02)
        screen.types("\x1b[0n")
        screen.until(r"left \[\]")
        assert 0 == screen.end()


#: Modes of a terminal that are on before a program starts, and those that one with a screen of its own changes.
USUAL = {"7", "25"}
CHANGES = r"\033[?7;25l\033[?1;5;9;1000;1002;1003;1004;1005;1006;1015;1016;2004;2026;2031;2048h\033[?10"


def modes_of(text: str) -> set[str]:
    """The modes that a terminal has after *text*."""
    found = set(USUAL)
    for numbers, letter in re.findall(r"\x1b\[\?([\d;]+)([hl])", text):
        (found.update if "h" == letter else found.difference_update)(numbers.split(";"))
    return found


@pytest.mark.parametrize("screen_of_its_own", [True, False])
def test_c321_modes_that_a_killed_program_has_set_are_reset(on_terminal: Callable[..., OperatorTerminal],
                                                            screen_of_its_own: bool) -> None:
    """
    So that the next prompt is on the usual screen, and keys and the mouse are what they were. The alternate screen is
    left by a program that was there alone: for others the same sequence moves the cursor.
    """
    own = r"49h\033[>1u" if screen_of_its_own else r"49h\033[?1049l\033[5 q"
    line = f"printf '{CHANGES}'; sleep 0.2; printf '{own}\\033[1;3r\\033]0;a title'; kill -9 $$"
    with on_terminal("shell", "--", "sh", "-c", line) as screen:
        assert 137 == screen.end()
    before, _, reset = screen.all.partition("a title")
    assert len(modes_of(before)) > len(USUAL)
    assert modes_of(screen.all) == USUAL
    assert reset.startswith("\x1b\\")  # the title's end
    assert "\x1b7\x1b[r\x1b8" in reset
    usual_screen = reset.split("\x1b[?1049l")
    assert len(usual_screen) == (2 if screen_of_its_own else 1)
    for each in usual_screen:  # each screen has its own stack
        assert screen_of_its_own == ("\x1b[<99u" in each)
    assert screen_of_its_own == ("\x1b[!p" not in reset)


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


# --- python -------------------------------------------------------------------------


def test_the_prompt_of_python(on_terminal: Callable[..., OperatorTerminal], home: Path) -> None:
    """Values, blocks, state, `_`, an exception with its line, Ctrl-C; and history in the next session."""
    with on_terminal("python") as screen:
        screen.until(r"Python 3.*>>> ")
        screen.types("x = 40\r")
        screen.until(">>> ")
        screen.types("x + 2\r")
        screen.until("\n42\r\n>>> ")
        screen.types("_ * 2\r")
        screen.until("\n84\r\n>>> ")
        screen.types("for i in range(2):\r")
        screen.until(r"\.\.\. ")
        screen.types("\tprint('n', i)\r\r")
        screen.until("\nn 0\r\nn 1\r\n>>> ")
        screen.types("1 / 0\r")
        screen.until(r'File "<stdin>", line 1.*ZeroDivisionError: division by zero\r\n>>> ')
        screen.types("print('\\x1b]0;owned\\x07')\r")
        screen.until(r"\\x1b\]0;owned\\x07\r\n>>> ")
        screen.types("(1,\r")
        screen.until(r"\.\.\. ")
        screen.types("\x03")
        while not screen.shows("KeyboardInterrupt\r\n>>> ", 1.0):
            screen.types("\x03")  # CPython doesn't see one that comes between its prompt and its wait
        screen.until("KeyboardInterrupt\r\n>>> ")
        screen.types("None\r")
        screen.until("None\r\n>>> ")
        screen.types("\x04")
        assert 0 == screen.end()
        assert not is_raw(screen)
    assert 0o600 == (home / "leeward" / "python_history").stat().st_mode & 0o777

    with on_terminal("python") as screen:
        screen.until(">>> ")
        screen.types("\x1b[A\x1b[A\x1b[A\r")
        screen.until("owned.*>>> ")
        screen.types("\x04")
        assert 0 == screen.end()


def test_the_prompt_goes_back_to_snapshots(daemon: LiveDaemon, on_terminal: Callable[..., OperatorTerminal]) -> None:
    """By their names; what can't be taken is said, and none is left at the end."""
    with on_terminal("python") as screen:
        for line, said in (("x = 1", ""), ("%snapshot one", r"\d MiB\r\n"), ("x = 2", ""), ("%rollback one", ""),
                           ("x", "\n1\r\n"), ("%rollback two", "no snapshot 'two'; there are: 'one'"),
                           ("import subprocess; p = subprocess.Popen(['sleep', '1000'])", ""),
                           ("%snapshot", "it has children"), ("x", "\n1\r\n")):
            screen.until(">>> ")
            screen.types(f"{line}\r")
            screen.until(said or r"\r\n")
        screen.until(">>> ")
        assert leeward.Snapshot.list(socket=daemon.socket)
        screen.types("\x04")
        assert 0 == screen.end()
    assert not leeward.Snapshot.list(socket=daemon.socket)


def test_control_c_interrupts_the_running_code_and_keeps_the_state(
        box: leeward.Sandbox, on_terminal: Callable[..., OperatorTerminal]) -> None:
    """A second one ends a program that ignores it, and the state with it."""
    with on_terminal("python", box.id) as screen:
        screen.until(">>> ")
        screen.types("x = 1; import time\r")
        screen.until(">>> ")
        screen.types("open('began', 'w').close(); time.sleep(1000)\r")
        _appears(box, "began")
        screen.types("\x03")
        screen.until("KeyboardInterrupt.*>>> ")
        screen.types("x\r")
        screen.until("\n1\r\n>>> ")
        screen.types("while True:\r  try: open('again', 'w').close(); time.sleep(1000)\r"
                     "  except BaseException: open('caught', 'w').close()\r\r")
        _appears(box, "again")
        screen.types("\x03")
        _appears(box, "caught")
        screen.types("\x03")
        screen.until("its variables are gone.*>>> ")
        screen.types("'x' in globals()\r")
        screen.until("False\r\n>>> ")
        screen.types("exit()\r")
        assert 0 == screen.end()


def _appears(box: leeward.Sandbox, name: str) -> None:
    box.shell(f"until test -e {name}; do sleep 0.01; done; rm {name}", timeout=PATIENCE)


def test_python_from_a_pipe(daemon: LiveDaemon) -> None:
    done = run(daemon.socket, "python", input=b"import sys\nprint(6 * 7)\nsys.exit(4)\n")

    assert (4, b"42\n", b"") == (done.returncode, done.stdout, done.stderr)


# --- top ----------------------------------------------------------------------------


def test_python_takes_any_bytes_from_a_pipe(daemon: LiveDaemon) -> None:
    """What isn't UTF-8 is the kernel's to refuse."""
    done = subprocess.run(command("python"), input=b"x = '\xff'\n", capture_output=True, timeout=PATIENCE, check=False,
                          env=environment(daemon.socket))
    assert (1, b"") == (done.returncode, done.stdout)
    assert b"SyntaxError" in done.stderr
    assert b"Traceback" not in done.stderr.replace(b"Traceback (most recent call last):\n  File \"<stdin>\"", b"")


@pytest.mark.parametrize("argv", [["shell", "--", "sh", "-c", "echo up; sleep 100"],
                                  ["python"]], ids=lambda argv: argv[0])
def test_the_third_ctrl_c_ends_the_command_itself(tmp_path: Path, argv: list[str]) -> None:
    """Where the daemon takes no notice of the first two."""
    with LiveDaemon(tmp_path, "--pool-size", "2") as daemon:
        run = subprocess.Popen(command(*argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               env=environment(daemon.socket))
        assert run.stdin is not None
        assert run.stdout is not None
        if argv == ["python"]:
            run.stdin.write(b"open('/workspace/up', 'w').close()\nimport time\ntime.sleep(100)\n")
            run.stdin.close()
            poll_until(lambda: leeward.Sandbox.list(socket=daemon.socket), "it never ran")
            box = leeward.Sandbox.attach(leeward.Sandbox.list(socket=daemon.socket)[0]["sandbox"], socket=daemon.socket)
            poll_until(lambda: box.files.exists("up"), "it never ran")
            box.detach()
        else:
            assert b"up\n" == run.stdout.readline()
        os.kill(daemon.process.pid, signal.SIGSTOP)
        try:
            until = time.monotonic() + PATIENCE
            while run.poll() is None and time.monotonic() < until:
                run.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    run.wait(0.3)  # the kernel makes one of signals that come at once
            assert -signal.SIGINT == run.returncode
        finally:
            os.kill(daemon.process.pid, signal.SIGCONT)
            run.kill()
        for stream in (run.stdin, run.stdout):
            stream.close()


def test_top_shows_and_ends_sandboxes(daemon: LiveDaemon, box: leeward.Sandbox, on_terminal: Callable[...,
                                      OperatorTerminal]) -> None:
    box.start(["sleep", "1000"])
    done = run(daemon.socket, "top", "--once")
    assert 0 == done.returncode
    row, = (line for line in done.stdout.decode().splitlines() if line.startswith(box.id))
    assert " 1 " in row
    now = json.loads(run(daemon.socket, "top", "--once", "--json").stdout)
    assert [box.id] == [row["sandbox"] for row in now["sandboxes"]]
    assert 2 == sum(now["status"]["workers"].values()) or now["status"]["workers"]

    with on_terminal("top", "--interval", "0.1", size=(10, 60)) as screen:
        screen.until(box.id)
        screen.until(box.id)
        screen.types("q")
        assert 0 == screen.end()
        assert not is_raw(screen)
    with on_terminal("top", "--interval", "0.1") as screen:
        screen.until(box.id)
        screen.types("\x03")
        assert 0 == screen.end()
        assert not is_raw(screen)


# --- completion ---------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_loadable_by_the_shell(daemon: LiveDaemon, shell: str) -> None:
    done = run(daemon.socket, "completion", shell)

    assert (0, b"") == (done.returncode, done.stderr)
    assert b"_LEEWARD_COMPLETE" in done.stdout


@pytest.mark.parametrize("which", ["made", "packaged"])
def test_bash_completes_commands_options_and_ids(daemon: LiveDaemon, box: leeward.Sandbox, tmp_path: Path,
                                                 which: str) -> None:
    """By a bash that has read what the command prints, or what the packages bring."""
    (tmp_path / "leeward").write_text(f"#!/bin/sh\nexec {' '.join(map(_quoted, command()))} \"$@\"\n")
    (tmp_path / "leeward").chmod(0o755)
    made = tmp_path / "completion"
    made.write_bytes(run(daemon.socket, "completion", "bash").stdout)
    file = {"made": made, "packaged": ROOT / "packaging/completions/leeward.bash"}[which]

    def completed(*words: str) -> list[str]:
        script = (f"source {file}\nCOMP_WORDS=({' '.join(map(_quoted, words))})\nCOMP_CWORD={len(words) - 1}\n"
                  "_leeward_completion leeward; printf '%s\\n' \"${COMPREPLY[@]}\"")
        done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, check=True, timeout=60, text=True,
                              env={**environment(daemon.socket), "PATH": f"{tmp_path}:{os.environ['PATH']}"})
        return done.stdout.split()

    wanted = ["sandbox", "selftest", "serve", "shell", "shell-prefix", "snapshot", "status"]
    assert wanted == sorted(completed("leeward", "s"))
    assert ["--timeout"] == completed("leeward", "shell", "--ti")
    assert [box.id] == completed("leeward", "shell", box.id[:5])
    assert [box.id] == completed("leeward", "sandbox", "kill", box.id[:5])
