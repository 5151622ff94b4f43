"""States of an overlay that are kept, gone back to, and undone in part: with the real mounts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import leeward
from kit.live_daemon import LiveDaemon, command, environment, held
from kit.waiting import poll_until
from leeward.base.hints import NOT_RENAMED
from leeward.client.apply_journal import state_folder

DAEMON = ("--pool-size", "2")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    (folder / "file").write_text("old\n")
    (folder / "sub/one").write_text("1\n")
    (folder / "sub/two").write_text("2\n")
    return folder


def rows(box: leeward.Sandbox) -> list[tuple[object, ...]]:
    return [(one.path, one.kind, one.type, one.mode, one.size, one.sha256, one.link) for one in box.diff()]


def test_a_checkpoint_is_gone_back_to(daemon: LiveDaemon, project: Path) -> None:
    """Whiteouts, a folder that replaces another, hard links, modes, times and attributes are as they were; and again."""
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True) as box:
        made = box.shell("echo more >>file; rm -r sub; mkdir sub; echo n >sub/new; ln sub/new sub/hard; mkfifo fifo;"
                         " touch -d @1000000000 sub/new; chmod 000 file; ln -s file link; python3 -c '"
                         "import os; os.setxattr(\"sub/new\", \"user.mine\", b\"kept\")'")
        assert 0 == made.exit_code, made.stderr_text
        before = rows(box)
        assert {"sub/one", "sub/two"} <= {row[0] for row in before if "deleted" == row[1]}
        assert "1" == box.checkpoint()
        assert "before" == box.checkpoint("before")
        assert ["1", "before"] == box.info()["mounts"][0]["checkpoints"]
        for name in ("1", "before", "1"):
            assert 0 == box.shell("rm -rf file fifo sub link; mkdir -p z/y; echo z >z/y/z").exit_code
            assert b"z\n" == bytes(box.files.read("z/y/z"))  # by a process of the sandbox's own, which is ended
            assert before != rows(box)
            box.restore(name)
            assert before == rows(box)
        look = ("stat -c '%a %h %Y' sub/new; cat sub/hard; ls sub; python3 -c '"
                "import os; print(os.getxattr(\"sub/new\", \"user.mine\"))'; chmod 600 file; cat file")
        assert (b"644 2 1000000000\nn\nhard\nnew\nb'kept'\nold\nmore\n") == box.shell(look).stdout
        assert b"k" == box.execute("open('k', 'w').write('k'); print(open('k').read(), end='')").stdout
        box.discard()
        assert [] == rows(box)
        assert b"old\n1\n2\n" == box.shell("cat file sub/*").stdout
        box.restore("before")
        assert before == rows(box)
    assert ("old\n", ["one", "two"]) == ((project / "file").read_text(), sorted(os.listdir(project / "sub")))


def test_a_part_is_discarded(daemon: LiveDaemon, project: Path) -> None:
    """
    A file that was changed, one that was deleted, a folder with all in it; what has gone with its folder comes back
    with that alone.
    """
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True) as box:
        box.shell("echo more >>file; rm sub/one; echo x >>sub/two; mkdir -p new/er; echo f >new/er/f; echo g >new/g")
        assert ["file", "new/er", "new/er/f"] == [one.path for one in box.discard(["file", "new/er/"])]
        assert ["new", "new/g", "sub/one", "sub/two"] == [row[0] for row in rows(box)]
        with pytest.raises(leeward.RequestRejected, match="has not changed"):
            box.discard(["sub/two", "file"])
        assert ["sub/one"] == [one.path for one in box.discard(["sub/one"])]
        assert b"1\n2\nx\n" == box.shell("cat sub/*").stdout
        box.shell("rm -r sub; mkdir sub; echo 3 >sub/three")
        with pytest.raises(leeward.RequestRejected, match="gone with a folder"):
            box.discard(["sub/one"])
        assert {"sub/one", "sub/two", "sub/three"} == {one.path for one in box.discard(["sub"])}
        assert b"one\ntwo\n" == box.run(["ls", "sub"]).stdout


def test_a_restore_is_refused_while_a_program_or_kernel_runs(daemon: LiveDaemon, project: Path) -> None:
    """A program or kernel that runs refuses it; what a command left behind is ended."""
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True) as box:
        box.shell("echo x >x")
        process = box.start(["sleep", "1000"])
        assert "1" == box.checkpoint()  # that is of no harm
        for refused in (lambda: box.restore("1"), box.discard):
            with pytest.raises(leeward.RequestRejected, match="end them first"):
                refused()
        process.kill()
        process.wait()
        with box.kernel() as kernel:
            kernel.execute("1")
            with pytest.raises(leeward.RequestRejected, match="end them first"):
                box.restore("1")
        box.shell("sleep 1000 >/dev/null 2>&1 & echo y >y")
        box.restore("1")
        assert ["x"] == [row[0] for row in rows(box)]
        assert [] == [one for one in box.processes() if not one["over"]]
        with pytest.raises(leeward.RequestRejected, match="no checkpoint 'none'"):
            box.restore("none")


def test_copies_have_bounds(daemon: LiveDaemon, project: Path) -> None:
    """In number, and in bytes: what doesn't fit changes nothing."""
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True, memory="64M") as box:
        box.shell("echo x >x")
        for number in range(1, 9):
            assert str(number) == box.checkpoint()
        with pytest.raises(leeward.RequestRejected, match="8 checkpoints"):
            box.checkpoint()
        assert "8" == box.checkpoint("8")
        assert 0 == box.shell("head -c 20M /dev/zero >large").exit_code
        with pytest.raises(leeward.RequestRejected, match="doesn't fit"):
            box.checkpoint("8")
        box.restore("8")
        assert ["x"] == [row[0] for row in rows(box)]
        with pytest.raises(leeward.RequestRejected, match="letters"):
            box.checkpoint("../up")


