"""A folder with tools: each tool does what the table says, and the object's calls what its documentation says."""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit.features import is_met
from kit.growth import anonymous, least_growth
from kit.live_daemon import LiveDaemon
from kit.skip_policy import require
from kit.tool_rows import FILES, ROWS, SHELL, ToolRow
from kit.waiting import poll_until
from leeward.spec.tools import TOOLS

#: By the groups a daemon finds what has left its session (setsid).
GROUPS = "cgroup-v1-controllers" if is_met("cgroup-v1-controllers") else "cgroup-v2"

DAEMON = ("--pool-size", "4")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lw-workdir-") as made:
        yield Path(made)


@pytest.fixture(scope="module")
def work(daemon: LiveDaemon) -> Iterator[leeward.WorkdirSandbox]:
    with (tempfile.TemporaryDirectory(prefix="lw-workdir-") as made,
          leeward.WorkdirSandbox(made, env_vars={"GIVEN": "yes"}, socket=daemon.socket) as work):
        yield work


@pytest.fixture
def files(work: leeward.WorkdirSandbox) -> leeward.WorkdirSandbox:
    """With the table's files, and nothing else."""
    place = Path(work._path)
    for entry in place.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    for name, content in FILES.items():
        work.write_file(name, content)
    return work


def check(work: leeward.WorkdirSandbox, row: ToolRow) -> None:
    if row.needs and row.needs not in work.available_tools():
        require(f"usr-{row.needs}")
    argv = ("sh", "-c", row.argv) if isinstance(row.argv, str) else row.argv
    got = work.exec(argv[0], argv[1:])

    assert row.status == got.exit_code, got.stderr_text
    assert row.out is None or row.out == got.text, got.stderr_text
    assert row.has in got.text
    assert not got.denied


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.argv if isinstance(row.argv, str) else " ".join(row.argv))
def test_a_tool_behaves_as_the_table_says(files: leeward.WorkdirSandbox, row: ToolRow) -> None:
    """By its status and what it prints, and no system call of it is refused."""
    check(files, row)


@pytest.mark.parametrize("name", SHELL)
def test_the_shell_behaves_as_the_table_says(files: leeward.WorkdirSandbox, name: str) -> None:
    """As `sh -c`."""
    check(files, SHELL[name])


def test_the_table_has_every_tool() -> None:
    """But curl, which has no network to work with."""
    lines = " ".join(row.argv if isinstance(row.argv, str) else " ".join(row.argv) for row in ROWS)
    words = set(lines.replace("(", " ").replace(";", " ").split())

    assert set(TOOLS) - words == {"curl", "env"}


def test_the_environment_has_only_the_given_variables(work: leeward.WorkdirSandbox) -> None:
    """And PATH, for a tool as for what it starts."""
    names = {line.partition("=")[0] for line in work.exec("env").text.splitlines()}

    assert {"PATH", "GIVEN"} == names


def test_a_program_outside_the_tools_is_not_found(work: leeward.WorkdirSandbox) -> None:
    """Also where the host or the folder has such a program."""
    work.write_file("script", "#!/bin/sh\necho ran\n")
    for name in ("no-such-tool", "python3", "./script", "/bin/cat", "cat ", "", "CAT"):
        with pytest.raises(leeward.CommandNotFound, match=r"^command not found: "):
            work.exec(name)


#: A server and its client, in one command.
TALKS = """\
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=lambda: server.accept()[0].sendall(b"over lo")).start()
print(socket.create_connection(server.getsockname()).recv(64).decode())
"""


def test_programs_of_a_folder_talk_over_loopback(daemon: LiveDaemon, folder: Path) -> None:
    """And to nobody else; a sandbox of the profile `python` has no such sockets."""
    with leeward.WorkdirSandbox(folder, socket=daemon.socket) as work:
        work.write_file("talks.py", TALKS)
        assert "over lo\n" == work.exec("sh", ["-c", "python3 talks.py"]).text
        out = work.exec("sh", ["-c", "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 5)'"])
        assert "Network is unreachable" in out.stderr_text
    with leeward.Sandbox(socket=daemon.socket, workdir=folder) as box:
        assert "PermissionError" in box.run(["python3", "talks.py"]).stderr_text


