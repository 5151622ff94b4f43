"""Clients that ask for more than the daemon has room for, and get all of it."""

from __future__ import annotations

import asyncio
import select
import threading

import pytest

import leeward
from kit.guests import WireClient
from kit.live_daemon import PATIENCE, LiveDaemon
from leeward.client.aio_connection import AsyncConnection

DAEMON = ("--pool-size", "3")
CONFIGURATION = "connection_requests = 40\nconnection_sessions = 1\nqueue_size = 8\nmax_sessions = 2\n"

#: Jobs that the daemon below runs and has waiting.
ROOM = 3 + 8


@pytest.mark.smoke
def test_a_thousand_at_once_give_a_thousand_results(daemon: LiveDaemon) -> None:
    """Over one connection, each its own."""
    async def main() -> list[str]:
        async with leeward.AsyncClient(str(daemon.socket)) as client:
            results = await asyncio.gather(*(client.execute(f"print({number})") for number in range(1000)))
            return [result.text for result in results]

    assert [f"{number}\n" for number in range(1000)] == asyncio.run(main())


def test_without_the_retry_many_are_refused(daemon: LiveDaemon) -> None:
    """The control: the daemon hasn't room for them. But none is refused for what the client knows by itself."""
    async def main() -> list[BaseException | None]:
        async with leeward.AsyncClient(str(daemon.socket), retry_busy=False) as client:
            calls = [asyncio.create_task(client.execute("import time; time.sleep(60)")) for _ in range(100)]
            while sum(call.done() for call in calls) < 100 - ROOM:
                await asyncio.wait([call for call in calls if not call.done()], return_when=asyncio.FIRST_COMPLETED)
            refused = [call.exception() for call in calls if call.done()]
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            return refused

    refused = asyncio.run(main())

    assert {leeward.Busy} == {type(error) for error in refused}
    assert not [error for error in refused if "of this connection" in str(error)]
    daemon.idle()


def test_the_daemon_tells_its_bounds(daemon: LiveDaemon) -> None:
    """By ping, when more calls wait than every daemon takes."""
    async def main() -> tuple[int, int]:
        async with leeward.AsyncClient(str(daemon.socket)) as client:
            await client.execute("1")
            connection = client._states[asyncio.get_running_loop()].connections[0]
            assert isinstance(connection, AsyncConnection)
            before = connection.gate._most
            await asyncio.gather(*(client.execute("1") for _ in range(30)))
            return before, connection.gate._most

    assert (12, 36) == asyncio.run(main())


def test_more_than_a_connection_may_have_is_busy_on_the_wire(daemon: LiveDaemon) -> None:
    """
    The control of the above: the daemon holds its bound against whoever doesn't ask. A request that waits for the end
    of a process takes no place in the queue.
    """
    client = WireClient(daemon.socket)

    def replies(count: int) -> None:
        while len(client.replies) < count:
            assert select.select([client.sock], [], [], PATIENCE)[0], client.replies
            client.take()

    opened = client.send("sandbox_open")
    replies(1)
    box = client.replies[opened]["ok"]["sandbox"]
    started = client.send("process_start", sandbox=box, argv=["sleep", "1000"])
    replies(2)
    process = client.replies[started]["ok"]["process"]
    waits = [client.send("process_wait", sandbox=box, process=process, wait=600) for _ in range(45)]
    replies(2 + 5)
    refused = [client.replies[number]["error"] for number in waits[40:]]
    client.sock.close()
    with leeward.Sandbox.attach(box, socket=daemon.socket) as again:
        again.kill()

    assert ["busy"] * 5 == [error["kind"] for error in refused]
    assert all("40 requests of this connection are in flight already" in error["message"] for error in refused), refused
    daemon.idle()


def test_a_blocking_client_waits_for_room(daemon: LiveDaemon) -> None:
    """Forty threads with a client each, where eleven jobs have room."""
    texts: list[str] = []

    def one(number: int) -> None:
        with daemon.client() as client:
            texts.append(client.execute(f"import time; time.sleep(0.05); print({number})").text)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(6 * PATIENCE)

    assert sorted(f"{number}\n" for number in range(40)) == sorted(texts)


def test_a_session_waits_for_another_to_end(daemon: LiveDaemon) -> None:
    """The connection may have one."""
    async def main() -> tuple[bytes, type]:
        async with leeward.AsyncClient(str(daemon.socket)) as client:
            async with client.session() as session:
                with pytest.raises(leeward.Busy, match="of this connection"):
                    async with client.session(deadline=0.2):
                        pass
                second = asyncio.create_task(_second(client))
                await session.execute("1")
            return await second, type(session)

    async def _second(client: leeward.AsyncClient) -> bytes:
        async with client.session() as session:
            return (await session.execute("print(2)")).stdout

    assert (b"2\n", leeward.AsyncSession) == asyncio.run(main())


def test_the_jobs_of_a_session_take_turns(daemon: LiveDaemon) -> None:
    """In the order of the calls; one whose deadline has passed before its turn never runs."""
    async def main() -> tuple[list[str], str]:
        async with leeward.AsyncClient(str(daemon.socket)) as client, client.session() as session:
            await session.execute("seen = []")
            calls = [session.execute(f"import time; seen.append({number}); time.sleep(0.01)") for number in range(50)]
            results = await asyncio.gather(*calls)
            long = asyncio.create_task(session.execute("time.sleep(0.5)"))
            await asyncio.sleep(0)
            with pytest.raises(leeward.NoAnswer) as late:
                await session.execute("seen.append('late')", deadline=0.05)
            assert not late.value.may_have_run
            await long
            return [result.outcome for result in results], (await session.execute("print(seen)")).text

    outcomes, seen = asyncio.run(main())

    assert ["finished"] * 50 == outcomes
    assert f"{list(range(50))}\n" == seen


def test_a_client_works_in_one_event_loop_after_the_other(daemon: LiveDaemon) -> None:
    """And in two at once, each in a thread of its own."""
    client = leeward.AsyncClient(str(daemon.socket))

    async def some(count: int) -> list[str]:
        return [result.text for result in await asyncio.gather(*(client.execute("print(1)") for _ in range(count)))]

    assert ["1\n"] * 20 == asyncio.run(some(20))
    assert ["1\n"] * 20 == asyncio.run(some(20))
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(asyncio.run(some(20)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(6 * PATIENCE)
    assert [["1\n"] * 20] * 2 == found

    async def end() -> int:
        await client.close()
        return len(client._states)

    assert 1 == asyncio.run(end())  # those of closed loops are gone
    assert 1 >= len(client._states)
