"""
A runner with more than one process: each is in the same namespaces, under the same locks, and ends by itself.

With each cgroup driver that this machine can have: what descends from a process is ended by a group of its own, or by
a walk.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.box import MISSING, Box
from kit.drivers import DRIVERS
from kit.live import Live, Ran, opened
from kit.locks import LOCKS
from kit.skip_policy import require
from kit.unclosed import close_garbage
from leeward.daemon.run.launch import Command, Stdio
from leeward.daemon.run.live_runner import MOST_PROCESSES, Full
from leeward.daemon.run.runner import job_of
from leeward.daemon.run.runner_states import ProcessState
from leeward.errors import BadRequest, LeewardError
from leeward.spec.limits import Limits
from leeward.spec.outcome import Outcome

pytestmark = pytest.mark.needs("user-namespaces")



@pytest.fixture(scope="module", params=DRIVERS)
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    with Box(cgroup=request.param) as made:
        yield made


@pytest.fixture
def live(box: Box) -> Iterator[Live]:
    with opened(box) as made:
        yield made


def test_a_pipe_of_programs_in_the_same_files(live: Live) -> None:
    """What one process writes the next one reads, and a shell runs programs of the view."""
    assert 0 == live.shell("echo b >b; echo a >a; mkdir c").code

    got = live.run("sh", "-c", "ls | sort -r; cat a b")

    assert ("c\nb\na\na\nb\n", "", 0) == (got.out, got.err, got.code)


def test_files_and_folders_are_renamed_from_folder_to_folder(live: Live) -> None:
    """By one call: not every program copies where that is refused."""
    assert 0 == live.shell("mkdir -p one/deep two; echo x >one/file").code

    got = live.run("python3", "-c", "import os; os.rename('one/file', 'two/file'); os.rename('one/deep', 'two/deep');"
                                    " os.link('two/file', 'one/again'); print(sorted(os.listdir('two')))")

    assert ("['deep', 'file']\n", "", 0) == (got.out, got.err, got.code)


@pytest.mark.parametrize(("program", "line", "says"), [
    ("grep", "printf 'a\\nb\\n' | grep -c .", "2\n"),
    ("find", "touch x.txt; find . -name '*.txt' | xargs -n1 basename | sort -u | tail -1", "x.txt\n"),
    ("awk", "echo 1 2 | awk '{ print $1 + $2 }'", "3\n"),
    ("tar", "mkdir -p d && echo t >d/f && tar -cf d.tar d && tar -tf d.tar | wc -l", "2\n"),
    ("git", ("git init -q r && cd r && echo a >f && git add f && git -c user.name=n -c user.email=e commit -qm m"
             " && git log --format=%s"), "m\n"),
    ("gcc", "echo 'int main(void) { return 3; }' >m.c && gcc -o m m.c && ./m; echo $?", "3\n"),
    ("bash", "bash -c 'diff <(echo a) <(echo a) && echo same'", "same\n"),
])
def test_programs_of_the_host_run_in_the_view(live: Live, program: str, line: str, says: str) -> None:
    """What of /usr needs no more than /usr, /proc and the sandbox's own files."""
    if shutil.which(program, path="/usr/local/bin:/usr/bin:/bin") is None:
        return  # the host hasn't got it, so a sandbox hasn't

    got = live.shell(line)

    assert says == got.out, got.err
    assert {} == got.exit.denied


def test_all_processes_are_in_the_namespaces_of_the_first(live: Live) -> None:
    """Only the cgroup namespace is each one's own; and none is the host's."""
    names = "cgroup ipc mnt net pid user uts"
    line = f"cd /proc/self/ns; for name in {names}; do readlink $name; done; hostname"
    first, second = live.shell(line), live.shell(line)

    assert (0, 0) == (first.code, second.code), first.err
    rows, others = first.out.split(), second.out.split()
    assert rows[1:] == others[1:]
    assert "leeward" == rows[-1]
    host = [os.readlink(f"/proc/self/ns/{name}") for name in names.split()]
    assert not set(host) & set(rows)
    assert re.fullmatch(r"(1 )?2 \d+( \d+)* ?", live.shell("cd /proc; echo [0-9]*").out.replace("\n", " "))


