"""Sandboxes whose root file system is an image's: programs in them, what they may write, and who they are."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import leeward
from kit import egress, packages
from kit.agents import AgentHome
from kit.features import SLOWER
from kit.images import file, folder, imported, layer, link, oci, of_busybox, of_debian
from kit.live_daemon import LiveDaemon, descendants
from leeward import Mount
from leeward.apps.images.committing import commit
from leeward.apps.images.store import Images, ImportProgress
from leeward.errors import RequestRejected
from leeward.spec.paths import USER_FILE

pytestmark = pytest.mark.needs("user-namespaces", "images", "usr-busybox")

CONFIG = f"""\
pool_size = 1
queue_timeout = {30 * SLOWER}
images_folder = "{{store}}"
[limits]
time = {10 * SLOWER}
[profiles.owned]
owners = true
[profiles.agents]
base = "agent"
image = "app"
[profiles.boxed]
image = "busybox"
loopback = true
"""
Opens = Callable[..., leeward.Sandbox]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveDaemon, Images]]:
    """A daemon and its images: a busybox, the same with two layers on top, and a hostile one."""
    with tempfile.TemporaryDirectory(prefix="leeward-images-", dir=packages.outside_tmp()) as outside:
        made, at = Images(f"{outside}/store"), tmp_path_factory.mktemp("daemon")
        root = of_busybox(Path(outside, "root"))
        imported(made, root, "busybox")
        base = Path(outside, "base.tar")
        with packages_tar(root, base):
            top = layer(folder("etc"), file("etc/motd", b"hello\n"), folder("usr/share"), file("usr/share/.wh.doc"),
                        folder("app"), file("app/run", b"#!/bin/sh\necho $1 $A $PWD\n", mode=0o755))
            layers = [base.read_bytes(), layer(folder("etc"), file("etc/motd", b"below\n")), top]
        imported(made, oci(Path(outside, "oci"), layers, {
            "Env": ["A=from the image", "PATH=/app:/bin"], "WorkingDir": "/app", "User": "web"}), "app")
        imported(made, oci(Path(outside, "hostile"), [base.read_bytes(), layer(), layer(), layer(
            link("proc", "/etc"), link("dev", "/srv"), link("sys", "../../.."), link("tmp", "/proc/self/root"),
            link("workspace", "/.layers"), folder("dev2"), file("etc/.wh..wh..opq"))]), "hostile")
        with egress.live(at, CONFIG.format(store=made.folder)) as daemon:
            yield daemon, made


@pytest.fixture
def box(place: tuple[LiveDaemon, Images]) -> Iterator[Opens]:
    opened: list[leeward.Sandbox] = []

    def opens(**options: object) -> leeward.Sandbox:
        opened.append(leeward.Sandbox(socket=str(place[0].socket), **options))  # type: ignore[arg-type]
        return opened[-1]

    yield opens
    for each in opened:
        each.close()


class packages_tar:
    """The archive of a folder, for a layer."""

    def __init__(self, source: Path, to: Path) -> None:
        import tarfile

        with tarfile.open(to, "w") as archive:
            archive.add(source, ".")

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def test_the_whole_root_can_be_written(box: Opens, place: tuple[LiveDaemon, Images]) -> None:
    """As root's own system, and nothing of it in the image, nor in another sandbox."""
    first = box(image="busybox")
    done = first.shell("mkdir /app /testbed && mv /srv /srv2 && touch /usr/x && rm -r /usr/share/doc && ln /etc/passwd /p"
                       " && echo new > /etc/motd && mv /bin/vi /home/vi && ls -d /srv2 /app /p && ls /usr")

    assert (0, "", None) == (done.exit_code, done.stderr_text, done.limit)
    assert "/app\n/p\n/srv2\nshare\nx\n" == done.stdout_text
    assert "manual" == box(image="busybox").shell("ls /usr/share/doc; ls -d /app /srv2").stdout_text.strip()
    [digest] = place[1].image("busybox").layers
    assert ["doc"] == os.listdir(Path(place[1].folder, "layers", digest, "usr/share"))


