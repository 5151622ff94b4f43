"""A fleet of three real daemons on this host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import leeward
import leeward.fleet
from kit import features
from kit.carried import Way
from kit.live_daemon import PATIENCE, LiveDaemon, command, environment
from kit.waiting import poll_until
from leeward.apps.fleet.aio_fleet import PROBE_S, AsyncFleet, Member
from leeward.apps.fleet.aio_open import AsyncFleetSandbox
from leeward.apps.fleet.carrier import Carrier
from leeward.apps.fleet.errors import NodeLost, NoNodeFits
from leeward.apps.fleet.far_client import FarClient
from leeward.apps.fleet.node_client import NodeClient
from leeward.apps.fleet.placement import DEPTH, STARTS, Node
from leeward.client.aio_ports import connected

NAMES = ("a", "b", "c")
#: Sandboxes. The long form takes some minutes, and 8 GiB.
MANY = 1000 if os.environ.get("LEEWARD_LONG") else 12


@contextlib.contextmanager
def started(folder: Path, name: str) -> Iterator[LiveDaemon]:
    (folder / name).mkdir(exist_ok=True)
    config = folder / name / "c.toml"
    # By default there is room for as many as could all take the memory that they may.
    config.write_text("max_sessions = 500\n" if MANY >= 1000 else "")
    config.chmod(0o600)
    with LiveDaemon(folder / name, "--pool-size", "2", "--config", str(config)) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LiveDaemon]]:
    """Three that live as long as this module's tests."""
    folder = tmp_path_factory.mktemp("fleet")
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(started(folder, name)) for name in NAMES}


def nodes(daemons: dict[str, LiveDaemon]) -> list[dict[str, Any]]:
    return [{"address": f"unix:{daemon.socket}", "name": name, "tags": [f"is:{name}"], "resources": {"gpu": 1}}
            for name, daemon in daemons.items()]


@contextlib.asynccontextmanager
async def fleet_of(daemons: dict[str, LiveDaemon], far: bool) -> AsyncIterator[AsyncFleet]:
    """A fleet of these; *far*: each is reached through a carrier, as on Ray."""
    async def reach(daemon: LiveDaemon) -> Way:
        return Way(Carrier(str(daemon.socket)))

    async with AsyncFleet([] if far else nodes(daemons)) as fleet:
        await fleet.status()
        for name, daemon in daemons.items() if far else ():
            await fleet.join(Member(Node(name), FarClient(name, partial(reach, daemon))))
        yield fleet


@pytest.mark.smoke
def test_jobs_are_on_all_nodes(daemons: dict[str, LiveDaemon]) -> None:
    """Each has its own result, in the order of the jobs if asked, and each node had some."""
    async def main() -> tuple[list[str], dict[str, int], list[int]]:
        async with AsyncFleet(nodes(daemons)) as fleet:
            before = {row["name"]: fleet._members[row["name"]].status["jobs"]["done"] for row in
                      (await fleet.status())["nodes"]}
            progress: list[int] = []
            texts = [result.text async for _, result in fleet.execute_many(
                (f"print({number})" for number in range(90)), in_order=True, on_progress=progress.append)]
            done = {name: (await member.client.status())["jobs"]["done"] - before[name]
                    for name, member in fleet._members.items()}
            return texts, done, progress

    texts, done, progress = asyncio.run(main())

    assert [f"{number}\n" for number in range(90)] == texts
    assert 90 == sum(done.values())
    assert min(done.values()) >= 10
    assert list(range(1, 91)) == progress


def test_a_job_goes_where_its_tags_and_resources_are(daemons: dict[str, LiveDaemon]) -> None:
    async def main() -> tuple[set[str], dict[str, str]]:
        async with AsyncFleet(nodes(daemons)) as fleet:
            boxes = [fleet.sandbox(tags=["is:b"]) for _ in range(4)]
            found = {(await box.id()).partition("/")[0] for box in boxes}
            for box in boxes:
                await box.close()
            with pytest.raises(NoNodeFits) as nothing:
                await fleet.execute("1", resources={"gpu": 2})
            return found, nothing.value.reasons

    found, reasons = asyncio.run(main())

    assert {"b"} == found
    assert dict.fromkeys(NAMES, "has 1 gpu, and 2 are wanted") == reasons