def test_the_operator_takes_loopback_from_folders(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[profiles.workdir]\nloopback = false\nmax = 2\n")
    config.chmod(0o600)
    with (LiveDaemon(tmp_path, "--config", str(config)) as daemon,
          leeward.WorkdirSandbox(folder, socket=daemon.socket) as work):
        work.write_file("talks.py", TALKS)
        assert "PermissionError" in work.exec("sh", ["-c", "python3 talks.py"]).stderr_text


def test_a_tool_that_the_host_lacks_is_not_found(daemon: LiveDaemon, folder: Path) -> None:
    """A PATH that leads nowhere is such a host; Node, too, is missing there."""
    with leeward.WorkdirSandbox(folder, env_vars={"PATH": "/nowhere"}, socket=daemon.socket) as work:
        with pytest.raises(leeward.CommandNotFound):
            work.exec("jq")
        with pytest.raises(leeward.ToolboxNotAvailable, match="no Node"):
            work.exec_js("1")


def test_a_program_may_end_with_127(work: leeward.WorkdirSandbox) -> None:
    """Which isn't mistaken for a missing one."""
    assert 127 == work.exec("sh", ["-c", "exit 127"]).exit_code


def test_available_tools_are_in_order(work: leeward.WorkdirSandbox) -> None:
    """And those that every Debian has are among them."""
    found = work.available_tools()

    assert [tool for tool in TOOLS if tool in found] == list(found)
    assert {"cat", "grep", "find", "sh", "[", "tar", "true"} <= set(found)


def test_curl_says_that_there_is_no_network(work: leeward.WorkdirSandbox) -> None:
    """As an exception, and in a shell line on stderr with curl's own status for it."""
    text = "networking disabled: configure fetch_policy to enable"
    with pytest.raises(leeward.NetworkingDisabled, match=f"^{text}"):
        work.exec("curl", ["http://example.com"])
    got = work.exec("sh", ["-c", "curl -s http://example.com || echo failed"])

    assert ("failed\n", text + "\n") == (got.text, got.stderr_text)


def test_fetch_tells_a_wrong_url_from_a_network_that_is_missing(work: leeward.WorkdirSandbox) -> None:
    """Without a policy there is no network."""
    for url in ("no url", "ftp://example.com/", "http://", "http://[1/"):
        with pytest.raises(leeward.FetchError, match=r"^invalid URL"):
            work.fetch(url)
    with pytest.raises(leeward.NetworkingDisabled):
        work.fetch("https://example.com/")


def test_a_time_limit_is_a_timeout(daemon: LiveDaemon, folder: Path) -> None:
    """With what was written before."""
    with leeward.WorkdirSandbox(folder, timeout=0.3, socket=daemon.socket) as work:
        with pytest.raises(leeward.Timeout) as caught:
            work.exec("sh", ["-c", "echo before; sleep 60"])
        assert (leeward.Limit.TIME, b"before\n") == (caught.value.limit, caught.value.result.stdout)
        assert "still here\n" == work.exec("echo", ["still", "here"]).text


def test_a_bound_on_processor_time_is_a_timeout_of_its_own(daemon: LiveDaemon, folder: Path) -> None:
    """It counts what a command starts, also what that leaves behind, and not the time that it waits."""
    with leeward.WorkdirSandbox(folder, cpu=0.3, socket=daemon.socket) as work:
        assert 0 == work.exec("sleep", ["0.6"]).exit_code
        for line in ("while :; do :; done", "(while :; do :; done) & (while :; do :; done) & wait",
                     "while :; do /bin/true; done"):
            with pytest.raises(leeward.Timeout) as caught:
                work.exec("sh", ["-c", f"echo before; {line}"])
            assert (leeward.Limit.CPU, b"before\n") == (caught.value.limit, caught.value.result.stdout)
            assert (leeward.Outcome.TIMED_OUT, 124) == (caught.value.result.outcome, caught.value.result.exit_code)
            assert "processor time" in str(caught.value)


def test_a_command_that_takes_too_much_memory_has_a_result(daemon: LiveDaemon, folder: Path) -> None:
    """And the next command runs."""
    with leeward.WorkdirSandbox(folder, memory="64M", socket=daemon.socket) as work:
        got = work.exec("sh", ["-c", "V=x; while :; do V=$V$V; done"])
        assert (leeward.Outcome.OUT_OF_MEMORY, leeward.Limit.MEMORY) == (got.outcome, got.limit)
        assert 0 == work.exec("true").exit_code


def test_every_command_is_a_fresh_process(work: leeward.WorkdirSandbox) -> None:
    """In the work folder, without variables of the one before; files stay."""
    work.exec("sh", ["-c", "cd /tmp; V=1; export V; umask 0; echo kept >/workspace/kept"])
    got = work.exec("sh", ["-c", "pwd; echo \"<$V>\"; cat kept"])

    assert "/workspace\n<>\nkept\n" == got.text


@pytest.mark.parametrize("by", ["sh", "node", pytest.param("setsid", marks=pytest.mark.needs(GROUPS))])
def test_what_a_command_starts_ends_with_it(work: leeward.WorkdirSandbox, by: str) -> None:
    """Whether it has the command's output or not; it runs on where that is asked for."""
    if by == "node" and "node" not in work.available_tools():
        require("usr-node")
    line = f"{by if by == 'setsid' else ''} sleep 4271 >/dev/null 2>&1 & sleep 4271 &"
    args = (["-e", f"require('child_process').spawn('sh', ['-c', {line!r}], {{stdio: 'inherit'}}).unref()"]
            if by == "node" else ["-c", line])
    by = "node" if by == "node" else "sh"

    def left() -> int:
        got = work.exec("sh", ["-c", "grep -las '427[1]' /proc/[0-9]*/cmdline; :"])
        return len(got.text.splitlines())

    assert work.exec(by, args).ok
    assert 0 == left()
    assert work.exec(by, args, background=True).ok
    poll_until(lambda: 2 == left(), "they are started in the background")
    work._box.kill()


def test_exec_js_ends_what_it_starts(work: leeward.WorkdirSandbox) -> None:
    """In a Node that has waited as well."""
    if "node" not in work.available_tools():
        require("usr-node")
    for _ in range(3):
        code = "console.log(require('child_process').spawn('sleep', ['4272'], {stdio: 'ignore'}).unref())"
        assert "undefined\n" == work.exec_js(code).text
        assert "" == work.exec("sh", ["-c", "grep -las '427[2]' /proc/[0-9]*/cmdline; :"]).text


def test_files_are_the_hosts(work: leeward.WorkdirSandbox) -> None:
    """What either side writes the other one reads, and folders that lead there are made."""
    work.write_file("a/b/c.txt", "by the host")
    assert "by the host" == work.exec("cat", ["a/b/c.txt"]).text
    work.exec("sh", ["-c", "printf 'by a tool' >a/b/c.txt"])
    assert b"by a tool" == work.read_file("a/b/c.txt")
    work.write_file("a/b/c.txt", b"short")
    assert b"short" == work.read_file("./a/../a/b//c.txt")
    work.exec("ln", ["-s", "c.txt", "a/b/link"])
    assert b"short" == work.read_file("a/b/link")
    rows = [(entry.name, entry.is_dir, entry.is_file, entry.size) for entry in work.list_dir("a/b")]
    assert [("c.txt", False, True, 5), ("link", False, False, 0)] == rows
    assert [("b", True, False, 0)] == [(row.name, row.is_dir, row.is_file, row.size) for row in work.list_dir("a")]


def test_wrong_files_are_errors_with_an_errno(work: leeward.WorkdirSandbox) -> None:
    """And none of them makes the caller wait."""
    work.write_file("plain", "x")
    work.exec("sh", ["-c", "mkdir -p folder; rm -f tube; mkfifo tube; ln -sf loop loop"])
    cases = ((lambda: work.read_file("none"), errno.ENOENT), (lambda: work.read_file("folder"), errno.EISDIR),
             (lambda: work.read_file("tube"), errno.EINVAL), (lambda: work.write_file("tube", "x"), errno.ENXIO),
             (lambda: work.read_file("loop"), errno.ELOOP), (lambda: work.list_dir("plain"), errno.ENOTDIR),
             (lambda: work.write_file("plain/below", "x"), errno.ENOTDIR),
             (lambda: work.read_file("a\0b"), errno.EINVAL),
             (lambda: work.read_file(""), errno.EINVAL), (lambda: work.write_file("folder", "x"), errno.EISDIR))
    for call, number in cases:
        with pytest.raises(leeward.WorkdirIoError) as caught:
            call()
        assert number == caught.value.errno, caught.value


def test_a_copy_is_compared_and_leaves_the_folder_alone(daemon: LiveDaemon, folder: Path) -> None:
    """Files of the copy are read and written there."""
    (folder / "old").write_text("old\n")
    (folder / "out").symlink_to("/etc")
    with leeward.WorkdirSandbox(folder, overlay=True, socket=daemon.socket) as work:
        work.exec("sed", ["-i", "s/old/new/", "old"])
        work.write_file("sub/made", "x")
        assert b"new\n" == work.read_file("old")
        assert ["old", "out", "sub"] == [entry.name for entry in work.list_dir()]
        assert [("modified", "old"), ("created", "sub"), ("created", "sub/made")] == [
            (change.kind, change.path) for change in work.diff()]
        for call in (lambda: work.read_file("out/passwd"), lambda: work.write_file("out/new", "x"),
                     lambda: work.list_dir("out"), lambda: work.read_file("../x"), lambda: work.list_dir("/etc")):
            with pytest.raises(leeward.PathTraversal):
                call()
        with pytest.raises(leeward.WorkdirIoError):
            work.read_file("none")
    assert "old\n" == (folder / "old").read_text()
    assert not (folder / "sub").exists()


@pytest.mark.parametrize("compare", [True, False])
def test_a_folder_is_compared_with_what_it_was(daemon: LiveDaemon, folder: Path, compare: bool) -> None:
    """
    Before the first call, whatever it was; also where the sandbox was replaced meanwhile, and with asyncio. Without
    `compare` by sizes and times alone.
    """
    (folder / "old").write_text("old\n")
    (folder / "same").write_text("same\n")
    with leeward.WorkdirSandbox(folder, compare=compare, socket=daemon.socket) as work:
        work.exec("sh", ["-c", "echo new >old; echo same >same; mkdir -p sub; echo x >sub/made; ln -s /etc out"])
        work._box.kill()
        work.write_file("mine", "x")
        work.exec("sh", ["-c", "chmod 600 same"])
        assert [("created", "mine"), ("modified", "old"), ("created", "out"),
                ("mode" if compare else "modified", "same"), ("created", "sub"), ("created", "sub/made")] == [
            (change.kind, change.path) for change in work.diff()]

    async def use() -> list[str]:
        async with leeward.AsyncWorkdirSandbox(folder, compare=compare, socket=daemon.socket) as work:
            await asyncio.gather(*(work.write_file(f"{number}", "x") for number in range(3)))
            return [change.path for change in await work.diff()]
    found = asyncio.run(use())
    assert set(found) <= {"0", "1", "2"}  # the first of the three came after the look at the folder
    assert found


def test_mounts_are_shown(daemon: LiveDaemon, folder: Path) -> None:
    """And are no part of the work folder."""
    (folder / "data").mkdir()
    (folder / "data/x").write_text("shown")
    (folder / "work").mkdir()
    mounts = [leeward.Mount(folder / "data", "/data")]
    with leeward.WorkdirSandbox(folder / "work", mounts, socket=daemon.socket) as work:
        assert "shown" == work.exec("cat", ["/data/x"]).text
        with pytest.raises(leeward.PathTraversal):
            work.read_file("/data/x")


def test_a_missing_folder_fails_at_construction(folder: Path) -> None:
    """No daemon is asked."""
    (folder / "file").write_text("")
    cases: tuple[tuple[Path, list[leeward.Mount], int], ...] = (
        (folder / "none", [], errno.ENOENT), (folder / "file", [], errno.ENOTDIR),
        (folder, [leeward.Mount(folder / "none", "/data")], errno.ENOENT))
    for path, mounts, number in cases:
        with pytest.raises(leeward.WorkdirIoError) as caught:
            leeward.WorkdirSandbox(path, mounts, socket=folder / "no-daemon")
        assert number == caught.value.errno


def test_after_destroy_every_call_says_so(daemon: LiveDaemon, folder: Path) -> None:
    """The folder's files stay, and a command that runs meanwhile ends."""
    work = leeward.WorkdirSandbox(folder, socket=daemon.socket)
    work.write_file("kept", "x")
    seen: list[BaseException] = []
    begun = folder / "begun"
    os.mkfifo(begun)

    def run() -> None:
        try:
            work.exec("sh", ["-c", "echo >begun; sleep 60"])
        except leeward.WorkdirError as error:
            seen.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    begun.read_bytes()
    work.destroy()
    work.destroy()
    thread.join(30)
    assert not thread.is_alive()
    assert [True] == [isinstance(error, (leeward.Destroyed, leeward.WorkdirRuntimeError)) for error in seen]
    for call in (lambda: work.exec("true"), lambda: work.exec_js("1"), lambda: work.read_file("kept"),
                 lambda: work.write_file("new", "x"), work.list_dir, work.diff, work.available_tools,
                 lambda: work.fetch("http://example.com")):
        with pytest.raises(leeward.Destroyed):
            call()  # type: ignore[operator]
    assert {"kept", "begun"} == set(os.listdir(folder))


def test_a_sandbox_that_has_ended_is_replaced(daemon: LiveDaemon, folder: Path) -> None:
    """For the next command; a copy of the folder can't be."""
    for overlay in (False, True):
        with leeward.WorkdirSandbox(folder, overlay=overlay, socket=daemon.socket) as work:
            work.exec("touch", ["/tmp/gone"])
            name = work._box.id
            with leeward.Sandbox.attach(name, socket=daemon.socket) as box:
                box.kill()
            if overlay:
                for call in (lambda: work.exec("true"), lambda: work.read_file("x"), work.diff):
                    with pytest.raises(leeward.Destroyed, match="copy"):
                        call()  # type: ignore[operator]
            else:
                assert 0 != work.exec("cat", ["/tmp/gone"]).exit_code
                assert name != work._box.id


def test_a_sandbox_that_ends_under_a_command_is_not_asked_again(daemon: LiveDaemon, folder: Path) -> None:
    """The command may have had effects."""
    with leeward.WorkdirSandbox(folder, socket=daemon.socket) as work:
        os.mkfifo(folder / "begun")

        def kill() -> None:
            (folder / "begun").read_bytes()
            with leeward.Sandbox.attach(work._box.id, socket=daemon.socket) as box:
                box.kill()

        thread = threading.Thread(target=kill)
        thread.start()
        with pytest.raises(leeward.WorkdirRuntimeError):
            work.exec("sh", ["-c", "echo x >>count; echo >begun; sleep 60"])
        thread.join()
        assert "x\n" == work.exec("cat", ["count"]).text


def test_without_a_daemon_it_is_a_runtime_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which the daemon's error is the cause."""
    monkeypatch.setenv("LEEWARD_AUTOSTART", "0")
    with leeward.WorkdirSandbox(folder, socket=folder / "no-daemon") as work:
        with pytest.raises(leeward.WorkdirRuntimeError) as caught:
            work.exec("true")
        assert isinstance(caught.value.__cause__, leeward.DaemonError)


def test_by_asyncio_it_is_the_same(daemon: LiveDaemon, folder: Path) -> None:
    """Each call, the errors, calls side by side; and the end, which ends what runs."""
    async def use() -> None:
        async with leeward.AsyncWorkdirSandbox(folder, env_vars={"GIVEN": "yes"}, socket=daemon.socket) as work:
            await work.write_file("a/b", "3\n1\n")
            assert b"3\n1\n" == await work.read_file("a/b")
            assert ["a"] == [entry.name for entry in await work.list_dir()]
            assert "1\n3\nyes\n" == (await work.exec("sh", ["-c", "sort a/b; echo $GIVEN"])).stdout_text
            assert "sh" in await work.available_tools()
            many = await asyncio.gather(*(work.exec("printf", [str(number)]) for number in range(20)))
            assert [str(number) for number in range(20)] == [each.stdout_text for each in many]
            for error, call in ((leeward.PathTraversal, work.read_file("../x")),
                                (leeward.CommandNotFound, work.exec("python3")),
                                (leeward.NetworkingDisabled, work.exec("curl", ["http://a"])),
                                (leeward.NetworkingDisabled, work.fetch("http://a"))):
                with pytest.raises(error):
                    await call
            assert ["a", "a/b"] == [change.path for change in await work.diff()]
            if "node" in await work.available_tools():
                assert "42\n" == (await work.exec_js("console.log(6 * 7)")).stdout_text
            os.mkfifo(folder / "begun")
            late = asyncio.create_task(work.exec("sh", ["-c", "echo >begun; sleep 1000"]))
            await asyncio.to_thread((folder / "begun").read_bytes)
            await work.destroy()
            await work.destroy()
            with pytest.raises(leeward.WorkdirError):
                await late
            with pytest.raises(leeward.Destroyed):
                await work.exec("true")
            assert repr(work).endswith(", destroyed>")
        assert "3\n1\n" == (folder / "a/b").read_text()

    asyncio.run(use())


def test_the_two_objects_have_the_same_calls() -> None:
    """By name, arguments and kind, for whoever changes one of them."""
    def calls(kind: type) -> dict[str, list[str]]:
        return {name: [str(each) for each in inspect.signature(call).parameters.values()]
                for name, call in vars(kind).items() if callable(call) and (name == "__init__" or name[0] != "_")}

    assert calls(leeward.WorkdirSandbox) == calls(leeward.AsyncWorkdirSandbox)


def test_a_hundred_commands_in_a_row_leave_memory_flat(daemon: LiveDaemon, work: leeward.WorkdirSandbox) -> None:
    """Of the daemon and of this process, with their descriptors. What a command needs once it has had before."""
    def memory() -> int:
        return anonymous(daemon.process.pid) + anonymous(os.getpid())

    def descriptors() -> tuple[int, int]:
        return len(os.listdir(f"/proc/{daemon.process.pid}/fd")), len(os.listdir("/proc/self/fd"))

    def commands(number: int) -> None:
        for _ in range(number):
            assert 60000 == len(work.exec("sh", ["-c", "head -c 60000 /dev/zero; true | cat >&2"]).stdout)
            work.write_file("file", bytes(40000))
            work.read_file("file")

    commands(150)  # measured: some 4 MiB come in them, and nothing in the 250 that follow
    held = descriptors()

    assert least_growth(memory, lambda: commands(50)) < 1 << 20
    poll_until(lambda: all(now <= then for now, then in zip(descriptors(), held, strict=True)),
               "the daemon's last descriptor of a command that is over")
