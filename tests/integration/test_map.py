"""Many jobs by one call, with both clients and by the command."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import leeward
from kit.features import ROOT
from kit.live_daemon import PATIENCE, LiveDaemon, run
from leeward_cli.bench.spent import children, zygotes

COUNT = 300
LIBRARY = Path(leeward.__file__).parent / "_native/sdk/lib/libleeward.so.0"


@pytest.fixture(params=["blocking", "asyncio"])
def mapped(request: pytest.FixtureRequest, daemon: LiveDaemon):
    """The ends of jobs by either client, as a list."""
    def blocking(jobs, **options):
        with leeward.Client(str(daemon.socket)) as client:
            return list(client.map(jobs, **options))

    async def ends(jobs, options):
        async with leeward.AsyncClient(str(daemon.socket)) as client:
            return [one async for one in client.map(jobs, **options)]

    return blocking if request.param == "blocking" else lambda jobs, **options: asyncio.run(ends(jobs, options))


def test_every_job_has_its_own_result(mapped) -> None:
    ends = mapped(f"print({number})" for number in range(COUNT))

    assert list(range(COUNT)) == sorted(one.number for one in ends)
    assert all(f"{one.number}\n" == one.result.text and one.job == f"print({one.number})" for one in ends)


def test_ends_in_the_order_of_the_jobs(mapped) -> None:
    seen = []
    jobs = [f"import time; time.sleep({0.2 if number % 7 == 0 else 0})" for number in range(40)]
    ends = mapped(jobs, ordered=True, at_once=8, progress=seen.append)

    assert list(range(40)) == [one.number for one in ends]
    assert list(range(1, 41)) == [each.done for each in seen]
    assert {40} == {each.total for each in seen}


def test_a_refused_job_is_one_of_many(mapped) -> None:
    """Its own options come before those of all; what it fails by is its own matter."""
    one, two, three = mapped([{"code": "1", "timeout": 1e9}, {"code": "while True: pass", "timeout": 0.2}, "1/0"],
                             timeout=30, ordered=True)

    assert isinstance(one.error, leeward.RequestRejected)
    assert one.result is None
    assert (leeward.Outcome.TIMED_OUT, leeward.Outcome.RAISED) == (two.result.outcome, three.result.outcome)


#: Jobs that end in every way, and what they end by.
ENDS = {
    "import os; os._exit(3)": 3, "import os; os.kill(os.getpid(), 9)": leeward.Outcome.SIGNALLED,
    "1/0": leeward.Outcome.RAISED,
    "print(__import__('os').getpid() > 2, __import__('threading').main_thread().native_id == __import__('os').getpid())": 0,
    "while True: pass": leeward.Outcome.TIMED_OUT, "import os; os.fork() or os.setsid() and __import__('time').sleep(60)": 0,
    "print(__import__('os').listdir('/tmp')); open('/tmp/left', 'w').close()": 0,
    "while True: print('x' * 4096)": leeward.Outcome.OUTPUT_LIMIT}


def test_jobs_in_namespaces_that_had_others_end_as_any(tmp_path: Path) -> None:
    with LiveDaemon(tmp_path, "--pool-size", "1", "--reuse", "user") as daemon, leeward.Client(str(daemon.socket)) as client:
        reuse = client.status()["layers"]["namespaces"]["reuse"]
        jobs = [{"code": code, "timeout": 0.5 if ENDS[code] is leeward.Outcome.TIMED_OUT else 60} for code in ENDS]
        ends = list(client.map(jobs * 3, ordered=True, output=1 << 16))
        for keeper in [each for zygote in zygotes(daemon.process.pid) for each in children(zygote)]:
            os.kill(keeper, signal.SIGKILL)  # a worker is lost, with what it keeps, and another one serves
        assert all(one.result.text == "1\n" for one in client.map(["print(1)"] * 20))
        daemon.idle()
    kept = [one.result.text == "True True\n" for one in ends if "getpid() > 2" in one.job["code"]]

    for one in ends:
        assert ENDS[one.job["code"]] in (one.result.outcome, one.result.exit_code), one
        assert "left" not in one.result.text
        assert "True False" not in one.result.text
    assert any(kept) is (reuse == "user")
    assert reuse == "user" or reuse.startswith("off: ")


NODE = """
const { Client } = require(process.argv[1]);
(async () => {
  const client = new Client({ socket: process.argv[2] });
  const codes = Array(Number(process.argv[4])).fill(process.argv[3]);
  for await (const { error } of client.map(codes)) console.log(error ? error.constructor.name : 'result');
  client.close();
})();
"""


class CJob(ctypes.Structure):
    _fields_ = (("code", ctypes.c_char_p), ("length", ctypes.c_size_t), ("options", ctypes.c_void_p))


def ends_in_c(path: str, code: str, count: int) -> list[str]:
    library, found, text = ctypes.CDLL(str(LIBRARY)), list[str](), code.encode()
    library.leeward_connect.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(library.leeward_connect(path.encode()))

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(CJob))
    def following(_, number, job):
        job[0] = CJob(text, len(text), None)
        return int(number < count)

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    def ended(_, number, result):
        found.append("result" if result else str(library.leeward_last_error_code()))
        library.leeward_free_result(ctypes.c_void_p(result))
        return 0

    assert 0 == library.leeward_map(handle, following, ended, None, ctypes.c_size_t(0), ctypes.c_double(0))
    library.leeward_disconnect(handle)
    return found


def ends_in_node(path: str, code: str, count: int) -> list[str]:
    done = subprocess.run(["node", "-e", NODE, str(ROOT / "leeward/clients/node"), path, code, str(count)],
                          capture_output=True, text=True, timeout=PATIENCE, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("way", ["python", pytest.param("c", marks=pytest.mark.needs("libleeward")),
                                 pytest.param("node", marks=pytest.mark.needs("node>=18"))])
def test_jobs_that_wait_long_for_a_worker_wait_again(way: str, small: LiveDaemon) -> None:
    """As long as others of the same client end: so many jobs take longer than the daemon's queue lets one wait."""
    path, code, count = str(small.socket), "import time\nwhile time.process_time() < 0.1: pass", 12
    with leeward.Client(path, retry_busy=False) as client:  # control
        assert any(isinstance(one.error, leeward.QueueTimeout) for one in client.map([code] * count))
    if way == "python":
        with leeward.Client(path) as client:
            ends = ["result" if one.error is None else str(one.error) for one in client.map([code] * count)]
    else:
        ends = (ends_in_c if way == "c" else ends_in_node)(path, code, count)
    assert ["result"] * count == ends


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    folder = tmp_path_factory.mktemp("small")
    config = folder / "config.toml"
    config.write_text("queue_timeout = 0.2\npool_size = 1\nmax_jobs = 1\n")
    config.chmod(0o600)
    with LiveDaemon(folder, "--config", str(config)) as daemon:
        yield daemon


