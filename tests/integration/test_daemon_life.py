"""A daemon's life: start, second start, drain, stop, sudden death."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit.live_daemon import PATIENCE, LiveDaemon, command, descendants, environment, run, watched
from kit.stalling import standing_still
from kit.waiting import poll_until, until_written

#: Seconds that running jobs have in a test build: nobody waits for so long.
LONG = 20 * PATIENCE


def test_the_socket_is_private(tmp_path: Path) -> None:
    """0600, in a folder that was made 0700."""
    folder = tmp_path / "made"
    with LiveDaemon(folder) as daemon:
        assert 0o600 == stat.S_IMODE(daemon.socket.stat().st_mode)
        assert 0o700 == stat.S_IMODE(folder.stat().st_mode)
        assert stat.S_ISSOCK(daemon.socket.stat().st_mode)
    assert [] == list(folder.iterdir())


def test_a_folder_that_others_can_look_into_is_warned_of(tmp_path: Path) -> None:
    """The daemon serves there all the same; in a folder of mode 0700 it says nothing."""
    warned = []
    for mode in (0o700, 0o755):
        folder = tmp_path / f"{mode:o}"
        folder.mkdir()
        folder.chmod(mode)
        with LiveDaemon(folder, "--pool-size", "1") as daemon:
            pass
        warned += [(row["folder"], row["mode"], row["cure"]) for row in daemon.log
                   if "socket folder open to others" == row["event"]]

    assert [(str(folder), "0755", f"chmod 0700 {folder}")] == warned


@pytest.mark.smoke
def test_start_and_stop(tmp_path: Path) -> None:
    """`start` returns when a job can be run, `stop` when nothing is left."""
    socket = tmp_path / "leeward.sock"
    start = run(socket, "daemon", "start", "--pool-size", "1")
    assert (0, b"") == (start.returncode, start.stderr)
    pid = int(start.stdout.split()[2])

    assert b"1\n" == run(socket, "exec", "print(1)").stdout
    assert os.getpgid(pid) != os.getpgid(0)
    assert os.getsid(pid) == pid
    assert "/" == os.readlink(f"/proc/{pid}/cwd")
    with watched([pid, *descendants(pid)]) as wait:
        assert 0 == run(socket, "daemon", "stop").returncode
        assert [] == wait(PATIENCE)
    assert not socket.exists()
    log = (tmp_path / "leeward.log").read_text()
    assert "ready" in log
    assert 0o600 == stat.S_IMODE((tmp_path / "leeward.log").stat().st_mode)


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    """On the terminal of who typed it, with exit 1."""
    (tmp_path / "leeward.sock").write_text("mine")
    done = run(tmp_path / "leeward.sock", "daemon", "start")

    assert 1 == done.returncode
    assert b"no socket" in done.stderr
    assert "mine" == (tmp_path / "leeward.sock").read_text()


def test_c109_a_second_daemon_refuses(tmp_path: Path) -> None:
    """In the foreground and in the background; the first one serves on."""
    with LiveDaemon(tmp_path, "--pool-size", "1") as daemon:
        for argv in (("daemon", "run"), ("daemon", "start")):
            done = daemon.run(*argv)

            assert 1 == done.returncode
            assert b"already answers" in done.stderr
        assert b"1\n" == daemon.run("exec", "print(1)").stdout


def test_a_daemon_killed_by_sigkill_leaves_no_process(tmp_path: Path) -> None:
    """SIGKILL, while a job runs: no process of it is left, and the next daemon takes the stale socket."""
    daemon = LiveDaemon(tmp_path, "--pool-size", "2")
    with daemon:
        job = subprocess.Popen(command("exec", "import os, time\nos.fork()\nos.setsid() if os.getpid() != 2 else 0\n"
                                               "while True: pass"),
                               env=environment(daemon.socket), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        daemon.until(lambda status: status["workers"]["busy"] == 1)
        workers = descendants(daemon.process.pid)
        assert len(workers) >= 5  # zygote, two keepers, their inits and jobs
        with watched(workers) as wait:
            daemon.process.kill()
            assert [] == wait(PATIENCE)
        assert daemon.socket.exists()
        _, said = job.communicate(timeout=PATIENCE)
        assert 1 == job.returncode
        assert b"went away" in said
    with LiveDaemon(tmp_path, "--pool-size", "1") as daemon:
        assert b"1\n" == daemon.run("exec", "print(1)").stdout


def in_flight(daemon: LiveDaemon, code: str, then: signal.Signals) -> tuple[object, object]:
    """
    Run *code*, send *then* once it runs, and wait for the daemon's end; its answer, and that of a job after it. It may
    wait for that other answer by `hold()`.
    """
    async def main() -> tuple[object, object]:
        over = asyncio.Event()
        async with leeward.AsyncClient(str(daemon.socket), retry=False) as client:
            job = asyncio.create_task(client.execute(code, functions={"hold": over.wait}))
            while (await client.status())["workers"]["busy"] == 0:
                pass
            daemon.process.send_signal(then)
            await asyncio.to_thread(daemon.logged, lambda rows: any(row.get("event") == "draining" for row in rows))
            late = await asyncio.gather(client.execute("1"), return_exceptions=True)
            over.set()
            return (await asyncio.gather(job, return_exceptions=True))[0], late[0]

    answers = asyncio.run(main())
    daemon.process.wait(PATIENCE)
    return answers


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_jobs_are_finished(tmp_path: Path, number: signal.Signals) -> None:
    """New ones are refused meanwhile, and it ends with the last one, not when the time for them is up."""
    with standing_still(tmp_path, "--pool-size", "1", drain=LONG) as daemon:
        answer, late = in_flight(daemon, "hold(); print('done')", number)

    assert isinstance(answer, leeward.Result)
    assert "done\n" == answer.stdout_text
    assert isinstance(late, leeward.ShuttingDown)
    assert 0 == daemon.process.returncode


def test_a_job_that_never_ends_is_ended(tmp_path: Path) -> None:
    """With an answer, by the daemon and not by its own limit on time, which is several times as long."""
    with LiveDaemon(tmp_path, "--pool-size", "1") as daemon:
        workers = descendants(daemon.process.pid)
        with watched(workers) as wait:
            answer, _ = in_flight(daemon, "while True: pass", signal.SIGTERM)
            assert [] == wait(PATIENCE)

    assert isinstance(answer, leeward.Result)
    assert CUT == (answer.outcome, answer.error and answer.error.message)
    assert 0 == daemon.process.returncode


#: How a job ends that had begun and was cut: by a result, so that its client knows that it has run in part.
CUT = leeward.Outcome.INTERNAL, "the daemon shut down before the job was over"


async def begun(client: leeward.AsyncClient, count: int, code: str, **options: Any) -> list[asyncio.Task[Any]]:
    """So many jobs, all of which run."""
    jobs = [asyncio.create_task(client.execute(code, **options)) for _ in range(count)]
    while (await client.status())["workers"]["busy"] < count:
        pass
    return jobs


#: The log's word of a `daemon stop`.
ASKED = "a client asks to shut down"


def test_asked_again_to_end_it_goes_on_draining(tmp_path: Path) -> None:
    """Signals of both kinds and `daemon stop`, twice each: every job that runs is answered in full, and so is who asks."""
    async def main(daemon: LiveDaemon) -> tuple[list[Any], list[subprocess.Popen[bytes]]]:
        async with leeward.AsyncClient(str(daemon.socket)) as client:
            over = asyncio.Event()
            jobs = await begun(client, 4, "hold(); print('done')", functions={"hold": over.wait})
            daemon.process.terminate()
            await asyncio.to_thread(daemon.logged, lambda rows: any("draining" == row["event"] for row in rows))
            stops = [subprocess.Popen(command("daemon", "stop"), env=environment(daemon.socket)) for _ in range(2)]
            for number in (signal.SIGINT, signal.SIGTERM) * 2:
                seen = len(daemon.log)
                daemon.process.send_signal(number)
                await asyncio.to_thread(daemon.logged, lambda rows: any("draining already" == row["event"]
                                                                        for row in rows), seen)
            await asyncio.to_thread(daemon.logged, lambda rows: 2 == sum(ASKED == row["event"] for row in rows))
            over.set()
            return await asyncio.gather(*jobs, return_exceptions=True), stops

    with LiveDaemon(tmp_path, "--pool-size", "4") as daemon:
        answers, stops = asyncio.run(main(daemon))
        assert 0 == daemon.process.wait(PATIENCE)
        assert [0, 0] == [stop.wait(PATIENCE) for stop in stops]

    assert ["done\n"] * 4 == [getattr(answer, "stdout_text", answer) for answer in answers]
    assert 2 == sum(ASKED == row["event"] for row in daemon.log)


@pytest.mark.parametrize("drains", [False, True])
def test_a_hurry_is_asked_for(tmp_path: Path, drains: bool) -> None:
    """`daemon stop --now`, also of a daemon that drains: what runs is answered by a result, what waits is refused."""
    async def main(daemon: LiveDaemon) -> list[Any]:
        async with leeward.AsyncClient(str(daemon.socket), retry=False) as client:
            jobs = await begun(client, 2, "while True: pass")
            if drains:
                daemon.process.terminate()
                await asyncio.to_thread(daemon.logged, lambda rows: any("draining" == row["event"] for row in rows))
            jobs += [asyncio.create_task(client.execute("1")) for _ in range(4)]
            await client.ping()  # they are there
            stop = await asyncio.to_thread(daemon.run, "daemon", "stop", "--now")
            assert (0, b"") == (stop.returncode, stop.stderr)
            assert daemon.process.wait(0) == 0  # it was gone when the command returned
            return await asyncio.gather(*jobs, return_exceptions=True)

    with standing_still(tmp_path, "--pool-size", "2", drain=LONG) as daemon:
        answers = asyncio.run(main(daemon))

    assert [CUT] * 2 == [(answer.outcome, answer.error.message) for answer in answers[:2]]
    assert [leeward.ShuttingDown] * 4 == [type(answer) for answer in answers[2:]]
    assert not any(answer.may_have_run for answer in answers[2:])


def test_ctrl_c_at_the_terminal(tmp_path: Path) -> None:
    """SIGINT to the whole process group, as a terminal sends it: an orderly end."""
    with LiveDaemon(tmp_path, "--pool-size", "1") as daemon:
        with watched(descendants(daemon.process.pid)) as wait:
            os.killpg(daemon.process.pid, signal.SIGINT)
            assert 0 == daemon.process.wait(PATIENCE)
            assert [] == wait(PATIENCE)
        daemon.end()
    assert "ended" in [row["event"] for row in daemon.log]
    assert not any("Traceback" in str(row) for row in daemon.log)


def test_shutdown_by_a_client_answers_first(tmp_path: Path) -> None:
    """`daemon stop` of a foreground daemon: exit 0 on both sides."""
    with LiveDaemon(tmp_path, "--pool-size", "1") as daemon:
        assert 0 == daemon.run("daemon", "stop").returncode
        assert 0 == daemon.process.wait(PATIENCE)
    assert not daemon.socket.exists()


def test_jobs_inherit_no_descriptor_of_the_daemon(tmp_path: Path) -> None:
    """A job has its three descriptors, and those that it needs to open its own."""
    with LiveDaemon(tmp_path, "--pool-size", "1") as daemon:
        program = "import os\nprint(sorted(int(fd) for fd in os.listdir('/proc/self/fd'))[:3])"

        assert b"[0, 1, 2]\n" == daemon.run("exec", program).stdout


def test_the_log_has_no_input_of_jobs(tmp_path: Path) -> None:
    """c154: neither code nor output nor environment."""
    with LiveDaemon(tmp_path, "--pool-size", "1", "--log-level", "debug") as daemon:
        daemon.run("exec", "--env", "TOKEN=canary1", "print('canary2'); 'canary3'; 1/0", "--", "canary4")
        daemon.run("exec", "import os\ntry: os.chroot('/canary5')\nexcept OSError: pass")
    text = str(daemon.log)

    assert "job ended" in text  # control: it is the log of these jobs
    assert "canary" not in text


def test_told_to_end_while_it_starts(tmp_path: Path) -> None:
    """SIGTERM between the socket and the first worker: an orderly end, nothing left."""
    socket = tmp_path / "leeward.sock"
    process = subprocess.Popen(command("daemon", "run", "--socket", str(socket)), env=environment(),
                               stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until_written(tmp_path, socket.exists)
    # The zygote; the signals are looked at since before.
    poll_until(lambda: descendants(process.pid), "a process of the daemon's is begun")
    assert process.poll() is None
    with watched(descendants(process.pid)) as wait:
        process.terminate()
        assert 0 == process.wait(PATIENCE)
        assert [] == wait(PATIENCE)
    assert not socket.exists()
