"""Which socket ssh is asked for: what the command says on a machine, tried by this machine's own shell."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from kit.features import ROOT
from kit.waiting import poll_until
from leeward.client import over_ssh
from leeward.client.over_ssh import _WHERE
from leeward.errors import DaemonAway
from leeward.spec.paths import RemoteHost, default_socket


def asked(**variables: str) -> str:
    done = subprocess.run(["sh", "-c", f"exec sh -c '{_WHERE}'"], env={"PATH": os.environ["PATH"], **variables},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.rstrip("\n")


def test_it_is_the_one_that_clients_there_take(tmp_path: Path) -> None:
    own = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert "/run/other.sock" == asked(LEEWARD_SOCKET="/run/other.sock")
    assert asked(**own) in {default_socket(own, os.geteuid()), "/run/leeward/leeward.sock"}  # if a system's daemon is here


def test_another_user_is_led_to_its_own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play_user(tmp_path, monkeypatch, 4242)
    runtime = tmp_path / "run"
    (runtime / "leeward").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(runtime / "leeward" / "leeward.sock"))
        assert f"{runtime}/leeward/leeward.sock" == asked(XDG_RUNTIME_DIR=str(runtime))


def play_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let `id` say this number, since this may be root."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "id").write_text(f"#!/bin/sh\necho {number}\n")
    (programs / "id").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")


def test_a_folder_in_tmp_is_taken_if_it_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the clients there do it: any user may have made it first, or a link that leads there until it is looked at."""
    number = 1 << 31 | os.getpid()
    play_user(tmp_path, monkeypatch, number)
    folder, system = Path(f"/tmp/leeward-{number}"), "/run/leeward/leeward.sock"
    assert system == asked(XDG_RUNTIME_DIR="/nonexistent/run")
    folder.mkdir(0o700)
    try:
        with socket.socket(socket.AF_UNIX) as daemon:
            daemon.bind(f"{folder}/leeward.sock")
            assert f"{folder}/leeward.sock" == asked(XDG_RUNTIME_DIR="/nonexistent/run")
            moved = folder.rename(f"{folder}-moved")
            folder.symlink_to(moved)
            assert system == asked(XDG_RUNTIME_DIR="/nonexistent/run")
    finally:
        for each in (folder, Path(f"{folder}-moved")):
            if each.is_symlink():
                each.unlink()
            elif each.exists():
                shutil.rmtree(each)


def test_both_clients_ask_the_same_and_no_shell_changes_it() -> None:
    text = (ROOT / "leeward/clients/node/lib/remote.js").read_text()
    assert _WHERE in text.replace("'\n  + '", "")
    assert not {"'", "\n"} & set(_WHERE)


