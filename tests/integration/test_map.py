"""Many jobs by one call, with both clients and by the command."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import leeward
from kit.live_daemon import LiveDaemon, run

COUNT = 300


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
        file.write('{"half')
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