def test_the_image_says_how_programs_start(box: Opens) -> None:
    """Its environment, folder and user; two layers' files, and none that a layer has removed."""
    app = box(image="app", env={"B": "ours"})

    assert "x from the image /app" == app.run(["run", "x"]).stdout_text.strip()
    assert "hello\n" == app.run(["cat", "/etc/motd"]).stdout_text
    assert 0 != app.run(["ls", "/usr/share/doc"]).exit_code
    assert "uid=33(web) gid=44(web)" == app.run(["id"]).stdout_text.strip().partition(" groups")[0]
    assert "/home/web ours" == app.shell("echo $HOME $B").stdout_text.strip()


def test_owners_are_told_where_the_profile_says_so(box: Opens) -> None:
    """By each way to a file, of all kinds; kept when it is moved, written to or forgotten by the cache. Not elsewhere."""
    line = """
        cd /root; mkdir -p d/e; touch a b; ln -s a l; mkfifo p; chown web:other a d/e p; chown -h 7:8 l; chown 9 /etc/passwd
        chown :12 /usr/share; chown 0:0 a; chown web: a; mv a d/a; echo x >> d/a; echo >> /etc/passwd; ln d/a c
        stat -c '%n %u:%g' b c d/../d/a d/e l p /etc/passwd /usr/share; cd d; stat -c %u a
        chown 3 /nowhere 2>&1; find /root -user 33; ls -ln a"""
    owned = box(image="busybox", profile="owned")
    said = owned.shell(line).stdout_text.splitlines()

    assert ["b 0:0", "c 33:44", "d/../d/a 33:44", "d/e 33:55", "l 7:8", "p 33:55", "/etc/passwd 9:0", "/usr/share 0:12",
            "33"] == said[:9]
    assert "chown: /nowhere: No such file or directory" == said[9]
    assert {"/root/d/a", "/root/c", "/root/d/e", "/root/p"} == {*said[10:14]}
    assert ["33", "44"] == said[14].split()[2:4]
    for other in (box(image="busybox"), box(image="busybox", user="web", profile="owned")):
        assert {"0:0", "33:44"} >= {*other.shell("cd /tmp; touch a; chown 7:8 a; stat -c %u:%g a").stdout_text.split()}
    assert {} == owned.info()["denied"]


@pytest.mark.parametrize(("user", "said"), [
    ("root", "uid=0(root) gid=0(root)"), ("web:other", "uid=33(web) gid=55(other)"), ("1234:5678", "uid=1234 gid=5678")])
def test_another_user_of_the_image(user: str, said: str, box: Opens) -> None:
    """Whoever that is, all files are that user's."""
    there = box(image="app", user=user)

    assert said == there.run(["id"]).stdout_text.strip().partition(" groups")[0]
    assert "ok" == there.shell("cd /root && touch x && rm /bin/vi && chmod 755 /etc && echo ok").stdout_text.strip()


def test_root_has_no_capability(box: Opens) -> None:
    got = box(image="busybox").shell("grep ^Cap /proc/self/status; mount -t tmpfs x /srv; mknod /x c 1 3; chroot / /bin/sh")

    assert {"0000000000000000"} == {line.split()[1] for line in got.stdout_text.splitlines()}
    assert 2 == len(got.stderr_text.splitlines()), got.stderr_text  # mknod is answered, and makes nothing


#: Becomes another user, as entry points of images do, and starts itself anew.
SCRIPT = b"""#!/bin/sh
test 0 != $(id -u) || exec start-stop-daemon -S -c web:other -x $0
id -u; id -g; sh -c 'id -un'
"""


def test_what_only_root_may_is_answered(box: Opens) -> None:
    """As done, where that harms nobody; nothing came of it, and each process is told the ids that it has asked for."""
    there = box(profile="boxed")
    there.files.write("/entry", SCRIPT)
    got = there.shell("touch /f && chown web:other /f && chgrp other /f && chmod 6755 /f && stat -c '%a %u %g' /f;"
                      " mknod /d b 8 0 && ls /d; chown web /none; chmod +x /entry; /entry; id -u;"
                      " grep ^Uid /proc/self/status")

    assert ["6755 0 0", "33", "55", "web", "0", "Uid:\t0\t0\t0\t0"] == got.stdout_text.splitlines(), got.stderr_text
    assert 2 == len(got.stderr_text.splitlines()), got.stderr_text  # no /d, no /none
    assert {} == got.denied


