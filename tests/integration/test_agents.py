"""`leeward agent`: start, list, attach, stop; hooks, overlays, exit statuses, and that nothing is left."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import leeward
from kit.agents import AgentHome, agents_daemon
from kit.live_daemon import PATIENCE, LiveDaemon, command, descendants
from kit.waiting import poll_until

DAEMON_BY = agents_daemon

pytestmark = pytest.mark.needs("user-namespaces")

#: fcntl(2); Python 3.11 has no name for it.
F_SETSIG = 10

#: Prints when it runs, and stays.
WAITING = "echo ready; read word; exit ${word:-0}"

#: Tells when it has the terminal; one process, as a shell that waits for its child to exec (vfork) isn't stopped.
IN_FRONT = """sh -c 'echo "be""gun"; exec sleep 1000'"""


def started(home: AgentHome, *argv: str, **env: str) -> subprocess.Popen[str]:
    process = home.popen("start", "sh", ".", *argv, "--", "-c", WAITING, **env)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "ready\n", (line, process.stderr.read() if process.stderr else "")
    return process


def test_output_input_and_exit_status_pass(home: AgentHome) -> None:
    got = home.run("start", "sh", ".", "--", "-c", "pwd; cat; echo err >&2; exit 7", input="given")
    assert (7, f"{home.project}\ngiven", "err\n") == (got.returncode, got.stdout, got.stderr)
    assert [] == home.left()


def test_arguments_after_two_hyphens_are_the_agents_without_a_path_as_well(home: AgentHome) -> None:
    got = home.run("start", "sh", "--", "-c", "pwd; echo $0", "--debug")
    assert (0, f"{home.project}\n--debug\n") == (got.returncode, got.stdout), got.stderr


def test_a_project_of_many_files_is_looked_at_as_well(home: AgentHome) -> None:
    """By a copy of the command line, of which nothing is left."""
    for number in range(5000):
        (home.project / f"{number}").touch()
    (home.project / "deep").mkdir()
    (home.project / "deep/.env").write_text("SECRET")
    got = home.run("start", "sh", ".", "--", "-c", "cat deep/.env; echo over")
    assert (0, "over\n") == (got.returncode, got.stdout)
    assert "Permission denied" in got.stderr


def test_an_agent_sees_only_the_files_of_home_that_its_definition_names(home: AgentHome) -> None:
    """A state folder is the host's, a staged file a copy; variables are those that are named."""
    home.define("sh", 'command = ["sh"]\nstate = ["~/.state"]\nstaged = ["~/.staged.json", "~/.missing"]\n'
                      'pass_environment = ["PASSED_*"]\n[environment]\nSET = "set"\n')
    (home.path / ".staged.json").write_text("before")
    (home.path / "secret").write_text("secret")
    got = home.run("start", "sh", ".", "--", "-c", "echo kept >~/.state/file; cat ~/.staged.json; echo after"
                   " >~/.staged.json; cat ~/.staged.json; ls -A ~; echo $SET $PASSED_A $OTHER",
                   PASSED_A="a", OTHER="other")
    assert "beforeafter\n.staged.json\n.state\nproject\nset a\n" == got.stdout
    assert "kept\n" == (home.path / ".state/file").read_text()
    assert "before" == (home.path / ".staged.json").read_text()


def test_on_a_terminal(home: AgentHome) -> None:
    """Its size and changes of it, Ctrl-C and Ctrl-Z for the agent, the exit status, our modes as they were."""
    with home.on_terminal("start", "shell", str(home.project), TERM="xterm") as screen:
        screen.until(r"\$ ")
        screen.types("stty size; echo $TERM\r")
        screen.until("24 80")
        screen.resize(40, 100)
        screen.types(f"{IN_FRONT}\r")
        screen.until("begun\r\n")
        screen.types("\x03")
        screen.until(r"\$ ")
        screen.types(f"stty size; {IN_FRONT}\r")
        screen.until("40 100\r\nbegun")
        screen.types("\x1a")
        screen.until("Stopped")
        screen.until(r"\$ ")
        screen.types('kill -9 %1; while test -n "$(jobs -s)"; do :; done; echo\r')
        screen.until("Killed")
        screen.types("exit 9\r")
        assert 9 == screen.end()
        assert screen.usual == screen.modes()


