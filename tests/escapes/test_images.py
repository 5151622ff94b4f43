"""
Escapes by an image: its layers are a stranger's, and its root can be written as a whole.

What must hold: importing writes below the store and nowhere else, whatever a layer says; a sandbox reaches no file of
the host, and changes none of the image's; and its names and links mislead none of leeward's own steps.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import socket
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit import packages
from kit.box import control
from kit.images import file, folder, hard, imported, layer, link, oci, of_busybox
from kit.live_daemon import LiveDaemon
from leeward.apps.images.store import Images
from leeward.apps.images.streams import BadImage
from leeward.client.overlay import UpperLayer
from leeward.errors import RequestRejected

pytestmark = pytest.mark.needs("user-namespaces", "images", "usr-busybox")
BY_MOUNTS = pytest.mark.no_single_lock("the mounts, Landlock and no capability hold it together, in any one's place")
BY_IMPORT = pytest.mark.no_single_lock("the user's own process unpacks, and no lock of a job is about it")


#: A module that tells what capabilities its process has.
TRAP = b"""with open("/tmp/trap", "a") as file:
    file.writelines(line for line in open("/proc/self/status") if line.startswith("CapEff"))
"""


@pytest.fixture(scope="module")
def outside() -> Iterator[Path]:
    """A folder of the host with a file that no image may reach, and a store."""
    with tempfile.TemporaryDirectory(prefix="leeward-images-", dir=packages.outside_tmp()) as made:
        (Path(made) / "secret").write_text(secrets.token_hex(16))
        yield Path(made)


@pytest.fixture(scope="module")
def daemon(outside: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    """A daemon with an image whose names are hostile: those of leeward's own folders, and links to the host's."""
    store = Images(str(outside / "store"))
    imported(store, of_busybox(outside / "root"), "plain")
    base = io.BytesIO()
    with tarfile.open(mode="w", fileobj=base) as archive:
        archive.add(outside / "root", ".")
    there = str(outside)
    imported(store, oci(outside / "oci", [base.getvalue(), layer(
        folder("etc"), file("etc/.wh.resolv.conf"), link("etc/hosts", f"{there}/secret"), link("proc", there),
        link("sys", there), link("dev", there), link("workspace", there), link("out", there), link("tmp", "/.scratch"),
        folder(".layers"), folder(".scratch"), folder(".root"), file(".sealed", b"not leeward's"))]), "hostile")
    imported(store, oci(outside / "traps", [base.getvalue(), layer(
        folder("tmp", mode=0o1777), *(file(f"{place}/{name}.py", TRAP) for place in sys.path if place.startswith("/usr/")
                                      for name in sorted(sys.stdlib_module_names)))]), "traps")
    config = outside / "config.toml"
    config.write_text(f'pool_size = 1\nimages_folder = "{store.folder}"\n[profiles.owned]\nowners = true\n')
    config.chmod(0o600)
    with LiveDaemon(tmp_path_factory.mktemp("daemon"), "--config", str(config)) as made:
        yield made


def state(folder: Path) -> list[tuple[str, int, int, int, bytes]]:
    """All that is in a folder, with what can be changed of it."""
    rows = []
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        rows.append((str(path), about.st_mode, about.st_nlink, about.st_mtime_ns,
                     path.read_bytes() if path.is_file() and not path.is_symlink() else b""))
    return rows


@pytest.mark.smoke
@BY_MOUNTS
@pytest.mark.parametrize("image", ["plain", "hostile"])
def test_c560_cannot_reach_the_host_from_an_image(image: str, daemon: LiveDaemon, outside: Path) -> None:
    """By names, links, `..`, the folders in which the root was built, and the processes that built it."""
    secret = (outside / "secret").read_text()
    with control():
        assert secret == Path(f"/proc/self/root{outside}/secret").read_text()
    with leeward.Sandbox(image=image, socket=daemon.socket) as box:
        for path in (f"{outside}/secret", f"/proc/self/root{outside}/secret", f"/proc/1/root{outside}/secret",
                     f"/proc/self/cwd/../../..{outside}/secret", "/out/secret", f"/.root{outside}/secret",
                     f"/.host{outside}/secret", f"/.scratch/../..{outside}/secret", "/etc/hosts", "/tmp/secret"):
            got = box.run(["cat", path])
            assert secret.encode() not in got.stdout + got.stderr, path
        found = box.shell(f"find / -xdev -type f -exec grep -l {secret} {{}} + 2>/dev/null; cat /.layers/* /.root/*")
        assert secret not in found.stdout_text


@pytest.mark.smoke
@BY_MOUNTS
def test_c561_cannot_change_an_image(daemon: LiveDaemon, outside: Path) -> None:
    """By writing, removing, renaming, modes, hard links, attributes of the overlay's, or a mount."""
    layers = outside / "store" / "layers"
    with control():  # nothing but the sandbox prevents it
        assert os.access(layers, os.W_OK)
    before = state(layers)
    with leeward.Sandbox(image="plain", socket=daemon.socket) as box:
        box.shell("""
            echo x > /etc/passwd; rm -rf /usr /home; mv /srv /srv2; chmod 777 /root; ln /bin/busybox /b && echo x > /b
            touch /root/new; chmod 000 /bin; mknod /etc/group c 0 0; truncate -s 0 /bin/busybox
            setfattr -n user.overlay.opaque -v y /etc; setfattr -n trusted.overlay.opaque -v y /etc
            mount -o remount,rw /; mount --bind /dev /srv2; umount -l /""")
    assert before == state(layers)