def test_root_listens_on_every_port(box: Opens) -> None:
    """Control: the image's other users have those that users have."""
    served = "httpd -p 80 -h /usr/share/doc && wget -qO- http://127.0.0.1/manual"

    assert "read me" == box(profile="boxed").shell(served).stdout_text
    assert 0 != box(image="busybox", profile="workdir", user="web").shell(served).exit_code


def test_what_is_leewards_own(box: Opens) -> None:
    """/proc, /dev, /sys and three files of /etc, which the sandbox may change, but for the folders."""
    got = box(image="busybox").shell("""
        cat /etc/hostname /etc/resolv.conf; grep -c localhost /etc/hosts
        echo 1 > /dev/null && echo written; for each in /proc/x /dev/x /sys/x; do echo > $each; done
        echo 1 > /proc/self/oom_score_adj; echo mine > /etc/hostname.new && mv /etc/hostname.new /etc/hostname
        cat /etc/hostname; ls /dev; head -c 3000000 /dev/zero | tr -d '\\0' | wc -c; head -c 3000000 /dev/zero | wc -c
        cat /proc/version""")

    said = got.stdout_text.splitlines()
    assert ["leeward", "# This sandbox has no network, and no name server.", "2", "written", "mine"] == said[:5]
    assert {"null", "full", "random", "urandom", "tty", "shm", "fd", "zero"} <= set(said[5:])
    assert ["0", "3000000"] == said[-2:]
    assert 5 == len(got.stderr_text.splitlines()), got.stderr_text


def test_links_in_place_of_leewards_folders_are_covered(box: Opens) -> None:
    there = box(image="hostile")
    got = there.shell("for each in proc dev sys tmp workspace; do test -L /$each && echo link; test -d /$each || echo no;"
                      " done; ls /etc; echo > /dev/null; cat /proc/self/comm")

    assert ["hostname", "hosts", "resolv.conf", "cat"] == got.stdout_text.split()
    assert "" == got.stderr_text


def test_files_and_terminals(box: Opens) -> None:
    there = box(image="busybox")
    there.files.mkdir("/opt/new", parents=True)
    there.files.write("/opt/new/file", b"content")

    assert b"content" == there.files.read("/opt/new/file")
    assert "content" == there.run(["cat", "/opt/new/file"]).stdout_text
    assert b"/dev/pts/0" in b"".join(chunk.data for chunk in there.terminal(["/bin/tty"]))


def test_a_sandbox_becomes_an_image(box: Opens, place: tuple[LiveDaemon, Images]) -> None:
    """With all that it has changed of its root, and what its image says; it goes on."""
    first = box(image="app", user="root", env={"A": "not the image's"})
    first.shell("""
        mkdir -p /new/in && echo x > /new/in/f && chmod 640 /new/in/f && ln -s f /new/in/link && rm /etc/motd
        rm -r /usr/share && mkdir /usr/share && echo y > /usr/share/only; mv /srv /srv2; echo z >> /app/run; chmod 0 /root
        mkfifo /fifo; echo > /dev/shm/not; echo 10.0.0.1 us > /etc/hosts; head -c 20000000 /dev/urandom > /new/big
        echo 'you:x:5:6::/:/bin/sh' >> /etc/passwd; echo >/workspace/w; : > /new/.wh.in""")
    before = first.shell("sha256sum < /new/big").stdout_text
    made, left = commit(first, place[1], "after", ImportProgress())

    assert {"special files": 1, "names that begin with .wh.": 1} == left
    assert place[1].image("app").layers == made.layers[:-1]
    assert before == first.shell("sha256sum < /new/big").stdout_text
    after = box(image="after")
    got = after.shell("id -u; echo $A; pwd; cat /new/in/link; stat -c %a /new/in/f; ls /etc/motd /usr/share; ls -d /srv*; "
                      " tail -n 1 /app/run; stat -c %a /root; ls /dev/shm; grep -c 10.0.0.1 /etc/hosts; ls /workspace /fifo")
    assert ["33", "from the image", "/app", "x", "640", "/usr/share:", "only", "/srv2", "z", "0", "0", "/workspace:",
            "w"] == got.stdout_text.splitlines()
    assert before == after.shell("sha256sum < /new/big").stdout_text
    assert "uid=5(you)" == box(image="after", user="you").run(["id"]).stdout_text.split()[0]


