"""
Environments of other versions of Python than the daemon's: jobs, sessions, kernels and branches are as in its own.

`./dev test` makes `.venv-python3.12` and so on of the interpreters that this machine has.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit import packages
from kit.features import ROOT
from kit.live_daemon import LiveDaemon
from kit.random_states import OF_LIBRARY, differing
from kit.wheels import wheel
from leeward.errors import Unsupported
from leeward.isolation import interpreter

pytestmark = pytest.mark.needs("other-python")

FOUND = sorted(setup.parent for setup in ROOT.glob(".venv-python3.*/.setup"))
NAMES = [folder.name.removeprefix(".venv-python") for folder in FOUND]

#: The same in each: what a job sees of itself, and what breaks first where leeward fits an interpreter badly.
CODE = """
import asyncio, dataclasses, json, subprocess, sys, threading
said = subprocess.run([sys.executable, "-V"], capture_output=True, text=True).stdout
print("%d.%d" % sys.version_info[:2], said.split()[1][:4])
threading.Thread(target=print, args=("thread",)).start()
async def main():
    return await asyncio.to_thread(json.dumps, {"a": 1})
print(asyncio.run(main()))
def inner():
    raise ValueError("as it is")
inner()
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    folder = tmp_path_factory.mktemp("daemon")
    with packages.shown_folder() as place:
        config = folder / "c.toml"
        config.write_text("pool_size = 1\n" + "".join(
            f'[environments."py{name}"]\npath = "{packages.shown(found / "bin/python", place / name, found)}"\n'
            for name, found in zip(NAMES, FOUND, strict=True)))
        config.chmod(0o600)
        with LiveDaemon(folder, "--config", str(config)) as made:
            yield made


@pytest.mark.parametrize("name", NAMES)
def test_code_runs_by_another_version(daemon: LiveDaemon, name: str) -> None:
    """With its own library, threads, children, and tracebacks of the code's own lines."""
    with daemon.client() as client:
        got = client.execute(CODE, environment=f"py{name}")
        assert f'{name} {name}\nthread\n{{"a": 1}}\n' == got.stdout_text, got.stderr_text
        assert (leeward.Outcome.RAISED, {}) == (got.outcome, got.denied)
        assert got.error is not None
        assert ("ValueError", "as it is") == (got.error.type, got.error.message)
        assert "leeward" not in got.stderr_text
        with client.session(environment=f"py{name}") as session:
            session.execute("import sys; x = 41")
            assert f"42 {name[2:]}\n" == session.execute("print(x + 1, sys.version_info[1])").stdout_text
            fault = session.execute("import os; os.abort()").stderr_text
            assert "Fatal Python error: Aborted\n" in fault
            assert fault.count('  File "') == fault.count('  File "<job 3>", line 1 in <module>\n') == 1, fault


@pytest.mark.parametrize("name", NAMES)
def test_a_sandbox_of_another_version(daemon: LiveDaemon, name: str) -> None:
    """Its programs find that interpreter, and a kernel of it keeps state and has branches."""
    with leeward.Sandbox(socket=daemon.socket, environment=f"py{name}") as box:
        assert box.run(["python3", "-V"]).text.startswith(f"Python {name}.")
        kernel = box.kernel()
        kernel.execute("x = [1, 2]")
        branch = kernel.fork()
        branch.execute("x.append(3)")
        assert ("[1, 2]", "[1, 2, 3]") == (kernel.execute("x").value, branch.execute("x").value)


