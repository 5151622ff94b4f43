"""
A fleet on a cluster of Ray's: three nodes on this machine, each with the daemon of a socket in LEEWARD_FLEET_SOCKETS.

Runs in:   an environment with Ray; tests/integration/test_fleet_on_ray.py starts it. The tests run in their order, since a
           cluster takes long to start, and the last one kills a node of it.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import ray
from ray.cluster_utils import Cluster

import leeward
from leeward.apps.fleet.aio_fleet import AsyncFleet
from leeward.apps.fleet.errors import NodeLost
from leeward.apps.fleet.fleet import Fleet
from leeward.apps.fleet.placement import DEPTH

T = TypeVar("T")

SOCKETS = os.environ["LEEWARD_FLEET_SOCKETS"].split(":")
#: Of the first node: the GCS, the raylet, the object store. The daemons' policy `everything` has them.
PORTS = [int(port) for port in os.environ["LEEWARD_FLEET_RAY_PORTS"].split(":")]
#: Jobs of the last test: the long form and the short one.
JOBS = 10_000 if os.environ.get("LEEWARD_LONG") else 1000
#: Each node's workers.
WORKERS = 2


class _SlowClock:
    """A fourth as fast: Ray gives a node 30 s to start, a number in its source, which a busy machine exceeds."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        return time.monotonic() / 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray._private.node.time", _SlowClock())
        for path in SOCKETS:
            head = dict(zip(("gcs_server_port", "node_manager_port", "object_manager_port"), PORTS, strict=True))
            made.add_node(num_cpus=1, include_dashboard=False, object_store_memory=80 << 20,
                          env_vars={"LEEWARD_SOCKET": path}, **({} if made.head_node else head))
    ray.init(address=made.address, namespace="leeward", log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def on(cluster: Cluster, main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(main)


def test_jobs_sandboxes_and_sessions_are_as_on_one_daemon(cluster: Cluster) -> None:
    """With functions of the caller's, output as it arrives, results larger than messages, and files."""
    async def main() -> list[object]:
        async with AsyncFleet("auto") as fleet:
            many = [result.text async for _, result in fleet.execute_many(
                (f"print({number})" for number in range(60)), in_order=True)]
            called = await fleet.execute("print(f(7))", functions={"f": lambda number: 6 * number})
            large = await fleet.execute("print('x' * 3_000_000)")
            pieces: list[bytes] = []
            async with fleet.sandbox() as box:
                await box.files.write("a", b"z" * 5_000_000)
                size = len(await box.files.read("a"))
                await box.shell("echo one; sleep 0.2; echo two", on_stdout=pieces.append)
                kernel = await box.kernel()
                await kernel.execute("x = 6")
                kept = await kernel.execute("print(x * f(7))", functions={"f": lambda number: number})
            async with fleet.session() as session:
                await session.execute("x = 41")
                state = await session.execute("print(x + 1)")
            with pytest.raises(leeward.RequestRejected):
                await fleet.execute("1", memory=-1)
            return [many == [f"{number}\n" for number in range(60)], called.text, len(large.stdout), size,
                    b"".join(pieces), kept.text, state.text]

    assert [True, "42\n", 3_000_001, 5_000_000, b"one\ntwo\n", "42\n", "42\n"] == on(cluster, main())


def test_a_job_that_is_cancelled_ends_on_its_node(cluster: Cluster) -> None:
    async def main() -> str:
        async with AsyncFleet("auto") as fleet:
            with pytest.raises(leeward.NoAnswer):
                await fleet.execute("import time; time.sleep(100)", deadline=0.5)
            jobs = [asyncio.create_task(fleet.execute("import time; time.sleep(100)")) for _ in range(3 * WORKERS)]
            while 3 * WORKERS != sum(row["busy"] for row in (await fleet.status())["nodes"]):
                await asyncio.sleep(0.1)
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
            return (await fleet.execute("print(1)", deadline=20)).text  # there is room for it

    assert "1\n" == on(cluster, main())


def test_the_blocking_shape_and_another_fleet(cluster: Cluster) -> None:
    """Two programs share the actors, and one sees the other's sandbox, and its drain."""
    with Fleet("auto") as one, Fleet("auto") as other, one.sandbox() as box:
        box.files.write("x", b"text")
        again = other.attach(box.id)
        assert b"text" == again.files.read("x")
        assert 0 == one.drain(next(row["name"] for row in one.status()["nodes"] if row["name"] != box.node), 0.1)
        until = time.monotonic() + 10
        while "draining" not in {row["standing"] for row in other.status()["nodes"]}:
            assert time.monotonic() < until
            time.sleep(0.1)
        for row in one.status()["nodes"]:
            one.undrain(row["name"])
        assert {"up"} == {row["standing"] for row in one.status()["nodes"]}


#: HTTP/2's greeting, which Ray's servers answer with their settings; tried directly, and by the sandbox's own proxy. That a
#: connection is made means nothing there: every address is local, and the broker decides when it has been.
GREET = r"""
import socket
def reached(host, port, proxy=False):
    try:
        with socket.create_connection(("127.0.0.1", 3128) if proxy else (host, port), 3) as sock:
            if proxy:
                name = f"[{host}]" if ":" in host else host
                sock.sendall(f"CONNECT {name}:{port} HTTP/1.1\r\nHost: {name}:{port}\r\n\r\n".encode())
                if b" 200 " not in sock.recv(1000):
                    return False
            sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5))
            return sock.recv(9)[3:4] == b"\4"
    except OSError:
        return False
"""
ATTACK = GREET + """
for host, port in {targets!r}:
    for proxy in (False, True):
        if reached(host, port, proxy):
            print("reached", host, port, proxy)
print("done")
"""


def addresses(cluster: Cluster) -> set[str]:
    """Each of this host's, and the same as IPv6 writes it."""
    found = {cluster.address.rpartition(":")[0], "127.0.0.1", "127.0.0.2", "0.0.0.0", "::1"}
    found |= {about[4][0] for about in socket.getaddrinfo(socket.gethostname(), None)}
    listed = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    found |= set(re.findall(r"inet6? ([0-9a-f.:]+)", listed))
    return found | {f"::ffff:{each}" for each in found if "." in each}


def test_rays_ports_are_out_of_a_sandboxs_reach(cluster: Cluster) -> None:
    """
    The GCS, the raylet and the object store, by every address of the node: without a network, with the public one, and
    with a policy that allows everything on these very ports. The control: from outside.
    """
    namespace: dict[str, Any] = {}
    exec(GREET, namespace)
    open_ones = [(host, port) for host in sorted(addresses(cluster)) for port in PORTS if namespace["reached"](host, port)]
    assert set(PORTS) == {port for _, port in open_ones}  # control: each can be reached
    assert len(open_ones) > 2 * len(PORTS)

    async def main() -> list[str]:
        async with AsyncFleet("auto") as fleet:
            code, found = ATTACK.replace("{targets!r}", repr(open_ones)), list[str]()
            for options in ({}, {"allow_network": True}, {"egress": "everything"}):
                found.append((await fleet.execute(code, timeout=100, **options)).text)
                async with fleet.sandbox(**options) as box:
                    found.append((await box.execute(code, timeout=100)).text)
            return found

    assert ["done\n"] * 6 == on(cluster, main())


def test_the_pages_call_for_more_nodes(cluster: Cluster) -> None:
    """As it stands, with one job for each worker and without: nothing answers it here but Ray's own record."""
    page = (Path(__file__).parents[2] / "docs/fleet.md").read_text()
    code = next(each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "request_resources" in each)
    with Fleet("auto") as fleet:
        namespace: dict[str, Any] = {"fleet": fleet}
        exec(code, namespace)

    assert namespace["more"] is False


def test_a_node_that_is_killed_costs_its_jobs_alone(cluster: Cluster) -> None:
    """One answer each, no more lost than were there; sandboxes on the other nodes live on, and that on this one is over."""
    async def main() -> tuple[list[tuple[int, Any]], list[str]]:
        async with AsyncFleet("auto") as fleet:
            boxes = [fleet.sandbox() for _ in range(3)]
            places = {(await box.id()).partition("/")[0]: box for box in boxes}
            assert 3 == len(places)
            victim = next(node for node in cluster.list_all_nodes() if node is not cluster.head_node)
            answers = []
            async for number, answer in fleet.execute_many(f"print({number})" for number in range(JOBS)):
                answers.append((number, answer))
                if JOBS // 3 == len(answers):
                    cluster.remove_node(victim, allow_graceful=False)
            ends = []
            for box in places.values():
                try:
                    ends.append((await box.shell("echo here")).text)
                except leeward.SandboxOver as over:
                    ends.append(over.reason)
            return answers, ends

    answers, ends = on(cluster, main())

    assert list(range(JOBS)) == sorted(number for number, _ in answers)
    lost = [answer for _, answer in answers if isinstance(answer, NodeLost)]
    assert JOBS - len(lost) == sum(f"{number}\n" == answer.text for number, answer in answers
                                   if isinstance(answer, leeward.Result))
    assert len(lost) <= DEPTH * WORKERS, Counter(map(str, lost))
    assert Counter({"here\n": 2, "node_lost": 1}) == Counter(ends)
