"""Programs that expect to be root, of the host's own Debian packages, in an image with their stock settings."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit import agent_programs, egress, model_api, packages
from kit.agents import ASK, AgentHome, approvals
from kit.images import add_python, imported, of_busybox, of_debian, other_pythons
from kit.live_daemon import LiveDaemon
from kit.model_api import Call
from kit.waiting import poll_until
from leeward.apps.images.store import Images
from leeward.errors import SnapshotFailed

pytestmark = [pytest.mark.needs("user-namespaces", "images", "debian"), pytest.mark.timeout(120)]

CONFIG = """\
pool_size = 1
images_folder = "{store}"
[profiles.debian]
image = "debian"
loopback = true
terminal = true
limits = {{ files = "512M", memory = "1G", time = 60 }}
"""
#: What a package does when it is installed: a user, files of that user's, a set-id program.
POSTINST = """\
#!/bin/sh
set -e
groupadd --system guests
useradd --system --gid guests --create-home guest
chown -R guest:guests /var/lib/thing
chmod 4755 /usr/bin/thing
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with tempfile.TemporaryDirectory(prefix="leeward-images-", dir=packages.outside_tmp()) as outside:
        root = of_debian(Path(outside, "root"), "apt", "passwd", "login", "util-linux", "nginx-light", "python3-pip",
                         "diffutils")
        for name in ("pam.d", "nsswitch.conf"):  # which packages make when they are installed
            subprocess.run(["cp", "-r", f"/etc/{name}", root / "etc"], check=True)
        for name in ("info", "updates", "triggers", "parts"):
            (root / "var/lib/dpkg" / name).mkdir(exist_ok=True)
        (root / "etc/shadow").write_text("root:*:19000:0:99999:7:::\n")
        for name in ("var/lib/nginx", "var/log/nginx", "run", "var/www/html"):
            (root / name).mkdir(parents=True, exist_ok=True)
        with (root / "etc/passwd").open("a") as users:
            users.write("_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\n")
        imported(Images(f"{outside}/store"), root, "debian")
        with egress.live(tmp_path_factory.mktemp("daemon"), CONFIG.format(store=f"{outside}/store")) as live:
            yield live


@pytest.fixture
def box(daemon: LiveDaemon) -> Iterator[leeward.Sandbox]:
    with leeward.Sandbox(socket=str(daemon.socket), profile="debian") as made:
        yield made


def test_apt_installs_a_package(box: leeward.Sandbox, tmp_path: Path) -> None:
    """With its files of other owners, its script that adds a user, and apt's own change to another user."""
    made = tmp_path / "thing"
    (made / "DEBIAN").mkdir(parents=True)
    (made / "DEBIAN/control").write_text("Package: thing\nVersion: 1\nArchitecture: all\nMaintainer: me <me@example.com>\n"
                                         "Description: a thing\n")
    (made / "DEBIAN/postinst").write_text(POSTINST)
    (made / "DEBIAN/postinst").chmod(0o755)
    (made / "usr/bin").mkdir(parents=True)
    (made / "usr/bin/thing").write_text("#!/bin/sh\necho a thing\n")
    (made / "usr/bin/thing").chmod(0o755)
    (made / "var/lib/thing").mkdir(parents=True)
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", made, tmp_path / "thing.deb"], check=True,
                   capture_output=True)
    box.files.write("/tmp/thing.deb", (tmp_path / "thing.deb").read_bytes())

    done = box.shell("apt-get install -y /tmp/thing.deb && thing && getent passwd guest && stat -c %a /usr/bin/thing")

    assert 0 == done.exit_code, done.stdout_text + done.stderr_text
    assert "Setting up thing (1)" in done.stdout_text
    assert ["a thing", "4755"] == [line for line in done.stdout_text.splitlines() if line in ("a thing", "4755")]
    assert "guest:x:" in done.stdout_text


@pytest.mark.needs("extra-web")
def test_a_person_approves_what_an_agent_changes_and_asks_for(daemon: LiveDaemon, tmp_path: Path) -> None:
    """`leeward agent start --approved --image`: it asks by the image's Python."""
    home = AgentHome(tmp_path / "home", daemon)
    home.define("sh", 'command = ["sh"]\n')
    line = f'echo new > new; dpkg -l | grep -c base-files; python3 -c "{ASK}"'
    with approvals(home) as env:
        got = home.run("start", "sh", ".", "--approved", "--image", "debian", "--", "-c", line, **env)
    assert "1\npending\n" == got.stdout, got.stderr
    assert "1 requests about files wait" in got.stderr
    assert not (home.project / "new").exists()