def test_a_paste_is_one(home: AgentHome) -> None:
    """
    The program's wish for bracketed paste reaches our terminal, and the brackets reach the program: lines in it are run
    when Enter comes, and not one by one.
    """
    with home.on_terminal("start", "shell", str(home.project), TERM="xterm") as screen:
        screen.until(r"\x1b\[\?2004h.*\$ ")
        screen.types("\x1b[200~echo fir''st\recho sec''ond\x1b[201~")
        screen.until("sec''ond")
        screen.types("\r")
        screen.until("first\r\nsecond\r\n")
        screen.until(r"\$ ")
        screen.types("exit 0\r")
        assert 0 == screen.end()
        assert screen.usual == screen.modes()


#: Of what is killed, each.
ROUNDS = 20 if os.environ.get("LEEWARD_LONG") else 1


@pytest.mark.parametrize("times", range(ROUNDS))
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_ends_it_with_all_that_it_has(home: AgentHome, number: int, status: int, times: int) -> None:
    process = started(home)
    process.send_signal(number)
    process.wait(PATIENCE)  # with its input open: the first SIGINT is the agent's, which would see the end of it else
    process.communicate()
    assert status == process.returncode
    assert [] == home.left()
    assert [] == leeward.Sandbox.list(socket=home.environment()["LEEWARD_SOCKET"])


def test_ctrl_c_goes_to_the_agent_and_then_to_leeward(home: AgentHome) -> None:
    process = home.popen("start", "sh", ".", "--", "-c",
                         "trap 'echo heard' INT; echo ready; while :; do sleep 0.1; done")
    assert process.stdout is not None
    assert "ready\n" == process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert "heard\n" == process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert 130 == process.returncode


def test_several_agents_run_at_once_and_each_is_listed(home: AgentHome) -> None:
    """Two of one project, each with a name; list, attach, stop by the name."""
    one, two = started(home), started(home)
    rows = [json.loads(line) for line in home.run("list", "--json").stdout.splitlines()]
    assert 2 == len({row["instance"] for row in rows})
    assert {("sh", str(home.project))} == {(row["agent"], row["project"]) for row in rows}
    assert all(row["memory"] > 0 and row["uptime"] >= 0 for row in rows)
    assert 2 == len(home.run("list").stdout.splitlines())

    first, second = (row["instance"] for row in rows)
    got = home.run("attach", first, "--", "sh", "-c", "pwd; ps ax 2>/dev/null | grep -c 'read wor[d]'")
    assert str(home.project) == got.stdout.splitlines()[0]
    assert "sh" in home.run("logs", first).stdout or 0 == home.run("logs", first).returncode
    assert 0 == home.run("stop", second).returncode
    assert 1 == home.run("stop", second).returncode
    two.communicate(timeout=PATIENCE)
    assert 143 == two.returncode
    assert [first] == [json.loads(line)["instance"] for line in home.run("list", "--json").stdout.splitlines()]
    assert one.communicate("3\n", timeout=PATIENCE)[0] == ""
    assert 3 == one.returncode


@pytest.mark.parametrize("name", ["with blank", "unicode-é☃", "new\nline", "quote'\"$x"])
def test_names_of_projects(home: AgentHome, name: str) -> None:
    project = home.path / name
    project.mkdir()
    (project / ".env").write_text("SECRET")
    got = home.run("start", "sh", str(project), "--", "-c", "pwd; cat .env; echo 1 >made")
    assert f"{project}\n" == got.stdout, got.stderr
    assert "SECRET" not in got.stderr
    assert "1\n" == (project / "made").read_text()


