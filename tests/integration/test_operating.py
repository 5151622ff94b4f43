"""Operating a daemon: metrics, the security log, several users, reload, and the service manager's socket."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import operator
import os
import pwd
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit import exposition, features
from kit.box import MISSING
from kit.live_daemon import PATIENCE, LiveDaemon, command, environment
from kit.ordinary_user import Installation, OrdinaryUser
from kit.waiting import poll_until, until_written
from leeward.wire.frames import encode

DENIED = "import os\nfor _ in range({}):\n    try: os.chroot('/')\n    except OSError: pass"


def configured(folder: Path, text: str) -> Path:
    path = folder / "c.toml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def scraped(path: Path) -> dict[str, exposition.Family]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE)
        sock.connect(str(path))
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: leeward\r\n\r\n")
        got = b""
        while data := sock.recv(1 << 16):
            got += data
    head, _, body = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    return exposition.read(body.decode())


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveDaemon, Path]]:
    """A daemon with one worker, metrics on a socket and a security log."""
    folder = tmp_path_factory.mktemp("watched")
    config = configured(folder, f'max_sessions = 1\nmetrics = "{folder}/m"\nsecurity_log = "{folder}/security.log"\n')
    with LiveDaemon(folder, "--pool-size", "1", "--config", str(config)) as daemon:
        yield daemon, folder


def test_metrics_after_some_jobs(watched: tuple[LiveDaemon, Path]) -> None:
    """What ran, how it ended, what it was denied, and what there is now."""
    daemon, folder = watched
    before = scraped(folder / "m")
    with daemon.client() as client:
        client.execute("print(1)")
        client.execute("1/0")
        client.execute(DENIED.format(3))
        client.execute("while True: pass", timeout=0.05)
        with pytest.raises(leeward.RequestRejected):
            client.execute("1", memory=1 << 50)
        daemon.idle()  # by another connection
        poll_until(lambda: 1 == scraped(folder / "m")["leeward_connections_active"].value(),
                   "the daemon sees its end a little later")
        after = scraped(folder / "m")

    def grown(name: str, **labels: str) -> float:
        return after[f"leeward_{name}"].value(**labels) - before[f"leeward_{name}"].value(**labels)

    assert 4 == grown("executions_total")
    assert [1, 1, 0] == [grown("executions_failed_total", reason=reason)
                         for reason in ("raised", "timed_out", "signalled")]
    assert 1 == grown("executions_limited_total", limit="time")
    assert 1 == grown("requests_refused_total", kind="bad_request")
    assert grown("requests_total") >= 5
    assert grown("cpu_time_seconds_total") > 0
    assert 3 == after["leeward_denied_syscalls_total"].value(syscall="chroot")
    assert 1 == after["leeward_connections_active"].value()
    assert {"idle": 1, "busy": 0, "arming": 0} == {
        state: after["leeward_workers_total"].value(state=state) for state in ("idle", "busy", "arming")}
    assert 1 << 20 < after["leeward_memory_usage_bytes"].value(worker="0") < 1 << 30
    duration = after["leeward_execution_duration_seconds"]
    assert 0.05 <= duration.samples["leeward_execution_duration_seconds_sum", ()] < PATIENCE


def test_health_users_and_sessions(watched: tuple[LiveDaemon, Path]) -> None:
    """Asked over the same socket: whether it takes jobs; whose they are; how many sessions are open."""
    daemon, folder = watched
    user = str(os.geteuid())
    before = scraped(folder / "m")["leeward_user_executions_total"].value(user=user)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE)
        sock.connect(str(folder / "m"))
        sock.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 200 OK\r\n")
    with daemon.client() as client, client.session() as session:
        session.execute("x = 1", args=["not the fast path"])
        poll_until(lambda: before + 1 == scraped(folder / "m")["leeward_user_executions_total"].value(user=user),
                   "counted after the answer, and a text is good for some time")
        assert 1 == scraped(folder / "m")["leeward_sessions_active"].value()
    daemon.idle()


def test_a_label_is_in_log_and_result(tmp_path: Path) -> None:
    """With the number that the log names the job by; and a line for each job, where asked for."""
    config = configured(tmp_path, "log_jobs = true\n")
    with LiveDaemon(tmp_path, "--pool-size", "1", "--config", str(config)) as daemon:
        with daemon.client() as client:
            result, plain = client.execute("print(1)", label="run-7/a"), client.execute("print(2)")
            with pytest.raises(leeward.RequestRejected, match="label"):
                client.execute("1", label="two words")
        daemon.logged(lambda rows: 2 == sum("job ended" == row["event"] for row in rows))
        ended = [row for row in daemon.log if "job ended" == row["event"]]
        shown = json.loads(daemon.run("exec", "--json", "--label", "b", "print(3)").stdout)

    assert ("run-7/a", "", 0) == (result.label, plain.label, plain.job)
    assert [(result.job, "run-7/a"), (result.job + 1, None)] == [(row["job"], row.get("label")) for row in ended]
    assert {(os.geteuid(), "finished", "info")} == {(row["user"], row["outcome"], row["level"]) for row in ended}
    assert ("b", result.job + 2) == (shown["label"], shown["job"])


def test_the_memory_of_a_worker_is_that_of_its_job(watched: tuple[LiveDaemon, Path]) -> None:
    """With whatever cgroup driver the host allows."""
    daemon, folder = watched
    seen: list[float] = []
    with daemon.client() as client:
        job = threading.Thread(target=lambda: client.execute("x = bytearray(100 << 20)\nimport time; time.sleep(60)",
                                                             timeout=2))
        before = scraped(folder / "m")["leeward_memory_usage_bytes"].value(worker="0")
        job.start()
        while job.is_alive():
            seen.append(scraped(folder / "m")["leeward_memory_usage_bytes"].value(worker="0"))
        daemon.idle()

    assert 95 << 20 < max(seen) - before < 200 << 20


def test_the_security_log_has_every_denied_call_and_every_end_by_a_limit(watched: tuple[LiveDaemon, Path]) -> None:
    """By job and user; twelve hundred denied calls are five records, and add up."""
    daemon, folder = watched
    log = folder / "security.log"
    seen = len(rows(log))
    with daemon.client() as client:
        first = client.execute(DENIED.format(1200))
        client.execute(DENIED.format(2))
        client.execute("while True: pass", timeout=0.05)
        client.execute("x = bytearray(1 << 30)", memory=64 << 20)
        client.execute("print('x' * 1000)", output=10)
        client.execute("raise SystemExit(3)")
    assert {"chroot": 1200} == first.denied
    until_written(folder, lambda: sum("limit" == row["event"] for row in rows(log)[seen:]) >= 3)
    new = rows(log)[seen:]
    counts: Counter[int] = Counter()
    records: Counter[int] = Counter()
    for row in new:
        if "system call denied" == row["event"]:
            assert ("chroot", "seccomp") == (row["syscall"], row["reason"])
            counts[row["job"]] += row["count"]
            records[row["job"]] += 1
    limits = {(row["reason"], row["outcome"]) for row in new if "limit" == row["event"]}

    assert [1200, 2] == list(counts.values())
    assert all(1 <= number <= 5 for number in records.values())
    assert {("time", "timed_out"), ("output", "output_limit")} <= limits
    assert "memory" in {reason for reason, _ in limits}
    assert {os.geteuid()} == {row["user"] for row in new}
    assert 0o600 == log.stat().st_mode & 0o7777


def test_hangup_reloads_the_reloadable_settings(tmp_path: Path) -> None:
    """New limits hold, the others are named; a mistake changes no setting; and the security log is reopened."""
    log = tmp_path / "s.log"
    config = configured(tmp_path, f'security_log = "{log}"\n')

    def reload(daemon: LiveDaemon, text: str) -> dict[str, Any]:
        configured(tmp_path, text)
        seen = len(daemon.log)
        daemon.process.send_signal(signal.SIGHUP)
        ends = ("configuration reloaded", "configuration not reloaded: what was in force stays")
        daemon.logged(lambda rows: any(row["event"] in ends for row in rows), seen)
        return next(row for row in daemon.log[seen:] if row["event"] in ends)

    with LiveDaemon(tmp_path, "--pool-size", "1", "--config", str(config)) as daemon, daemon.client() as client:
        log.rename(tmp_path / "s.log.1")
        reload(daemon, f'security_log = "{log}"\npython_env = "/x"\n[limits]\ntime = 0.05\nfiles = "1M"\n'
                       f"[users.{os.geteuid()}]\nrate = 0.001\n")
        result = client.execute("while True: pass")
        with pytest.raises(leeward.Busy, match="jobs a second") as refusal:
            client.execute("1")  # not sent again: the next job would be long after the client gives up
        until_written(tmp_path, lambda: len(rows(log)) == 2)
        wrong = reload(daemon, "queue_size = many\n")
        again = reload(daemon, "queue_size = 5\n")
        for _ in range(3):
            assert leeward.Outcome.FINISHED is client.execute("1").outcome
        assert daemon.process.poll() is None

    assert leeward.Outcome.TIMED_OUT is result.outcome
    assert [("limit", "time"), ("request refused", "busy")] == [(row["event"], row["reason"]) for row in rows(log)]
    assert 900 < (refusal.value.retry_after or 0) <= 1000
    assert "queue_size" in wrong["error"]
    assert "configuration reloaded" == again["event"]
    left = [row["keys"] for row in daemon.log if "changes that need a restart" == row["event"]]
    assert [["python_env", "limits.files"]] == left


def test_a_quota_makes_wait_and_not_fail(tmp_path: Path) -> None:
    """With two workers and one job at once, what a user sends runs one after the other."""
    config = configured(tmp_path, f"[users.{os.geteuid()}]\njobs = 1\n")
    program = "import time; print(time.monotonic()); time.sleep(0.1); print(time.monotonic())"
    with LiveDaemon(tmp_path, "--pool-size", "2", "--config", str(config)) as daemon:
        clients = [subprocess.Popen([*command("exec", program)], env=environment(daemon.socket), text=True,
                                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) for _ in range(4)]
        spans = sorted([float(word) for word in client.communicate(timeout=PATIENCE)[0].split()] for client in clients)

    assert all(earlier[1] < later[0] for earlier, later in itertools.pairwise(spans))


@pytest.mark.needs("root", "ordinary-user")
def test_a_group_is_let_in(open_folder: Path, ordinary_user: OrdinaryUser) -> None:
    """A member by any of his groups, within his quota, and not to end the daemon; others not."""
    folder = open_folder / "shared"
    folder.mkdir()
    folder.chmod(0o710)
    os.chown(folder, 0, ordinary_user.gid)
    config = configured(folder, f'group = "{ordinary_user.gid}"\nsecurity_log = "{folder}/s.log"\n[quota]\njobs = 1\n')
    program = ("import socket, sys\nsock = socket.socket(socket.AF_UNIX)\nsock.settimeout(30)\n"
               "sock.connect(sys.argv[1])\nsock.sendall(bytes.fromhex(sys.argv[2]))\nprint(sock.recv(4096))")
    asks = [encode({"v": 1, "id": 1, "op": "execute", "code": b"print(6 * 7)"}),
            encode({"v": 1, "id": 1, "op": "shutdown"})]
    with LiveDaemon(folder, "--pool-size", "1", "--config", str(config)) as daemon:
        assert 0o660 == daemon.socket.stat().st_mode & 0o7777
        assert ordinary_user.gid == daemon.socket.stat().st_gid
        said = [ordinary_user.run([str(features.system_python()), "-c", program, str(daemon.socket), ask.hex()],
                                  check=True).stdout for ask in asks]
        nobody = pwd.getpwnam("nobody")
        stranger = subprocess.run([str(features.system_python()), "-c", program, str(daemon.socket), asks[0].hex()],
                                  user=nobody.pw_uid, group=nobody.pw_gid, extra_groups=[], capture_output=True,
                                  text=True, check=False, timeout=60)
        assert daemon.process.poll() is None
        until_written(folder, lambda: (folder / "s.log").stat().st_size > 0)

    assert "42\\n" in said[0]
    assert "forbidden" in said[1]
    assert "PermissionError" in stranger.stderr
    assert [("request refused", "forbidden", ordinary_user.uid)] == [
        (row["event"], row["reason"], row["user"]) for row in rows(folder / "s.log")]
    assert not any("open to others" in row["event"] for row in daemon.log)


@pytest.mark.needs("root", "ordinary-user")
def test_a_guest_of_a_third_users_daemon_says_whom_he_trusts(ordinary_user: OrdinaryUser,
                                                              user_install: Installation) -> None:
    """Neither his own nor root's: each client refuses to talk to it, until it is told whose it is."""
    folder = ordinary_user.home.parent / "third"
    folder.mkdir()
    folder.chmod(0o710)
    os.chown(folder, ordinary_user.uid, ordinary_user.gid)
    path = folder / "s"
    config = configured(folder, f'group = "{ordinary_user.gid}"\nallow_degraded = {json.dumps(MISSING)}\n')
    os.chown(config, ordinary_user.uid, ordinary_user.gid)
    nobody = pwd.getpwnam("nobody")
    asks = "import leeward; print(leeward.Client().execute('print(6 * 7)').stdout_text)"
    ways = [[str(user_install.leeward), "exec", "print(6 * 7)"],  # the C client
            [str(user_install.folder / "bin" / "leeward-python"), "exec", "print(6 * 7)"],
            [str(user_install.python), "-c", asks]]

    def ask(**trusts: str) -> list[subprocess.CompletedProcess[str]]:
        return [subprocess.run(way, user=nobody.pw_uid, group=nobody.pw_gid, extra_groups=[ordinary_user.gid],
                               env={"LEEWARD_SOCKET": str(path), "PATH": "/usr/bin:/bin", **trusts}, cwd="/",
                               stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=PATIENCE)
                for way in ways]

    with ordinary_user.popen([user_install.leeward, "daemon", "run", "--socket", path, "--config", config,
                              "--pool-size", "1", "--log-json"], stderr=subprocess.PIPE, text=True) as daemon:
        assert any("ready" == json.loads(line)["event"] for line in daemon.stderr)
        refused, served = ask(), ask(LEEWARD_TRUSTED_UID=str(ordinary_user.uid))
        daemon.terminate()
        daemon.communicate()

    assert all(f"user {ordinary_user.uid}, neither root nor you" in done.stderr for done in refused)
    assert ["42"] * 3 == [done.stdout.strip() for done in served], served