@pytest.mark.parametrize("far", [False, True])
def test_a_sandbox_works_as_on_one_daemon(daemons: dict[str, LiveDaemon], far: bool) -> None:
    """Programs, files, kernels, output as it arrives; and another program finds it by its id."""
    async def main() -> list[object]:
        async with fleet_of(daemons, far) as fleet, fleet.sandbox() as box:
            await box.files.write("numbers", b"40 2\n")
            added = await box.run(["awk", "{ print $1 + $2 }", "numbers"])
            pieces: list[bytes] = []
            await box.shell("echo one; echo two", on_stdout=pieces.append)
            kernel = await box.kernel()
            await kernel.execute("x = 6")
            seen = await kernel.execute("print(x * f(7))", functions={"f": lambda number: number})
            async with fleet_of(daemons, far) as other:
                again = await other.attach(await box.id())
                read = await again.files.read("numbers")
                await again.detach()
            return [added.text, b"".join(pieces), seen.text, read]

    assert ["42\n", b"one\ntwo\n", "42\n", b"40 2\n"] == asyncio.run(main())


@pytest.mark.needs("x86-64")
@pytest.mark.parametrize("far", [False, True])
def test_a_kernel_moves_to_another_node(daemons: dict[str, LiveDaemon], far: bool) -> None:
    """It goes on there, with the same random numbers, and is closed where it was; one that can't be taken stays."""
    async def main() -> list[object]:
        async with fleet_of(daemons, far) as fleet, fleet.sandbox() as box, fleet.sandbox() as other:
            kernel = await box.kernel()
            assert box.node != (await other.id()).rpartition("/")[0]
            await kernel.execute("import random\nrandom.seed(1)\ncounter = iter(range(200_000))\nnext(counter)")
            moved = await fleet.move(kernel, other)
            with pytest.raises(leeward.SessionOver):
                await kernel.execute("1")
            found = (await moved.execute("next(counter), random.random()")).value
            await moved.execute("import threading\nt = threading.Thread(target=threading.Event().wait, daemon=True)\n"
                                "t.start()")
            with pytest.raises(leeward.SnapshotFailed, match="threads run"):
                await fleet.move(moved, box)
            return [found, (await moved.execute("next(counter)")).value]

    assert ["(1, 0.13436424411240122)", "2"] == asyncio.run(main())
    for daemon in daemons.values():
        assert [] == leeward.Snapshot.list(socket=daemon.socket)


SERVER = ["python3", "-u", "-m", "http.server", "3000", "--bind", "127.0.0.1"]


def test_a_server_in_a_sandbox_is_published_here(daemons: dict[str, LiveDaemon]) -> None:
    """In both shapes."""
    async def main() -> bytes:
        async with fleet_of(daemons, far=False) as fleet, fleet.sandbox(profile="workdir") as box:
            await (await box.start(SERVER)).read(PATIENCE)
            async with await box.publish(3000) as published:
                return await asyncio.to_thread(fetched, published.port)

    assert b"Directory listing" in asyncio.run(main())
    with leeward.fleet.connect(nodes(daemons)) as fleet, fleet.sandbox(profile="workdir") as box:
        box.start(SERVER).read(PATIENCE)
        with box.publish(3000) as published:
            assert b"Directory listing" in fetched(published.port)


def fetched(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE) as answer:
        return bytes(answer.read())


def test_a_server_behind_a_carrier_is_refused_by_name(daemons: dict[str, LiveDaemon]) -> None:
    """Its descriptor doesn't travel."""
    async def main() -> None:
        async with fleet_of(daemons, far=True) as fleet, fleet.sandbox() as box:
            with pytest.raises(leeward.RequestRejected, match="isn't reached through Ray"):
                await connected(box, 3000)

    asyncio.run(main())