def test_a_hidden_name_that_is_no_text(home: AgentHome) -> None:
    """It can't be hidden; a folder above it can."""
    (home.project / "sub").mkdir()
    with open(os.fsencode(home.project) + b"/sub/\xff.env", "w") as file:
        file.write("SECRET")
    start = ("start", "sh", ".", "--", "-c", "ls -A sub; cat sub/*; echo begun")
    got = home.run(*start)
    assert (1, "") == (got.returncode, got.stdout)
    assert "isn't UTF-8: rename it, or let files.exclude name a folder above it" in got.stderr
    home.settings('[files]\nexclude = ["sub"]\n')
    assert "begun\n" == home.run(*start).stdout


def test_a_wrong_start_is_refused_with_its_reason(home: AgentHome) -> None:
    for argv, why in ((("sh", str(home.path)), "your home folder"), (("sh", "/"), "your home folder"),
                      (("sh", str(home.path / "none")), "is not a folder"),
                      (("sh", ".", "--dump-network-access", "/nonexistent/dump"), "is no file that can be written"),
                      (("shh", "."), "shh"), (("sh", ".", "--library", "/proc"), "never shown"),
                      (("sh", ".", "--library", "/etc/passwd"), "as in /etc/passwd:/opt/passwd"),
                      (("sh", ".", "--memory", "much"), "--memory: 'much' is not a size")):
        got = home.run("start", *argv)
        assert got.returncode in (1, 2)
        assert why in got.stderr
    home.define("missing", 'command = ["no-such-agent"]\n[install]\ncommand = "get it"\n')
    got = home.run("start", "missing", ".")
    assert (1, True) == (got.returncode, "not installed" in got.stderr and "get it" in got.stderr)
    assert 1 == home.run("doctor", "missing").returncode
    home.define("there", 'command = ["bash"]\n')
    assert 0 == home.run("doctor", "there").returncode
    assert [] == home.left()


def test_a_read_only_project_is_refused_with_what_to_do(home: AgentHome) -> None:
    """On a read-only file system, for which there are mount and user namespaces of the test's own."""
    line = 'mount -t tmpfs -o ro none "$0" && shift && exec "$@"'
    start = command("agent", "start", "sh", str(home.project), "--", "-c", "echo begun")
    got = subprocess.run(["unshare", "--map-root-user", "--mount", "sh", "-c", line, str(home.project), "", *start],
                         env=home.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                         timeout=4 * PATIENCE, check=False)
    assert (1, "") == (got.returncode, got.stdout)
    assert "is on a read-only file system; with --overlay the agent works on a copy" in got.stderr
    assert [] == home.left()


def test_libraries_memory_time_and_a_shell_in_its_place(home: AgentHome) -> None:
    (home.path / "library").mkdir()
    (home.path / "library/file").write_text("shown")
    got = home.run("start", "sh", ".", "--library", f"{home.path}/library:/opt/lib", "--memory", "300M", "--debug",
                   input="cat /opt/lib/file; touch /opt/lib/x || echo no\nexit 4\n")
    assert (4, True) == (got.returncode, "shown" in got.stdout and "no" in got.stdout)
    got = home.run("start", "sh", ".", "--timeout", "1", "--", "-c", "echo begun; sleep 1000")
    assert (124, "begun\n") == (got.returncode, got.stdout)


def test_the_list_of_hosts_is_written_to_the_folder_of_the_start(home: AgentHome) -> None:
    """Not to one that the agent has linked to in its place."""
    (home.path / "private").mkdir()
    (home.project / "out").mkdir()
    start = ("start", "sh", ".", "--dump-network-access", "out/names", "--", "-c")
    got = home.run(*start, "mv out was; ln -s ../private out")
    assert 0 == got.returncode, got.stderr
    assert [] == os.listdir(home.path / "private")
    assert ["names"] == os.listdir(home.project / "was")
    assert 0 == home.run(*start, "true").returncode
    assert ["names"] == os.listdir(home.path / "private"), "a link of before is the caller's"


# --- hooks ------------------------------------------------------------------------


HOOKS = """\
[hooks]
setup_host = ["echo setup_host $LEEWARD_AGENT >>$HOME/order"]
setup = ["echo setup >>.order"]
prestart = ["echo one >>.order", "echo two >>.order"]
cleanup_host = ["echo cleanup >>$HOME/order; exit 3", "echo again >>$HOME/order"]
"""


