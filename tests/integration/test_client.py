"""Both Python clients over a real daemon."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import leeward
from kit.live_daemon import PATIENCE, LiveDaemon, environment
from kit.waiting import poll_until
from leeward import Outcome
from leeward.client.connection import BlockingConnection

DAEMON = ("--pool-size", "2")


def test_a_result_is_complete(client: leeward.Client) -> None:
    """Every field of a job that went well."""
    result = client.execute("import sys; print('é'); print('err', file=sys.stderr)")

    assert ("é\n".encode(), b"err\n") == (result.stdout, result.stderr)
    assert ("é\n", "err\n") == (result.stdout_text, result.stderr_text)
    assert (Outcome.FINISHED, 0, None, None) == (result.outcome, result.exit_code, result.limit, result.error)
    assert 0 < result.duration < PATIENCE
    assert 0 <= result.cpu_time < PATIENCE
    assert result.memory_peak >= 0
    assert ({}, False) == (dict(result.denied), result.truncated)


def test_processor_time_is_counted(client: leeward.Client) -> None:
    """That of the job and of its children; sleeping costs none."""
    busy = "while time.process_time() < 0.3: pass"
    child = f"import os, time\nif os.fork() == 0:\n    {busy}\n    os._exit(0)\nos.wait()"

    assert 0.2 < client.execute(f"import time\n{busy}").cpu_time < PATIENCE
    assert 0.2 < client.execute(child).cpu_time < PATIENCE
    assert client.execute("import time; time.sleep(0.3)").cpu_time < 0.2


def test_a_jobs_error(client: leeward.Client) -> None:
    """Type, message and a traceback with the job's own lines."""
    result = client.execute("def f():\n    raise KeyError('gone')\nf()", name="work.py")

    assert (Outcome.RAISED, 1) == (result.outcome, result.exit_code)
    assert result.error is not None
    assert ("KeyError", "'gone'") == (result.error.type, result.error.message)
    assert 'File "work.py", line 2, in f' in result.error.traceback
    assert result.error.traceback == result.stderr_text


def test_files_go_in_and_come_back(client: leeward.Client) -> None:
    """By relative name, in folders, byte for byte; more than fits in a frame, too."""
    data = os.urandom(5 << 20)
    program = ("import hashlib, pathlib\nfor name in ('a.bin', 'in/b.csv'):\n"
               "    print(hashlib.sha256(pathlib.Path(name).read_bytes()).hexdigest())\n"
               "pathlib.Path('out/deep').mkdir(parents=True)\n"
               "pathlib.Path('out/deep/copy.bin').write_bytes(pathlib.Path('a.bin').read_bytes())\n"
               "pathlib.Path('out/note.txt').write_text('done')\npathlib.Path('left.txt').write_text('no')\n")
    result = client.execute(program, files={"a.bin": data, "in/b.csv": b"1,2"}, collect=["out/**/*", "out/*.txt"])

    assert (Outcome.FINISHED, "") == (result.outcome, result.stderr_text)
    assert [hashlib.sha256(data).hexdigest(), hashlib.sha256(b"1,2").hexdigest()] == result.stdout_text.split()
    assert {"out/deep/copy.bin": data, "out/note.txt": b"done"} == dict(result.files)


def test_c116_only_regular_files_with_plain_names_come_back(client: leeward.Client) -> None:
    """No link out of the workspace, no FIFO, no name that a terminal would act on."""
    program = ("import os\nos.symlink('/etc/passwd', 'link'); os.mkfifo('fifo'); os.mkdir('folder')\n"
               "open('ok', 'w').write('fine'); open('a\\nb', 'w').write('x'); open('-rf', 'w').write('dash')\n"
               "os.symlink('/etc', 'way'); os.link('ok', 'hard')\n")
    result = client.execute(program, collect=["*", "way/*", "*/*"])

    assert {"ok", "-rf"} <= set(result.files) <= {"ok", "-rf", "hard"}
    assert all(b"root" not in content for content in result.files.values())


def test_standard_input_arguments_environment(client: leeward.Client) -> None:
    """As given."""
    result = client.execute("import os, sys; print(sys.argv[1:], os.environ['K'], sys.stdin.buffer.read())",
                            args=["a", ""], env={"K": "v"}, stdin=b"\x00\xff")

    assert "['a', ''] v b'\\x00\\xff'\n" == result.stdout_text


def test_a_module_runs_as_by_python_m(client: leeward.Client) -> None:
    """As python -m."""
    assert "[\n    1\n]\n" == client.execute(module="json.tool", stdin=b"[1]").stdout_text


def test_a_large_result_is_a_sealed_memory_file(daemon: LiveDaemon) -> None:
    """What the client gets can't change: every seal is on, and writing fails."""
    code = b"import sys; sys.stdout.write('o' * (3 << 20)); sys.stderr.write('e' * (1 << 20))"
    connection = BlockingConnection(str(daemon.socket))
    reply, (fd,) = connection.call("execute", {"code": code})
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        assert seals & 0xF == 0xF
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)
        connection.close()
    with daemon.client() as client:
        result = client.execute(code)

    assert reply.arenas[0] >= 4 << 20
    assert b"o" * (3 << 20) == result.stdout_view
    assert b"e" * (1 << 20) == result.stderr


