"""
The client for Python with a daemon on another machine: by cases, each of which is a test, and as a program that runs those
that are named.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import leeward
from leeward.spec.paths import RemoteHost

PATIENCE = 30.0


def jobs(host: RemoteHost) -> None:
    """Files of large results are made on this side."""
    with leeward.Client(str(host), token=host.token) as client:
        assert "42\n" == client.execute("print(6 * 7)").stdout_text
        large = client.execute("import sys; sys.stdout.buffer.write(bytes(range(256)) * 50_000)", output="32M")
        assert bytes(range(256)) * 50_000 == bytes(large.stdout)
        sent = os.urandom(6 << 20)
        summed = client.execute("import sys; print(sum(sys.stdin.buffer.read()))", stdin=sent)
        assert f"{sum(sent)}\n" == summed.stdout_text
        assert {"f": b"made"} == {name: bytes(data) for name, data in client.execute(
            "open('f', 'w').write('made')", collect=["f"]).files.items()}


def sessions(host: RemoteHost) -> None:
    with leeward.Client(host) as client:
        with client.session() as session:
            session.execute("x = 6")
            assert "42\n" == session.execute("print(x * 7)").stdout_text
        assert "12\n" == client.execute("print(double(6))", functions={"double": lambda n: 2 * n}).stdout_text


def sandboxes(host: RemoteHost) -> None:
    with leeward.Sandbox(socket=host, profile="workdir", metadata={"mine": "1"}) as box:
        box.files.write("a", b"x" * 3_000_000)
        assert 3_000_000 == len(box.files.read("a"))
        assert "hi\n" == box.shell("echo hi").stdout_text
        process = box.start(["cat"], stdin=None)
        process.write(b"typed")
        process.close_stdin()
        assert b"typed" == process.result().stdout
        with box.kernel() as kernel:
            kernel.execute("y = 1")
            assert "2\n" == kernel.execute("print(y + 1)").stdout_text
        assert {"mine": "1"} == dict(box.info()["metadata"])
        assert [box.id] == [row["sandbox"] for row in leeward.Sandbox.list(socket=host)]
    assert [] == leeward.Sandbox.list(socket=host)


def many(host: RemoteHost) -> None:
    async def main() -> None:
        async with leeward.AsyncClient(host) as client:
            found = await asyncio.gather(*(client.execute(f"print({number})") for number in range(24)))
            assert [f"{number}\n" for number in range(24)] == [each.stdout_text for each in found]
            async with leeward.AsyncSandbox(client=client) as box:
                assert "a" == (await box.run(["printf", "a"])).stdout_text

    asyncio.run(main())


def ports(host: RemoteHost) -> None:
    """A port of a sandbox is published on the client's machine."""
    with leeward.Sandbox(socket=host, profile="workdir") as box:
        box.files.write("f", b"from inside")
        server = box.start(["python3", "-u", "-m", "http.server", "8000", "--bind", "127.0.0.1"])
        server.read(PATIENCE)
        with box.publish(8000) as published, \
                urllib.request.urlopen(f"http://127.0.0.1:{published.port}/f", timeout=PATIENCE) as answer:
            assert b"from inside" == answer.read()
        with box.publish(8001) as published, pytest.raises(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{published.port}/", timeout=PATIENCE)


def folders(host: RemoteHost) -> None:
    """They say that they can't be shown, and are copied instead."""
    with tempfile.TemporaryDirectory() as made:
        here = Path(made)
        (here / "sub").mkdir()
        (here / "sub" / "f").write_text("mine")
        (here / "one").write_text("1")
        with pytest.raises(leeward.RequestRejected, match="folders of this machine"), \
                leeward.Sandbox(socket=host, workdir=here) as box:
            box.shell("true")

        async def main() -> None:
            async with leeward.AsyncSandbox(socket=host, workdir=here, copy=True) as box:
                assert "mine1" == (await box.shell("cat sub/f one; echo changed > one")).stdout_text

        with leeward.Sandbox(socket=host, workdir=here, copy=True,
                             mounts=[leeward.Mount(here / "sub", "/tmp/other", copy=True)]) as box:
            assert "mine" == box.shell("cat /tmp/other/f").stdout_text
            box.shell("echo made > two; ln -s two three")
            (here / "link").symlink_to("back")
            box.files.download("/workspace", here / "link/new")
            box.files.download("two", here / "link/two")
            box.files.export_tar("/workspace", here / "back/all.tar.gz")
        asyncio.run(main())
        assert ["made\n", "1", "made\n"] == [(here / "back/new" / name).read_text() for name in ("two", "one", "three")]
        assert "made\n" == (here / "back/two").read_text()
        assert "1" == (here / "one").read_text()
    with pytest.raises(leeward.RequestRejected, match="copy=True needs a workdir"):
        leeward.Sandbox(socket=host, copy=True)


CASES: dict[str, Callable[[RemoteHost], None]] = {
    each.__name__: each for each in (jobs, sessions, sandboxes, many, ports, folders)}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        CASES[name](RemoteHost(os.environ["LEEWARD_HOST"]))