@pytest.mark.parametrize("far", [False, True])
def test_a_session_keeps_its_state(daemons: dict[str, LiveDaemon], far: bool) -> None:
    """Until it is reset; and a job of it can be interrupted."""
    async def main() -> list[object]:
        async with fleet_of(daemons, far) as fleet, fleet.session() as session:
            await session.execute("x = 41")
            found: list[object] = [(await session.execute("print(x + f())", functions={"f": lambda: 1})).text]
            waits = asyncio.create_task(session.execute("import time; print('here', flush=True); time.sleep(60)",
                                                        on_stdout=lambda data: begun.set()))
            begun = asyncio.Event()
            await begun.wait()
            found.append(await session.interrupt())
            found.append((await waits).error.type)  # type: ignore[union-attr]  # it raised
            await session.reset()
            found.append((await session.execute("print('x' in globals())")).text)
            return found

    assert ["42\n", True, "KeyboardInterrupt", "False\n"] == asyncio.run(main())


@pytest.mark.parametrize("far", [False, True])
def test_what_runs_tells_and_asks(daemons: dict[str, LiveDaemon], far: bool) -> None:
    """Output as it arrives, functions of the caller's, large input and output, and a deadline."""
    async def main() -> list[object]:
        pieces: list[bytes] = []
        async with fleet_of(daemons, far) as fleet:
            called = await fleet.execute("print(f(7))", functions={"f": lambda number: 6 * number})
            await fleet.execute("import time; print('one', flush=True); time.sleep(0.2); print('two')",
                                on_stdout=pieces.append)
            large = await fleet.execute("print(len(open('/workspace/in').read()) * 'x')", files={"in": 3_000_000 * "y"})
            with pytest.raises(leeward.NoAnswer) as late:
                await fleet.execute("import time; time.sleep(60)", deadline=0.3)
            return [called.text, pieces, len(large.stdout), late.value.may_have_run]

    assert ["42\n", [b"one\n", b"two\n"], 3_000_001, True] == asyncio.run(main())


@pytest.mark.timeout(10 * MANY)
def test_sandboxes_are_spread(daemons: dict[str, LiveDaemon]) -> None:
    """Within a tenth of even, opened several at a time; each then gives its own number back."""
    async def main() -> tuple[Counter[str], list[str]]:
        turns = asyncio.Semaphore(6)
        async with AsyncFleet(nodes(daemons)) as fleet:
            async def opened(number: int) -> AsyncFleetSandbox:
                async with turns:
                    box = fleet.sandbox(env={"NUMBER": str(number)})
                    await box.id()
                    return box

            async def asked(box: AsyncFleetSandbox) -> str:
                async with turns:
                    return (await box.shell("echo $NUMBER")).text

            boxes = await asyncio.gather(*map(opened, range(MANY)))
            said = await asyncio.gather(*map(asked, boxes))
            await asyncio.gather(*(box.close() for box in boxes))
            return Counter(box.node for box in boxes), said

    found, said = asyncio.run(main())

    assert [f"{number}\n" for number in range(MANY)] == said
    assert all(0.9 * MANY / 3 <= found[name] <= 1.1 * MANY / 3 for name in NAMES), found


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[LiveDaemon]:
    """One more, which the test ends."""
    folder = tmp_path / "doomed"
    folder.mkdir()
    daemon = LiveDaemon(folder, "--pool-size", "2")
    daemon.__enter__()
    yield daemon
    daemon.process.send_signal(signal.SIGCONT)
    with contextlib.suppress(AssertionError):
        daemon.end()


def test_a_node_that_is_killed_costs_its_jobs_alone(daemons: dict[str, LiveDaemon], doomed: LiveDaemon) -> None:
    """A thousand jobs, one answer each: results, and node_lost for those that were on the node that was killed."""
    async def main() -> tuple[list[tuple[int, Any]], str]:
        async with AsyncFleet(nodes({"a": daemons["a"], "b": daemons["b"], "doomed": doomed})) as fleet:
            answers = []
            async for number, answer in fleet.execute_many(f"print({number})" for number in range(1000)):
                answers.append((number, answer))
                if 300 == len(answers):
                    doomed.process.kill()
            standing = {row["name"]: row["standing"] for row in (await fleet.status())["nodes"]}
            return answers, standing["doomed"]

    answers, standing = asyncio.run(main())

    assert list(range(1000)) == sorted(number for number, _ in answers)
    lost = [answer for _, answer in answers if isinstance(answer, NodeLost)]
    assert 1000 - len(lost) == sum(f"{number}\n" == answer.text for number, answer in answers
                                   if isinstance(answer, leeward.Result))
    assert {"doomed"} >= {error.node for error in lost}
    assert all(error.may_have_run for error in lost)
    assert len(lost) <= 2 * DEPTH
    assert "lost" == standing