def test_a_deadline_is_for_all_of_them(mapped, daemon: LiveDaemon) -> None:
    with pytest.raises(leeward.NoAnswer, match="3 jobs have no answer"):
        mapped(["import time; time.sleep(60)"] * 3, deadline=1.0)
    daemon.idle()


def test_an_error_of_the_iterable_ends_it(mapped, daemon: LiveDaemon) -> None:
    def jobs() -> Iterator[str]:
        yield "import time; time.sleep(60)"
        raise LookupError("no more")

    began = time.monotonic()
    with pytest.raises(LookupError, match="no more"):
        mapped(jobs())
    assert time.monotonic() - began < 15  # and not when the first job's time is over
    daemon.idle()


def test_leaving_the_iteration_cancels_what_runs(daemon: LiveDaemon) -> None:
    with leeward.Client(str(daemon.socket)) as client, \
            contextlib.closing(client.map(["1", *["import time; time.sleep(60)"] * 9])) as ends:  # type: ignore[type-var]
        assert 0 == next(ends).number
    daemon.idle()


def test_an_asynchronous_iterable_gives_jobs_while_others_end(daemon: LiveDaemon) -> None:
    """The next job is there when the end of the one before was yielded."""
    async def main() -> list[str]:
        seen: list[str] = []
        heard = asyncio.Event()

        async def jobs() -> AsyncIterator[str]:
            for number in range(3):
                heard.clear()
                yield f"print({number})"
                await heard.wait()

        async with leeward.AsyncClient(str(daemon.socket)) as client:
            async for one in client.map(jobs()):
                assert one.result is not None
                seen.append(one.result.text)
                heard.set()
        return seen

    assert ["0\n", "1\n", "2\n"] == asyncio.run(main())


def test_the_command_goes_on_where_it_was(daemon: LiveDaemon, tmp_path: Path) -> None:
    jobs, out = tmp_path / "jobs.jsonl", tmp_path / "out.jsonl"
    rows = [{"id": f"n{number}", "code": f"print({number})"} for number in range(20)]
    jobs.write_text("".join(json.dumps(row) + "\n" for row in rows[:10]))
    first = run(daemon.socket, "map", str(jobs), "--results", str(out))
    with open(out, "a", encoding="utf-8") as file:
        file.write('{"id": "half')
    jobs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    second = run(daemon.socket, "map", str(jobs), "--results", str(out))

    assert (0, 0, b"", b"") == (first.returncode, second.returncode, first.stderr, second.stderr)
    got = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["id"] for row in rows} == {row["id"] for row in got}
    assert 20 == len(got)
    assert all(row["stdout"] == f"{row['id'][1:]}\n" for row in got)


def test_a_refused_job_is_the_commands_exit_status(daemon: LiveDaemon, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_text('{"code": "1", "timeout": 1e9}\n"2"\n')
    done = run(daemon.socket, "map", "--ordered", str(jobs))

    assert 1 == done.returncode
    assert ["refused", "outcome"] == [list(json.loads(line))[2] for line in done.stdout.splitlines()]