def test_hooks_in_order(home: AgentHome) -> None:
    """A clean-up that fails is a warning, and the next one runs."""
    home.settings(HOOKS)
    got = home.run("start", "sh", ".", "--", "-c", "echo agent >>.order; exit 5")
    assert 5 == got.returncode
    assert "setup_host sh\ncleanup\nagain\n" == (home.path / "order").read_text()
    assert "setup\none\ntwo\nagent\n" == (home.project / ".order").read_text()
    assert "ended with status 3" in got.stderr


@pytest.mark.parametrize("which", ["setup_host", "setup", "prestart"])
def test_a_set_up_that_fails_aborts_and_is_cleaned_up(home: AgentHome, which: str) -> None:
    home.settings(f'[hooks]\n{which} = ["echo why >&2; exit 4"]\ncleanup_host = ["echo cleanup >>$HOME/order"]\n')
    got = home.run("start", "sh", ".", "--", "-c", "echo agent")
    assert (1, "") == (got.returncode, got.stdout)
    assert "ended with status 4" in got.stderr
    assert "why" in got.stderr
    assert "cleanup\n" == (home.path / "order").read_text()
    assert [] == home.left()


def test_a_projects_hooks_on_the_host_are_asked_for(home: AgentHome) -> None:
    """Without a terminal it is no; --trust-project is yes, and remembered for exactly these."""
    (home.project / ".leeward").mkdir()
    settings = home.project / ".leeward/agent.toml"
    settings.write_text('[hooks]\nsetup_host = ["echo ran >>$HOME/ran"]\n')
    got = home.run("start", "sh", ".", "--", "-c", "true")
    assert 1 == got.returncode
    assert ['leeward:   echo ran >>$HOME/ran', "leeward:       runs on this host, as you, before the start"
            ] == got.stderr.splitlines()[1:3]
    assert not (home.path / "ran").exists()
    assert 0 == home.run("start", "sh", ".", "--trust-project", "--", "-c", "true").returncode
    assert 0 == home.run("start", "sh", ".", "--", "-c", "true").returncode
    assert "ran\nran\n" == (home.path / "ran").read_text()
    settings.write_text('[hooks]\nsetup_host = ["echo ran >>$HOME/ran", "true"]\n')
    assert 0 != home.run("start", "sh", ".", "--", "-c", "true").returncode


def test_a_person_is_asked_on_the_terminal(home: AgentHome) -> None:
    """Anything but yes starts nothing, and is asked again; yes is remembered."""
    (home.project / ".leeward").mkdir()
    (home.project / ".leeward/agent.toml").write_text('environment = { GIVEN = "by the project" }\n')
    start = ("start", "sh", str(home.project), "--", "-c", "echo $GIVEN")
    for typed in ("y\r", "\r", "no yes\r", "\x04"):
        with home.on_terminal(*start) as screen:
            screen.until("GIVEN=by the project.*Type yes: ")
            screen.types(typed)
            assert 1 == screen.end()
            assert "not accepted" in screen.all
    with home.on_terminal(*start) as screen:
        screen.until("Type yes: ")
        screen.types("\x03")
        assert screen.end() in (130, -signal.SIGINT)
    with home.on_terminal(*start) as screen:
        screen.until("Type yes: ")
        screen.types("yes\r")
        screen.until("by the project\r\n")
        assert 0 == screen.end()
    assert "by the project\n" == home.run(*start).stdout


# --- on a copy ----------------------------------------------------------------------


def test_an_overlay_is_shown_and_applied_or_not(home: AgentHome) -> None:
    (home.project / "old").write_text("old")
    change = ("start", "sh", ".", "--overlay")
    do = ("--", "-c", "echo new >old; echo x >made; exit 6")
    got = home.run(*change, *do)
    assert 6 == got.returncode
    assert ["A made", "M old"] == sorted(line for line in got.stderr.splitlines() if line[:2] in ("A ", "M "))
    assert "old" == (home.project / "old").read_text()
    assert not (home.project / "made").exists()
    assert 6 == home.run(*change, "--apply", *do).returncode
    assert ("new\n", "x\n") == ((home.project / "old").read_text(), (home.project / "made").read_text())