def test_a_job_that_may_run_twice_is_run_elsewhere(daemons: dict[str, LiveDaemon], doomed: LiveDaemon) -> None:
    """And one that may not is lost, at once."""
    async def main() -> list[Any]:
        async with AsyncFleet(nodes({"doomed": doomed})) as fleet:
            await fleet._ready()
            jobs = [asyncio.create_task(fleet.execute("import time; time.sleep(0.5); print(1)", idempotent=twice))
                    for twice in (False, True)]
            await asyncio.to_thread(doomed.until, lambda status: status["workers"]["busy"] == 2)
            await fleet.join(Member(Node("a"), NodeClient(daemons["a"].socket)))
            doomed.process.kill()
            return await asyncio.gather(*jobs, return_exceptions=True)

    lost, again = asyncio.run(main())

    assert isinstance(lost, NodeLost)
    assert lost.may_have_run
    assert "1\n" == again.text


def test_a_node_that_is_silent_is_lost_within_five_seconds(doomed: LiveDaemon) -> None:
    """Its job, its sandbox and its session end with the reason; and it takes jobs again when it answers."""
    async def main() -> tuple[list[Any], float, str]:
        async with AsyncFleet(nodes({"doomed": doomed})) as fleet, fleet.sandbox() as box, fleet.session() as session:
            await box.shell("true")
            await session.execute("x = 1")
            doomed.process.send_signal(signal.SIGSTOP)
            start = time.monotonic()
            ends = await asyncio.gather(fleet.execute("1"), box.shell("true"), session.execute("x"),
                                        return_exceptions=True)
            took = time.monotonic() - start
            ends.append((await asyncio.gather(box.shell("true"), return_exceptions=True))[0])
            doomed.process.send_signal(signal.SIGCONT)
            while "up" != (await fleet.status())["nodes"][0]["standing"]:
                await asyncio.sleep(PROBE_S / 10)  # nothing tells of it but the status
            return ends, took, (await fleet.execute("print(2)")).text

    (job, box, session, later), took, text = asyncio.run(main())

    assert isinstance(job, NodeLost)
    assert isinstance(box, leeward.SandboxOver)
    assert ("node_lost", "node_lost") == (box.reason, later.reason)
    assert isinstance(session, leeward.SessionOver)
    assert not later.may_have_run
    assert took <= 5.0 * features.SLOWER
    assert "2\n" == text


def test_a_drained_node_ends_what_is_open_with_its_reason(daemons: dict[str, LiveDaemon]) -> None:
    """It takes nothing new, its jobs end by themselves, and each sandbox's program was told before."""
    async def main() -> tuple[list[float], int, list[str], set[str], str]:
        told: list[float] = []
        async with AsyncFleet(nodes(daemons)) as fleet:
            boxes = [fleet.sandbox(tags=["is:c"], on_drain=told.append) for _ in range(3)]
            for box in boxes:
                await box.id()
            job = asyncio.create_task(fleet.execute("import time; time.sleep(0.3); print(1)", tags=["is:c"]))
            await asyncio.sleep(0)
            draining = asyncio.create_task(fleet.drain("c", 1.0))
            while not told:
                await asyncio.sleep(0)
            await boxes[0].close()
            with pytest.raises(NoNodeFits) as nothing:
                await fleet.execute("1", tags=["is:c"])
            others = {(await fleet.sandbox().id()).partition("/")[0] for _ in range(4)}
            ended = await draining
            reasons = [nothing.value.reasons["c"]]
            for box in boxes[1:]:
                with pytest.raises(leeward.SandboxOver) as over:
                    await box.shell("true")
                reasons.append(over.value.reason)
            await fleet.undrain("c")
            again = await fleet.execute("print(3)", tags=["is:c"])
            return told, ended, reasons, others, (await job).text + again.text

    told, ended, reasons, others, text = asyncio.run(main())

    assert [1.0] * 3 == told
    assert 2 == ended
    assert ["is draining", "drained", "drained"] == reasons
    assert {"a", "b"} == others
    assert "1\n3\n" == text


