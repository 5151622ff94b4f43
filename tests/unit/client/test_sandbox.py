"""`Sandbox` and `AsyncSandbox` against a server whose sandboxes run ordinary processes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

import leeward
from kit.sandbox_stand import Stand
from leeward.spec.outcome import Limit, Outcome


@pytest.fixture
def box(stand: Stand) -> Iterator[leeward.Sandbox]:
    with leeward.Sandbox(socket=stand.socket) as made:
        yield made


def test_no_sandbox_is_opened_before_the_first_use(stand: Stand) -> None:
    """And none is closed then."""
    before = stand.left()
    box = leeward.Sandbox(socket=stand.socket)
    box.close()

    assert before == stand.left()
    with pytest.raises(leeward.SandboxOver):
        box.run(["true"])


def test_several_threads_open_one_sandbox(stand: Stand) -> None:
    """However many come first."""
    with leeward.Sandbox(socket=stand.socket) as box:
        found: list[str] = []
        threads = [threading.Thread(target=lambda: found.append(box.id)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert 1 == len(set(found))
        assert 8 == len(found)
        assert 26 == len(box.id)


def test_run_and_shell(box: leeward.Sandbox) -> None:
    """Exit codes, both streams, the sandbox's files, environment and stdin."""
    assert b"a b\n" == box.run(["echo", "a b"]).stdout
    box.shell("echo 1 > kept")
    got = box.shell('cat kept; cat; echo "$X" >&2; exit 3', stdin="in", env={"X": "y"})

    assert (b"1\nin", b"y\n", 3, Outcome.FINISHED) == (got.stdout, got.stderr, got.exit_code, got.outcome)
    assert b"/\n" == box.run(["pwd"], cwd="/").stdout


def test_programs_that_cannot_be_started(box: leeward.Sandbox) -> None:
    """As a shell has it."""
    missing = box.run(["no-such-program"])
    refused = box.run(["/etc/passwd"])

    assert (127, b"sh: no-such-program: not found\n") == (missing.exit_code, missing.stderr)
    assert (126, b"sh: /etc/passwd: Permission denied\n") == (refused.exit_code, refused.stderr)


def test_limits_keep_earlier_output(box: leeward.Sandbox) -> None:
    """The limits of time and output."""
    late = box.shell("echo early; sleep 100", timeout=0.5)
    much = box.shell("yes", output=100_000, overflow="end")

    assert (Outcome.TIMED_OUT, Limit.TIME, 124, b"early\n") == (late.outcome, late.limit, late.exit_code, late.stdout)
    assert (Outcome.OUTPUT_LIMIT, 153, 100_000, True) == (
        much.outcome, much.exit_code, len(much.stdout), much.truncated)
    assert 50_000 * b"y\n" == much.stdout


def test_large_output_comes_whole(box: leeward.Sandbox) -> None:
    """By a memory file, both streams."""
    got = box.shell("head -c 3000000 /dev/zero | tr '\\0' a; head -c 200000 /dev/zero | tr '\\0' b >&2")

    assert 3_000_000 * b"a" == got.stdout
    assert 200_000 * b"b" == got.stderr


def test_callbacks_and_the_whole_result(box: leeward.Sandbox) -> None:
    """The callbacks have it while it runs, the result has all of it."""
    out: list[bytes] = []
    err: list[bytes] = []
    got = box.shell("echo 1; echo 2 >&2; echo 3", on_stdout=out.append, on_stderr=err.append)

    assert (b"1\n3\n", b"2\n") == (b"".join(out), b"".join(err)) == (got.stdout, got.stderr)
    assert Outcome.TIMED_OUT is box.shell("sleep 100", timeout=0.2, on_stdout=out.append).outcome


def test_a_callback_that_raises_ends_the_program(box: leeward.Sandbox) -> None:
    """Its exception is the caller's."""
    def fail(data: bytes) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        box.shell("echo 1; sleep 100", on_stdout=fail)
    process = box.process(box.processes()[-1]["process"])
    ended = process.wait(10)

    assert ended is not None
    assert Outcome.SIGNALLED is ended.outcome


