"""`leeward env`: environments that pip makes in a sandbox, from a folder and from an index that a policy allows."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit import egress, packages
from kit.carried import Way
from kit.features import ROOT
from kit.live_daemon import LiveDaemon, command, environment
from kit.loopback import serving_files
from kit.wheels import source, wheel
from leeward.apps.fleet.aio_fleet import AsyncFleet, Member
from leeward.apps.fleet.carrier import Carrier
from leeward.apps.fleet.far_client import FarClient
from leeward.apps.fleet.node_client import NodeClient
from leeward.apps.fleet.placement import Node
from leeward.client.environments import BuildFailed
from leeward.errors import BadRequest

CONFIG = """\
pool_size = 1
pool_idle = 1
environments_folder = "{store}"
environments_egress = "index"
environments_index = "http://packages.example.org:{port}/simple/"
[egress.index]
allow = ["http://packages.example.org:{port}"]
addresses = ["127.0.0.1/32"]
"""

#: A build that writes into the environment, and then waits to be ended.
LARGE = """\
import os, signal, sys
def build_wheel(folder, settings=None, metadata=None):
    with open(os.path.join(os.path.dirname(os.path.dirname(sys.executable)), "large"), "wb") as file:
        file.truncate(96 << 20)
    signal.pause()
"""


class Place:
    """A daemon, its folder of environments, and an index of packages."""

    def __init__(self, daemon: LiveDaemon, store: Path, wheels: Path, config: Path, port: int) -> None:
        self.daemon, self.store, self.wheels, self.config, self.port = daemon, store, wheels, config, port

    def env(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        options = ("--socket", str(self.daemon.socket)) if "create" == words[0] else ()
        return self.daemon.run("env", *words, "--config", str(self.config), *options)

    def built(self) -> list[str]:
        return sorted(os.listdir(self.store / "built")) if self.store.exists() else []


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="leeward-env-", dir=packages.outside_tmp()) as outside:
        Path(outside).chmod(0o755)
        wheels, store, folder = Path(outside, "wheels"), Path(outside, "store"), tmp_path_factory.mktemp("daemon")
        (wheels / "simple" / "flavour").mkdir(parents=True)
        made = wheel(wheels, "flavour", "1.2", {"flavour.py": "NAME = 'sweet'\n"})
        (wheels / "simple" / "flavour" / made.name).write_bytes(made.read_bytes())
        (wheels / "simple" / "salt").mkdir()
        wheel(wheels / "simple" / "salt", "salt", "3", {"salt.py": ""})
        source(wheels, "large", "1.0", LARGE)
        wheel(wheels, "hungry", "1.0", {"hungry.py": "", "hungry-1.0.data/data/pyvenv.cfg": "home = /tmp\n"})
        with serving_files(wheels) as port, egress.live(folder, CONFIG.format(store=store, port=port)) as daemon:
            yield Place(daemon, store, wheels, folder / "c.toml", port)


@pytest.mark.timeout(300)
def test_a_running_daemon_uses_a_new_environment(place: Place) -> None:
    """
    From a folder, without a network. Its packages alone are there; no job can write to it; the same requirements for
    another name take no time.
    """
    done = place.env("create", "data", "flavour>=1", "--find-links", str(place.wheels))
    assert 0 == done.returncode, done
    assert b"Successfully installed flavour-1.2" in done.stderr
    with place.daemon.client() as client:
        code = "import flavour, sys; print(flavour.NAME)\nopen(flavour.__file__, 'w')"
        got = client.execute(code, environment="data")
        assert "sweet\n" == got.stdout_text
        assert "Read-only file system" in got.stderr_text or "Permission denied" in got.stderr_text

        with pytest.raises(leeward.RequestRejected, match=r"environment 'dtaa' is unknown; this daemon has: .*data"):
            client.execute("", environment="dtaa")

    again = place.env("create", "same", "flavour >= 1", "--find-links", str(place.wheels), "--preload", "flavour")
    assert b"which was there already" in again.stdout, again
    rows = json.loads(place.env("list", "--json").stdout)
    assert ["data", "same"] == [row["name"] for row in rows]
    assert 1 == len({row["built"] for row in rows})
    shown = json.loads(place.env("show", "same", "--json").stdout)
    assert {"flavour": "1.2"} == shown["packages"]
    assert ["flavour"] == shown["preload"]


@pytest.mark.timeout(300)
def test_an_index_is_reached_by_its_policy(place: Place) -> None:
    """And no other one is: pip says so, and nothing is left."""
    before = place.built()
    index = ["--egress", "index", *(f"--trusted-host={name}.example.org" for name in ("packages", "evil")), "--index-url"]
    away = place.env("create", "away", "flavour", *index, f"http://evil.example.org:{place.port}/simple/")
    assert 1 == away.returncode, away
    assert b"No matching distribution found for flavour; the policy denied 'evil.example.org'" in away.stderr
    assert before == place.built()

    done = place.env("create", "indexed", "flavour", *index, f"http://packages.example.org:{place.port}/simple/")
    assert 0 == done.returncode, done
    with place.daemon.client() as client:
        assert "sweet\n" == client.execute("import flavour\nprint(flavour.NAME)", environment="indexed").stdout_text

    assert 0 == place.env("remove", "indexed").returncode
    assert b"0 removed, 1 stay: a daemon has used them" in place.env("prune").stdout


@pytest.mark.timeout(300)
def test_the_commands_of_the_page_on_environments(place: Place) -> None:
    """In their order, with packages of the same names; another Python's is in test_other_pythons.py."""
    page = (ROOT / "docs/environments.md").read_text()
    block = re.search(r"((?:^    leeward .*\n){7})", page, re.MULTILINE)
    assert block is not None
    for name, version in (("pandas", "2.2.3"), ("pyarrow", "18.0")):
        folder = place.wheels / "simple" / name
        folder.mkdir()
        wheel(folder, name, version, {f"{name}.py": f"__version__ = '{version}'\n"})
    printed = list[str]()
    for line in block[1].splitlines():
        words = shlex.split(line)[1:]
        if "--python" in words:
            continue
        if "create" in words:  # pip's own index is another one here
            words += ["--trusted-host", "packages.example.org", "--index-url", f"http://packages.example.org:{place.port}/simple/"]
        done = place.env(*words[1:]) if "env" == words[0] else place.daemon.run(*words)
        assert 0 == done.returncode, (line, done)
        printed.append(done.stdout.decode())

    made, ran, listed, shown, removed, pruned = printed
    assert "data: 2 packages" in made
    assert "2.2.3\n" == ran
    assert "data" in listed
    assert "pyarrow 18.0" in shown
    assert "" == removed
    assert "removed" in pruned