#: What every host has to stop, by how it ends.
TOO_MUCH = {
    "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass": ("timed_out", "time"),
    "held = bytearray(600 << 20)\nfor at in range(0, len(held), 4096): held[at] = 1": ("raised", "memory"),
    "held = []\nwhile True: held.append(bytearray(1 << 20))": ("out_of_memory", "memory"),
    "while True: pass": ("timed_out", "time"),
}


@pytest.mark.needs("root", "ordinary-user")
def test_a_job_is_stopped_at_its_limits_without_delegated_cgroups(ordinary_user: OrdinaryUser,
                                                                  user_install: Installation) -> None:
    """A fork bomb, 600 MB at once and bit by bit, an endless loop; and the daemon serves on."""
    folder = ordinary_user.home / "undelegated"
    ordinary_user.run(["mkdir", "-m", "700", folder], check=True)
    config = configured(folder, f'allow_degraded = {json.dumps(MISSING)}\n')
    os.chown(config, ordinary_user.uid, ordinary_user.gid)
    path = {"LEEWARD_SOCKET": str(folder / "s")}

    def ask(*words: str) -> dict[str, Any]:
        done = ordinary_user.run([user_install.leeward, *words], env=path)
        assert done.stdout, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    with ordinary_user.popen([user_install.leeward, "daemon", "run", "--config", config, "--pool-size", "1",
                              "--log-json"], env=path, stderr=subprocess.PIPE, text=True) as daemon:
        assert any("ready" == json.loads(line)["event"] for line in daemon.stderr)
        driver = ask("status", "--json")["layers"]["cgroup"]["driver"]
        ended = [ask("exec", "--json", "--timeout", "2", code) for code in TOO_MUCH]
        after = ask("exec", "--json", "print(6 * 7)")
        daemon.terminate()
        daemon.communicate()

    assert "none" == driver
    assert list(TOO_MUCH.values()) == [(each["outcome"], each["limit"]) for each in ended]
    assert "42\n" == after["stdout"]