def test_a_process_sees_its_parent_as_nobody_and_leads_a_session(live: Live) -> None:
    got = live.shell("echo $$ $PPID; cut -d' ' -f5,6 /proc/self/stat; cut -d' ' -f6 /proc/$$/stat")

    pid, parent, _group, session, own = got.out.split()
    assert ("0", pid, pid) == (parent, session, own)
    assert int(pid) == got.process.pid


@pytest.mark.parametrize(("argv", "code"), [
    (("true",), 0), (("false",), 1), (("sh", "-c", "exit 77"), 77), (("sh", "-c", "kill -9 $$"), -9),
    (("sh", "-c", "kill -TERM $$"), -15)])
def test_the_end_of_a_process_is_reported_as_it_was(live: Live, argv: tuple[str, ...], code: int) -> None:
    got = live.run(*argv)

    assert code == got.code
    assert 0 < got.exit.cpu_time < 30
    assert got.exit.duration > 0


@pytest.mark.parametrize(("argv", "more", "code", "refused"), [
    (("nowhere",), {}, 127, errno.ENOENT),
    (("/nowhere/it",), {}, 127, errno.ENOENT),
    (("/etc/passwd/it",), {}, 127, errno.ENOTDIR),
    (("/etc/hosts",), {}, 126, errno.EACCES),
    (("/usr",), {}, 126, errno.EACCES),
    (("true",), {"cwd": b"/nowhere"}, 126, errno.ENOENT),
])
def test_a_program_that_cannot_be_started_has_the_exit_status_of_a_shell(live: Live, argv: tuple[str, ...],
                                                                         more: dict[str, bytes], code: int,
                                                                         refused: int) -> None:
    got = live.run(*argv, **more)

    assert (code, refused, "cwd" if more else "exec") == (got.code, got.exit.refused, got.exit.layer)
    live.until(lambda: not live.runner.processes)
    assert ProcessState.GONE is got.process.state


def test_the_first_program_of_the_path_that_can_be_run_is_taken(live: Live) -> None:
    """One that isn't executable is passed over, and a file in place of a folder."""
    live.shell("mkdir a b; echo exit 3 >a/it; printf '#!/bin/sh\\nexit 4\\n' >b/it; chmod +x b/it; touch f")

    found = live.run("it", env={b"PATH": b"/workspace/f:/workspace/a:/workspace/b:/workspace"})
    barred = live.run("it", env={b"PATH": b"/workspace/a:/nowhere"})

    assert (4, 126) == (found.code, barred.code)


def test_arguments_environment_and_folder_are_those_of_the_request(live: Live) -> None:
    """All bytes but NUL, empty ones, many; the environment has no other variable."""
    arguments = ["", "a b", "\udcff\n'", "*", "x" * 100_000, *("y" for _ in range(1000))]
    code = ("import os, sys; print(ascii(sys.argv[1:])); print(ascii(sorted(os.environb.items()))); print(os.getcwd())")

    got = live.run(os.path.realpath(sys.executable), "-c", code, *arguments,
                   env={b"A": b"", b"\xfe": b"=\n", b"LC_ALL": b"C.UTF-8"}, cwd=b"/tmp")

    said, environment, folder = got.out.splitlines()
    assert (ascii(arguments), "/tmp") == (said, folder), got.err
    assert ascii([(b"A", b""), (b"LC_ALL", b"C.UTF-8"), (b"\xfe", b"=\n")]) == environment


@pytest.mark.parametrize("command", [
    Command(()), Command((b"",)), Command((b"a\0b",)), Command((b"a",), env={b"": b"x"}), Command((b"a",), cwd=b"a"),
    Command((b"a", b"x" * (128 << 10))), Command((b"a",), env={b"A=B": b"x"}), Command((b"a",) * 5000)])
