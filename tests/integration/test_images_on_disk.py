"""Roots of images whose changes lie on a disk, as before Linux 6.6: the same to programs, bounded, and removed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit import egress, packages
from kit.features import SLOWER
from kit.images import imported, of_busybox
from kit.live_daemon import LiveDaemon
from kit.waiting import poll_until
from leeward.apps.images.committing import commit
from leeward.apps.images.store import Images, ImportProgress
from leeward.errors import RequestRejected, SandboxOver

pytestmark = pytest.mark.needs("user-namespaces", "images", "usr-busybox")

CONFIG = f"""\
pool_size = 1
queue_timeout = {30 * SLOWER}
images_folder = "{{store}}"
[limits]
time = {10 * SLOWER}
[profiles.small]
image = "busybox"
limits = {{{{ files = "1M" }}}}
[profiles.owned]
owners = true
"""
#: Why it is looked for again and again.
GONE = "a process of the daemon's removes it"
#: Folders that nobody may look into, and one that no path reaches.
HIDDEN = "mkdir /h; cd /h; d=$(printf %0250d 0); i=0; while [ $i -lt 17 ]; do mkdir $d; cd $d; i=$((i+1)); done"


@pytest.fixture(scope="module")
def store() -> Iterator[Images]:
    with tempfile.TemporaryDirectory(prefix="leeward-images-", dir=packages.outside_tmp()) as outside:
        made = Images(f"{outside}/store")
        imported(made, of_busybox(Path(outside, "root")), "busybox")
        yield made


@pytest.fixture(scope="module")
def daemon(store: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with egress.live(tmp_path_factory.mktemp("daemon"), CONFIG.format(store=store.folder),
                     build={"kit.images": {}}) as made:
        yield made


def opened(daemon: LiveDaemon, **options: str) -> leeward.Sandbox:
    return leeward.Sandbox(socket=str(daemon.socket), **{"image": "busybox", **options})  # type: ignore[arg-type]


def written(store: Images, what: str) -> list[str]:
    """The folders below the store's that have *what* on the disk, while others come and go."""
    return [at for at, folders, files in os.walk(f"{store.folder}/uppers") if what in (*folders, *files)]


def test_the_root_is_written_to_forked_and_kept(daemon: LiveDaemon, store: Images) -> None:
    with opened(daemon) as box:
        done = box.shell("mkdir /app && mv /srv /srv2 && touch /usr/x && rm -r /usr/share/doc && echo new > /etc/motd &&"
                         " rm -r /home && mkdir /home && : > /here && echo shm > /dev/shm/s; ls / /usr; ls /home")
        assert (0, "", None) == (done.exit_code, done.stderr_text, done.limit)
        assert written(store, "here")
        [copy] = box.fork()
        with copy.sandbox as other:
            assert done.stdout_text == other.shell("ls / /usr; ls /home").stdout_text
            assert "new\nshm\n" == other.shell("cat /etc/motd /dev/shm/s; rm /here").stdout_text
        assert "/here\n" == box.shell("ls /here").stdout_text
        assert "1" == box.checkpoint()
        for _ in range(2):
            box.shell("rm -r /app /usr /here; ln -s /etc /home/x; echo > /etc/motd")
            box.restore("1")
            assert done.stdout_text == box.shell("ls / /usr; ls /home").stdout_text
        box.shell("rm -r /usr; : > /z; echo kept > /k")
        assert {"usr", "z"} == {each.path for each in box.discard(["usr", "z"])}
        assert "doc\nkept\n" == box.shell("ls /usr/share; cat /k /z; rm /k").stdout_text
        commit(box, store, "kept", ImportProgress())
    with opened(daemon, image="kept") as after:
        assert "new\n" == after.shell("cat /etc/motd; ls /home").stdout_text


def test_a_new_file_has_not_the_owner_of_one_that_is_gone(daemon: LiveDaemon) -> None:
    """Though it has the inode of that one; what is copied up keeps what was set."""
    with opened(daemon, profile="owned") as box:
        done = box.shell("""chown 9 /etc/passwd; echo >> /etc/passwd; cd /root; touch a; chown 7:8 a; stat -c %u:%g a
            was=$(stat -c %i a); i=0; while rm a; touch a; [ $was != $(stat -c %i a) ] && [ $i -lt 99 ]; do i=$((i+1)); done
            stat -c %u:%g a /etc/passwd; chown :5 a; stat -c %u:%g a""")
        assert ["7:8", "0:0", "9:0", "0:5"] == done.stdout_text.split(), done.stderr_text


def test_a_checkpoint_that_does_not_fit_is_refused(daemon: LiveDaemon, store: Images) -> None:
    """What is kept counts as what is written; the sandbox goes on."""
    with opened(daemon, profile="small") as box:
        assert "1" == box.shell("head -c 400000 /dev/urandom > /a; stat -c 1 /a").stdout_text.strip()
        assert "1" == box.checkpoint()
        for again in (box.checkpoint, lambda: box.restore("1")):
            with pytest.raises(RequestRejected, match="doesn't fit"):
                again()
        assert "400000 /a" == box.shell("wc -c /a").stdout_text.strip()


@pytest.mark.parametrize(("line", "why"), [
    ("head -c 8000000 /dev/zero | tr '\\0' x > /big", "to its root, of 1048576"),
    ("mkdir /h; { chmod 0 /h; head -c 8000000 /dev/zero | tr '\\0' x; } > /h/big", "to its root, of 1048576"),
    ("mkdir /n; cd /n; seq 20000 | xargs touch", "to its root, of 1048576"),
    (f"{HIDDEN}; head -c 8000000 /dev/zero | tr '\\0' x > big", "it can't be told what it has written")])
def test_who_writes_more_than_its_limit_is_ended(line: str, why: str, daemon: LiveDaemon, store: Images) -> None:
    """Control: another one goes on, and what the first had written is gone from the disk."""
    with opened(daemon, profile="small") as other, opened(daemon, profile="small") as box:
        other.shell("head -c 100000 /dev/zero > /mine; echo mine > /mine2")
        with pytest.raises(SandboxOver) as over:
            box.shell(f"{line}; sleep 1000")
        assert "files" == over.value.reason
        assert why in str(over.value)
        assert "mine\n" == other.shell("cat /mine2").stdout_text
        poll_until(lambda: not written(store, "h") and not written(store, "big"), GONE)
    poll_until(lambda: not written(store, "mine2"), GONE)


def test_what_a_daemon_that_was_killed_has_left_is_removed(store: Images, tmp_path_factory: pytest.TempPathFactory,
                                                           daemon: LiveDaemon) -> None:
    """By the next one, and nothing of another that lives."""
    config = CONFIG.format(store=store.folder)
    build: dict[str, dict[str, object]] = {"kit.images": {}}
    with opened(daemon) as box:
        box.shell(": > /lives")
        with egress.live(tmp_path_factory.mktemp("killed"), config, build=build) as killed:
            ended = opened(killed)
            ended.shell("mkdir -p /left/in && chmod 0 /left")
            assert written(store, "left")
            killed.process.kill()
            killed.process.wait()
            with pytest.raises(leeward.LeewardError), ended:
                ended.shell(":")
        with egress.live(tmp_path_factory.mktemp("next"), config, build=build) as after:
            with opened(after) as another:
                another.shell(":")
            poll_until(lambda: not written(store, "left"), GONE)
        assert written(store, "lives")
    assert os.listdir(Path(store.folder, "layers"))