@pytest.mark.needs("pip-in-reach")
@pytest.mark.timeout(300)
def test_a_kernel_with_a_policy_has_pip(place: Place) -> None:
    """In the sandbox: what is installed is in its /tmp. Without a policy, and where pip fails, the ways are named."""
    index = f"--index-url http://packages.example.org:{place.port}/simple/ --trusted-host packages.example.org --retries 0"
    with leeward.Sandbox(socket=place.daemon.socket, egress="index") as box, box.kernel() as kernel:
        got = kernel.execute(f"%pip install -q {index} flavour\nimport flavour\nflavour.NAME, flavour.__file__")
        assert "('sweet', '/tmp/packages/flavour.py')" == got.value, got
        missing = kernel.execute(f"%pip install -q {index} sour")
        assert missing.ok
        assert "No matching distribution found for sour" in missing.stderr_text
        assert "`leeward env create`" in missing.stderr_text
    with leeward.Sandbox(socket=place.daemon.socket) as box, box.kernel() as kernel:
        refused = kernel.execute("%pip install flavour")
        assert "SyntaxError" in refused.stderr_text
        assert "`leeward env create`" in refused.stderr_text


@pytest.mark.timeout(300)
def test_a_package_that_replaces_the_interpreter_is_refused(place: Place) -> None:
    """The daemon would start it with the daemon's rights. pyvenv.cfg says which one it is."""
    before = place.built()
    done = place.env("create", "hungry", "hungry", "--find-links", str(place.wheels))
    assert 1 == done.returncode, done
    assert b"a package has replaced the interpreter" in done.stderr
    assert b"Successfully installed hungry" in done.stderr  # pip had nothing against it
    assert before == place.built()