def test_arguments_that_execve_cannot_take_are_refused_at_once(live: Live, command: Command) -> None:
    with pytest.raises(BadRequest):
        live.runner.start(command, on_exit=lambda end: None)

    assert not live.runner.processes


def test_standard_input_is_the_one_of_the_request(live: Live) -> None:
    """A pipe of the daemon's, whose end is the end of file; a descriptor of the caller's; and none."""
    cat = live.start("cat", stdin=Stdio.PIPE)
    os.write(cat.process.stdin, b"one")
    cat.says("one")
    cat.process.close_stdin()
    read, write = os.pipe()
    os.write(write, b"two")
    os.close(write)
    given = live.run("cat", stdin=read)
    os.close(read)

    assert ("one", "two", "") == (cat.end().out, given.out, live.run("cat").out)


def test_a_large_output_comes_whole_and_in_order(live: Live) -> None:
    got = live.shell("seq 200000; echo done >&2")

    assert ("".join(f"{number}\n" for number in range(1, 200_001)), "done\n") == (got.out, got.err)


def test_standard_error_can_be_joined_to_standard_output(live: Live) -> None:
    got = live.shell("echo a; echo b >&2; echo c", stderr=Stdio.OUT)

    assert ("a\nb\nc\n", "") == (got.out, got.err)


def test_a_process_may_open_its_streams_anew(live: Live) -> None:
    """They belong to the user that it runs as."""
    got = live.shell("echo a >/dev/stdout; echo b >/dev/stderr")

    assert ("a\n", "b\n", 0) == (got.out, got.err, got.code)


def test_a_stream_that_is_paused_makes_its_process_wait(live: Live) -> None:
    """It has written what a pipe holds, and goes on when it is read again; nothing is lost, though it ends meanwhile."""
    slow = live.start("sh", "-c", "echo begun; read word; head -c 100000 /dev/zero; echo end >&2", stdin=Stdio.PIPE)
    slow.says("begun")
    slow.process.pause(1)
    os.write(slow.process.stdin, b"go\n")
    other = live.run("true")

    assert 0 == other.code
    assert not slow.ends
    assert "end" not in slow.output[2].decode()
    slow.process.resume(1)
    got = slow.end()
    assert ("end\n", 0) == (got.err, got.code)
    assert len(got.out) > 100_000


def test_bytes_in_a_paused_pipe_survive_the_end_of_the_process(live: Live) -> None:
    quick = live.start("sh", "-c", "echo begun; read word; echo $word", stdin=Stdio.PIPE)
    quick.says("begun")
    quick.process.pause(1)
    os.write(quick.process.stdin, b"late\n")
    quick.until(lambda: quick.process.state is ProcessState.DRAINING)
    live.run("sleep", "0.1")

    assert not quick.ends
    quick.process.resume(1)
    assert "begun\nlate\n" == quick.end().out


def test_signals_reach_the_process(live: Live) -> None:
    waits = live.start(
        "sh", "-c", "trap 'echo usr1' USR1; trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done")
    waits.says("ready")

    assert waits.process.signal(signal.SIGUSR1)
    waits.says("usr1")
    assert waits.process.signal(signal.SIGTERM)
    assert 5 == waits.end().code
    assert not waits.process.signal(signal.SIGTERM)


def test_a_signal_before_the_process_is_reported_is_not_lost(live: Live) -> None:
    started = live.start("sleep", "1000")

    assert started.process.signal(signal.SIGTERM)
    assert -15 == started.end().code
    with pytest.raises(OSError, match="Invalid"):
        live.start("true").process.signal(1000)


def test_a_kill_takes_all_that_descends(live: Live) -> None:
    """Children, grandchildren, one that left the session, one whose parent has ended. Others live on."""
    tree = live.start("sh", "-c", "sleep 1000 & (sleep 1001 &) ; setsid sleep 1002 & (setsid sleep 1003 &) ;"
                      " echo ready; sleep 1004")
    other = live.start("sh", "-c", "echo there; sleep 1005")
    tree.says("ready")
    other.says("there")
    while count(live, "sleep 100[0-9]") < 6:
        pass  # each is an answer of a shell
    tree.process.kill()

    assert -9 == tree.end().code
    assert 1 == count(live, "sleep 100[0-9]")
    live.until(lambda: tree.process.state is ProcessState.GONE)
    other.process.kill()
    assert -9 == other.end().code
    assert 0 == count(live, "sleep 100[0-9]")


