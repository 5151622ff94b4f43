"""One asyncio client that many sandboxes use, against a server whose sandboxes run ordinary processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import leeward
from kit.fake_daemon import PATIENCE
from kit.sandbox_stand import Stand

#: Requests of one connection at once: as few as the daemon can be told.
MOST = 16


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with Stand(connection_requests=MOST) as made:
        yield made


def connections(stand: Stand) -> int:
    return stand.do(lambda: len(stand.server.connections))  # type: ignore[no-any-return]


async def wait_for(count: int, box: leeward.AsyncSandbox) -> None:
    async with asyncio.timeout(PATIENCE):
        while count > (await box.info())["processes"]:
            pass


def test_sandboxes_share_a_connection_and_leave_it_open(stand: Stand) -> None:
    async def main() -> None:
        async with leeward.AsyncClient(stand.socket) as client:
            async with leeward.AsyncSandbox(client=client) as box, leeward.AsyncSandbox(client=client) as other:
                assert await box.id() != await other.id()
                same = await leeward.AsyncSandbox.attach(await box.id(), client=client)
                assert b"shared\n" == (await same.run(["echo", "shared"])).stdout
                assert 1 == connections(stand)
                await same.detach()
            assert 0 < await client.ping()
            assert 1 == connections(stand)

    asyncio.run(main())


def test_what_waits_beyond_a_connections_bound_has_another_connection(stand: Stand) -> None:
    """No call is refused, and none waits for another: all programs run at once."""
    async def main() -> None:
        async with leeward.AsyncClient(stand.socket, retry_busy=False) as client:
            boxes = [leeward.AsyncSandbox(client=client) for _ in range(3)]
            programs = [asyncio.create_task(box.shell("exec sleep 100")) for box in boxes for _ in range(MOST)]
            for box in boxes:
                await wait_for(MOST, box)
            assert 1 < connections(stand) < 8
            for box in boxes:
                await box.close()
            ends = await asyncio.gather(*programs, return_exceptions=True)
            assert {leeward.SandboxOver} == {type(end) for end in ends}, ends

    asyncio.run(main())


def test_what_is_held_has_a_connection_of_its_own(stand: Stand) -> None:
    """Its end ends the process, while the other sandboxes' calls go on."""
    async def main() -> None:
        async with leeward.AsyncClient(stand.socket) as client, leeward.AsyncSandbox(client=client) as box:
            held = await leeward.AsyncSandbox.attach(await box.id(), client=client, held=True)
            process = await held.start(["sleep", "100"])
            waits = asyncio.create_task(box.run(["cat"], stdin=b"goes on"))
            await held.detach()
            result = await (await box.process(process.number)).wait(PATIENCE)
            assert result is not None
            assert 137 == result.exit_code
            assert b"goes on" == (await waits).stdout

    asyncio.run(main())