@pytest.mark.parametrize("said", ["/run/${LEEWARD_TOKEN}", "/run/%u", "/run/a:b", "relative", "/" + "a" * 100_000])
def test_what_the_other_end_prints_is_no_path_that_ssh_would_change(said: str, tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """ssh replaces variables and tokens in it by what they are here, and then tells the result to the other end."""
    program, forwards = tmp_path / "ssh", tmp_path / "forwards"
    (tmp_path / "said").write_text(said)
    program.write_text(f"#!/bin/sh\ncase \"$*\" in *'-O forward'*) echo \"$*\" >> {forwards};; *) cat {tmp_path}/said"
                       + ("" if len(said) > 1000 else "; echo") + "; exec cat > /dev/null;; esac\n")
    program.chmod(0o755)
    monkeypatch.setenv("LEEWARD_SSH", str(program))
    monkeypatch.setattr(over_ssh, "READY_S", 20.0)
    with pytest.raises(DaemonAway, match="no path of a socket"):
        over_ssh._forwarding(RemoteHost(f"ssh://{len(said)}.example")).result()
    assert not forwards.exists()


def test_a_child_of_fork_keeps_no_ssh_of_its_parents(tmp_path: Path) -> None:
    """An ssh ends with the pipe of the program that has begun it; and a thread of that is none of the child's."""
    made = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    key = os.getpid(), "ssh://played"
    known: Future[over_ssh._Forwarded] = Future()
    over_ssh._forwarded[key] = known
    over_ssh._running.add(made)
    known.set_result(over_ssh._Forwarded(made, str(tmp_path / "none"), ""))
    (goes_on, ends), (says, said) = os.pipe(), os.pipe()
    try:
        with over_ssh._lock:
            child = os.fork()
            if not child:
                os.close(ends)
                os.write(said, b"%d" % over_ssh._lock.acquire(blocking=False))
                os.read(goes_on, 1)
                os._exit(0)
        assert b"1" == os.read(says, 1)
        assert made.stdin is not None
        made.stdin.close()
        assert 0 == made.wait(10)
    finally:
        os.close(ends)
        os.waitpid(child, 0)
        over_ssh._end(over_ssh._forwarded.pop(key).result())
        for fd in (goes_on, says, said):
            os.close(fd)


def test_a_child_of_fork_waits_for_no_ssh_that_its_parent_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of the parent's reads what that says, perhaps for as long as somebody types a password."""
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\nexec cat\n")
    program.chmod(0o755)
    monkeypatch.setenv("LEEWARD_SSH", str(program))
    begun = over_ssh._forwarding(RemoteHost("ssh://silent.example"))
    reads, child = over_ssh._line.__code__, 0
    says, said = os.pipe()
    try:
        poll_until(lambda: any(reads is frame.f_code for frame in sys._current_frames().values()), "no thread reads")
        child = os.fork()
        if not child:
            os.write(said, b"x")
            os._exit(0)
        assert select.select([says], [], [], 20)[0]
        for made in list(over_ssh._beginning):
            made.kill()
        with pytest.raises(DaemonAway):
            begun.result(20)
    finally:
        over_ssh.close()
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(says)
        os.close(said)


def test_an_ssh_that_forwards_no_port_in_time_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\ncase \"$*\" in *'-O forward'*/p:*) exec tail -f /dev/null;; *'-O forward'*) ;;\n"
                       "*) echo /far/socket; exec cat > /dev/null;; esac\n")
    program.chmod(0o755)
    monkeypatch.setenv("LEEWARD_SSH", str(program))
    host = RemoteHost("ssh://slow.example")
    try:
        over_ssh._forwarding(host).result()
        monkeypatch.setattr(over_ssh, "READY_S", 0.3)
        with pytest.raises(DaemonAway, match="takes too long"):
            over_ssh._forwarding_ports(host).result()
    finally:
        over_ssh.close()


def test_a_host_that_hangs_holds_up_no_other_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many calls wait for it: they share one ssh, and at the end of the program none is left."""
    program, began = tmp_path / "ssh", tmp_path / "began"
    program.write_text("#!/bin/sh\ncase \"$*\" in *'-O forward'*) ;;\n"
                       f"*hung.example*) echo $$ >> {began}; exec tail -f /dev/null;;\n"
                       "*) echo /far/socket; exec cat > /dev/null;; esac\n")
    program.chmod(0o755)
    monkeypatch.setenv("LEEWARD_SSH", str(program))

    async def call() -> None:
        hung = [asyncio.ensure_future(over_ssh.way(RemoteHost("ssh://hung.example"))) for _ in range(64)]
        with pytest.raises(DaemonAway):  # it is there, and its socket isn't
            await over_ssh.way(RemoteHost("ssh://other.example"))
        assert not any(each.done() for each in hung)
        while not began.exists() or not began.read_text().endswith("\n"):
            await asyncio.sleep(0)
        over_ssh.close()
        for each in hung:
            with pytest.raises(DaemonAway, match="ssh"):
                await each

    asyncio.run(asyncio.wait_for(call(), 60))
    number, = began.read_text().split()
    assert not os.path.exists(f"/proc/{number}")


def test_an_ssh_that_begins_while_all_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs before its thread has noted it."""
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\nexec tail -f /dev/null\n")
    program.chmod(0o755)
    monkeypatch.setenv("LEEWARD_SSH", str(program))
    runs, looked, start, wait = threading.Event(), threading.Event(), over_ssh._start, over_ssh.wait

    def started(command: list[str]) -> subprocess.Popen[bytes]:
        made = start(command)
        runs.set()
        looked.wait()
        return made

    def waited(*given: Any) -> Any:
        looked.set()
        return wait(*given)

    monkeypatch.setattr(over_ssh, "_start", started)
    monkeypatch.setattr(over_ssh, "wait", waited)
    hung = over_ssh._forwarding(RemoteHost("ssh://hung.example"))
    runs.wait()
    over_ssh.close()

    with pytest.raises(DaemonAway, match="ssh"):
        hung.result(0)