def count(live: Live, pattern: str) -> int:
    got = live.shell("for folder in /proc/[0-9]*; do tr '\\0' ' ' <$folder/cmdline; echo; done 2>/dev/null"
                     f" | grep -c '^{pattern}'")
    return int(got.out)


def test_a_process_that_is_killed_before_it_runs_never_does(live: Live) -> None:
    started = live.start("sh", "-c", "echo ran >ran; sleep 1000")
    started.process.kill()

    assert -9 == started.end().code


def test_a_background_process_outlives_its_command(live: Live) -> None:
    """The command's end is told at once, with what was written; the other one writes into nothing, and lives on."""
    got = live.shell("(while :; do echo more; sleep 0.01; done) & echo first")

    assert "first" in got.out
    assert got.exit.left
    assert got.exit.duration < 20
    assert 0 == got.code
    assert got.process.state is ProcessState.LEFT
    assert got.process.number in live.runner.processes
    said = len(got.out)
    assert count(live, "sh -c (while") in (1, 2)  # its child has that line, too, until it executes `sleep`
    got.process.kill()
    live.until(lambda: got.process.state is ProcessState.GONE)
    assert 0 == count(live, "sh -c (while")
    assert said == len(got.out)


def test_a_hundred_processes_in_turn_do_not_leak(live: Live) -> None:
    live.run("true")
    live.until(lambda: not live.runner.runs)
    close_garbage()
    before = held()
    for number in range(100):
        assert number % 256 == live.shell(f"exit {number}").code

    live.until(lambda: not live.runner.runs)
    assert before == held()


def test_twenty_at_once_in_any_order(live: Live) -> None:
    started = [live.start("sh", "-c", f"read word; echo $word; exit {number}", stdin=Stdio.PIPE)
               for number in range(20)]
    for number, each in reversed(list(enumerate(started))):
        os.write(each.process.stdin, f"word {number}\n".encode())

    for number, each in enumerate(started):
        got = each.end()
        assert (f"word {number}\n", number) == (got.out, got.code)
    live.until(lambda: not live.runner.processes)


def held() -> tuple[int, int]:
    """Open descriptors and children of this process."""
    return len(os.listdir("/proc/self/fd")), len(children())


def zombies() -> list[str]:
    return [child for child in children() if "State:\tZ" in Path(f"/proc/{child}/status").read_text()]


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_the_number_of_processes_has_a_bound(box: Box) -> None:
    with opened(box, Limits(processes=MOST_PROCESSES + 50)) as live:
        started = [live.start("sleep", "1000") for _ in range(MOST_PROCESSES)]

        with pytest.raises(Full):
            live.start("true")
        started[0].process.kill()
        started[0].end()
        live.until(lambda: started[0].process.state is ProcessState.GONE)
        assert 0 == live.run("true").code


def test_all_processes_end_with_the_runner(box: Box) -> None:
    """Each end is told, and then the runner's; nothing is left, and the worker serves on."""
    with opened(box) as live:
        live.shell("sleep 1000 &")
        started = [live.start("sleep", "1000") for _ in range(3)]
        live.until(lambda: all(each.process.state is ProcessState.RUNNING for each in started))
        live.runner.end("because")
        live.until(lambda: bool(live.lost))

        assert [-9] * 3 == [each.end().code for each in started]
        assert ["because"] == live.lost
        assert not live.runner.processes

    assert Outcome.FINISHED is box.run("print(1)").outcome