class Manager:
    """A service manager's part: keeps the socket, starts daemons on it, hears what they say."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "kept.sock"
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(self.path))
        self.socket.listen(64)
        self.heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.heard.bind(str(folder / "notify"))
        self.heard.settimeout(PATIENCE)
        self.log = folder / "log"
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str, **more: str) -> subprocess.Popen[bytes]:
        # LISTEN_PID is the number that the process will have: the shell's, which becomes the daemon.
        line = 'exec 3<&"$0"; LISTEN_PID=$$ exec "$@"'
        fd = self.socket.fileno()
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                ["bash", "-c", line, str(fd), *command("daemon", "run", "--log-json", "--pool-size", "1", *options)],
                env=environment(LISTEN_FDS="1", NOTIFY_SOCKET=self.heard.getsockname(), **more), pass_fds=(fd,),
                stdin=subprocess.DEVNULL, stderr=log, start_new_session=True)
        self.processes.append(process)
        return process

    def hears(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.heard.recv(4096).decode().split("\n"))

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
            process.wait(PATIENCE)
        self.socket.close()
        self.heard.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with contextlib.closing(Manager(tmp_path)) as made:
        yield made


def test_a_kept_socket_and_the_words_of_a_service(manager: Manager) -> None:
    """READY when jobs can be taken, a sign of life, RELOADING and READY again, STOPPING; the socket stays."""
    process = manager.start(WATCHDOG_USEC="100000")
    ready = manager.hears()
    assert ("1", str(process.pid)) == (ready["READY"], ready["MAINPID"])
    with leeward.Client(str(manager.path)) as client:
        assert "1\n" == client.execute("print(1)").stdout_text
    alive = [manager.hears() for _ in range(3)]
    process.send_signal(signal.SIGHUP)
    said = []
    while "READY" not in (said[-1] if said else {}):
        said += [words for words in [manager.hears()] if "WATCHDOG" not in words]
    process.terminate()
    while "STOPPING" not in said[-1]:
        said += [words for words in [manager.hears()] if "WATCHDOG" not in words]

    assert [{"WATCHDOG": "1"}] * 3 == alive
    assert [["RELOADING", "MONOTONIC_USEC"], ["READY", "STATUS", "MAINPID"], ["STOPPING", "STATUS"]] == [
        list(words) for words in said]
    assert 0 == process.wait(PATIENCE)
    assert manager.path.exists()


def test_a_restart_refuses_no_request(manager: Manager) -> None:
    """
    Clients that connect, or go on with their connection, through three daemons one after the other: none
    is refused, and none is served by nobody.
    """
    process = manager.start()
    manager.hears()
    over = threading.Event()
    done: list[str] = []
    more = threading.Condition()
    faults: list[BaseException] = []

    def tell(what: str) -> None:
        with more:
            done.append(what)
            more.notify()

    def both_again() -> None:
        with more:
            seen = len(done)
            assert more.wait_for(lambda: {"new", "same"} <= set(done[seen:]), PATIENCE), faults

    def connecting() -> None:
        """A new connection each time: what `leeward exec` does."""
        while not over.is_set():
            try:
                with leeward.Client(str(manager.path)) as client:
                    client.ping()
                tell("new")
            except leeward.DaemonError as fault:
                faults.append(fault)

    def staying() -> None:
        """One client, which connects again by itself."""
        with leeward.Client(str(manager.path)) as client:
            while not over.is_set():
                try:
                    client.ping()
                    tell("same")
                except leeward.DaemonError as fault:
                    faults.append(fault)

    clients = [threading.Thread(target=one) for one in (connecting, staying)]
    for one in clients:
        one.start()
    try:
        for _ in range(2):
            both_again()
            process.terminate()
            assert 0 == process.wait(PATIENCE)
            process = manager.start()
            while "READY" not in manager.hears():
                pass
        both_again()
    finally:
        over.set()
        for one in clients:
            one.join()

    assert [] == faults


#: Restarts under load, and clients of each kind.
RESTARTS, EACH = 20, 4


@pytest.mark.needs("compiler")
def test_restarts_under_load_fail_no_call_and_run_none_twice(manager: Manager, c_build: Path) -> None:
    """
    Clients that send without pause, through twenty restarts: each call has its own answer, and the daemons together
    have run as many jobs as were answered.
    """
    over = threading.Event()
    answered: list[int] = [0] * (2 * EACH + 1)
    faults: list[BaseException | str] = []

    def check(who: int, number: int, said: str) -> None:
        if f"{who} {number}\n" != said:
            faults.append(said)
        answered[who] += 1

    def by_c() -> None:
        """`leeward exec`, which is the C library's."""
        for number in itertools.count():
            if over.is_set():
                return
            done = subprocess.run([c_build / "leeward", "exec", f"print({2 * EACH}, {number})"], text=True, check=False,
                                  env=environment(manager.path), capture_output=True, timeout=PATIENCE)
            check(2 * EACH, number, done.stdout + done.stderr)

    def blocking(who: int) -> None:
        with leeward.Client(str(manager.path)) as client:
            for number in itertools.count():
                if over.is_set():
                    return
                try:
                    check(who, number, client.execute(f"print({who}, {number})").stdout_text)
                except leeward.DaemonError as fault:
                    faults.append(fault)

    async def pipelined() -> None:
        async def one(client: leeward.AsyncClient, who: int) -> None:
            for number in itertools.count():
                if over.is_set():
                    return
                try:
                    check(who, number, (await client.execute(f"print({who}, {number})")).stdout_text)
                except leeward.DaemonError as fault:
                    faults.append(fault)
        async with leeward.AsyncClient(str(manager.path)) as client:
            await asyncio.gather(*(one(client, EACH + who) for who in range(EACH)))

    process = manager.start("--log-level", "debug")
    manager.hears()
    clients = [threading.Thread(target=blocking, args=(who,)) for who in range(EACH)]
    clients += [threading.Thread(target=lambda: asyncio.run(pipelined())), threading.Thread(target=by_c)]
    for one in clients:
        one.start()
    try:
        for _ in range(RESTARTS):
            seen = list(answered)
            poll_until(lambda seen=seen: all(map(operator.lt, seen, answered)) or faults, "every client is served")
            process.terminate()
            assert 0 == process.wait(PATIENCE)
            process = manager.start("--log-level", "debug")
            while "READY" not in manager.hears():
                pass
    finally:
        over.set()
        for one in clients:
            one.join()
    process.terminate()
    assert 0 == process.wait(PATIENCE)
    events = [row["event"] for row in rows(manager.log)]

    assert [] == faults
    assert RESTARTS + 1 == events.count("ready")
    assert sum(answered) == events.count("job ended")