def test_changes_in_a_copy_are_kept_where_nobody_can_be_asked(home: AgentHome) -> None:
    """In a folder, from which the printed commands bring them to the project; also when a signal ends the command."""
    (home.project / "deep/er").mkdir(parents=True)
    for name in ("old", "gone", "gone\nline", "deep/er/file", "deep/er/mode"):
        (home.project / name).write_text("old\n")
    work = ("echo new >old; echo new >deep/er/file; chmod 755 deep/er/mode; rm gone*; ln -s old link; mkfifo fifo; mkdir new;"
            " echo x >new/x")
    got = home.run("start", "sh", ".", "--overlay", "--", "-c", work)
    assert 0 == got.returncode, got
    assert "old\n" == (home.project / "old").read_text()
    assert "not saved: 'fifo'" in got.stderr
    copying, removing = re.findall(r"`((?:cp|xargs) [^`]*)`", got.stderr)
    for line in (copying, removing):
        subprocess.run(["sh", "-c", line], cwd=home.project, check=True)
    assert ["deep", "link", "new", "old"] == sorted(os.listdir(home.project))
    assert ("new\n", "new\n", "x\n") == tuple((home.project / name).read_text()
                                              for name in ("old", "deep/er/file", "new/x"))
    assert 0o755 == (home.project / "deep/er/mode").stat().st_mode & 0o777

    kept = home.path / "state/leeward/agents/kept"
    assert 0o700 == kept.stat().st_mode & 0o777
    process = home.popen("start", "sh", ".", "--overlay", "--", "-c", "echo last >last; echo begun; sleep 1000")
    assert process.stdout is not None
    assert "begun\n" == process.stdout.readline()
    process.terminate()
    _, said = process.communicate(timeout=PATIENCE)
    assert 128 + signal.SIGTERM == process.returncode, said
    assert "1 changes are not applied, but kept in" in said
    assert ["last\n"] == [one.read_text() for one in kept.glob("*/files/last")]
    assert not (home.project / "last").exists()


def test_an_overlay_is_applied_without_what_no_host_gets(home: AgentHome) -> None:
    """An environment of Python has links to /usr, and servers leave sockets. All else that the agent has done stays."""
    got = home.run("start", "sh", ".", "--overlay", "--apply", "--", "-c",
                   "mkdir env; ln -s /usr/bin/python3 env/python; mkfifo pipe; echo x >env/made; truncate -s 1T holes")
    assert 0 == got.returncode, got
    assert ["env", "env/made"] == sorted(str(each.relative_to(home.project)) for each in home.project.rglob("*"))
    for line in ("not applied: 'env/python' is a link that leads out of the folder\n",
                 "not applied: 'pipe' is a FIFO, a socket or a device\n",
                 "not applied: 'holes' has 1099511627776 bytes"):
        assert line in got.stderr


def kept(said: str, daemon: LiveDaemon) -> leeward.Sandbox:
    """The sandbox with the copy of an agent that has ended."""
    found = re.search(r"the agent's copy stays for 10 minutes: `leeward diff ([a-z0-9]{26})`", said)
    assert found, said
    return leeward.Sandbox.attach(found[1], socket=daemon.socket)