@pytest.mark.needs("agent-claude")
def test_claude_code_works_in_an_image(daemon: LiveDaemon, tmp_path: Path) -> None:
    """The host's program by the image's libraries: it reads and changes a file of the project, and runs the image's dpkg."""
    home = AgentHome(tmp_path / "home", daemon)
    file = home.project / "calculation.py"
    file.write_text("print(21 + 21)\n")
    (home.project / ".env").write_text("HIDDEN=1\n")
    (home.path / "bin").mkdir()
    (home.path / "bin/claude").symlink_to(agent_programs.claude() or "")
    script = [Call("Read", {"file_path": str(file)}),
              Call("Edit", {"file_path": str(file), "old_string": "21 + 21", "new_string": "2 * 21"}),
              Call("Bash", {"command": "python3 calculation.py; dpkg -l | grep -c base-files; cat .env"}), "all is done"]
    with model_api.serving_for_agents(script) as api:
        home.settings(f'[network]\nallow = ["127.0.0.1:{api.port}"]\n')
        got = home.run("start", "claude", ".", "--image", "debian", "--", "-p", "do it", "--dangerously-skip-permissions",
                       PATH=f"{home.path}/bin:/usr/bin:/bin", ANTHROPIC_API_KEY="sk-ant-none",
                       ANTHROPIC_BASE_URL=f"http://127.0.0.1:{api.port}")
        assert (0, "all is done\n") == (got.returncode, got.stdout), got.stderr
        said = api.results[-1]
    assert "print(2 * 21)\n" == file.read_text()
    assert "42\n1\n" in said, said
    assert "HIDDEN" not in said


def test_su_and_a_users_tools(box: leeward.Sandbox) -> None:
    done = box.shell("useradd -m me && su me -c 'id -un; whoami; exec sh -c \"id -u; cd && pwd\"' && id -un"
                     " && setpriv --reuid nobody --regid nogroup --init-groups sh -c 'id -un; id -gn'"
                     " && usermod -aG games me && userdel me && echo done")

    assert 0 == done.exit_code, done.stderr_text
    assert ["me", "me", "1000", "/home/me", "root", "nobody", "nogroup", "done"] == done.stdout_text.split()


def test_nginx_serves_on_port_80(box: leeward.Sandbox) -> None:
    """As its package configures it: a master that is root, workers of www-data."""
    box.files.write("/var/www/html/index.html", b"hello")
    done = box.run(["bash", "-c", """
        cat > /tmp/nginx.conf <<'END'
user www-data;
pid /run/nginx.pid;
events {}
http { server { listen 80; root /var/www/html; } }
END
        nginx -c /tmp/nginx.conf && exec 3<>/dev/tcp/127.0.0.1/80
        printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && tail -1 <&3"""])

    assert 0 == done.exit_code, done.stderr_text
    assert "hello" == done.stdout_text.strip()


def test_code_runs_by_the_images_python(box: leeward.Sandbox) -> None:
    """With its own modules, none of the host's and none of leeward's; as elsewhere in all else."""
    box.shell("mkdir /usr/lib/python3/dist-packages/mine && echo 'x = 42' > /usr/lib/python3/dist-packages/mine/__init__.py")
    got = box.execute("import os, sys; print(sys.executable, os.getcwd(), sys.argv)")
    assert ["/usr/bin/python3 /workspace ['-c']"] == got.stdout_text.splitlines(), got.stderr_text
    assert b"42 []" == box.execute("import sys, mine; print(mine.x, [name for name in sys.modules if name.partition('.')[0]"
                                   " in ('leeward', 'msgpack', 'cffi')])").stdout.strip()
    got = box.execute("import sys, pathlib; print(sys.stdin.read() + pathlib.Path('in').read_text());"
                      " pathlib.Path('out').write_text('made'); sys.exit(3)", stdin=b"given ", files={"in": b"laid"},
                      collect=["out"])
    assert (3, "given laid\n", b"made") == (got.exit_code, got.stdout_text, got.files["out"])
    got = box.execute("def f():\n    return 1 / 0\nf()")
    assert got.error is not None
    assert "ZeroDivisionError" == got.error.type
    assert "leeward" not in got.stderr_text
    assert 'File "<string>", line 3' in got.stderr_text