def test_forks_have_what_was_changed_of_the_root(box: Opens, place: tuple[LiveDaemon, Images], tmp_path: Path) -> None:
    """
    What is gone, what hides a lower folder, links, modes, times and holes, also of a folder of the host; each goes on alone.
    Not over another image.
    """
    (tmp_path / "file").write_text("the host's")
    first = box(image="app", user="root", mounts=[Mount(tmp_path, "/host/it", overlay=True),
                                                  Mount(tmp_path / "file", "/host/one")])
    made = first.shell("""
        rm /etc/motd /app/run /bin/wget; rm -r /usr/share; mkdir -p /usr/share/new; mv /home/web /home/was; mkdir /home/web
        touch /home/web/x
        ln -s /nowhere /l; mkdir -p /a/b; echo 1 > /a/b/f; ln /a/b/f /hard; chmod 4751 /a/b/f
        touch -d @1000000000 /a/b /bin/vi; truncate -s 1M /hole; echo shm > /dev/shm/s; echo mine > /etc/hosts
        rm /host/it/file; echo own > /host/it/new; chmod 700 /host
        mkfifo -m 600 /p; chmod 500 /a; rm -r /srv; : > /srv; mkdir -p /tmp/t /workspace/w; echo all > /all""")
    assert (0, "", None) == (made.exit_code, made.stderr_text, made.limit)
    look = """
        cd /; find . -xdev -exec stat -c '%n %f %s %h %Y' {} + | sort | grep -v -E '^(.|./proc|./dev|./sys) '
        ls -l /host /host/it; cat /host/one /host/it/new
        cat /a/b/f /etc/hosts /dev/shm/s /all; cat /etc/motd 2>&1; ls /usr/share /home/web; stat -c %b /hole"""
    one, two = (copy.sandbox for copy in first.fork(2))
    try:
        before = first.shell(look).stdout_text
        assert before == one.shell(look).stdout_text
        assert "./a/b/f 89e9 2 2 " in before
        assert "1\nmine\nshm\nall\ncat: can't open '/etc/motd'" in before
        assert 0 == one.shell("echo 2 > /a/b/f; rm -r /home; mkdir /home; echo new > /etc/motd").exit_code
        assert before == two.shell(look).stdout_text == first.shell(look).stdout_text
        again = one.fork()[0].sandbox
        with again:
            assert "new\n2\n" == again.shell("cat /etc/motd /hard; ls /home").stdout_text
    finally:
        one.close()
        two.close()
    with pytest.raises(RequestRejected, match="has another image"):
        box(image="busybox").copy_files(first)