@BY_MOUNTS
def test_c562_cannot_mislead_leewards_own_files(daemon: LiveDaemon, outside: Path) -> None:
    """Links by the names of /proc, /dev, /sys and of the files that leeward writes into /etc."""
    with control():
        (outside / "link").symlink_to(outside / "secret")
        assert (outside / "link").read_text() == (outside / "secret").read_text()
        (outside / "link").unlink()
    before = state(outside)
    with leeward.Sandbox(image="hostile", socket=daemon.socket) as box:
        got = box.shell("test -L /proc || test -L /dev || test -L /sys || test -L /tmp || test -L /etc/hosts || echo none;"
                        " grep -c localhost /etc/hosts; echo > /dev/null && cat /proc/self/comm; echo x > /dev/new")
    assert ["none", "2", "cat"] == got.stdout_text.split()
    assert before == state(outside)


@pytest.mark.smoke
@BY_IMPORT
def test_c563_cannot_leave_the_store_by_a_layer(outside: Path, tmp_path: Path) -> None:
    """By `..`, absolute names, links and hard links, and links that take a folder's place."""
    there = str(outside)
    attacks = ([file("../../../../new")], [file(f"{there}/new")], [link("a", there), file("a/new")],
               [hard("a", f"{there}/secret"), file("a", b"changed")], [link("a", f"{there}/secret"), file("a", b"changed")],
               [folder("a"), file("a/b"), link("a", there), file("a/new")], [link("a", there), file("a/.wh.secret")])
    with control(), tarfile.open(fileobj=io.BytesIO(layer(link("a", str(tmp_path)), file("a/new", b"x")))) as archive:
        archive.extraction_filter = lambda member, _: member  # Python before 3.11.4 has no filter
        archive.extractall(tmp_path / "root")
        assert (tmp_path / "new").exists()
    store, before = Images(str(tmp_path / "store")), [each for each in state(outside) if "/store/" not in each[0]]
    for number, rows in enumerate(attacks):
        source = oci(tmp_path / f"oci{number}", [layer(*rows)])
        try:
            imported(store, source, f"attack{number}")
        except BadImage:
            continue
    assert before == [each for each in state(outside) if "/store/" not in each[0]]


@BY_MOUNTS
def test_c564_cannot_gain_by_what_root_is_answered(daemon: LiveDaemon, outside: Path) -> None:
    """By set-id programs, devices, other ids and owners, and by the limits in which leeward keeps such ids."""
    (outside / "set").write_text("")
    (outside / "set").chmod(0o4755)
    with control():  # the user may set the bits of a file of the host
        assert 0o4755 == (outside / "set").stat().st_mode & 0o7777
    before = state(outside)
    with leeward.Sandbox(image="plain", socket=daemon.socket) as box:
        as_another = "start-stop-daemon -S -c web -x /busybox2 -- sh -c"
        got = box.shell(f"""
            cp /bin/busybox /busybox2 && chmod 6755 /busybox2 /bin/busybox && chown web:web /busybox2 /bin/busybox
            mknod /disk b 8 0; cat /disk
            {as_another} 'grep -E "^(Uid|Gid|CapEff|NoNewPrivs)" /proc/self/status; mount -t tmpfs x /srv; chroot / id'
            ulimit -m 17; ulimit -m 4611686018427387; mount --bind /bin /srv; mknod /w c 0 0; ls /w""")
    assert ["Uid:\t0\t0\t0\t0", "Gid:\t0\t0\t0\t0", "CapEff:\t0000000000000000",
            "NoNewPrivs:\t1"] == got.stdout_text.splitlines()
    assert 5 == len([line for line in got.stderr_text.splitlines() if "limit" not in line]), got.stderr_text
    assert before == state(outside)