def test_time_counts_from_the_jobs_start(daemon: LiveDaemon) -> None:
    """Not from its place in the queue."""
    async def main() -> list[leeward.Result]:
        async with leeward.AsyncClient(str(daemon.socket)) as client:
            code = "import time; time.sleep(0.8); print('done')"
            return list(await asyncio.gather(*(client.execute(code, timeout=2.0) for _ in range(8))))

    results = asyncio.run(main())

    # Two workers: the last two wait for 2.4 seconds, more than their limit.
    assert ["done\n"] * 8 == [result.stdout_text for result in results]


def test_many_at_once(daemon: LiveDaemon) -> None:
    """Each gets its own answer."""
    async def main() -> list[leeward.Result]:
        async with leeward.AsyncClient(str(daemon.socket)) as client:
            return list(await asyncio.gather(*(client.execute(f"print({number})") for number in range(60))))

    assert [f"{number}\n" for number in range(60)] == [result.stdout_text for result in asyncio.run(main())]


def test_threads_with_clients_of_their_own(daemon: LiveDaemon) -> None:
    """Eight of them over two workers."""
    wrong: list[str] = []

    def work(name: int) -> None:
        with daemon.client() as client:
            said = [client.execute(f"print({name}, {number})").stdout_text for number in range(10)]
            if said != [f"{name} {number}\n" for number in range(10)]:
                wrong.extend(said)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    assert [] == wrong


def test_a_full_queue_is_refused_at_once(tmp_path: Path) -> None:
    """And a request that waited too long, by its own error; the rest are served, and what may take longer by the clock."""
    config = tmp_path / "c.toml"
    config.write_text("queue_size = 3\nqueue_timeout = 1\n")
    config.chmod(0o600)
    with LiveDaemon(tmp_path, "--pool-size", "1", "--config", str(config)) as daemon:
        async def main() -> list[object]:
            async with leeward.AsyncClient(str(daemon.socket), retry_busy=False) as client:
                over = asyncio.Event()
                first = asyncio.create_task(client.execute("hold()", functions={"hold": over.wait}))
                while (await client.status())["workers"]["busy"] == 0:
                    pass
                patient = asyncio.create_task(client.execute("1", wall=600))
                waiting = [asyncio.create_task(client.execute("1")) for _ in range(2)]
                await client.ping()
                with pytest.raises(leeward.Busy):  # one that waits is answered by a result, or by QueueTimeout
                    await client.execute("1")
                assert not any(task.done() for task in waiting)
                late = await asyncio.gather(*waiting, return_exceptions=True)
                over.set()
                return [await first, await patient, *late]

        first, patient, *waiting = asyncio.run(main())

        assert isinstance(first, leeward.Result)
        assert isinstance(patient, leeward.Result)
        assert [leeward.QueueTimeout] * 2 == [type(answer) for answer in waiting]
        daemon.idle()


def test_a_batch_on_one_connection_is_in_turn_with_the_others_of_its_user(tmp_path: Path) -> None:
    """While two hundred jobs of one wait, a job of another waits for a few of them."""
    config = tmp_path / "c.toml"
    config.write_text("queue_size = 256\n")
    config.chmod(0o600)
    with LiveDaemon(tmp_path, "--pool-size", "2", "--config", str(config)) as daemon:
        async def main() -> list[int]:
            overtaken = []
            async with (leeward.AsyncClient(str(daemon.socket)) as crowd,
                        leeward.AsyncClient(str(daemon.socket)) as single):
                await single.ping()
                batch = [asyncio.create_task(crowd.execute("1")) for _ in range(200)]
                await crowd.ping()  # answered behind them: all of them are there
                for _ in range(8):
                    before = sum(job.done() for job in batch)
                    await single.execute("2")
                    overtaken.append(sum(job.done() for job in batch) - before)
                assert not all(job.done() for job in batch)  # control: they were waiting all the time
                assert all(isinstance(answer, leeward.Result) for answer in await asyncio.gather(*batch))
            return overtaken

        # Two that run, two whose turn comes before its own, and those whose answers come in the same read.
        assert 8 >= sorted(asyncio.run(main()))[4]


def test_a_burst_of_the_queues_size_is_served(tmp_path: Path) -> None:
    """By default, at once, and again and again."""
    with LiveDaemon(tmp_path, "--pool-size", "2") as daemon:
        async def main() -> None:
            async with leeward.AsyncClient(str(daemon.socket)) as client:
                for _ in range(5):
                    got = await asyncio.gather(*(client.execute("1") for _ in range(64)))
                    assert {Outcome.FINISHED} == {each.outcome for each in got}

        asyncio.run(main())