def test_the_next_code_finds_the_images_interpreter_waiting(box: leeward.Sandbox) -> None:
    """Once code was asked for twice shortly one after the other; whatever the next job is."""
    for number in range(2):
        assert f"{number}\n" == box.execute(f"print({number})").stdout_text
    poll_until(lambda: box.shell("grep -al '[i]mport marshal' /proc/[0-9]*/cmdline").stdout, "it begins by itself")
    assert "given 2\n" == box.execute("print(input(), 2)", stdin=b"given").stdout_text
    assert "3\n" == box.execute("print(3)").stdout_text
    assert 1 == box.execute("1 / 0").exit_code


def test_a_kernel_of_the_images_python(box: leeward.Sandbox) -> None:
    """Keeps variables, is interrupted, shows what a cell ends with; pip's modules are there once they are installed."""
    with box.kernel() as kernel:
        assert b"" == kernel.execute("import time; x = 20").stdout
        assert b"21\n" == kernel.execute("x += 1; print(x)").stdout
        assert "22" == kernel.execute("x + 1", display=True).value
        failed = kernel.execute("y").error
        assert failed is not None
        assert "NameError" == failed.type
        with kernel.fork() as branch:
            assert b"21\n" == branch.execute("print(x)").stdout


#: State of many kinds: a heap, large blocks, a generator, a file at its place, a cycle, a database, a class of its own.
STATE = """
import random, sqlite3, itertools, decimal, array, weakref, tempfile, threading, hashlib
class Thing:
    def __init__(self, other=None): self.other = other
first = Thing(); first.other = Thing(first); seen = weakref.ref(first.other)
table = {str(n): [n] for n in range(50000)}; large = bytearray(b"x" * 5000000)
steps = (n * n for n in itertools.count()); next(steps); next(steps)
base = sqlite3.connect(":memory:"); base.execute("create table t (a)"); base.execute("insert into t values (7)")
file = open("/tmp/lines", "w+"); file.write("one\\ntwo\\n"); file.seek(4); lock = threading.RLock(); held = lock.acquire()
digest = hashlib.sha256(b"a"); numbers = array.array("d", [1.5] * 10000)
"""
LOOK = """
import json, subprocess, concurrent.futures, sys
pool = concurrent.futures.ThreadPoolExecutor(4)
print(len(table), sum(large) // len(large), next(steps), *base.execute("select a from t").fetchone(), file.readline().strip(),
      seen() is first.other, digest.hexdigest()[:4], sum(numbers), sum(pool.map(abs, range(-9, 1))), lock.release(),
      subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True).stdout.strip(),
      decimal.Decimal(1) / 8)
large += b"y" * 5000000; table.update({n: n for n in range(50000)}); import xml.dom.minidom
"""
SAID = b"50000 120 4 7 two True ca97 15000.0 45 None 42 0.125\n"


def check_snapshots(box: leeward.Sandbox) -> None:
    """A kernel's state goes on in another kernel, again in that one, in itself and in a fork of its sandbox."""
    kernel = box.kernel()
    done = kernel.execute(STATE)
    assert done.error is None, done.stderr_text
    state = kernel.snapshot()
    for each in (box.kernel(snapshot=state), kernel, box.kernel(snapshot=state)):
        done = each.execute(LOOK)
        assert SAID == done.stdout, done.stderr_text
        each.rollback(state)
        chained = each.snapshot()
        assert SAID == box.kernel(snapshot=chained).execute(LOOK).stdout
        failed = each.execute("x = random.random(); 1 / 0").error
        assert failed is not None
        assert "ZeroDivisionError" == failed.type
        with each.fork() as branch:
            assert SAID == branch.execute(LOOK).stdout
        chained.remove()
    kernel.rollback(state)  # a branch has shared its file's place
    [copy] = box.fork(1, [kernel])
    with copy.sandbox:
        assert SAID == copy.kernels[0].execute(LOOK).stdout
    state.remove()


def test_a_kernels_snapshot_is_of_the_images_python(box: leeward.Sandbox, daemon: LiveDaemon, tmp_path: Path) -> None:
    """Also from a file, and in a fork, which has other mounts; in no sandbox with another root."""
    check_snapshots(box)
    with box.kernel() as kernel, leeward.Sandbox(socket=str(daemon.socket)) as other:
        kernel.execute("x = 20")
        state = kernel.snapshot()
        state.save(tmp_path / "state")
        with pytest.raises(SnapshotFailed, match="in a sandbox of an image"):
            other.kernel(snapshot=state)
        with other.kernel() as theirs:
            foreign = theirs.snapshot()
        with pytest.raises(SnapshotFailed, match="with another root file system"):
            kernel.rollback(foreign)
        again = leeward.Snapshot.load(tmp_path / "state", daemon.socket)
        assert b"20\n" == box.kernel(snapshot=again).execute("print(x)").stdout
        with pytest.raises(SnapshotFailed, match="in a sandbox of an image"):
            other.kernel(snapshot=again)


