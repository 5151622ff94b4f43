"""
What imported modules find before any job: of the host no /tmp, no network, no home and nothing to write to. Catalogue
cases 205 to 208.

The modules are trusted; what is planted for them isn't. Each test has a module in `preload` that does what libraries
do, and a control in which the zygote isn't backstage.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.attack import make_environment
from kit.box import Box, control
from leeward.errors import LeewardError

#: What `import curious` did is in `curious.said`, and in every job.
CURIOUS = """
import errno, json, os, socket
said = {}
def note(name, call):
    try:
        said[name] = call()
    except OSError as error:
        said[name] = errno.errorcode.get(error.errno, str(error))
def read(path):
    with open(path) as file:
        return file.read()
def write(path):
    with open(path, "w") as file:
        file.write("overwritten")
    return read(path)
"""

BEFORE_JOBS = "no lock of a job is there yet, and none could stand for it"

Imported = Callable[..., dict[str, Any]]


@pytest.fixture
def imported(folder: Path) -> Imported:
    """What a module with these lines has noted when it was imported, told by a job."""
    packages = make_environment(folder)

    def tell(lines: str, *, lacks: tuple[str, ...] = ()) -> dict[str, Any]:
        (packages / "curious.py").write_text(CURIOUS + lines)
        with Box(lacks=lacks, python_env=str(folder), preload=("curious",)) as box:
            got = box.run("import curious, json; print(json.dumps(curious.said))")
        said: dict[str, Any] = json.loads(got.stdout)
        return said

    return tell


@pytest.fixture(params=["/tmp", "/var/tmp"])
def planted(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A name in a folder that everybody may write to."""
    path = Path(request.param, f"leeward-planted-{secrets.token_hex(8)}")
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.smoke
@pytest.mark.no_single_lock(BEFORE_JOBS)
def test_c205_cannot_plant_settings_for_preloaded_modules(imported: Imported, planted: Path) -> None:
    """As matplotlib reads a matplotlibrc below MPLCONFIGDIR, which is /tmp."""
    planted.write_text("backend: a stranger's")
    lines = f"note('found', lambda: read({str(planted)!r}))\n"
    with control():
        assert {"found": "backend: a stranger's"} == imported(lines, lacks=("backstage",))

    assert {"found": "ENOENT"} == imported(lines)


@pytest.mark.no_single_lock(BEFORE_JOBS)
def test_c206_cannot_have_a_file_overwritten_by_a_link(imported: Imported, planted: Path, tmp_path: Path) -> None:
    """
    A module that writes a cache to a name that anybody can guess writes its own file, or none. (An environment below
    /var/tmp makes that a folder which can't be written to; else it leads to /tmp.)
    """
    target = tmp_path / "precious"
    target.write_text("mine")
    planted.symlink_to(target)
    lines = f"note('wrote', lambda: write({str(planted)!r}))\n"
    with control():
        imported(lines, lacks=("backstage",))
        assert "overwritten" == target.read_text()
    target.write_text("mine")

    assert imported(lines)["wrote"] == ("overwritten" if planted.is_relative_to("/tmp") else "EROFS")
    assert "mine" == target.read_text()


@pytest.fixture
def listening() -> Iterator[tuple[int, str, list[bytes]]]:
    """A port of the host's, a name that is no file, and who came to either."""
    came: list[bytes] = []
    name = f"leeward-{secrets.token_hex(8)}"
    over_tcp, by_name = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
    by_name.bind("\0" + name)
    by_name.listen()

    def serve(listener: socket.socket, kind: bytes) -> None:
        while True:
            try:
                made, _ = listener.accept()
            except OSError:
                return
            came.append(kind)
            made.close()

    threads = [threading.Thread(target=serve, args=each) for each in ((over_tcp, b"tcp"), (by_name, b"name"))]
    for thread in threads:
        thread.start()
    yield over_tcp.getsockname()[1], name, came
    for listener in (over_tcp, by_name):
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for thread in threads:
        thread.join()


@pytest.mark.no_single_lock(BEFORE_JOBS)
def test_c207_cannot_answer_a_connection_of_a_preloaded_module(imported: Imported,
                                                               listening: tuple[int, str, list[bytes]]) -> None:
    """Neither at an address nor at a name; a module that insists stops the start, and the error says why."""
    port, name, came = listening
    connects = f"socket.create_connection(('127.0.0.1', {port}), 5).close()\n"
    lines = (f"note('tcp', lambda: {connects[:-1]})\n"
             f"note('name', lambda: socket.socket(socket.AF_UNIX).connect('\\0' + {name!r}))\n")
    with control():
        assert {"tcp": None, "name": None} == imported(lines, lacks=("backstage",))
        assert [b"tcp", b"name"] == sorted(came, reverse=True)
    came.clear()

    assert {"tcp": "ENETUNREACH", "name": "ECONNREFUSED"} == imported(lines)
    with pytest.raises(LeewardError, match=r"module curious: OSError: .*Network is unreachable; while .* no network"):
        imported(connects)
    assert not came


@pytest.mark.no_single_lock(BEFORE_JOBS)
def test_c208_cannot_lead_a_preloaded_module_to_files_of_the_host(imported: Imported, folder: Path,
                                                                  tmp_path: Path) -> None:
    """A preloaded module reads what jobs read, writes to no file of the host, and has no capability."""
    secret, own = tmp_path / "secret", folder / "planted.py"
    secret.write_text("the daemon's user may read this")
    lines = (f"note('secret', lambda: read({str(secret)!r}))\n"
             f"note('module', lambda: write({str(own)!r}))\n")
    with control():
        assert {"secret": secret.read_text(), "module": "overwritten"} == imported(lines, lacks=("backstage",))
    own.unlink()

    lines += ("note('home', lambda: os.mkdir(os.path.expanduser('~/.cache')))\n"
              "note('root', lambda: os.mkdir('/here'))\n"
              "note('shadow', lambda: read('/etc/shadow'))\n"
              "note('status', lambda: [line.split()[1] for line in open('/proc/self/status')"
              " if line.startswith(('Cap', 'NoNewPrivs'))])\n")
    said = imported(lines)
    assert [*["0" * 16] * 5, "1"] == said.pop("status")
    assert {"secret": "ENOENT", "module": "EROFS", "home": "ENOENT", "root": "EROFS", "shadow": "ENOENT"} == said
    assert not own.exists()