@BY_MOUNTS
def test_c566_cannot_reach_what_an_image_lies_on(daemon: LiveDaemon) -> None:
    """The folder of its changes, which only the daemon's porter finds, below the one that covers it."""
    with leeward.Sandbox(image="plain", socket=daemon.socket) as box:
        with control():  # it is there
            assert {b"etc", b"tmp"} <= {row.path for row in UpperLayer(box, "/").rows()}
        got = box.shell("""
            touch /dev/shm/mine
            for each in "umount /dev/shm" "umount -l /dev/shm" "mount -o move /dev/shm /srv" "mount --bind /dev/shm/.. /srv" \
                        "unshare -m umount /dev/shm" "unshare -rm umount -l /dev/shm" "nsenter -m -t 1 umount /dev/shm"; do
                $each 2>/dev/null && echo "$each"; done
            ls -A /dev/shm /srv; ls -d /dev/shm/../upper /proc/self/cwd/upper /.scratch 2>/dev/null""")
        assert ["/dev/shm:", "mine", "/srv:"] == got.stdout_text.split()
        with pytest.raises(RequestRejected):
            UpperLayer(box, "/").fetch("overlay_read", {"path": b"../0/mine"})


@BY_MOUNTS
def test_c567_cannot_run_code_in_a_process_of_leewards_by_modules(daemon: LiveDaemon, tmp_path: Path) -> None:
    """Where the host's Python has its modules, the image has others: none is imported by a process with a capability."""
    (tmp_path / "json.py").write_bytes(TRAP.replace(b"/tmp/trap", os.fsencode(tmp_path / "told")))
    with control():
        subprocess.run([sys.executable, "-c", "import json"], env={"PYTHONPATH": str(tmp_path)}, check=True)
        assert "CapEff" in (tmp_path / "told").read_text()
    with leeward.Sandbox(image="traps", socket=daemon.socket) as box:
        box.files.write("/srv/file", b"content")
        box.files.grep("nothing", path="/srv")
        upper = UpperLayer(box, "/")
        assert b"srv/file" in {row.path for row in upper.rows()}
        assert b"content" == bytes(upper.fetch("overlay_read", {"path": b"srv/file", "offset": 0}))
        with (box.publish(9) as published, contextlib.suppress(OSError),
              socket.create_connection(("127.0.0.1", published.port)) as connection):
            connection.recv(1)
        told = box.shell("cat /tmp/trap 2>/dev/null").stdout_text
        assert {"CapEff:\t0000000000000000"} >= {*told.splitlines()}


@BY_MOUNTS
def test_c568_cannot_leave_a_set_id_program_on_the_host(daemon: LiveDaemon, tmp_path: Path) -> None:
    """As root of an image, whose filter lets it set such bits, or as another user of it, in folders of the host."""
    shown = tmp_path / "shown"
    shown.mkdir()
    with control():
        (shown / "set").write_bytes(b"")
        (shown / "set").chmod(0o6755)
        assert 0o6755 == stat.S_IMODE((shown / "set").stat().st_mode)
        (shown / "set").chmod(0o755)
    line = ("cp /bin/busybox /workspace/new; chmod 6755 /workspace/new /workspace/set;"
            " install -m 4755 /bin/busybox /workspace/more")
    with (pytest.raises(RequestRejected, match="as root in an image"),
          leeward.Sandbox(image="plain", workdir=shown, socket=daemon.socket) as box):
        assert box.id
    for options in ({"workdir": shown, "user": "web"}, {"mounts": [leeward.Mount(shown, "/workspace")]},
                    {"workdir": shown, "overlay": True}):
        with leeward.Sandbox(image="plain", socket=daemon.socket, **options) as box:  # type: ignore[arg-type]
            box.shell(line)
            if "overlay" in options:
                assert {"new", "set"} & {change.path for change in box.apply()}
    assert [] == [path for path in shown.iterdir() if path.stat().st_mode & 0o6000]


@BY_MOUNTS
def test_c569_cannot_lead_a_mount_elsewhere(daemon: LiveDaemon, outside: Path, tmp_path: Path) -> None:
    """By links of an image on the way to a folder's target: into the folder itself, by the process that mounts it, too."""
    imported(Images(str(outside / "store")), oci(tmp_path / "oci", [layer(
        link("data", "/proc/self/fd"), link("work", "/proc/self/root"), link("up", str(outside)), file("file"))]), "links")
    shown = tmp_path / "shown"
    shown.mkdir()
    before = state(outside)
    with control():
        (tmp_path / "link").symlink_to(shown)
        (tmp_path / "link/new").mkdir()
        assert (shown / "new").is_dir()
        (shown / "new").rmdir()
    for target in ("/data/7", "/data/7/new", "/work", "/work/new", "/up/new", "/file", "/file/new"):
        with (pytest.raises(leeward.LeewardError, match="a link or a file of the image"),
              leeward.Sandbox(image="links", mounts=[leeward.Mount(shown, target)], socket=daemon.socket) as box):
            assert box.id
    with leeward.Sandbox(image="plain", mounts=[leeward.Mount(shown, "/data/it")], socket=daemon.socket) as box:
        box.shell("mv /data /other; ln -s /proc/self/root /data")
        box.checkpoint("linked", "/")
        assert 0 == box.shell("rm /data && mv /other /data").exit_code
        with pytest.raises(leeward.LeewardError, match="a link or a file of the image"):
            box.restore("linked", "/")
        assert "it" == box.shell("ls /data").stdout_text.strip()  # nothing has happened
    assert [] == list(shown.iterdir())
    assert before == state(outside)


