"""
What code shows, with the real thing: over both transports, in fresh interpreters, kernels and sessions, and with the
packages that people use.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import leeward
from kit import packages, reactors
from kit.live_daemon import LiveDaemon
from leeward import LeftOutReason, Limit, Outcome
from leeward.wire import bundles

DAEMON, REACTORS = ("--pool-size", "3"), reactors.WAYS


@pytest.mark.smoke
def test_every_way_to_run_code(daemon: LiveDaemon) -> None:
    """Only a kernel shows without being asked."""
    code = "class A:\n    def _repr_html_(self): return '<b>'\n    def __repr__(self): return 'A()'\ndisplay(1)\nA()"
    wanted = [{"text/plain": "1"}, {"text/plain": "A()", "text/html": "<b>"}]
    quiet = code.replace("display(1)\n", "")

    with daemon.client() as client, leeward.Sandbox(socket=daemon.socket) as box:
        with client.session() as session, box.kernel() as kernel:
            for execute in (client.execute, session.execute, box.execute, kernel.execute):
                got = execute(code, display=True)
                assert (Outcome.FINISHED, wanted, "A()") == (got.outcome, list(got.results), got.value), got.stderr_text
                got = execute(quiet, display=False)
                assert (Outcome.FINISHED, (), None) == (got.outcome, got.results, got.value), got.stderr_text
            assert "A()" == kernel.execute(quiet).value
            assert None is session.execute(quiet).value
        assert "NameError" in client.execute("display(1)").stderr_text
    daemon.idle()


def test_the_async_clients(daemon: LiveDaemon) -> None:
    """Side by side, each with its own."""
    async def run() -> list[object]:
        async with leeward.AsyncClient(daemon.socket) as client, leeward.AsyncSandbox(socket=daemon.socket) as box:
            kernel = await box.kernel()
            got = await asyncio.gather(*(client.execute(f"{n} + 1", display=True) for n in range(6)),
                                       *(kernel.execute(f"{n} + 7") for n in range(3)))
            return [each.value for each in got]

    assert ["1", "2", "3", "4", "5", "6", "7", "8", "9"] == asyncio.run(run())
    daemon.idle()


def test_a_kernel_goes_on(daemon: LiveDaemon) -> None:
    """After an error, an interrupt at the time limit, a line of IPython's; and its tracebacks have its own lines alone."""
    with leeward.Sandbox(socket=daemon.socket) as box, box.kernel() as kernel:
        assert "20" == kernel.execute("x = 20\nx").value
        failed = kernel.execute("display('before')\nasync def f():\n    1 / 0\nawait f()")
        assert (Outcome.RAISED, [{"text/plain": "'before'"}]) == (failed.outcome, list(failed.results))
        assert failed.error is not None
        assert "leeward" not in failed.error.traceback
        assert "asyncio" not in failed.error.traceback
        assert "await f()" in failed.error.traceback
        late = kernel.execute("display(1)\nwhile True: pass", timeout=0.3)
        assert (Outcome.TIMED_OUT, Limit.TIME, ({"text/plain": "1"},)) == (late.outcome, late.limit, late.results)
        asleep = kernel.execute("import asyncio\nawait asyncio.sleep(100)", timeout=0.3)
        assert Outcome.TIMED_OUT is asleep.outcome
        assert "subprocess" in kernel.execute("!ls").stderr_text
        assert "`leeward env create`" in kernel.execute("%pip install x").stderr_text
        assert "41" == kernel.execute("_ + 21").value
        page = kernel.execute("%matplotlib inline\nfrom IPython.display import HTML, display\ndisplay(HTML('<b>'))")
        assert ["<b>"] == [each.get("text/html") for each in page.results], page.stderr_text
        plain = kernel.execute("display('as text')", display=False)
        assert ("as text\n", ()) == (plain.stdout_text, plain.results)
        stack = kernel.execute("import traceback\n[each.name for each in traceback.extract_stack()]")
        assert "['<module>']" == stack.value
    daemon.idle()