def test_by_several_targets_from_asyncio_and_the_command_line(daemon: LiveDaemon, project: Path,
                                                              tmp_path: Path) -> None:
    """One overlay is gone back to and the other stays; nothing of it is left in the daemon."""
    (tmp_path / "other").mkdir()
    mounts = [leeward.Mount(project, "/plain"), leeward.Mount(tmp_path / "other", "/srv/other", overlay=True)]

    async def several() -> None:
        async with leeward.AsyncSandbox(socket=daemon.socket, workdir=project, overlay=True, mounts=mounts) as box:
            await box.shell("echo 1 >a; echo 1 >/srv/other/a")
            assert "n" == await box.checkpoint("n", target="/srv/other")
            await box.shell("echo 2 >a; echo 2 >/srv/other/a; echo >/srv/other/b")
            await box.restore("n", target="/srv/other")
            assert b"2\n1\n" == (await box.shell("cat a /srv/other/*")).stdout
            assert ["a"] == [one.path for one in await box.discard(target="/workspace")]
            assert b"file\nsub\n" == (await box.run(["ls"])).stdout

    asyncio.run(several())
    daemon.idle()
    before = held(daemon.process.pid)
    asyncio.run(several())
    daemon.idle()
    poll_until(lambda: before >= held(daemon.process.pid), f"{before} descriptors of the daemon, as before")

    box = leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True)
    box.shell("echo a >a; echo b >b")
    name = box.detach()
    assert b"1\n" == daemon.run("checkpoint", name).stdout
    assert b"A b\n" == daemon.run("discard", name, "b").stdout
    assert b"A a\n" == daemon.run("diff", name).stdout
    assert 0 == daemon.run("restore", name, "1").returncode
    assert b"A a\nA b\n" == daemon.run("diff", name).stdout
    assert b"no checkpoint" in (refused := daemon.run("restore", name, "2")).stderr
    assert 0 != refused.returncode
    daemon.run("sandbox", "kill", name)


def in_namespace_of(pid: int) -> set[int]:
    """The processes of the host's whose pid namespace is that of *pid*."""
    found = set[int]()
    for one in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{one}/ns/pid") == os.readlink(f"/proc/{pid}/ns/pid"):
                found.add(int(one))
    return found


def first_of(box: leeward.Sandbox) -> int:
    """The first process of the sandbox, by its pid on the host."""
    seconds = str(secrets.randbelow(10**8) + 10**8)  # by which no other test's process is taken for it
    box.start(["sleep", seconds])

    def look() -> list[int]:
        found = [int(one) for one in filter(str.isdigit, os.listdir("/proc")) if is_ours(one)]
        return [each for one in found for each in in_namespace_of(one) if is_first(each)]

    def is_ours(pid: str) -> bool:
        with contextlib.suppress(OSError):
            return f"sleep\0{seconds}\0".encode() == Path(f"/proc/{pid}/cmdline").read_bytes()
        return False

    def is_first(pid: int) -> bool:
        status = Path(f"/proc/{pid}/status").read_text()
        return "1" == status.split("NSpid:")[1].split("\n")[0].split()[-1]

    poll_until(look, "the program's process")
    return look()[0]


