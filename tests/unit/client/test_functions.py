"""What a client makes of its own functions, without a daemon."""

from __future__ import annotations

import asyncio

from leeward.client.aio_functions import AwaitedFunctions
from leeward.wire import function_frames as wire


def test_a_stop_iteration_in_a_thread_is_an_answer() -> None:
    """No future takes one."""
    def stop() -> None:
        raise StopIteration("the end")

    async def main() -> dict[str, object]:
        served = AwaitedFunctions({"stop": stop})
        return await asyncio.wait_for(served._run(3, "stop", wire.pack_arguments((), {})), 10)

    answer = asyncio.run(main())
    assert (3, "raised") == (answer["call"], answer["outcome"])
    assert isinstance(answer["value"], bytes)
    kind, text = wire.unpack(answer["value"])
    assert "RuntimeError" == kind
    assert "StopIteration" in text