def test_a_runner_whose_first_process_ends_is_over(box: Box) -> None:
    with opened(box) as live:
        started = live.start("sleep", "1000")
        started.until(lambda: started.process.state is ProcessState.RUNNING)
        runner = live.worker.leasing.running
        assert runner is not None
        runner.kill()  # as somebody on the host may

        assert -9 == started.end().code
        live.until(lambda: bool(live.lost))


def test_all_processes_end_with_their_keeper(box: Box) -> None:
    """They come to the daemon, which collects them; the worker is made anew."""
    before = set(zombies())
    live = Live(box)
    started = [live.start("sleep", "1000") for _ in range(3)]
    live.until(lambda: all(each.process.state is ProcessState.RUNNING for each in started))
    pending = live.start("true")  # its order may not be read any more
    os.kill(live.worker.keeper.pid, signal.SIGKILL)
    live.until(lambda: bool(live.lost))

    assert all(each.ends for each in (*started, pending))
    assert not live.runner.processes
    box.settle()
    assert Outcome.FINISHED is box.run("print(1)").outcome
    live.until(lambda: not set(zombies()) - before)


# --- locks --------------------------------------------------------------------


@contextlib.contextmanager
def without(*names: str) -> Iterator[Live]:
    """
    A sandbox without these locks. Its zygote inherits one descriptor that an execve leaves open: without the lock
    "descriptors" it reaches the sandbox's commands. Its number is above those that a keeper needs for itself.
    """
    with open("/dev/null", "rb") as null, open(fcntl.fcntl(null, fcntl.F_DUPFD, 160), "rb") as left_open:
        os.set_inheritable(left_open.fileno(), True)
        with Box(locks=LOCKS - set(names)) as box, opened(box) as live:
            yield live


LOCKED: tuple[tuple[str, Callable[[Live], Ran], Callable[[Ran], bool]], ...] = (
    ("landlock", lambda live: live.shell("cat /.sealed"), lambda got: 0 == got.code),
    ("seccomp", lambda live: live.run("unshare", "-U", "true"), lambda got: 0 == got.code),
    ("rlimits", lambda live: live.shell("grep pending /proc/self/limits"), lambda got: " 1024 " not in got.out),
    ("descriptors", lambda live: live.python(
        "import os; print(sum(os.path.exists(f'/proc/self/fd/{fd}') for fd in range(3, 200)))"),
     lambda got: int(got.out) > 0),
)


@pytest.mark.parametrize(("lock", "attack", "escaped"), [
    pytest.param(*row, id=f"{row[0]}{at}") for at, row in enumerate(LOCKED)])
def test_every_lock_holds_in_a_further_process(live: Live, lock: str, attack: Callable[[Live], Ran],
                                               escaped: Callable[[Ran], bool]) -> None:
    """As in a job; the control is a sandbox without that lock."""
    if lock in MISSING:
        require("landlock")
    with without(lock) as loose:
        assert escaped(attack(loose))  # control

    got = attack(live)

    assert not escaped(got), got


def test_a_process_has_no_capability_and_gets_none(live: Live) -> None:
    """An execve would take them from this uid in any case; so there is no control."""
    got = live.shell("grep -E '^(Cap|NoNew|Seccomp:)' /proc/self/status")

    none = "".join(f"Cap{name}:\t{'0' * 16}\n" for name in ("Inh", "Prm", "Eff", "Bnd", "Amb"))
    assert f"{none}NoNewPrivs:\t1\nSeccomp:\t2\n" == got.out


def test_refused_calls_of_a_process_are_counted_as_its_own(live: Live) -> None:
    got, other = live.run("unshare", "-U", "true"), live.run("true")

    assert {"unshare": 1} == got.exit.denied
    assert {} == other.exit.denied
    both = live.python("import ctypes; c = ctypes.CDLL(None); c.unshare(0x10000000); c.mount(b'', b'/tmp', b'', 0, 0)")
    assert {"unshare": 1, "mount": 1} == both.exit.denied


