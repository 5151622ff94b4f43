"""Databases, sudo, npm and repositories with tests, of the host's own Debian packages, with their stock settings."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit import egress, packages
from kit.images import imported, of_debian
from kit.live_daemon import LiveDaemon
from leeward.apps.images.committing import commit
from leeward.apps.images.store import Images, ImportProgress

pytestmark = [pytest.mark.needs("user-namespaces", "images", "debian"), pytest.mark.timeout(300)]

CONFIG = """\
images_folder = "{store}"
[profiles.debian]
image = "debian"
loopback = true
limits = {{ files = "512M", memory = "1G", time = 60 }}
[profiles.owned]
image = "debian"
owners = true
loopback = true
limits = {{ files = "512M", memory = "1G", time = 60 }}
"""
#: What a package's script makes when it is installed, or systemd at the machine's start.
FOLDERS = ("run/postgresql", "run/redis", "run/sudo", "var/lib/postgresql", "var/lib/redis", "var/log/redis")
#: Settings that a user of the host can't read there.
OF_ROOT = {"etc/redis/redis.conf": "dir /var/lib/redis\n", "etc/sudoers": "root ALL=(ALL:ALL) ALL\n"}
USERS = "postgres:x:103:110::/var/lib/postgresql:/bin/bash\nredis:x:104:111::/var/lib/redis:/usr/sbin/nologin\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveDaemon, Images]]:
    with tempfile.TemporaryDirectory(prefix="leeward-images-", dir=packages.outside_tmp()) as outside:
        root = of_debian(Path(outside, "root"), "postgresql-15", "nodejs", "sudo", "redis-server", "passwd",
                         "python3", "git", without=("libllvm", "libz3", "libperl", "perl-modules", "ssl-cert"))
        subprocess.run(["cp", "-r", "/etc/pam.d", "/etc/nsswitch.conf", root / "etc"], check=True)
        npm = "usr/lib/node_modules/npm"  # it may have renewed itself since dpkg has unpacked it
        if (root / npm).exists():
            shutil.rmtree(root / npm)
            shutil.copytree(f"/{npm}", root / npm, symlinks=True)
        for name in FOLDERS:
            (root / name).mkdir(parents=True, exist_ok=True)
        if not (root / "var/run").exists():
            (root / "var/run").symlink_to("/run")
        for name, text in (("passwd", USERS), ("group", "postgres:x:110:\nredis:x:111:\n")):
            with (root / "etc" / name).open("a") as file:
                file.write(text)
        for name, text in OF_ROOT.items():
            if not (root / name).exists():
                (root / name).write_text(text)
        (root / "etc/shadow").write_text("root:*:19000:0:99999:7:::\nnobody:*:19000:0:99999:7:::\n")
        store = Images(f"{outside}/store")
        imported(store, root, "debian")
        with egress.live(tmp_path_factory.mktemp("daemon"), CONFIG.format(store=store.folder)) as live:
            yield live, store


@pytest.fixture
def daemon(place: tuple[LiveDaemon, Images]) -> LiveDaemon:
    return place[0]


def opened(daemon: LiveDaemon, **options: str) -> leeward.Sandbox:
    return leeward.Sandbox(socket=str(daemon.socket), **{"profile": "debian", **options})  # type: ignore[arg-type]


def told(box: leeward.Sandbox, line: str) -> str:
    """What *line* prints, which succeeds."""
    done = box.run(["bash", "-c", f"set -e; {line}"])
    assert 0 == done.exit_code, done.stdout_text + done.stderr_text
    return done.stdout_text


def said(daemon: LiveDaemon, line: str, **options: str) -> str:
    """The same in a new sandbox."""
    with opened(daemon, **options) as box:
        return told(box, line)


@pytest.mark.needs("debian-postgresql-15")
def test_postgresql_answers(daemon: LiveDaemon) -> None:
    """As the image's own user; root would see a folder of another owner than the one that it was given to."""
    line = """
        export PATH=/usr/lib/postgresql/15/bin:$PATH
        initdb -D /var/lib/postgresql/data >/dev/null && pg_ctl -D /var/lib/postgresql/data -l /tmp/log -w start >/dev/null
        psql -Atc 'create table t as select generate_series(1, 1000) n; select sum(n) from t'
        pg_ctl -D /var/lib/postgresql/data -m fast stop >/dev/null"""

    assert "SELECT 1000\n500500\n" == said(daemon, line, user="postgres")


@pytest.mark.needs("debian-sudo", "debian-postgresql-15")
@pytest.mark.parametrize("profile", ["owned", "debian"])
def test_owners_are_what_was_set(profile: str, daemon: LiveDaemon) -> None:
    """Where the profile says so: three programs that look whose a file is stop elsewhere."""
    line = """
        cd /; mkdir /srv/data; chown postgres /srv/data; chmod 700 /srv/data
        bin=/usr/lib/postgresql/15/bin; as="sudo -u postgres"; exec 3>&1 >/dev/null 2>&1
        $as $bin/initdb -D /srv/data && $as $bin/pg_ctl -D /srv/data -l /tmp/log -w start
        $as psql -Atc 'select 6 * 7' >&3 && $as $bin/pg_ctl -D /srv/data -m fast stop
        git init -q /srv/repo; chown -R nobody /srv/repo; sudo -u nobody git -C /srv/repo status -s && echo git >&3
        useradd -m me; userdel -r me && ! ls -d /home/me && echo userdel >&3; exit 0"""

    assert ["42", "git", "userdel"] * (profile == "owned") == said(daemon, line, profile=profile).split()