def test_an_overlay_is_applied_without_what_the_host_has_changed(home: AgentHome, daemon: LiveDaemon) -> None:
    """While the agent ran. The rest isn't lost, and the status says that it isn't all."""
    for name in ("both", "agents", "kept/both", "kept/agents", "mixed/agents", "swapped/both"):
        (home.project / name).parent.mkdir(exist_ok=True)
        (home.project / name).write_text("old")
    process = home.popen("start", "sh", ".", "--overlay", "--apply", "--", "-c",
                         "echo new | tee both agents made >made2; rm -r kept mixed swapped; echo x >swapped;"
                         " echo ready; read go")
    assert process.stdout is not None
    assert "ready\n" == process.stdout.readline()
    (home.project / "both").write_text("by hand")
    for name in ("made2", "kept/both", "mixed/host", "swapped/both"):
        (home.project / name).write_text("by hand")
    _, said = process.communicate("\n", timeout=60)
    assert 1 == process.returncode
    assert {"agents": "new\n", "made": "new\n", **dict.fromkeys(
        ("both", "made2", "kept/both", "mixed/host", "swapped/both"), "by hand")} == {
        str(each.relative_to(home.project)): each.read_text() for each in home.project.rglob("*") if each.is_file()}
    assert "not applied: 'both' was changed on the host since the sandbox was opened" in said
    assert "not applied: 'made2' was changed on the host since the sandbox was opened" in said
    kept(said, daemon).close()


def test_a_copy_that_can_not_be_applied_stays_for_a_while(home: AgentHome, daemon: LiveDaemon) -> None:
    """Nothing runs in it, and what the agent has done isn't lost."""
    (home.project / "both").write_text("old")
    process = home.popen("start", "sh", ".", "--overlay", "--apply", "--", "-c",
                         "sleep 1000 & echo new | tee both; echo ready; read go")
    assert process.stdout is not None
    assert "new\n" == process.stdout.readline()
    (home.project / "both").write_text("by hand")
    _, said = process.communicate("\n", timeout=60)
    assert 1 == process.returncode
    with kept(said, daemon) as box:
        assert not [row for row in box.processes() if not row["over"]]
        assert b"new\n" == box.files.read(str(home.project / "both"))
        assert ["both"] == [change.path for change in box.diff()]
        with pytest.raises(leeward.Stale):
            box.apply()


# --- what is killed ---------------------------------------------------------------


@pytest.mark.parametrize("times", range(ROUNDS))
def test_kill_9_of_the_command_line(home: AgentHome, times: int) -> None:
    """The sandbox ends by itself within seconds; what the registry has is undone by the next list."""
    home.settings('[hooks]\ncleanup_host = ["echo cleanup >>$HOME/order"]\n')
    process = started(home)
    process.kill()
    process.communicate(timeout=PATIENCE)
    home.gone()
    assert 1 == len(home.left())
    assert "what it had left behind was removed" in home.run("list").stderr
    assert [] == home.left()
    assert "cleanup\n" == (home.path / "order").read_text()


@pytest.mark.parametrize("times", range(ROUNDS))
def test_kill_9_at_each_step_of_a_start(home: AgentHome, times: int) -> None:
    """
    Before there is a sandbox, by a hook that kills its parent; while a file is copied into it, which can't be opened as
    long as this process has a lease on it; while a hook runs in it. What is left is undone, however far the start got.
    """
    home.settings('[hooks]\ncleanup_host = ["echo $LEEWARD_AGENT >>$HOME/order"]\n')
    home.define("before", 'command = ["sh"]\n[hooks]\nsetup_host = ["kill -9 $PPID"]\n')
    home.define("copying", 'command = ["sh"]\nstaged = ["~/leased"]\n')
    home.define("hook", 'command = ["sh"]\n[hooks]\nsetup = ["echo begun >begun; exec sleep 1000"]\n')
    with open(home.path / "leased", "wb") as leased:
        fcntl.fcntl(leased, F_SETSIG, signal.SIGURG)  # who wants to open it is told by this one, which does nothing
        fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        processes = [home.popen("start", name, ".") for name in ("before", "copying", "hook")]
        poll_until(lambda: fcntl.F_WRLCK != fcntl.fcntl(leased, fcntl.F_GETLEASE), "a signal tells of it, to a thread")
        poll_until((home.project / "begun").exists, "the hook is another kernel's process for us")
        for process in processes[1:]:
            process.kill()
        for process in processes:
            process.communicate(timeout=PATIENCE)
            assert -signal.SIGKILL == process.returncode
    home.gone()
    home.run("list")  # the first one may have been undone by another's start
    assert [] == home.left()
    assert ["before", "copying", "hook"] == sorted((home.path / "order").read_text().split())


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("times", range(ROUNDS))
def test_kill_9_of_the_daemon(tmp_path: Path, both: bool, times: int) -> None:
    """Its processes go with it. The command line, if it lives, cleans up and says why."""
    folder = tmp_path / "own"
    folder.mkdir()
    with agents_daemon(folder) as daemon:
        home = AgentHome(tmp_path / "home", daemon)
        home.define("sh", 'command = ["sh"]\n')
        home.settings('[hooks]\ncleanup_host = ["echo cleanup >>$HOME/order"]\n')
        process = started(home)
        group = [pid for pid in descendants(daemon.process.pid) if "read word" in _line(pid)]
        if both:
            process.send_signal(signal.SIGSTOP)  # else it may begin to clean up, and the next start does that again
        daemon.process.kill()
        if both:
            process.kill()
        _, said = process.communicate(timeout=PATIENCE)
        daemon.process.wait()
        if not both:
            assert 1 == process.returncode, said
            assert said
    poll_until(lambda: not any(os.path.exists(f"/proc/{pid}") and "read word" in _line(pid) for pid in group),
               "processes of others, found by their words, have no descriptor here")
    home.run("list")
    assert [] == home.left()
    assert "cleanup\n" == (home.path / "order").read_text()