def test_set_id_programs_are_made_with_their_modes(box: leeward.Sandbox) -> None:
    """As apk does, where dpkg and tar set them afterwards; and nothing comes of it."""
    got = box.execute("import os; os.umask(0); os.close(os.open('/set', os.O_CREAT | os.O_WRONLY, 0o6755))"
                      "; print(oct(os.stat('/set').st_mode & 0o7777), os.statvfs('/').f_flag & os.ST_NOSUID)")
    assert "0o6755 2\n" == got.stdout_text, got.stderr_text


#: In the short form one version stands for all; tests/unit/inside/test_image_python.py runs each that the machine has.
PYTHONS = other_pythons()[:None if os.environ.get("LEEWARD_LONG") else 1] or [sys.executable]


@pytest.mark.needs("usr-busybox")
@pytest.mark.parametrize("python", PYTHONS)
def test_another_version_of_python(python: str, tmp_path: Path) -> None:
    """Code, a kernel and its copies, by an interpreter that is neither the daemon's nor its zygote's."""
    with tempfile.TemporaryDirectory(prefix="leeward-images-", dir=packages.outside_tmp()) as outside:
        root = of_busybox(Path(outside, "root"))
        version = add_python(root, python)
        imported(Images(f"{outside}/store"), root, "debian")
        with (egress.live(tmp_path, CONFIG.format(store=f"{outside}/store")) as live,
              leeward.Sandbox(socket=str(live.socket), profile="debian") as box):
            got = box.execute("import json, sys; print(sys.executable, '%d.%d' % sys.version_info[:2])")
            assert f"/usr/local/bin/python3 {version}\n" == got.stdout_text, got.stderr_text
            with box.kernel() as kernel:
                kernel.execute("x = 20")
                with kernel.fork() as branch:
                    assert "21" == branch.execute("x + 1", display=True).value
                assert b"20\n" == kernel.execute("print(x)").stdout
            check_snapshots(box)
            failed = box.execute("raise KeyError(1)").error
            assert failed is not None
            assert "KeyError" == failed.type


def test_pip_installs(box: leeward.Sandbox) -> None:
    box.files.mkdir("/src")
    box.files.write("/src/thing.py", b"x = 7\n")
    box.files.write("/src/setup.py", b"from setuptools import setup\nsetup(name='a', version='1', py_modules=['thing'])\n")
    done = box.shell("python3 -m pip install --break-system-packages --no-index --no-build-isolation /src")

    assert 0 == done.exit_code, done.stdout_text + done.stderr_text
    assert b"7\n" == box.execute("import thing; print(thing.x)").stdout


#: What an image may have its interpreter run before any code: it looks for more than code has.
FIRST = b"""
import os
def look(path):
    try:
        return open(path).read(10)
    except OSError as error:
        return error.strerror
def target(fd):
    path = os.path.realpath("/proc/self/fd/" + fd)
    if not path.startswith("/dev/shm/#"):
        return path
    found = os.stat(int(fd))  # what memfd_create() gives where no controller counts its memory: the sandbox's own
    return "/memfd:" if (0, os.stat("/dev/shm").st_dev) == (found.st_nlink, found.st_dev) else path
with open("/tmp/first", "w") as file:
    print(*(line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapPrm", "NoNewPrivs"))),
          *map(target, os.listdir("/proc/self/fd")),
          look("/proc/version"), look("/proc/1/environ"), file=file)
"""


def test_what_an_image_runs_first_is_held_as_code_is(box: leeward.Sandbox) -> None:
    """What its Python's *.pth name, and libraries that its loader puts into every program; leeward's own have neither."""
    box.files.write("/usr/lib/python3/dist-packages/first.pth", b"import first\n")
    box.files.write("/usr/lib/python3/dist-packages/first.py", FIRST)
    box.files.write("/etc/ld.so.preload", b"/none.so\n")
    got = box.execute("print(6 * 7)")

    assert "42\n" == got.stdout_text
    assert "/none.so" in got.stderr_text
    caps, none, privs, *rest = box.files.read("/tmp/first").decode().split()
    assert ["0000000000000000"] * 2 + ["1"] == [caps, none, privs]
    assert "No such file or directory" in " ".join(rest)
    known = ("/dev/null", "/proc/", "/memfd:", "/usr/lib/python3/", "/tmp/first")  # no file of the host is open
    assert [] == [each for each in rest if each.startswith("/") and not each.startswith(known)]