def test_a_process_signals_another_by_its_number(live: Live) -> None:
    other = live.start("sh", "-c", "trap 'echo asked; exit 7' TERM; echo $$; while :; do sleep 0.1; done")
    other.says("\n")

    got = live.shell(f"kill {other.out.strip()} && echo sent")
    other.says("asked")

    assert "sent\n" == got.out
    assert 7 == other.end().code


@pytest.mark.needs("landlock>=6")
def test_a_process_that_signals_all_it_can_leaves_the_sandbox_open(live: Live) -> None:
    """The first process and the init, with which all would end, are in domains of their own."""
    other = live.start("sleep", "1000")

    got = live.shell("kill -9 2; kill -9 1; kill -9 -1; echo alive")

    assert "alive\n" == got.out
    assert 2 == got.err.count("not permitted"), got.err
    assert -signal.SIGKILL == other.end().code
    assert "on\n" == live.shell("echo on").out
    assert not live.lost


#: What a process does to the first one and the init: signals, memory, limits of processor time, descriptors; each by number.
REACH = """
import ctypes, errno, os, resource
libc = ctypes.CDLL(None, use_errno=True)
CALLS = {"ptrace": (101, 117), "process_vm_readv": (310, 270), "pidfd_getfd": (438, 438)}
def call(name, *arguments):
    if libc.syscall(CALLS[name]["x86_64" != os.uname().machine], *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")
for pid in (1, 2):
    for attempt in (lambda: os.kill(pid, 9), lambda: os.kill(pid, 19), lambda: open(f"/proc/{pid}/mem", "r+b"),
                    lambda: open(f"/proc/{pid}/maps").read(1), lambda: os.listdir(f"/proc/{pid}/fd"),
                    lambda: call("ptrace", 16, pid, 0, 0), lambda: call("process_vm_readv", pid, 0, 0, 0, 0, 0),
                    lambda: call("pidfd_getfd", os.pidfd_open(pid), 0, 0)):
        try:
            attempt()
            print("reached", end=" ")
        except OSError as error:
            print(errno.errorcode[error.errno], end=" ")
"""


@pytest.mark.needs("landlock>=6")
def test_the_first_process_of_a_sandbox_that_rests_keeps_no_memory_and_cannot_be_reached(live: Live) -> None:
    """Also if somebody on the host stops and continues it: it waits for its end alone."""
    first = job_of(live.runner.runner.pid)

    def size() -> int:
        return int(re.findall(r"^VmSize:\s*(\d+) kB$", Path(f"/proc/{first}/status").read_text(), re.MULTILINE)[0])

    assert size() > 10_000  # control: an interpreter
    live.runner.rest()
    live.until(lambda: size() <= 5 * os.sysconf("SC_PAGE_SIZE") >> 10)
    got = live.python(REACH)
    for number in (signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM, signal.SIGSEGV):
        os.kill(first, number)
    live.runner.rest()

    assert {"EPERM", "EACCES"} == set(got.out.split()), got
    assert 16 == len(got.out.split())
    assert "on\n" == live.shell("echo on").out
    assert not live.lost


@pytest.mark.needs("landlock>=6")
def test_no_signal_of_a_process_reaches_the_helper_that_made_it(live: Live) -> None:
    """Though it is in their domain: it has no number there, and is in the keeper's process group."""
    sleeper = live.start("sleep", "1000")
    sleeper.until(lambda: sleeper.process.host_pid > 0)
    helper = helper_of(live)
    assert os.getpgid(helper) == os.getpgid(live.worker.keeper.pid) != os.getpgid(sleeper.process.host_pid)

    got = live.python("""
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(sum(name.isdigit() for name in os.listdir("/proc")))
os.kill(0, signal.SIGTERM)
os.kill(-1, signal.SIGKILL)
""")

    assert "4\n" == got.out  # the init, the first process, the sleeper and itself
    assert -signal.SIGKILL == sleeper.end().code
    assert "on\n" == live.shell("echo on").out
    assert helper == helper_of(live)


def helper_of(live: Live) -> int:
    keeper = live.worker.keeper.pid
    found, = (pid for pid in Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
              if "lw-helper\n" == Path(f"/proc/{pid}/comm").read_text())
    return int(found)