def test_a_busy_node_is_passed_by(daemons: dict[str, LiveDaemon], tmp_path: Path) -> None:
    """One without a queue refuses jobs, which others then have; and each has its result."""
    folder = tmp_path / "small"
    folder.mkdir()
    config = folder / "c.toml"
    config.write_text("queue_size = 0\n")
    config.chmod(0o600)
    with LiveDaemon(folder, "--pool-size", "1", "--config", str(config)) as small:
        async def main() -> list[str]:
            async with AsyncFleet(nodes({"small": small, "a": daemons["a"]})) as fleet:
                return [result.text async for _, result in fleet.execute_many(
                    (f"print({number})" for number in range(40)), in_order=True)]

        assert [f"{number}\n" for number in range(40)] == asyncio.run(main())


def test_the_blocking_shape(daemons: dict[str, LiveDaemon]) -> None:
    """A fleet in a thread of its own gives the same."""
    with leeward.fleet.connect(nodes(daemons)) as fleet:
        assert "42\n" == fleet.execute("print(f(7))", functions={"f": lambda number: 6 * number}).text
        assert ["0\n", "1\n"] == [result.text for _, result in fleet.execute_many(["print(0)", "print(1)"], in_order=True)]
        with fleet.sandbox() as box:
            box.files.write("x", b"text")
            pieces: list[bytes] = []
            assert "text" == box.shell("cat x", on_stdout=pieces.append).text
            assert [b"text"] == pieces
            kernel = box.kernel()
            kernel.execute("y = 2")
            assert "4\n" == kernel.execute("print(y * g())", functions={"g": lambda: 2}).text
            with fleet.sandbox() as other:
                assert "2" == fleet.move(box.kernel(), other).execute("1 + 1").value
            again = fleet.attach(box.id)
            assert b"text" == again.files.read("x")
            assert box.node == again.node
            again.detach()
        with fleet.session() as session:
            session.execute("z = 5")
            assert "5\n" == session.execute("print(z)").text
            assert session.node in NAMES
        assert {"up"} == {row["standing"] for row in fleet.status()["nodes"]}
        assert fleet.execute_many("import time; time.sleep(0.01)" for _ in range(1000)).__next__()  # the others are cancelled


def test_a_drain_is_seen_by_others(daemons: dict[str, LiveDaemon]) -> None:
    """By the command, by a program that was there before, and by one that comes later; and taken back."""
    address = f"unix:{daemons['b'].socket}"

    def fleet_command(*argv: str) -> str:
        done = subprocess.run(command("fleet", *argv, "-n", address), env=environment(), capture_output=True, text=True,
                              check=True, timeout=PATIENCE)
        return done.stdout

    with leeward.fleet.connect([address]) as fleet, fleet.sandbox(on_drain=lambda seconds: told.set()) as box:
        told = threading.Event()
        box.shell("true")
        assert "" == fleet_command("drain", str(daemons["b"].socket), "--seconds", "0.5")
        assert told.wait(PATIENCE)
        over = None
        until = time.monotonic() + PATIENCE
        while over is None and time.monotonic() < until:
            try:
                box.shell("sleep 0.05")
            except leeward.SandboxOver as ended:
                over = ended
        assert over is not None
        assert "drained" == over.reason
        assert "draining" in fleet_command("status")
        fleet_command("drain", "--undo", str(daemons["b"].socket))
        assert f"{daemons['b'].socket}: runs jobs\n" == fleet_command("doctor")
        assert " up " in fleet_command("top", "--once")
        poll_until(lambda: "up" == fleet.status()["nodes"][0]["standing"], "a program looks at its nodes each second")
        assert "7\n" == fleet.execute("print(7)", deadline=PATIENCE).text