@BY_MOUNTS
def test_c570_cannot_lead_an_agents_home_elsewhere(daemon: LiveDaemon, outside: Path, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """By links of an image on the way to the home, or in place of the files of users, to which a line is added."""
    root = io.BytesIO()
    with tarfile.open(mode="w", fileobj=root) as archive:
        archive.add(outside / "root", ".")
    imported(Images(str(outside / "store")), oci(tmp_path / "oci", [root.getvalue(), layer(
        link("up", str(outside)), link("data", "/proc/self/fd"), file("file"), link("etc/passwd", f"{outside}/secret"),
        ("etc/group", tarfile.FIFOTYPE, {"mode": 0o666}))]), "homes")
    with control():
        (tmp_path / "link").symlink_to(outside / "secret")
        assert os.access(tmp_path / "link", os.W_OK)
    before = state(outside)

    def opened(home: str, image: str = "homes") -> leeward.Sandbox:
        monkeypatch.setenv("HOME", home)
        return leeward.Sandbox(profile="agent", image=image, socket=daemon.socket)

    for home in ("/up/home", "/data/7", "/data/7/home", "/file", "/file/home"):
        with pytest.raises(leeward.LeewardError, match="a link or a file of the image"), opened(home) as box:
            assert box.id
    with opened("/home/me") as box:
        assert "1000\n/home/me\n0\n" == box.shell("id -u; cd; pwd; ls -A | wc -l").stdout_text
    assert before == state(outside)

    # Root by a number for a name; and files too long for a line, which an opening for writing would copy.
    imported(Images(str(outside / "store")), oci(tmp_path / "numbers", [root.getvalue(), layer(
        *(file(name, line.ljust(1 << 21, b"#")) for name, line in (
            ("etc/passwd", b"1000:x:0:0::/root:/bin/sh\n"), ("etc/group", b"1000:x:0:\n"))))]), "numbers")
    with opened("/home/me", "numbers") as box:
        assert "1000\n1000\n" == box.shell("id -u; id -g").stdout_text
        assert not {b"etc/passwd", b"etc/group"} & {row.path for row in UpperLayer(box, "/").rows()}


@BY_MOUNTS
def test_c572_cannot_use_owners_that_are_told(daemon: LiveDaemon, outside: Path) -> None:
    """In another sandbox of the same layers, by names that are swapped meanwhile, of files of the host, by set-id bits."""
    secret = (outside / "secret").stat()
    before = state(outside)
    with (leeward.Sandbox(image="plain", profile="owned", socket=daemon.socket) as box,
          leeward.Sandbox(image="plain", profile="owned", socket=daemon.socket) as other):
        with control():  # it is told where it was given
            assert "33\n" == box.shell("chown 33 /etc/passwd /usr /bin/busybox; stat -c %u /etc/passwd").stdout_text
        assert "0 0 0\n" == other.shell("echo $(stat -c %u /etc/passwd /usr /bin/busybox)").stdout_text
        told = box.shell(f"""
            mkdir -p /w/in{outside} /w/to; : > /w/in{outside}/secret; ln -s / /w/link; ln -s /proc/1/root /w/up
            mv /w/in /w/at; cd /w
            while :; do mv at in && mv link at && mv at link && mv up at && mv at up && mv in at; done 2>/dev/null & swaps=$!
            for i in $(seq 300); do chown 33:33 /w/at{outside}/secret; stat -c '%d:%i %u' /w/at{outside}/secret; done
            kill $swaps; wait; echo known; find / -xdev -exec stat -c '%d:%i' {{}} +""")
        raced, _, known = told.stdout_text.partition("known\n")
        seen = {line.split()[0] for line in raced.splitlines()}
        assert seen
        assert seen <= {*known.split()}
        assert f"{secret.st_dev}:{secret.st_ino}" not in seen
        got = box.shell("cp /bin/busybox /busybox2; chown 33:33 /busybox2; chmod 6755 /busybox2; stat -c '%a %u' /busybox2;"
                        " /busybox2 grep -E '^(Uid|CapEff)' /proc/self/status")
        assert ["6755 33", "Uid:\t0\t0\t0\t0", "CapEff:\t0000000000000000"] == got.stdout_text.splitlines()
    assert before == state(outside)