#: Stops every process with a number above its own, as soon as it is there.
STOPPER = """
import os, signal
print("ready", flush=True)
while True:
    for pid in range(os.getpid() + 1, os.getpid() + 100):
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            continue
        os.write(1, b"stopped ")
"""


def test_a_process_that_stops_others_as_they_begin_holds_up_its_own_sandbox_alone(box: Box) -> None:
    """The keeper, on whose memory they begin, waits for them; it goes on when the sandbox is ended."""
    with opened(box) as live:
        stopper = live.start(os.path.realpath(sys.executable), "-c", STOPPER)
        stopper.says("ready")
        others = [live.start("sleep", "1000") for _ in range(20)]
        stopper.says("stopped")
    assert all(other.ends for other in others)

    with opened(box) as live:
        assert "on\n" == live.shell("echo on").out


def test_a_process_cannot_look_into_another(live: Live) -> None:
    other = live.start("sh", "-c", "echo $$; sleep 1000", env={b"SECRET": b"word", b"PATH": b"/bin:/usr/bin"})
    other.says("\n")

    got = live.shell(f"cat /proc/{other.out.strip()}/environ /proc/{other.out.strip()}/fd/1; echo $?")

    assert "word" not in got.out
    assert "1\n" == got.out
    other.process.kill()
    other.end()


def test_tasks_of_all_processes_together_are_limited(box: Box) -> None:
    with opened(box, Limits(processes=16)) as live:
        many = live.start("sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 1000 & done; echo ready; wait")
        many.says("ready")
        got = live.shell("for i in 1 2 3 4 5 6 7 8 9 10; do sleep 1000 & done; echo all")

        assert "all" not in got.out
        assert "fork" in got.err.lower()
        many.process.kill()
        many.end()
        got.process.kill()


def test_memory_of_all_processes_is_limited(box: Box) -> None:
    """Where the kernel counts, the process that takes too much ends and the others live; else the sandbox does."""
    with opened(box, Limits(memory=128 << 20)) as live:
        other = live.start("sh", "-c", "echo ready; sleep 1000")
        other.says("ready")
        hog = live.start(os.path.realpath(sys.executable), "-c",
                         "import time; a = bytearray(256 << 20); a[::4096] = a[::4096]; time.sleep(1000)")
        hog.until(lambda: bool(hog.ends) or bool(live.lost))

        if box.engine.driver.memory_counted:
            assert live.runner.usage().oom_kills
            assert not live.lost
            assert 0 == live.run("true").code
        else:
            live.until(lambda: bool(live.lost))
            assert ["it ran out of memory"] == live.lost


#: Leaves the session of a command that ends, and grows when it is told to.
STRAY = """
import os, signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
ready, say = os.pipe()
if os.fork():
    os._exit(len(os.read(ready, 1)) - 1)
os.setsid()
os.write(say, b"x")
signal.sigwait({signal.SIGUSR1})
kept = []
for _ in range(64):
    kept.append(b"x" * (4 << 20))
    time.sleep(0.01)
time.sleep(1000)
"""


def test_memory_is_limited_when_all_commands_have_ended(box: Box) -> None:
    """Where no group holds what has left its session, no command is known to have it, and the sandbox seems to rest."""
    counted = box.engine.driver.memory_counted
    with opened(box, Limits(memory=128 << 20)) as live:
        assert 0 == live.python(STRAY, stdout=Stdio.NULL, stderr=Stdio.NULL).code
        live.until(lambda: counted or not live.runner.processes)
        init = live.runner.runner.pid
        _, stray = map(int, Path(f"/proc/{init}/task/{init}/children").read_text().split())
        os.kill(stray, signal.SIGUSR1)
        pages = 0
        while not (live.runner.usage().oom_kills if counted else live.lost) and pages * 4096 < 240 << 20:
            box.reactor.turn(0.01)
            with contextlib.suppress(OSError):
                pages = int(Path(f"/proc/{stray}/statm").read_text().split()[1])

        assert counted or ["it ran out of memory"] == live.lost
        assert not counted or live.runner.usage().oom_kills