def test_commands_say_what_is_wrong(tmp_path: Path) -> None:
    def said(*argv: str) -> tuple[int, str]:
        done = subprocess.run(command("fleet", *argv), env=environment(HOME=str(tmp_path), XDG_CONFIG_HOME=""),
                              capture_output=True, text=True, check=False, timeout=PATIENCE)
        return done.returncode, done.stdout + done.stderr

    away = f"unix:{tmp_path}/none.sock"
    status, text = said("status", "-n", away)
    assert 1 == status
    assert f"no daemon answers on '{tmp_path}/none.sock'" in text
    status, text = said("doctor", "-n", away)
    assert 1 == status
    assert f"{tmp_path}/none.sock: no daemon answers" in text
    assert (1, "leeward: no nodes are named: write them into") == (
        (status := said("status"))[0], status[1][:len("leeward: no nodes are named: write them into")])
    assert "isn't the address of a node" in said("status", "-n", "ssh://a")[1]
    assert "isn't a node of this fleet" in said("drain", "other", "-n", away)[1]


def test_a_drain_loses_none_of_fifty_without_its_reason(daemons: dict[str, LiveDaemon]) -> None:
    """Those on the node end as drained, all others live on."""
    async def main() -> list[tuple[str, str]]:
        async with AsyncFleet(nodes(daemons)) as fleet:
            boxes = [fleet.sandbox() for _ in range(50)]
            places = await asyncio.gather(*(box.id() for box in boxes))
            assert sum(place.startswith("a/") for place in places) == await fleet.drain("a", 0.1)
            await fleet.undrain("a")
            ends = []
            for box in boxes:
                try:
                    ends.append((box.node, (await box.shell("echo here")).text))
                except leeward.SandboxOver as over:
                    ends.append((box.node, over.reason))
            await asyncio.gather(*(box.close() for box in boxes))
            return ends

    ends = asyncio.run(main())

    assert {("a", "drained"), ("b", "here\n"), ("c", "here\n")} == set(ends)
    # Even, but for those that a node has told of while their answers were on their way: as many as may be starting there.
    assert all(abs(sum(node == name for node, _ in ends) - 50 / 3) <= 2 * STARTS + 1 for name in NAMES)


#: A solution, its input, and the verdict on it.
SOLUTIONS = (
    ("print(sum(map(int, input().split())))", "40 2", "right"),
    ("print(sum(map(int, input().split())) + 1)", "40 2", "wrong"),
    ("print(int(input()))", "no number", "raised"),
    ("while True: pass", "", "timed_out"),
    ("1 / 0", "", "raised"),
    ("import os; os.kill(os.getpid(), 9)", "", "signalled"),
    ("import sys; sys.exit(3)", "", "failed"),
    ("import os; os.system('rm -rf / 2>&1'); print(42)", "", "right"),
    ("import socket; socket.create_connection(('192.0.2.1', 80))", "", "raised"),
    ("print(open('/etc/shadow').read())", "", "raised"),
)


def verdict(answer: leeward.Result | leeward.DaemonError) -> str:
    """A reward function's: what a machine did wrong isn't the solution's fault."""
    if isinstance(answer, leeward.DaemonError) or leeward.Outcome.INTERNAL == answer.outcome:
        return "none"
    if leeward.Outcome.FINISHED != answer.outcome:
        return str(answer.outcome)
    return "failed" if answer.exit_code else "right" if "42" == answer.text.strip().splitlines()[-1] else "wrong"


def test_a_reward_function_gives_each_of_a_hundred_its_verdict(daemons: dict[str, LiveDaemon]) -> None:
    rounds = 10
    with leeward.fleet.connect(nodes(daemons)) as fleet:
        jobs = [{"code": code, "stdin": text, "timeout": 0.3 if "timed_out" == expected else PATIENCE}
                for code, text, expected in SOLUTIONS * rounds]
        found = [verdict(answer) for _, answer in fleet.execute_many(jobs, in_order=True, memory="64M")]

    assert [expected for _, _, expected in SOLUTIONS * rounds] == found