def test_a_started_process(box: leeward.Sandbox) -> None:
    """Written to, read from while it runs, signalled, waited for."""
    process = box.start(["cat"], stdin=None, title="a cat")
    assert 3 == process.write("one")
    first = process.read(10)
    assert [("stdout", b"one", 1)] == [(chunk.stream, chunk.data, chunk.number) for chunk in first]
    assert process.wait(0) is None
    assert [("a cat", False)] == [(row["title"], row["over"]) for row in box.processes()
                                  if row["process"] == process.number]
    process.write(b"two")
    process.close_stdin()
    assert b"two" == b"".join(chunk.data for chunk in process)
    ended = process.wait()

    assert ended is not None
    assert (0, Outcome.FINISHED) == (ended.exit_code, ended.outcome)
    assert [] == process.read()
    assert process.signal() is False
    with pytest.raises(BrokenPipeError):
        process.write("three")


def test_a_process_is_found_again_by_another_client(stand: Stand, box: leeward.Sandbox) -> None:
    """Its output from where the first one stopped: what that took last comes again, since it may have died of it."""
    process = box.start("echo one; read line; echo two; read line; echo $line", stdin=None)
    assert b"one\n" == process.read(10)[0].data
    process.write("x\n")
    assert b"two\n" == process.read(10)[0].data
    other = leeward.Sandbox.attach(box.id, socket=stand.socket)
    again = other.process(process.number)
    again.write("three\n")

    assert b"two\nthree\n" == again.result().stdout
    other.detach()
    assert b"still here\n" == box.run(["echo", "still here"]).stdout


def test_chunks_are_numbered_and_timed(box: leeward.Sandbox) -> None:
    """Without gaps, in order, both streams among each other."""
    before = time.monotonic()
    chunks = list(box.start("for i in 1 2 3; do echo out; echo err >&2; done"))

    assert [*range(1, len(chunks) + 1)] == [chunk.number for chunk in chunks]
    times = [chunk.time for chunk in chunks]
    assert sorted(times) == times
    assert before <= times[0] <= time.monotonic()
    assert 3 * "out\n" == "".join(chunk.text for chunk in chunks if "stdout" == chunk.stream)


def test_a_reader_that_stops_slows_its_own_process_alone(stand: Stand, box: leeward.Sandbox) -> None:
    """The process waits in write(2), and the daemon keeps little; another one runs on."""
    slow = box.start("yes; true")
    slow.read(10)
    assert b"quick\n" == box.run(["echo", "quick"]).stdout

    def waiting() -> int:
        sandbox = next(entry.sandbox.sandbox for entry in stand.server.desk.of(0) or stand.server.desk._registry.all()
                       if entry.name == box.id)
        return sandbox.program(slow.number).chunks.size

    for _ in range(100):
        kept = stand.do(waiting)
    assert kept < 1 << 20
    total = 0
    while total < 3 << 20:  # all of it comes as soon as somebody reads
        total += sum(len(chunk.data) for chunk in slow.read(10))
    slow.kill()
    ended = slow.result()
    assert Outcome.SIGNALLED is ended.outcome


def test_each_reader_has_all_of_the_output(box: leeward.Sandbox) -> None:
    """However much it is: two at once, one of them another program's object, and none of them takes from the other."""
    process = box.start("read go; seq 100000", stdin=None)
    other = leeward.Sandbox.attach(box.id, socket=box._connections.socket)
    readers = [process, other.process(process.number)]
    found: list[bytes] = []
    for reader in readers:
        assert [] == reader.read(0)
    threads = [threading.Thread(target=lambda reader=reader: found.append(reader.result().stdout)) for reader in readers]
    for thread in threads:
        thread.start()
    process.write("now\n")
    for thread in threads:
        thread.join()
    other.detach()

    assert 2 * ["".join(f"{number}\n" for number in range(1, 100_001)).encode()] == found


def test_a_late_reader_waits_and_asks_once(stand: Stand, box: leeward.Sandbox) -> None:
    """Though it asks from the beginning on, and another reader has taken that."""
    process = box.start("echo early; read go; echo late", stdin=None)
    assert "early\n" == "".join(chunk.text for chunk in process.read())
    assert [] == process.read(0)
    late, asked = box.process(process.number), list[str]()
    call = box._connections.call
    box._connections.call = lambda op, *args, **more: asked.append(op) or call(op, *args, **more)  # type: ignore[method-assign,func-returns-value]
    assert [] == late.read(0.2)
    assert 2 >= len(asked)
    process.write("go\n")

    assert [(2, "late\n")] == [(chunk.number, chunk.text) for chunk in late]