@pytest.mark.parametrize("name", NAMES)
def test_snapshots_of_another_version(daemon: LiveDaemon, name: str) -> None:
    """Rolled back to, begun with in another sandbox, and taken again in the copy."""
    with leeward.Sandbox(socket=daemon.socket, environment=f"py{name}") as box, \
            leeward.Sandbox(socket=daemon.socket, environment=f"py{name}") as other:
        kernel = box.kernel()
        kernel.execute("import subprocess, threading\nx = [1]\nit = (each for each in range(9))\nnext(it)")
        with kernel.snapshot() as snapshot:
            assert snapshot.python.startswith(f"{name}.")
            kernel.execute("x.append(2)")
            kernel.rollback(snapshot)
            copy = other.kernel(snapshot=snapshot)
        again = box.kernel(snapshot=copy.snapshot())
        for each in (kernel, copy, again):
            assert "[1]" == each.execute("x").value
            assert "1" == each.execute("next(it)").value
            assert each.execute("t = threading.Thread(target=print)\nt.start()\nt.join()").ok
            assert "0" == each.execute("subprocess.run(['true']).returncode").value


@pytest.mark.parametrize("name", NAMES)
def test_copies_of_random_states_of_another_version_show_the_same(daemon: LiveDaemon, name: str) -> None:
    """A hundred with LEEWARD_LONG=1."""
    assert [] == differing(daemon, OF_LIBRARY, 100 if os.environ.get("LEEWARD_LONG") else 2, environment=f"py{name}")


def test_an_environment_without_the_zygotes_packages_is_refused() -> None:
    """By name, with the cure: it is the same interpreter, without packages."""
    with packages.shown_folder() as place:
        bare = place / "bare"
        os.makedirs(bare / "bin")
        (bare / "bin/python").symlink_to((FOUND[0] / "bin/python").resolve())
        (bare / "pyvenv.cfg").write_text(f"home = {(FOUND[0] / 'bin/python').resolve().parent}\n")
        with pytest.raises(Unsupported, match="without msgpack and cffi") as caught:
            interpreter.find(str(bare))
    assert "pip install cffi msgpack" in str(caught.value)
    assert f"3.{sys.version_info[1]}" not in NAMES


@pytest.mark.timeout(300)
def test_env_create_makes_one_of_another_version(tmp_path_factory: pytest.TempPathFactory) -> None:
    """
    By the name of the interpreter; pip runs on it, in a sandbox that is shown it. What the zygote needs comes along,
    here from a folder.
    """
    found, name = FOUND[-1], NAMES[-1]
    folder = tmp_path_factory.mktemp("daemon")
    site = next((found / "lib").iterdir()) / "site-packages"
    with tempfile.TemporaryDirectory(prefix="leeward-env-", dir=packages.outside_tmp()) as outside:
        place = Path(outside)
        place.chmod(0o755)
        wheels = place / "wheels"
        wheels.mkdir()
        for what, files in (("msgpack", "msgpack/*"), ("cffi", "_cffi_backend.*.so"), ("flavour", "nothing")):
            wheel(wheels, what, "1.0", {path.relative_to(site).as_posix(): path.read_bytes()
                                        for path in site.glob(files) if path.is_file()})
        config = folder / "c.toml"
        config.write_text(f'pool_size = 1\nenvironments_folder = "{place / "store"}"\n')
        config.chmod(0o600)
        with LiveDaemon(folder, "--config", str(config)) as daemon:
            made = daemon.run("env", "create", "other", "flavour", "--python", str((found / "bin/python").resolve()),
                              "--find-links", str(wheels), "--config", str(config), "--socket", str(daemon.socket))
            assert 0 == made.returncode, made
            with daemon.client() as client:
                said = client.execute("import sys; print('%d.%d' % sys.version_info[:2], sys.prefix)",
                                      environment="other").stdout_text
                assert f"{name} {(place / 'store').resolve()}/built/" in said
            wrong = daemon.run("env", "create", "x", "--python", "no-such-python", "--config", str(config))
            assert b"there is no such program" in wrong.stderr
        # Whoever could write to it could have the daemon run something else.
        backing = next((place / "store").rglob("_cffi_backend.*.so"))
        backing.chmod(0o666)
        with (LiveDaemon(folder, "--config", str(config)) as daemon, daemon.client() as client,
              pytest.raises(leeward.PoolFailed, match="_cffi_backend")):
            client.execute("1", environment="other")