def test_the_root_goes_back_to_a_checkpoint(box: Opens, place: tuple[LiveDaemon, Images], tmp_path: Path) -> None:
    """
    Again and again, to each; folders of the host, /dev/shm and what is leeward's stay as they are, where they are, also if a
    link has taken a folder's place. Not while anybody uses the root, and then nothing has changed.
    """
    (tmp_path / "file").write_text("the host's")
    first = box(image="app", user="root", mounts=[Mount(tmp_path, "/host/it", overlay=True)])
    look = """
        cd /; find . -xdev -exec stat -c '%n %f %s %h %Y' {} + | sort | grep -v -E '^(.|./proc|./dev|./sys|./host/it) '
        cat /etc/motd /host/it/file /a/b/f; ls /usr/share /proc/self/status /dev/null; cat /dev/shm/s; id -un"""
    names = "cd /; find . -xdev -exec stat -c '%n %f' {} + | sort; cat /etc/motd /etc/hosts"
    fresh = first.shell(names).stdout_text
    made = first.shell("rm -r /usr/share; mkdir -p /usr/share/new /a/b; echo 1 > /a/b/f; ln /a/b/f /hard; mkfifo /p;"
                       " chmod 4751 /a/b/f; echo shm > /dev/shm/s; touch -d @1000000000 /bin/vi /a/b; chmod 500 /a")
    assert (0, "", None) == (made.exit_code, made.stderr_text, made.limit)
    before = first.shell(look).stdout_text
    assert ("1", "two") == (first.checkpoint(target="/"), first.checkpoint("two", "/"))
    assert ["1", "two"] == first.info()["checkpoints"]
    spoil = ("rm -rf /a /p /tmp /home /bin/vi /app; ln -s /etc /tmp; mv /host/it/file /host/it/other; echo x > /etc/motd; :"
             " > /home; rm -r /sys /etc /var; ln -s /proc /a; ls / > /after; ls -R /host")
    for name in ("1", "two", "1"):
        other = first.shell(spoil).stdout_text
        assert "other" in other
        assert not first.files.exists("/home/web")  # by a process of the sandbox's own, which is ended
        assert before != first.shell(look).stdout_text
        first.restore(name, "/")
        assert other == first.shell("ls -R /host; mv /host/it/other /host/it/file").stdout_text
        assert before == first.shell(look).stdout_text
        assert "" == first.shell("for each in /proc/x /dev/x /sys/x; do : > $each && echo written; done").stdout_text
    assert [] == first.diff()
    running = first.start(["sleep", "1000"])
    with pytest.raises(RequestRejected, match="1 processes and kernels run"):
        first.restore("1", "/")
    running.kill()
    running.wait()
    with first.fork()[0].sandbox as copy:  # whose checkpoints are its own
        assert before == copy.shell(look).stdout_text
        with pytest.raises(RequestRejected, match="has no checkpoint '1'"):
            copy.restore("1", "/")
    first.shell("echo x > /etc/motd; echo y > /a/b/g; touch -d @1000000000 /a/b; rm -r /home")
    with pytest.raises(RequestRejected, match="'usr/none' has not changed"):
        first.discard(["home", "usr/none"], "/")
    assert ["a/b/g", "etc/motd", "home"] == sorted(each.path for each in first.discard(["home", "etc/motd", "a/b/g"], "/"))
    assert before == first.shell(look).stdout_text
    if os.geteuid() == 0:  # whose daemon shows what its sandboxes have to root alone
        used = held_root(place[0])
        try:
            first.shell("echo x > /after")
            with pytest.raises(RequestRejected, match="has a file of it open"):
                first.restore("1", "/")
            assert "x\n" == first.shell("cat /after; rm /after").stdout_text
            assert before == first.shell(look).stdout_text
        finally:
            for each in used:
                os.close(each)
        first.restore("two", "/")
        assert before == first.shell(look).stdout_text
    first.shell(spoil)
    first.discard(target="/")
    assert fresh == first.shell(names).stdout_text
    assert 0 == first.shell("mv /host \"$(printf '/h\\ro s\\377')\"").exit_code  # with the mount in it
    first.restore("two", "/")
    assert "other" in first.shell("ls /h*/it").stdout_text


def held_root(daemon: LiveDaemon) -> list[int]:
    """The roots of all the daemon's processes, opened."""
    found = []
    for pid in descendants(daemon.process.pid):
        with contextlib.suppress(OSError):
            found.append(os.open(f"/proc/{pid}/root", os.O_PATH))
    return found


def test_commit_by_the_command_line(box: Opens, place: tuple[LiveDaemon, Images], tmp_path: Path) -> None:
    there = box(image="busybox")
    there.shell("echo committed > /etc/motd")
    config = tmp_path / "config.toml"
    config.write_text(f'images_folder = "{place[1].folder}"\n')
    assert b"A etc/motd\n" == place[0].run("image", "diff", there.id, "--config", str(config)).stdout
    with pytest.raises(RequestRejected, match="leeward image diff"):
        there.diff()
    ran = place[0].run("image", "commit", there.id, "made", "--config", str(config))

    assert ran.stdout.startswith(b"made: 2 layers"), ran.stderr
    assert "committed\n" == box(image="made").run(["cat", "/etc/motd"]).stdout_text
    with box() as plain:
        ran = place[0].run("image", "commit", plain.id, "other", "--config", str(config))
        assert b"has the host's files" in ran.stderr


def test_folders_of_the_host_in_an_image(box: Opens, tmp_path: Path) -> None:
    """Read-only, as a copy whose changes are applied, and written by another user than root, who might set set-id bits."""
    (tmp_path / "file").write_text("the host's")
    read = box(image="app", user="root", mounts=[Mount(str(tmp_path), "/testbed/in")])
    got = read.shell("cat /testbed/in/file; echo x > /testbed/in/new || mkdir /testbed/here && ls /testbed")
    assert "the host'shere\nin\n" == got.stdout_text
    copy = box(image="app", user="root", workdir=str(tmp_path), overlay=True)
    assert "app\n" == copy.shell("echo root > /workspace/new; chmod 4755 /workspace/new; basename $PWD").stdout_text
    assert ["new"] == [change.path for change in copy.apply()]
    assert ("root\n", 0o755) == ((tmp_path / "new").read_text(), stat.S_IMODE((tmp_path / "new").stat().st_mode))
    live = box(image="app", workdir=str(tmp_path))
    done = live.shell("cd /workspace && echo web > live && chmod 4755 live; stat -c %a live; chown root live; ls")
    assert ["644", "file", "live", "new"] == done.stdout_text.split(), done.stderr_text
    assert (os.geteuid(), "web\n") == ((tmp_path / "live").stat().st_uid, (tmp_path / "live").read_text())