def test_an_environment_that_cannot_be_made_is_an_error(place: Place) -> None:
    for words, why in (
            (["create", "x", "--index-url=http://a"], b"--index-url needs --egress"),
            (["create", "../x"], b"can't be an environment's name"),
            (["create", "x", "--find-links", "/nowhere"], b"is not a folder"),
            (["show", "nothing"], b"there is no environment 'nothing'"),
            (["remove", "nothing"], b"there is no environment 'nothing'")):
        done = place.env(*words)
        assert 1 == done.returncode, (words, done)
        assert why in done.stderr, (words, done)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("far", [False, True])
def test_a_fleet_makes_an_environment_once_on_a_node(place: Place, far: bool) -> None:
    """Before it is needed, or at its first use; also on a node that is reached through a carrier."""
    async def reach() -> Way:
        return Way(Carrier(str(place.daemon.socket)))

    async def main() -> tuple[dict[str, str], list[str], list[str], list[str]]:
        async with AsyncFleet([]) as fleet:
            await fleet.status()
            await fleet.join(Member(Node("n"), FarClient("n", reach) if far else NodeClient(place.daemon.socket)))
            made = await fleet.prefetch([f"salt>={1 + far}"])
            built, asked = place.built(), "import salt; print('here')"
            async with fleet.sandbox(packages=[f"salt>={1 + far}"]) as box:
                said = [(await box.execute(asked)).text]
            async with fleet.session(packages=[f"salt>={1 + far}"]) as session:
                said.append((await session.execute(asked)).text)
            said.append((await fleet.execute(asked, packages=[f"salt>={1 + far}"])).text)
            said.append((await fleet.execute(asked)).error.type)  # type: ignore[union-attr]  # the control: it raises
            return made, built, said, (await fleet.status())["nodes"][0]["environments"]

    if not far:
        done = place.daemon.run("fleet", "prefetch", "salt>=1", "-n", f"unix:{place.daemon.socket}")
        assert (0, f"{place.daemon.socket}: ready\n".encode()) == (done.returncode, done.stdout), done
    made, built, said, known = asyncio.run(main())

    assert {"n": ""} == made
    assert ["here\n"] * 3 + ["ModuleNotFoundError"] == said
    assert built == place.built()
    assert [f"packages salt>={1 + far}"] == known


@pytest.mark.timeout(300)
def test_packages_of_a_sandbox_are_made_once(place: Place) -> None:
    """However many ask at the same time, in whatever order of words; and there they are for the next one."""
    def one(number: int) -> str:
        words = ["flavour == 1.2", "salt"][::number % 2 * 2 - 1]
        with leeward.Sandbox(socket=place.daemon.socket, packages=words) as box:
            return box.execute("import flavour, salt, sys\nprint(flavour.NAME, sys.prefix)").stdout_text

    async def another() -> str:
        async with leeward.AsyncSandbox(socket=place.daemon.socket, packages=["salt", "flavour==1.2"]) as box:
            return (await box.execute("import flavour, salt, sys\nprint(flavour.NAME, sys.prefix)")).stdout_text

    before = place.built()
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        said = {*threads.map(one, range(4)), asyncio.run(another())}
    assert 1 == len(said), said
    (new,) = {name.split(".")[0] for name in place.built()} - {name.split(".")[0] for name in before}
    assert f"sweet {place.store.resolve()}/built/{new}\n" == said.pop()
    assert f"packages-{new}" in {row["name"] for row in json.loads(place.env("list", "--json").stdout)}

    asked = "import flavour, salt, sys; print(flavour.NAME, sys.prefix)"
    for words in (["salt", "flavour==1.2"], ("flavour==1.2", "salt")):
        with place.daemon.client() as client, client.session(packages=words) as session:
            for got in (client.execute(asked, packages=words), session.execute(asked)):
                assert f"sweet {place.store.resolve()}/built/{new}\n" == got.stdout_text, got.stderr_text
    with place.daemon.client() as client, pytest.raises(leeward.RequestRejected, match="environment or packages"):
        client.execute("1", packages=["salt"], environment="data")
    done = place.daemon.run("sandbox", "new", "--package", "salt", "--package", "flavour==1.2")
    box = leeward.Sandbox.attach(done.stdout.decode().strip(), socket=place.daemon.socket)
    assert box.run(["python", "-c", "import salt"]).ok
    box.kill()
    box.close()
    for words in (["exec"], ["exec", "--profile", "workdir"]):
        done = place.daemon.run(*words, "--package", "salt", "--package", "flavour==1.2", asked)
        assert f"sweet {place.store.resolve()}/built/{new}\n" == done.stdout.decode(), done
    assert b"not both" in place.daemon.run("exec", "--package", "salt", "--environment", "x", "1").stderr
    done = place.daemon.run("env", "ensure", "salt", "flavour == 1.2")
    assert f"packages-{new}\n" == done.stdout.decode(), done
    assert b"stay: a daemon has used them" in place.env("prune").stdout
    assert new in place.built()
    assert f"packages-{new}" in {row["name"] for row in json.loads(place.env("list", "--json").stdout)}