def _line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_new_files_that_host_programs_obey_are_reported(home: AgentHome) -> None:
    """Hooks of git that are there can't be written; a new one is reported at the end."""
    (home.project / ".git/hooks").mkdir(parents=True)
    got = home.run("start", "sh", ".", "--", "-c",
                   "echo x >.git/hooks/pre-commit; mkdir .vscode; echo {} >.vscode/tasks.json")
    assert "Read-only" in got.stderr
    assert "'.vscode'" in got.stderr
    assert ".git/hooks'" not in got.stderr.splitlines()[-1]


def test_a_file_that_did_not_stay_hidden_is_reported(home: AgentHome) -> None:
    """A hidden file that the host replaces, and one that appears; not one that stays, nor one that goes."""
    for name in (".env", ".env.stays", ".env.goes"):
        (home.project / name).write_text("x")
    home.settings('[files]\nexclude = ["later.key"]\n')
    process = started(home)
    (home.project / "new").write_text("y")
    (home.project / "new").rename(home.project / ".env")
    (home.project / "later.key").write_text("y")
    (home.project / ".env.goes").unlink()
    _, said = process.communicate("\n", timeout=PATIENCE)
    told = next(line for line in said.splitlines() if "should be hidden" in line)
    assert "'.env', 'later.key'" in told
    assert "stays" not in told
    assert "goes" not in told


#: Waits until each name is a file that can't be read, or an empty folder, and tells of those that don't get so.
HIDDEN_SOON = """
for name in $NAMES; do
    for _ in $(seq 100); do
        if test -d $name; then test -z "$(ls -A $name)" && break; else cat $name >/dev/null 2>&1 || break; fi
        sleep 0.05
    done
    cat $name; ls -A $name
done; echo over"""


@pytest.mark.parametrize("overlay", [False, True])
def test_a_hidden_file_that_appears_later_is_hidden_as_well(home: AgentHome, overlay: bool) -> None:
    """
    A hidden file that the host replaces, names that come at any depth, and a folder; a link's target, too. It is
    reported.
    """
    (home.project / ".env").write_text("FIRST-SECRET")
    (home.project / "deep").mkdir()
    home.settings('environment = { NAMES = ".env later.key deep/.env vault .env.link target" }\n'
                  '[files]\nexclude = ["later.key", "vault/"]\n')
    process = home.popen("start", "sh", ".", *(["--overlay", "--no-apply"] if overlay else []), "--", "-c",
                         f"echo ready; read word; {HIDDEN_SOON}")
    assert process.stdout is not None
    assert "ready\n" == process.stdout.readline()
    (home.project / "new").write_text("SECRET")
    (home.project / "new").rename(home.project / ".env")
    (home.project / "later.key").write_text("SECRET")
    (home.project / "deep/.env").write_text("SECRET")
    (home.project / "vault").mkdir()
    (home.project / "vault/file").write_text("SECRET")
    (home.project / "target").write_text("SECRET")
    (home.project / ".env.link").symlink_to("target")
    output, said = process.communicate("\n", timeout=PATIENCE)
    assert "over\n" in output
    assert "SECRET" not in output, output
    assert "FIRST" not in output
    told = next(line for line in said.splitlines() if "should be hidden" in line)
    for name in (".env", "later.key", "deep/.env", "vault", "target"):
        assert repr(name) in told
    assert "SECRET" == (home.project / ".env").read_text()