@pytest.mark.needs("debian-redis-server")
def test_redis_answers(daemon: LiveDaemon) -> None:
    """As its package configures it."""
    line = """
        redis-server /etc/redis/redis.conf --daemonize yes >/dev/null
        until redis-cli ping 2>/dev/null | grep -q PONG; do :; done
        redis-cli set a 42; redis-cli get a; redis-cli shutdown nosave"""

    assert ["OK", "42"] == said(daemon, line).split()


@pytest.mark.needs("debian-sudo")
def test_sudo_runs_programs_as_others(daemon: LiveDaemon) -> None:
    assert ["root", "nobody", "0"] == said(daemon, "sudo id -un; sudo -u nobody id -un; id -u").split()


@pytest.mark.needs("debian-nodejs")
def test_npm_installs(daemon: LiveDaemon) -> None:
    line = """
        mkdir -p /src /app && cd /src && echo '{"name": "thing", "version": "1.0.0"}' > package.json
        echo 'module.exports = 42' > index.js && npm pack --silent >/dev/null && cd /app
        npm install --offline --silent --no-audit --no-fund /src/thing-1.0.0.tgz
        node -p 'require("thing")'"""

    assert "42\n" == said(daemon, line)


#: Python has no compiled files here: a patch may be of the same second, and of as many bytes.
@pytest.mark.parametrize(("name", "content", "tests", "run"), [
    ("thing.py", "x = {}", {"test_thing.py": "import unittest, thing\nclass Test(unittest.TestCase):\n    def test_x(self):\n"
                                             "        self.assertEqual(42, thing.x)\n"}, "python3 -B -m unittest -q"),
    pytest.param("thing.js", "module.exports = {}", {
        "thing.test.js": "require('node:test')('x', () => require('node:assert').equal(require('./thing'), 42))\n"},
        "node --test", marks=pytest.mark.needs("debian-nodejs")),
    ("thing.sh", "echo {}", {"test.sh": "test 42 = $(sh thing.sh)\n"}, "sh test.sh")])
def test_a_repository_is_mended_and_kept(name: str, content: str, tests: dict[str, str], run: str,
                                         place: tuple[LiveDaemon, Images]) -> None:
    """As benchmarks of repairs have it: tests fail in /testbed, a patch is applied, they pass; and in an image of it."""
    daemon, store = place
    wrong, right = content.format(41), content.format(42)
    with opened(daemon) as box:
        for each, text in {**tests, name: f"{wrong}\n"}.items():
            box.files.write(f"/testbed/{each}", text)
        box.files.write("/tmp/patch", f"--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-{wrong}\n+{right}\n")
        found = told(box, f"""
            cd /testbed; git init -q; git add .; git -c user.name=me -c user.email=me@localhost commit -qm first
            if {run} >/dev/null 2>&1; then exit 9; fi; git apply /tmp/patch; {run} >/dev/null 2>&1; git diff --name-only""")
        assert f"{name}\n" == found
        commit(box, store, f"mended-{name[6:]}", ImportProgress())
    assert f" M {name}\n" == said(daemon, f"cd /testbed; {run} >/dev/null 2>&1; git status --porcelain -uno",
                                  image=f"mended-{name[6:]}", profile="workdir")


#: A task as Harbor's documents lay it out: the image that it names, the oracle's solution, and tests that write a reward.
TASK = {
    "task.toml": '[environment]\ndocker_image = "debian"\n',
    "solution/solve.sh": "#!/bin/bash\nmkdir -p /app && echo 'Hello, world!' > /app/hello.txt\n",
    "tests/test_outputs.py": "import pathlib\nassert 'Hello, world!\\n' == pathlib.Path('/app/hello.txt').read_text()\n",
    "tests/test.sh": "#!/bin/bash\nif python3 /tests/test_outputs.py; then echo 1 > /logs/verifier/reward.txt\n"
                     "else echo 0 > /logs/verifier/reward.txt; fi\n"}


@pytest.mark.parametrize(("oracle", "reward"), [(True, 1.0), (False, 0.0)])
def test_a_task_of_harbors_layout_gets_its_reward(oracle: bool, reward: float, daemon: LiveDaemon) -> None:
    """In the sandbox's own root, as root: first what the agent does, here the oracle or nothing, then the verifier."""
    image = tomllib.loads(TASK["task.toml"])["environment"]["docker_image"]
    with leeward.Sandbox(socket=str(daemon.socket), image=image) as box:
        box.shell("mkdir -p /logs/agent /logs/verifier")
        for part, script in (("solution", "/solution/solve.sh"), ("tests", "/tests/test.sh")):
            if oracle or part == "tests":
                for name, text in TASK.items():
                    if name.startswith(part):
                        box.files.write(f"/{name}", text)
                box.run(["bash", script])
        assert reward == float(box.files.read("/logs/verifier/reward.txt"))