@pytest.mark.parametrize(("call", "given"), [("diff", ()), ("apply", ()), ("checkpoint", ("one",))])
def test_a_sandbox_whose_runner_is_lost_is_over(daemon: LiveDaemon, project: Path, call: str,
                                                given: tuple[str, ...]) -> None:
    """Whichever end the daemon hears of first, that of the process which looks, or of the sandbox."""
    for _ in range(10):  # a busy machine may let the call end before this test has seen the process that looks
        with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True, memory="1G") as box:
            box.shell("head -c 60M /dev/zero >large")
            first = first_of(box)
            known = in_namespace_of(first)
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(getattr(box, call), *given)
                while not in_namespace_of(first) - known:
                    if asked.done():
                        asked.result()
                        asked = pool.submit(getattr(box, call), *given)
                os.kill(first, signal.SIGKILL)
                try:
                    asked.result()
                except leeward.SandboxOver:
                    return
    pytest.fail("no call was under way")


def test_a_half_done_apply_says_what_it_has_done(daemon: LiveDaemon, project: Path) -> None:
    """Nothing, if the daemon goes away: everything is fetched before the first change."""
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True) as box:
        # Of a size that is read by itself.
        box.shell("head -c 70000 /dev/urandom >new; i=0; while [ $i -lt 200 ]; do cp new new.$i; i=$((i+1)); done")
        first = first_of(box)
        before, state = sorted(os.listdir(project)), state_folder(os.environ)
        os.makedirs(state, mode=0o700)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(box.apply)
            poll_until(lambda: [one for one in os.scandir(state) if one.stat().st_size > 40],
                       "some contents")
            os.kill(first, signal.SIGKILL)
            with pytest.raises(leeward.SandboxOver):
                asked.result()
    assert before == sorted(os.listdir(project))
    assert [] == os.listdir(state_folder(os.environ))


def test_an_apply_that_was_killed_is_finished_by_the_next(daemon: LiveDaemon, project: Path) -> None:
    """By the command line, which says so; and nothing of ours is left in the folder."""
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True) as box:
        box.shell("for i in 1 2 3 4 5 6 7 8 9; do echo new >new.$i; done; echo new >file; rm -r sub")
        code = ("import os, signal, leeward\nrename = os.rename\n"
                "os.rename = lambda *given, **named: os.kill(os.getpid(), signal.SIGKILL)\n"
                f"leeward.Sandbox.attach({box.id!r}, socket={str(daemon.socket)!r}).apply()")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert -signal.SIGKILL == done.returncode, done.stderr
        assert ("old\n", False) == ((project / "file").read_text(), (project / "sub").exists())
        (project / "new.3").write_text("by somebody")
        box.shell("echo last >last")
        said = subprocess.run(command("apply", "--socket", str(daemon.socket), box.id, "last"), capture_output=True,
                              text=True, check=False, env=environment(daemon.socket, **os.environ))
        assert (0, "A last\n") == (said.returncode, said.stdout), said.stderr
        assert "9 changes were finished now, 1 were left out" in said.stderr
        assert "left out: 'new.3' exists on the host by now" in said.stderr
    assert {"file", "last", *(f"new.{number}" for number in range(1, 10))} == set(os.listdir(project))
    assert ("new\n", "by somebody") == ((project / "file").read_text(), (project / "new.3").read_text())


@pytest.mark.needs("usr-node")
def test_node_says_it_by_its_name(daemon: LiveDaemon, project: Path) -> None:
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True, memory="512M", processes=64) as box:
        failed = box.run(["node", "-e", "require('fs').renameSync('sub', 'other')"], cwd="/workspace")
        assert (1, NOT_RENAMED) == (failed.exit_code, failed.hint), failed.stderr_text


def test_a_folder_that_can_not_be_renamed_gets_a_hint_that_works(daemon: LiveDaemon, project: Path) -> None:
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True) as box:
        failed = box.run(["python3", "-c", "import os; os.rename('sub', 'other')"], cwd="/workspace")
        raised = box.execute("import os; os.chdir('/workspace'); os.rename('sub', 'other')")
        assert {NOT_RENAMED} == {failed.hint, raised.hint}
        moved = box.shell("git init -q . && git add sub && mv sub other && git add -A sub other && git ls-files")
        assert (0, "") == (moved.exit_code, moved.hint)
        assert {"other"} == {name.split("/")[0] for name in moved.stdout_text.split()}