# --- secrets ------------------------------------------------------------------------


def test_a_secret_goes_in_where_the_operator_keeps_none(home: AgentHome) -> None:
    home.define("sh", 'command = ["sh"]\nhosts = ["api.example.org"]\n[secrets]\nAPI_KEY = ["api.example.org"]\n')
    assert "value-of-it\n" == home.run("start", "sh", ".", "--", "-c", "echo $API_KEY", API_KEY="value-of-it").stdout


def test_a_secret_that_the_operator_keeps_stays_outside(tmp_path: Path) -> None:
    """The agent sees a placeholder; hosts that [egress.agent] doesn't have aren't reached."""
    folder = tmp_path / "own"
    folder.mkdir()
    config = folder / "c.toml"
    config.write_text('[egress.agent]\nallow = ["api.example.org"]\n'
                      f'secrets = {{ API_KEY = {{ from = "file:{folder}/key", hosts = ["api.example.org"] }} }}\n')
    config.chmod(0o600)
    (folder / "key").write_text("value-of-the-operator")
    (folder / "key").chmod(0o600)
    with agents_daemon(folder, "--config", str(config)) as daemon:
        home = AgentHome(tmp_path / "home", daemon)
        home.define("sh", 'command = ["sh"]\nhosts = ["api.example.org"]\n[secrets]\nAPI_KEY = ["api.example.org"]\n')
        got = home.run("start", "sh", ".", "--", "-c", "echo $API_KEY", API_KEY="value-of-the-caller")
        assert got.stdout.startswith("leeward-"), (got.stdout, got.stderr)
        assert "value" not in got.stdout
        home.gone()


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_an_agent_commits_in_a_worktree_of_a_repository_elsewhere(home: AgentHome) -> None:
    """With the setting that the start names; commits, branches and a stash, also where git packs by itself."""
    main, made = home.path / "elsewhere/main", home.path / "made"

    def git(*line: str, folder: Path = main) -> str:
        return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder), *line], text=True,
                              check=True, capture_output=True).stdout.strip()

    main.mkdir(parents=True)
    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "first")
    git("worktree", "add", "-q", "-b", "side", str(made))
    line = ("git config --global user.name a; git config --global user.email a@b; echo 1 >a; git add a &&"
            " git -c gc.auto=1 commit -qm mine && git branch other && echo 2 >a && git stash && git stash pop &&"
            " git log --oneline -g | wc -l && git worktree list >/dev/null && git status --short")
    got = home.run("start", "sh", str(made), "--", "-c", line)
    assert "`worktree_links = true`" in got.stderr
    assert f"is a worktree of '{main}/.git'" in got.stderr

    home.settings("[git]\nworktree_links = true\n")
    got = home.run("start", "sh", str(made), "--", "-c", line)
    assert 0 == got.returncode, got
    assert got.stdout.rstrip().endswith("M a"), got
    assert "mine\nfirst" == git("log", "--format=%s", "side")
    assert git("rev-parse", "side") == git("rev-parse", "other") == git("rev-parse", "HEAD", folder=made)
    assert "" == git("fsck", "--strict")
    assert "execute or read" not in got.stderr
    assert {"config", "config.worktree", "hooks", "modules"}.isdisjoint(os.listdir(main / ".git/worktrees/made"))