def test_a_job_is_finished_over_a_hand_over(manager: Manager) -> None:
    """
    Its client gets its answer; a client that comes meanwhile waits for the next daemon, and is served by it. Then
    `daemon stop` waits for that daemon's end, not for the end of who made its socket.
    """
    process = manager.start()
    manager.hears()
    answers: dict[str, leeward.Result] = {}

    over = threading.Event()

    def hold() -> None:
        assert over.wait(PATIENCE)

    def run(name: str, code: str, **options: Any) -> threading.Thread:
        def body() -> None:
            with leeward.Client(str(manager.path)) as client:
                answers[name] = client.execute(code, **options)
        thread = threading.Thread(target=body)
        thread.start()
        return thread

    first = run("first", "hold(); print('first')", functions={"hold": hold})
    with leeward.Client(str(manager.path)) as client:
        while client.status()["workers"]["busy"] == 0:
            pass
    process.terminate()
    while "STOPPING" not in manager.hears():
        pass
    second = run("second", "print('second')")
    over.set()
    first.join()
    assert 0 == process.wait(PATIENCE)
    assert "second" not in answers
    process = manager.start()
    second.join()
    done = subprocess.run(command("daemon", "stop"), env=environment(manager.path), capture_output=True, check=False,
                          timeout=60)

    assert ["first\n", "second\n"] == [answers[name].stdout_text for name in ("first", "second")]
    assert (0, b"") == (done.returncode, done.stderr)
    assert 0 == process.wait(PATIENCE)