def test_a_value_without_room_is_named_and_the_others_come(daemon: LiveDaemon) -> None:
    """In the largest answer that there is, with output and files beside it."""
    with daemon.client() as client:
        got = client.execute(f"""
import os
open('f', 'wb').write(os.urandom(3 << 20))
print('x' * (1 << 20))
for size in ({bundles.MAX_ONE}, {bundles.MAX_ONE + 1}, {bundles.MAX_TOTAL - bundles.MAX_ONE}, 1):
    display({{'image/png': bytes(size)}}, raw=True)
""", display=True, collect=["f", "nix"], output="4M")
        with pytest.raises(leeward.RequestRejected, match="display"):
            client.execute(module="this", display=True)

    assert got.ok, got.stderr_text
    assert [bundles.MAX_ONE, bundles.MAX_TOTAL - bundles.MAX_ONE] == [len(each["image/png"]) for each in got.results]
    assert {"nix": LeftOutReason.NO_MATCH, "result 2: image/png": LeftOutReason.TOO_LARGE,
            "result 4: image/png": LeftOutReason.TOO_LARGE} == {one.name: one.reason for one in got.left_out}
    assert (3 << 20, (1 << 20) + 1) == (len(got.files["f"]), len(got.stdout))
    daemon.idle()


def test_a_killed_job_shows_no_value(daemon: LiveDaemon) -> None:
    with daemon.client() as client:
        for end, outcome in (("while True: pass", Outcome.TIMED_OUT), ("import os; os._exit(3)", Outcome.FINISHED),
                             ("import os; os.kill(os.getpid(), 9)", Outcome.SIGNALLED)):
            got = client.execute(f"display(1)\n{end}", display=True, timeout=0.5)
            assert (outcome, (), None) == (got.outcome, got.results, got.value)
    daemon.idle()


@pytest.fixture(scope="module")
def drawing(shown_packages: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    config = tmp_path_factory.mktemp("config") / "config.toml"
    config.write_text(f'python_env = "{shown_packages(packages.PACKAGES)}"\n')
    with LiveDaemon(tmp_path_factory.mktemp("drawing"), "--pool-size", "2", "--config", str(config)) as made:
        yield made


def size(png: object) -> tuple[int, int]:
    """Of a picture, in pixels."""
    assert isinstance(png, bytes)
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack_from(">II", png, 16)
    return width, height


@pytest.mark.needs("real-packages")
@pytest.mark.timeout(300)
def test_frames_pictures_and_figures(drawing: LiveDaemon) -> None:
    """A figure needs no code: by `show`, by the end, as the value; and each comes once."""
    with leeward.Sandbox(socket=drawing.socket, memory="1G", timeout=100) as box, box.kernel() as kernel:
        table = kernel.execute("import pandas\npandas.DataFrame({'a': [1, 2]})")
        assert table.value is not None, table.stderr_text
        assert "   a\n0  1\n1  2" == table.value
        assert "<table" in str(table.results[0]["text/html"])

        picture = kernel.execute("from PIL import Image\nImage.new('RGB', (7, 5))")
        assert (7, 5) == size(picture.results[0]["image/png"]), picture.stderr_text

        shown = kernel.execute("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nplt.figure()\n"
                               "plt.plot([2, 1]);")
        assert (True, 2, "") == (shown.ok, len(shown.results), shown.stderr_text)
        assert all(size(each["image/png"]) > (100, 100) for each in shown.results)
        once = kernel.execute("figure, axes = plt.subplots(); display(figure); figure")
        assert 2 == len(once.results), once.stderr_text  # as it was asked for
        assert "[]" == kernel.execute("plt.get_fignums()").value
        failed = kernel.execute("plt.plot([1, 2]); 1 / 0")
        assert (Outcome.RAISED, 1) == (failed.outcome, len(failed.results))
        notebook = shown._repr_mimebundle_()["text/html"]
        assert 2 == notebook.count("<img alt")

    with drawing.client() as client:
        fresh = client.execute("from matplotlib.pyplot import plot, show\nplot([1]); show(); plot([2])", display=True,
                               timeout=60, memory="1G")
        assert (True, "") == (fresh.ok, fresh.stderr_text)
        assert 3 == len(fresh.results)  # the second figure behind the list of its lines
    drawing.idle()