SOCKETS = """
import signal, socket
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
print("ready", flush=True)
signal.sigwait({signal.SIGUSR1})
ends = [socket.socketpair() for _ in range(400)]
print("made", flush=True)
signal.pause()
"""


def test_what_waits_in_sockets_counts_also_in_a_sandbox_that_rests(box: Box) -> None:
    """It has no request, and its processes run on: 800 sockets may keep 160 MiB, which no resident set shows."""
    with opened(box, Limits(memory=100 << 20)) as live:
        many = live.start(os.path.realpath(sys.executable), "-c", SOCKETS)
        many.says("ready")
        live.runner.rest()
        many.process.signal(signal.SIGUSR1)
        until = time.monotonic() + 10
        while not live.lost and time.monotonic() < until and (not box.engine.driver.memory_counted or "made" not in many.out):
            box.reactor.turn(0.01)

        assert ([] if box.engine.driver.memory_counted else ["it ran out of memory"]) == live.lost


def test_processor_time_is_counted(live: Live) -> None:
    before = live.runner.usage().cpu_time
    got = live.python("import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass")

    assert 0.3 <= got.exit.cpu_time < 5
    live.run("true")
    assert live.runner.usage().cpu_time - before >= 0.25 or not box_counts(live)


def test_an_order_that_can_not_be_sent_leaves_no_process(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many descriptors in flight, for example: the order is refused, and the process that was to take it ends."""
    def unsent(*_: object) -> None:
        raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))

    live.run("true")
    live.until(lambda: not live.runner.processes)
    with monkeypatch.context() as patch:
        patch.setattr("leeward.daemon.run.live_runner.PorterOrder", unsent)
        with pytest.raises(LeewardError, match="a porter"):
            live.runner.carry({}, [], lambda *_: None, 5.0)
    assert 1 == len(live.runner.processes)
    live.until(lambda: not live.runner.processes)
    assert "on\n" == live.run("echo", "on").out


def test_a_porter_may_begin_before_its_order(live: Live) -> None:
    """It waits for the order; if that can't be sent, its process ends."""
    got: list[object] = []
    live.run("true")
    porter = live.runner.carry(None, [], lambda what, _: got.append(what), 5.0)
    porter.give({"order": "cover", "hide": []}, [])
    live.until(lambda: bool(got))
    assert isinstance(got[0], LeewardError)  # its answer: the order came without the descriptor that it needs

    porter = live.runner.carry(None, [], lambda what, _: got.append(what), 5.0)
    with pytest.raises(LeewardError, match="a porter"):
        porter.give({"order": "cover", "hide": []}, [1 << 20])
    live.until(lambda: not live.runner.processes)
    assert 1 == len(got)
    assert "on\n" == live.run("echo", "on").out


def box_counts(live: Live) -> bool:
    return bool(live.box.engine.driver.memory_counted)


def test_a_forker_is_ended_with_its_descendants(box: Box) -> None:
    """
    Each of its processes forks another one and ends, eight at a time. A group takes all of them; a walk may not keep up
    with them, and then the sandbox ends.
    """
    with opened(box, Limits(processes=24)) as live:
        before = live.living()
        forker = live.start(os.path.realpath(sys.executable), "-c",
                            "import os\nfor _ in range(3): os.fork()\nos.write(1, b'ready')\n"
                            "while True:\n  if os.fork(): os._exit(0)")
        forker.says("ready")
        forker.process.kill()
        live.until(lambda: bool(live.lost) or forker.process.state is ProcessState.GONE)

        assert forker.ends
        if box.engine.driver.memory_counted:
            assert not live.runner.over
        if not live.runner.over:
            assert sorted(before) == sorted(live.living())


def test_the_daemons_programs_are_the_controls() -> None:
    """The commands of these tests do work outside."""
    assert 0 == subprocess.run(["unshare", "-U", "true"], check=False, timeout=60).returncode