def test_a_background_child_does_not_hold_its_parents_end(box: leeward.Sandbox) -> None:
    """Though it holds stdout."""
    start = time.monotonic()
    got = box.shell("sleep 30 & echo done")

    assert (b"done\n", 0) == (got.stdout, got.exit_code)
    assert time.monotonic() - start < 20


def test_a_sandbox_that_is_over_says_why(stand: Stand) -> None:
    """To every later call, and to one that waits."""
    box = leeward.Sandbox(socket=stand.socket)
    process = box.start(["sleep", "100"])
    errors: list[leeward.SandboxOver] = []

    def wait() -> None:
        try:
            process.wait()
        except leeward.SandboxOver as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not box.info()["calls"]:
        pass
    box.kill()
    thread.join()
    with pytest.raises(leeward.SandboxOver, match="it was killed") as caught:
        box.run(["true"])

    assert "killed" == caught.value.reason == errors[0].reason
    assert abs(time.time() - caught.value.when) < 60
    assert caught.value.limit is None
    box.close()


def test_idle_and_lifetime() -> None:
    """By the daemon's clock; a call that runs is use, and `extend` moves both."""
    with Stand() as stand:
        short = leeward.Sandbox(socket=stand.socket, idle=0.3)
        assert b"" == short.run(["sleep", "0.6"]).stdout
        brief = leeward.Sandbox(socket=stand.socket, lifetime=0.3)
        longer = leeward.Sandbox(socket=stand.socket, lifetime=0.3)
        assert longer.extend(lifetime=60)["left"] > 50
        for name in (brief.id, short.id):
            while any(row["sandbox"] == name for row in leeward.Sandbox.list(socket=stand.socket)):
                pass
        with pytest.raises(leeward.SandboxOver) as idle:
            short.run(["true"])
        with pytest.raises(leeward.SandboxOver) as late:
            brief.run(["true"])
        longer.run(["true"])
        for box in (short, brief, longer):
            box.close()

    assert ("idle", None) == (idle.value.reason, idle.value.limit)
    assert ("lifetime", "time") == (late.value.reason, late.value.limit)


def test_a_sandbox_of_another_daemon(stand: Stand, box: leeward.Sandbox) -> None:
    """Is told from one that never was."""
    other = ("b" if box.id[0] == "a" else "a") + box.id[1:]
    for name, reason in ((other, "restart"), (box.id[:-1] + ("b" if box.id[-1] == "a" else "a"), "unknown")):
        with pytest.raises(leeward.SandboxOver) as caught:
            leeward.Sandbox.attach(name, socket=stand.socket)
        assert reason == caught.value.reason
    with pytest.raises(leeward.RequestRejected):
        leeward.Sandbox.attach("x", socket=stand.socket)


@pytest.mark.parametrize("name", ["", "a", "a" * 27, None])
def test_a_malformed_id_is_not_attached(stand: Stand, name: str) -> None:
    """An empty one, such as that of a variable that isn't set, would be a sandbox that isn't open yet."""
    before = leeward.Sandbox.list(socket=stand.socket)
    with pytest.raises(leeward.RequestRejected, match=f"must be an id of 26 characters, not {name!r}; .*sandbox list"):
        leeward.Sandbox.attach(name, socket=stand.socket)
    with pytest.raises(leeward.RequestRejected, match="must be an id of 26 characters"):
        asyncio.run(leeward.AsyncSandbox.attach(name, socket=stand.socket))

    assert before == leeward.Sandbox.list(socket=stand.socket) or not name