CHANGE = """
import os, shutil
os.remove("file"); shutil.rmtree("sub"); os.mkdir("sub"); open("sub/new", "w").write("n"); os.link("sub/new", "hard")
os.setxattr("sub/new", "user.mine", b"1"); os.mkfifo("fifo"); os.symlink("/etc/passwd", "link"); os.chmod(".", 0o711)
os.makedirs("/tmp/a/c"); open("/tmp/a/c/d", "w").write("d"); open("/tmp/a/b/file", "a").write("more")
log = open("log", "w"); log.write("begun"); log.flush()
"""
SHOWN = "find . /tmp -printf '%p %M %s %n %T@ %l\\n' | sort; cat sub/new log /tmp/a/b/file /plain/file"


@pytest.mark.needs("x86-64")
def test_a_fork_has_the_changes_of_each_overlay(daemon: LiveDaemon, project: Path, tmp_path: Path) -> None:
    """Whiteouts, hidden folders, links, modes, times, attributes, mounts within writable folders; and so has its fork."""
    mounts = [leeward.Mount(project, "/plain"), leeward.Mount(project, "/tmp/a/b", overlay=True)]
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True, mounts=mounts) as box, box.kernel() as kernel:
        assert kernel.execute(CHANGE).ok
        seen, changed = box.shell(SHOWN).stdout, [str(row) for row in box.diff("/workspace")]
        ((first, (copy,)),) = box.fork(1, [kernel])
        ((second, _),) = first.fork(1)
        for fork in (first, second):
            with fork:
                assert seen == fork.shell(SHOWN).stdout
                assert changed == [str(row) for row in fork.diff("/workspace")]
                assert b"['user.mine']\n" == fork.execute("import os; print(os.listxattr('sub/new'))").stdout
                if fork is first:
                    assert copy.execute("log.write('!'); log.flush()").ok
                    assert (b"begun!", b"begun") == (fork.files.read("log"), box.files.read("log"))
                    copy.close()
                    fork.discard(["sub"], "/workspace")
                    assert 0 == fork.shell("test -e sub/one").exit_code
        assert seen == box.shell(SHOWN).stdout
        (project / "file").write_text("by the host\n")  # after the first was opened, and before its copy
        with box.fork(1)[0].sandbox as fork, pytest.raises(leeward.Stale):
            fork.apply(["file"], "/workspace")
        project.rename(tmp_path / "old")
        project.mkdir()
        with pytest.raises(leeward.RequestRejected, match="other folders of the host"):
            box.fork(1)


def test_what_a_process_does_meanwhile_leads_a_fork_nowhere(daemon: LiveDaemon, project: Path) -> None:
    """It moves the folder in which an overlay lies, and replaces files, folders and links by one another."""
    mounts = [leeward.Mount(project, "/tmp/a/b", overlay=True)]
    spoil = ("import os, shutil\nopen('own', 'w').write('x' * 9000000)\nwhile True:\n"
             "  for name in ('sub', 'own', 'c'):\n"
             "    shutil.rmtree(name) if os.path.isdir(name) and not os.path.islink(name) else os.remove(name)\n"
             "    os.symlink('/etc', name)\n    os.remove(name)\n    os.makedirs(name + '/d')\n"
             "    open(name + '/d/f', 'w').write('x')\n  print(flush=True)\n")
    with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True, mounts=mounts) as box:
        box.shell("touch c; echo new >/tmp/a/b/file")
        spoils = box.start(["python3", "-c", spoil])
        assert spoils.read()
        for _ in range(3):
            with box.fork(1)[0].sandbox as fork:
                assert b"new\n" == fork.shell("cat /tmp/a/b/file").stdout
        spoils.kill()
        for moved in ("mv /tmp/a /tmp/z", "mkdir -p /tmp/a/b", "rm -r /tmp/a; ln -s z /tmp/a"):
            assert 0 == box.shell(moved).exit_code
            with pytest.raises(leeward.RequestRejected, match="'/tmp/a/b' is somewhere else"):
                box.fork(1)
        with leeward.Sandbox(socket=daemon.socket, workdir=project, overlay=True, mounts=mounts) as other:
            assert 0 == other.shell("mv /tmp/a /tmp/z; mkdir -p /tmp/a/b; ln -s /etc /tmp/a/b/etc").exit_code
            box.shell("rm /tmp/a; mv /tmp/z /tmp/a")
            with pytest.raises(leeward.RequestRejected, match="somewhere else"):
                other.copy_files(box)