def test_what_is_not_there_is_refused(box: Opens, tmp_path: Path) -> None:
    for options, why in (
            ({"image": "none"}, "image 'none' is unknown"), ({"image": "busybox", "user": "nobody"}, "has no user 'nobody'"),
            ({"image": "busybox", "workdir": str(tmp_path)}, "as root in an image"),
            ({"image": "busybox", "environment": "x"}, "environment and image"),
            ({"image": "busybox", "profile": "shell"}, "and image"), ({"image": "../x"}, "image"),
            ({"user": "root"}, "user and hide are of the profile")):
        with pytest.raises(RequestRejected, match=why):
            assert box(**options).id


@pytest.mark.needs("root")
def test_roots_daemon_without_its_capability_names_the_cure() -> None:
    """As in a container of docker's."""
    done = subprocess.run(["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-c",
                           "from leeward.daemon.worker.layers import _copied; _copied('/usr')"],
                          capture_output=True, text=True, check=False)
    assert "a container has it by --cap-add SYS_ADMIN, and a daemon of another user than root needs none" in done.stderr


def test_code_without_an_interpreter_says_so(box: Opens) -> None:
    got = box(image="busybox").execute("1")

    assert (127, "leeward: the image has no python3, which runs code and kernels; run() starts programs\n") == (
        got.exit_code, got.stderr_text)


def test_a_profile_has_an_image(box: Opens, place: tuple[LiveDaemon, Images]) -> None:
    """With the profile's loopback, and for programs alone."""
    got = box(profile="boxed").shell("ls /usr/share/doc; nc -l -p 8000 -e /bin/echo there &"
                                     " until nc 127.0.0.1 8000; do :; done")

    assert "manual\nthere\n" == got.stdout_text
    with place[0].client() as client, pytest.raises(RequestRejected, match="in an image aren't there yet"):
        client.execute("1", profile="boxed")


def test_by_the_command_line(place: tuple[LiveDaemon, Images]) -> None:
    daemon, _ = place
    ran = daemon.run("exec", "--image", "app", "--user", "root", "--", "id -u; echo $A")

    assert b"0\nfrom the image\n" == ran.stdout, ran.stderr
    assert 2 == daemon.run("exec", "--image", "app", "print(1)").returncode
    assert b"33\n" == daemon.run("shell", "--image", "app", "--", "id", "-u").stdout
    told = daemon.run("profiles", "boxed", "--config", str(daemon.socket.parent / "c.toml")).stdout
    assert (True, False) == (b"busybox" in told, b"/usr" in told), told


def test_a_layer_in_use_is_not_pruned(box: Opens, place: tuple[LiveDaemon, Images]) -> None:
    _, store = place
    assert box(image="hostile").id
    store.remove("hostile")

    assert 2 == store.prune()[2]  # its own, and the empty one
    with pytest.raises(RequestRejected, match="unknown"):
        assert box(image="hostile", user="root").id


@pytest.mark.needs("debian")
def test_a_debian(box: Opens, place: tuple[LiveDaemon, Images], tmp_path: Path) -> None:
    """Shells, perl and dpkg of the host's own packages, by their own libraries."""
    imported(place[1], of_debian(tmp_path / "debian"), "debian")
    got = box(image="debian").shell("perl -e 'print 6*7, qq(\\n)'; dpkg -l base-files | tail -1 | cut -c1-2;"
                                    " bash -c 'echo <(true)' | cut -c1-9; . /etc/os-release; echo $ID;"
                                    " head -c 8388608 /dev/urandom > /big; stat -c %s /big")

    assert ["42", "ii", "/dev/fd/6", "debian", "8388608"] == got.stdout_text.split(), got.stderr_text