def test_an_option_that_there_is_not_is_named(box: leeward.Sandbox) -> None:
    """With the call that was made, and the option that was meant."""
    for call, says in (
            (lambda: leeward.Sandbox(memmory="1G"), r"Sandbox\(\) has no option 'memmory'; did you mean 'memory'\?"),
            (lambda: leeward.AsyncSandbox(work_dir="x"), r"Sandbox\(\) has no option 'work_dir'; .*'workdir'"),
            (lambda: box.run(["true"], tiemout=1), r"run\(\) has no option 'tiemout'; did you mean 'timeout'\?"),
            (lambda: box.shell("true", input="x"), r"shell\(\) has no option 'input'; did you mean 'stdin'\?"),
            (lambda: box.start(["true"], memory=1), r"run\(\) has no option 'memory'; there are"),
            (lambda: box.terminal(["true"], stdin="x"), r"terminal\(\) has no option 'stdin'; there are cwd, env"),
            (lambda: box.execute("1", memory=1), r"execute\(\) has no option 'memory'; there are"),
    ):
        with pytest.raises(TypeError, match=says):
            call()  # type: ignore[no-untyped-call]


def test_info_and_list(stand: Stand) -> None:
    """With the metadata that were given."""
    with leeward.Sandbox(socket=stand.socket, metadata={"run": "7"}, memory="64M") as box:
        info = box.info()
        assert ({"run": "7"}, 64 << 20, "python", 0) == (
            info["metadata"], info["memory_limit"], info["profile"], info["processes"])
        assert box.id in {row["sandbox"] for row in leeward.Sandbox.list(socket=stand.socket)}


def test_close_leaves_no_process_or_descriptor(stand: Stand) -> None:
    """Whatever ran."""
    before = stand.left()
    for number in range(20):
        with leeward.Sandbox(socket=stand.socket) as box:
            box.start(["sleep", "100"])
            if number % 2:
                box.start(["cat"], stdin=None).write("x")
            box.shell("sleep 50 &")
    deadline = time.monotonic() + 10
    while stand.left() != before and time.monotonic() < deadline:
        pass

    assert before == stand.left()


def test_many_asyncio_calls_share_one_connection(stand: Stand) -> None:
    """Many at once in one sandbox, over one connection."""
    async def go() -> None:
        async with leeward.AsyncSandbox(socket=stand.socket) as box:
            results = await asyncio.gather(*(box.run(["echo", str(number)]) for number in range(10)))
            assert [f"{number}\n" for number in range(10)] == [result.stdout_text for result in results]
            process = await box.start(["cat"], stdin=None)
            await process.write("hello")
            await process.close_stdin()
            assert [b"hello"] == [chunk.data async for chunk in process]
            told: list[bytes] = []
            await box.shell("echo 1", on_stdout=told.append)
            assert [b"1\n"] == told
            other = await leeward.AsyncSandbox.attach(await box.id(), socket=stand.socket)
            assert await box.id() == (await other.info())["sandbox"]
            await other.detach()

    asyncio.run(go())


def test_a_cancelled_task_ends_its_program(stand: Stand) -> None:
    """And nothing else in the sandbox."""
    async def go() -> None:
        async with leeward.AsyncSandbox(socket=stand.socket) as box:
            other = await box.start(["sleep", "100"])
            task = asyncio.create_task(box.run(["sleep", "99"]))
            while 2 != (await box.info())["processes"]:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while 1 != (await box.info())["processes"]:
                await asyncio.sleep(0)
            assert await other.signal()

    asyncio.run(go())


def test_a_clean_environment_is_path_and_the_given_variables(stand: Stand) -> None:
    """By the sandbox and by the call."""
    with leeward.Sandbox(socket=stand.socket, env={"A": "1"}) as box:
        clean = box.run(["env"], clean=True, env={"B": "2"}).stdout_text

    assert {"A", "B", "PATH"} == {line.partition("=")[0] for line in clean.splitlines()}


def test_processor_time_is_bounded_apart_from_time(box: leeward.Sandbox) -> None:
    """Who waits isn't ended; who computes is, with what it wrote before. A process that was started, too."""
    assert 0 == box.run(["sleep", "0.3"], cpu_time=0.1).exit_code
    late = box.shell("echo before; while :; do :; done", cpu_time=0.1, timeout=30)
    process = box.start("while :; do :; done", cpu_time=0.1)

    assert (Outcome.TIMED_OUT, Limit.CPU, 124, b"before\n") == (late.outcome, late.limit, late.exit_code, late.stdout)
    assert Limit.CPU is process.wait().limit