#: Runs code with packages, twice with the same and once with what isn't there; prints what came of each.
NODE = """\
const { Client } = require(process.argv[1]);
const [socket, command, code] = process.argv.slice(2);
const client = new Client({ socket, command: JSON.parse(command) });
const run = (packages, more = {}) => client.execute(code, { packages, ...more })
  .then((got) => got.stdoutText, (error) => `${error.name}: ${error.message}`);
(async () => {
  const said = [await run(['salt']), await run(['salt']), await run(['no-such-package'])];
  console.log(JSON.stringify([...said, await run(['salt'], { environment: 'x' })]));
  client.close();
})();
"""


@pytest.mark.needs("node>=18")
@pytest.mark.timeout(300)
def test_packages_of_the_npm_packages_execute(place: Place) -> None:
    """By the command, which installs where there is none."""
    code = "import salt, sys; print(sys.prefix.rpartition('/')[0])"
    argv = ["node", "-e", NODE, "--", ROOT / "leeward/clients/node", place.daemon.socket, json.dumps(command()), code]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=False, env=environment())
    assert 0 == done.returncode, done.stderr
    first, second, none, both = json.loads(done.stdout)
    assert [f"{place.store.resolve()}/built\n"] * 2 == [first, second]
    assert "No matching distribution found for no-such-package" in none
    assert "RequestRejected: environment or packages, not both" == both


@pytest.mark.timeout(300)
def test_packages_that_cant_be_had_are_pips_error(place: Place) -> None:
    """And nothing is left: the same again says the same."""
    before = place.built()
    for _ in range(2):
        with (leeward.Sandbox(socket=place.daemon.socket, packages=["no-such-package"]) as box,
              pytest.raises(BuildFailed, match="No matching distribution found for no-such-package")):
            box.shell("true")
    assert before == place.built()
    for wrong, why in (("flavour", "not one"), ([1], "as text")):
        with pytest.raises(leeward.RequestRejected, match=why):
            leeward.Sandbox(packages=wrong)  # type: ignore[arg-type]  # what a caller without types writes
    with pytest.raises(leeward.RequestRejected, match="not both"):
        leeward.Sandbox(packages=["flavour"], environment="data")
    with (leeward.Sandbox(socket=place.daemon.socket, packages=["flavour", "--index-url=http://a"]) as box,
          pytest.raises(BadRequest, match="can't be empty or begin with '-'")):
        box.shell("true")


@pytest.mark.timeout(300)
def test_a_package_that_is_too_large_is_stopped_while_it_is_unpacked(place: Place) -> None:
    """It would wait until pip's time is over; the folder's size ends it."""
    before = place.built()
    small = place.config.parent / "small.toml"
    rows = json.loads(place.env("list", "--json").stdout)
    used = sum({row["built"]: row["size"] for row in rows}.values())
    small.write_text(f"environments_size = {used + (64 << 20)}\n" + place.config.read_text())
    small.chmod(0o600)
    done = place.daemon.run("env", "create", "large", "large", "--allow-source", "--find-links", str(place.wheels),
                            "--config", str(small), "--socket", str(place.daemon.socket))
    assert 1 == done.returncode, done
    assert b"were left of environments_size" in done.stderr
    assert before == place.built()
