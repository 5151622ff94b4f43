"""`leeward sandbox` and `leeward shell` as whole processes, against a server whose sandboxes run ordinary programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leeward
import leeward_cli
from kit.sandbox_stand import Stand

PLACES = os.pathsep.join(str(Path(package.__path__[0]).parent) for package in (leeward, leeward_cli))


def command(stand: Stand, *argv: str) -> dict[str, Any]:
    return {"args": [sys.executable, "-P", "-m", "leeward_cli", *argv],
            "env": {**os.environ, "PYTHONPATH": PLACES, "LEEWARD_SOCKET": stand.socket}}


def run(stand: Stand, *argv: str, text: bytes = b"") -> tuple[int, bytes, bytes]:
    """Exit status and both streams."""
    done = subprocess.run(**command(stand, *argv), input=text, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def box(stand: Stand) -> Iterator[str]:
    status, out, err = run(stand, "sandbox", "new", "--metadata", "run=\x1b7", "--memory", "64M", "--env", "A=b")
    assert (0, b"") == (status, err)
    yield out.decode().strip()
    run(stand, "sandbox", "kill", out.decode().strip())


@pytest.mark.parametrize(("words", "text"), [
    (("sandbox", "list"), "you have no sandbox; `leeward sandbox new` opens one"),
    (("snapshot", "list"), "you have no snapshot; a kernel's `snapshot()` takes one"),
    (("agent", "list"), "no agent runs; `leeward agent start` starts one"),
    (("env", "list", "--config=CONFIG"), "there is no environment; `leeward env create` makes one"),
])
def test_an_empty_list_is_said_on_standard_error(words: tuple[str, ...], text: str, tmp_path: Path) -> None:
    """Standard output has nothing, for programs that read it."""
    for more, said in (((), f"leeward: {text}\n"), (("--json",), "")):
        with Stand() as empty:
            config = tmp_path / "config.toml"
            config.write_text(f'environments_folder = "{tmp_path}/none"\n')  # root's is the system's, where there may be some
            began = command(empty, *(word.replace("CONFIG", str(config)) for word in words), *more)
            began["env"] |= {"XDG_STATE_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path)}
            done = subprocess.run(**began, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False,
                                  text=True)

        assert (0, said) == (done.returncode, done.stderr)
        assert done.stdout in ("", "[]\n")


def test_a_sandbox_from_its_opening_to_its_end(stand: Stand, box: str) -> None:
    """It stays between commands, and what clients wrote is shown escaped."""
    assert (4, b"b\n", b"err\n") == run(stand, "shell", box, "--", "sh", "-c", "echo $A; echo err >&2; exit 4")
    assert (0, b"1\n", b"") == run(stand, "shell", box, text=b"echo 1 > f; cat f\n")
    status, out, _ = run(stand, "sandbox", "list")
    assert 0 == status
    assert b"run=\\x1b7" in next(line for line in out.splitlines() if line.startswith(box.encode()))
    _, out, _ = run(stand, "sandbox", "list", "--json")
    assert box in {json.loads(line)["sandbox"] for line in out.splitlines()}
    _, out, _ = run(stand, "sandbox", "info", box, "--json")
    told = json.loads(out)
    assert (64 << 20, [4, 0]) == (told["memory_limit"], [row["exit_code"] for row in told["processes"]])
    shown = run(stand, "sandbox", "info", box)[1]
    assert b"exit 4" in shown
    assert b"idle          600 s" in shown
    assert (0, b"", b"") == run(stand, "sandbox", "kill", box)
    status, out, err = run(stand, "sandbox", "kill", box)
    assert (1, b"", True) == (status, out, b"it was killed" in err)


def test_a_sandbox_is_found_by_a_name_and_the_beginning_of_its_id(stand: Stand, box: str) -> None:
    """By every command; a word that is none but a program says how that is run."""
    status, out, err = run(stand, "sandbox", "new", "--name", "web")
    named = out.decode().strip()
    assert (0, b"") == (status, err)
    assert (0, b"in\n", b"") == run(stand, "attach", "web", "--", "echo", "in")
    assert (0, b"in\n", b"") == run(stand, "shell", named[:10], "--", "echo", "in")
    assert b"name=web" in run(stand, "sandbox", "info", "web")[1]
    for argv, said in ((("diff", "nobody"), b"has the name 'nobody'"),
                       (("shell", "ls"), b"a command follows --: leeward shell -- ls")):
        status, _, err = run(stand, *argv)
        assert (1, True) == (status, said in err), err
    assert (0, b"", b"") == run(stand, "sandbox", "kill", "web")
    assert named not in run(stand, "sandbox", "list")[1].decode()


def test_a_shell_without_an_id_has_a_sandbox_of_its_own(stand: Stand) -> None:
    """Which ends with it."""
    before = stand.left()["sandboxes"]
    assert (0, b"in", b"") == run(stand, "shell", "--", "cat", text=b"in")
    assert (127, b"", b"sh: no-such: not found\n") == run(stand, "shell", "--", "no-such")
    while stand.left()["sandboxes"] != before:
        pass


def test_mistakes_are_named(stand: Stand, box: str) -> None:
    """With exit status 2, or 1 where the daemon refuses."""
    for argv, said in ((("shell", box, "ls"), b"must follow --: leeward shell"),
                       (("sandbox", "attach", box, "ls"), b"must follow --: leeward sandbox attach"),
                       (("shell", "sh", "-c", "true"), b"'-c'. What follows -- isn't an option of this command."),
                       (("agent", "start", "sh", "-c", "true"), b"'-c'. What follows -- isn't"),
                       (("sandbox", "new", "--env", "A"), b"NAME=VALUE"),
                       (("shell", "--memory", "64M", box), b"not beside an ID")):
        status, _, err = run(stand, *argv)
        assert (2, True) == (status, said in err), err
    status, _, err = run(stand, "shell", "a" * 26, "--", "true")
    assert (1, True) == (status, b"is over" in err)
    before = stand.left()
    for argv in (("shell", "", "--", "true"), ("sandbox", "info", ""), ("sandbox", "kill", ""), ("diff", ""),
                 ("sandbox", "attach", "", "--", "true"), ("python", "")):  # of a variable that isn't set
        status, _, err = run(stand, *argv)
        assert (1, True) == (status, b"must be an id of 26 characters, not ''" in err), (argv, err)
    assert before == stand.left()


def test_output_is_passed_on_and_not_kept(stand: Stand, box: str) -> None:
    """Whatever a program writes costs the command no memory."""
    size = 160 << 20
    shell = subprocess.Popen(**command(stand, "shell", box, "--", "sh", "-c", f"head -c {size} /dev/zero; cat"),
                             stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert shell.stdout is not None
    assert shell.stdin is not None
    left = size
    while left:
        left -= len(shell.stdout.read(min(left, 1 << 20)))
    rows = Path(f"/proc/{shell.pid}/status").read_text().splitlines()
    most = next(int(row.split()[1]) for row in rows if row.startswith("VmHWM:"))
    shell.stdin.close()
    assert (b"", 0) == (shell.stdout.read(), shell.wait(60))
    shell.stdout.close()
    assert most < 100 << 10  # KiB


def test_ctrl_c_interrupts_and_then_kills(stand: Stand, box: str) -> None:
    """A program that handles the first one; and one that doesn't heed it."""
    handles = "trap 'echo caught; exit 7' INT; echo up; while :; do sleep 0.05; done"
    deaf = "trap 'echo caught' INT; echo up; while :; do sleep 0.05; done"
    for line, status in ((handles, 7), (deaf, 130)):
        shell = subprocess.Popen(**command(stand, "shell", box, "--", "sh", "-c", line), stdout=subprocess.PIPE,
                                 stdin=subprocess.DEVNULL)
        assert shell.stdout is not None
        assert b"up\n" == shell.stdout.readline()
        shell.send_signal(signal.SIGINT)
        assert b"caught\n" == shell.stdout.readline()
        if 130 == status:
            shell.send_signal(signal.SIGINT)
        assert status == shell.wait(60)
        shell.stdout.close()