def overloaded(folder: Path, delay: float) -> tuple[list[float], int]:
    """
    How long each call took that was served, of those sent after the first second of an overload; and how many were
    refused.
    """
    folder.mkdir()
    config = folder / "c.toml"
    config.write_text(f"queue_delay = {delay}\n")
    config.chmod(0o600)
    served, refused = [], 0
    with LiveDaemon(folder, "--pool-size", "2", "--config", str(config)) as daemon:
        async def call(client: leeward.AsyncClient, late: bool) -> None:
            nonlocal refused
            start = time.monotonic()
            try:
                await client.execute("import time; time.sleep(0.02)")
            except leeward.Busy:
                refused += 1
            else:
                if late:
                    served.append(time.monotonic() - start)

        async def main() -> None:
            async with (leeward.AsyncClient(str(daemon.socket), retry_busy=False) as one,
                        leeward.AsyncClient(str(daemon.socket), retry_busy=False) as two):
                calls = []
                for number in range(500):
                    calls.append(asyncio.create_task(call((one, two)[number % 2], number > 250)))
                    await asyncio.sleep(0.004)  # the load itself: calls at a rate, which no event gives
                await asyncio.gather(*calls)

        asyncio.run(main())
        daemon.idle()
    return sorted(served), refused


def test_an_overload_that_lasts_is_shed(tmp_path: Path) -> None:
    """Who is served waits a fraction of what they wait where the queue is bounded by its size alone."""
    bounded, refused = overloaded(tmp_path / "bounded", 0.1)
    control, refused_too = overloaded(tmp_path / "control", 0.0)

    assert min(refused, refused_too) > 50  # control: there was an overload
    assert min(len(bounded), len(control)) > 10
    assert bounded[len(bounded) // 2] < 0.4 * control[len(control) // 2]


@pytest.mark.smoke
@pytest.mark.parametrize("how", ["killed", "closed", "cancelled"])
def test_c103_a_client_that_vanishes_takes_its_job_along(daemon: LiveDaemon, how: str) -> None:
    """Within a second the worker is there for others."""
    daemon.idle()
    if how == "killed":
        program = f"import leeward; leeward.Client({str(daemon.socket)!r}).execute('while True: pass')"
        process = subprocess.Popen([sys.executable, "-c", program], env=environment())
        daemon.until(lambda status: status["workers"]["busy"] == 1)
        process.kill()
        process.wait()
    else:
        async def main() -> None:
            client = leeward.AsyncClient(str(daemon.socket))
            task = asyncio.create_task(client.execute("while True: pass"))
            while (await client.status())["workers"]["busy"] == 0:
                pass
            if how == "cancelled":
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await client.ping()
            await client.close()
            if how == "closed":
                with pytest.raises(leeward.DaemonAway):
                    await task

        asyncio.run(main())

    assert daemon.until(lambda status: status["workers"]["busy"] == 0) < 1.0


def test_limits_are_asked_for_and_capped(client: leeward.Client) -> None:
    """Lower, higher up to the ceiling, not above."""
    assert Outcome.TIMED_OUT is client.execute("while True: pass", timeout=0.2).outcome
    assert "ok\n" == client.execute("x = bytearray(300 << 20); print('ok')", memory="512M").stdout_text
    assert Outcome.OUTPUT_LIMIT is client.execute("print('x' * 5000)", output=1000).outcome
    for options in ({"timeout": 601.0}, {"memory": "5G"}, {"processes": 257}, {"output": "257M"}):
        with pytest.raises(leeward.RequestRejected, match="ceiling"):
            client.execute("1", **options)


def test_output_at_its_limit_is_cut_exactly(client: leeward.Client) -> None:
    """Not before, and flagged only when something was lost."""
    whole = client.execute("print('x' * 1000, end='')", output=1000)
    cut = client.execute("print('x' * 1001, end='')", output=1000)

    assert (1000, False, Outcome.FINISHED) == (len(whole.stdout), whole.truncated, whole.outcome)
    assert (1000, True, Outcome.OUTPUT_LIMIT, 153) == (len(cut.stdout), cut.truncated, cut.outcome, cut.exit_code)


def test_degraded_layers_are_in_every_result(daemon: LiveDaemon, client: leeward.Client) -> None:
    """The same as in status."""
    assert tuple(client.status()["degraded"]) == client.execute("1").degraded


def test_two_hundred_jobs_leave_no_descriptor_open(daemon: LiveDaemon, client: leeward.Client) -> None:
    """Two hundred jobs, a tenth of them large, leave the daemon's descriptors as they were."""
    def descriptors() -> int:
        # By the one connection that is open anyway: another one might still be closing.
        while (workers := client.status()["workers"])["idle"] < workers["total"]:
            pass
        return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))

    def most() -> int:
        # An idle worker may still be arming its spare: look until nothing more has come for a while.
        seen = [descriptors()]
        while len(seen) < 300 or max(seen[:-300]) < max(seen[-300:]):
            seen.append(descriptors())
            if len(seen) >= 300 and max(seen[-300:]) <= max(seen[:-300], default=max(seen)):
                break
        return max(seen)

    codes = ["print('x' * (1 << 20))", *["print(1)"] * 9]
    for code in codes:
        client.execute(code)
    before = most()
    for _ in range(20):
        for code in codes:
            client.execute(code)
    poll_until(lambda: descriptors() <= before, "a worker is idle a moment before its last job is cleared away")