@pytest.fixture
def home(place: tuple[LiveDaemon, Images], tmp_path: Path) -> AgentHome:
    made = AgentHome(tmp_path / "home", place[0])
    made.define("sh", 'command = ["sh"]\nstate = ["~/.state"]\nstaged = ["~/.staged"]\n')
    return made


def test_an_agent_in_an_image(home: AgentHome) -> None:
    """On the image's system, with its project, home, state, copies and user as elsewhere; and nothing of the host's /usr."""
    (home.path / ".staged").write_text("staged\n")
    (home.project / ".env").write_text("secret\n")
    (home.project / ".git/hooks").mkdir(parents=True)
    got = home.run("start", "sh", ".", "--image", "app", "--", "-c", """
        pwd; echo $HOME $A; id; cat /etc/motd ~/.staged; ls ~ /usr; touch /usr/x ~/y && echo kept > ~/.state/file
        echo made > made; cat .env; echo x > .git/hooks/new; mv .git .g; chmod 4755 made; stat -c %a made
        grep -c web /etc/passwd; echo $PATH; run x""")

    name = pwd.getpwuid(os.geteuid()).pw_name
    said = got.stdout.splitlines()
    assert [str(home.project), f"{home.path} from the image"] == said[:2], got.stderr
    assert f"uid=1000({name if name != 'root' else 'root1000'})" == said[2].split()[0]
    assert ["hello", "staged", f"{home.path}:", "project", "", "/usr:", "share", "644", "1", "/app:/bin"] == said[3:13]
    assert f"x from the image {home.project}" == said[13]
    assert 4 == len([line for line in got.stderr.splitlines() if "leeward" not in line]), got.stderr
    assert ("kept\n", "made\n") == ((home.path / ".state/file").read_text(), (home.project / "made").read_text())
    assert [] == [*(home.project / ".git/hooks").iterdir()]
    assert not (home.path / "y").exists()


def test_an_agents_program_in_an_image(home: AgentHome) -> None:
    """Below the user's home, with an interpreter that the image has elsewhere; or the image's own of that name."""
    tool = home.path / "tools/bin/tool"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/usr/bin/env sh\necho a tool $(id -u) $1; command -v run; command -v tool\n")
    tool.chmod(0o755)
    home.define("mine", f'command = ["{tool}"]\n')
    home.define("theirs", 'command = ["/usr/bin/run"]\n')
    got = home.run("start", "mine", ".", "--image", "app", "--overlay", "--no-apply", "--", "x")
    assert ["a tool 1000 x", "/app/run", str(tool)] == got.stdout.splitlines(), got.stderr
    got = home.run("start", "theirs", ".", "--image", "app", "--", "x")
    assert f"x from the image {home.project}\n" == got.stdout, got.stderr
    assert 1 == home.run("start", "sh", ".", "--image", "none").returncode
    config = home.path / USER_FILE  # as the daemon's, whose profile has the image
    config.parent.mkdir(parents=True)
    config.write_text('[profiles.agents]\nbase = "agent"\nimage = "app"\n')
    config.chmod(0o600)
    got = home.run("start", "theirs", ".", "--profile", "agents", "--", "x")
    assert f"x from the image {home.project}\n" == got.stdout, got.stderr


def test_an_agents_home_in_an_image_stays(home: AgentHome) -> None:
    """For that image: others have their own."""
    line = ("start", "sh", ".", "--persist", "--image")
    home.run(*line, "app", "--", "-c", "mkdir -p ~/.local/bin && cd ~/.local/bin && echo 'echo stays' > it && chmod +x it")
    assert "stays\n" == home.run(*line, "app", "--", "-c", "it").stdout
    assert 0 != home.run(*line, "busybox", "--", "-c", "it").returncode


def test_an_agent_that_moves_what_is_above_its_project_is_ended(home: AgentHome) -> None:
    """In an image it may, and a name to hide that it makes there then can't be covered at the project's path."""
    top = Path(*home.project.parts[:3])
    got = home.run("start", "sh", ".", "--image", "app", "--", "-c",
                   f"mv {top} /moved && echo moved; : > /moved/{home.project.relative_to(top)}/.env; sleep 100; echo over")
    assert (1, "moved\n") == (got.returncode, got.stdout)
    assert "it, or a folder above it, was moved" in got.stderr
