"""
Mounts: a job sees the new root alone, moves no mount and makes none. Catalogue cases 14 to 18.

The mounts of a job, line by line: tests/integration/test_mounts.py.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import leeward
from kit import packages
from kit.attack import in_image, within, without
from kit.box import Box, control
from kit.features import is_met
from kit.images import imported, of_debian
from kit.live_daemon import LiveDaemon
from leeward.apps.images.store import Images

Only = Callable[..., Box]


OLD_ROOT = """
found = [place for place in ("/oldroot", "/.old", "/.oldroot", "/old_root", "/put_old", "/mnt", "/oldrootfs", "/host",
                             "/.pivot_root", "/tmp/old") if os.path.lexists(place)]
held = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in range(256) if os.path.lexists(f"/proc/self/fd/{fd}")}
up = []
for fd in [None, *map(int, held)]:
    for ups in range(12):
        try:
            with open(os.open("../" * ups + path.lstrip("/"), os.O_RDONLY, dir_fd=fd)) as file:
                up.append(file.read())
        except OSError:
            pass
os.chdir("/")
for ups in range(12):
    try:
        up.append(open("../" * ups + path.lstrip("/")).read())
    except OSError:
        pass
tell({"found": found, "held": list(held.values()), "up": up})
"""


@pytest.mark.smoke
@pytest.mark.lock("mounts", beside=("descriptors",), because="with one from before there is a way back")
def test_c014_cannot_find_the_old_root(box: Box, only: Only, secret: tuple[Path, str]) -> None:
    """No folder holds it, no mount is left of it, and no descriptor is from before."""
    path, text = secret
    with control():
        assert text in without(OLD_ROOT, path=str(path))["up"]
        assert text in within(only(), OLD_ROOT, path=str(path))["up"]

    got = within(box, OLD_ROOT, path=str(path))

    assert {"found": [], "up": []} == {name: got[name] for name in ("found", "up")}
    assert all(name == "/dev/null" or name.startswith("pipe:") for name in got["held"])
    got = within(only("mounts", "descriptors"), OLD_ROOT, path=str(path))
    assert {"found": [], "up": []} == {name: got[name] for name in ("found", "up")}


CHROOT = """
nested = call("unshare", 0x10000000)
os.makedirs("/tmp/jail", exist_ok=True)
fd = os.open("/tmp", os.O_RDONLY)
said = attempt(os.chroot, "/tmp/jail")
os.fchdir(fd)
for _ in range(64):
    os.chdir("..")
again = attempt(os.chroot, ".")
try:
    read = open(path).read()
except OSError as error:
    read = errno.errorcode[error.errno]
sys.stdout.flush()
os.write(1, json.dumps({"nested": nested, "said": said, "again": again, "read": read}).encode())
os._exit(0)
"""


@pytest.mark.lock("mounts")
@pytest.mark.lock("seccomp")
def test_c015_cannot_climb_out_of_a_chroot(box: Box, only: Only, secret: tuple[Path, str]) -> None:
    """chroot is refused; with CAP_SYS_CHROOT in a user namespace of its own the climb ends at its own root."""
    path, text = secret
    with control():
        assert {"nested": "", "said": "", "again": "", "read": text} == within(only(), CHROOT, path=str(path))

    got = within(box, CHROOT, path=str(path))
    assert {"nested": "EACCES", "said": "EACCES", "again": "EACCES", "read": "ENOENT"} == got

    got = within(only("mounts"), CHROOT, path=str(path))
    assert {"nested": "", "said": "", "again": "", "read": "ENOENT"} == got
    got = within(only("seccomp"), CHROOT, path=str(path))  # the host's root is its own: it reads, and climbs nowhere
    assert {"nested": "EACCES", "said": "EACCES", "again": "EACCES", "read": text} == got


UNMOUNT = """
if nest:
    assert "" == call("unshare", 0x10020000)
targets = [line.split()[4] for line in open("/proc/self/mountinfo")][::-1]
said = [call("umount2", target.encode() + bytes(1), flags) for target in targets for flags in (2, 0, 1, 8)]
try:
    read = open(path).read()
except OSError as error:
    read = errno.errorcode[error.errno]
try:
    pids = [name for name in os.listdir("/proc") if name.isdigit()]
except OSError:
    pids = []
os.write(1, json.dumps({"said": said, "read": read, "pids": len(pids)}).encode())
os._exit(0)
"""


@pytest.mark.lock("seccomp", beside=("mounts",), because="else there are the host's mounts alone, which are locked")
def test_c016_cannot_unmount_the_covers_of_the_host(box: Box, only: Only, secret: tuple[Path, str]) -> None:
    """Refused; without the filter, in a user namespace that it makes, every mount is locked."""
    path, _ = secret
    # Control: with the keeper's capabilities the job's own mounts go. What comes to light is the
    # template's /proc, of a pid namespace in which nobody lives.
    with control():
        loose = within(only("mounts"), UNMOUNT, path=str(path), nest=False)
        assert "" in loose["said"]
        assert ("ENOENT", 0) == (loose["read"], loose["pids"])

    for sandbox in (box, only("seccomp", "mounts")):
        got = within(sandbox, UNMOUNT, path=str(path), nest=False)
        assert {"EACCES"} == set(got["said"])
        assert "ENOENT" == got["read"]

    got = within(only("mounts"), UNMOUNT, path=str(path), nest=True)
    assert {"EINVAL"} == set(got["said"])
    assert "ENOENT" == got["read"]


#: By call: how it is made. `fs`, `tree` are descriptors where the calls before it worked, -1 else.
MOUNT_CALLS = {
    "fsopen": 'call("fsopen", b"tmpfs", 0)',
    "fsconfig": 'call("fsconfig", fs, 6, 0, 0, 0)',
    "fsmount": '(value("fsconfig", fs, 6, 0, 0, 0), call("fsmount", fs, 0, 0))[1]',
    "fspick": 'call("fspick", AT_FDCWD, b"/tmp", 0)',
    "open_tree": 'call("open_tree", AT_FDCWD, b"/usr", 1)',
    "move_mount": 'call("move_mount", tree, b"", AT_FDCWD, b"/tmp", 4)',
    "mount_setattr": 'call("mount_setattr", AT_FDCWD, b"/usr", 0, attributes, 32)',
    "open_tree_attr": 'call("open_tree_attr", AT_FDCWD, b"/usr", 1, attributes, 32)',
    "statmount": 'call("statmount", request, buffer, 4096, 0)',
    "listmount": 'call("listmount", request, buffer, 100, 0)',
}
SINCE = {"open_tree_attr": "6.15", "statmount": "6.8", "listmount": "6.8", "mount_setattr": "5.12"}

MOUNT_PRELUDE = """
AT_FDCWD = -100
fs = value("fsopen", b"tmpfs", 0)
tree = value("open_tree", AT_FDCWD, b"/usr", 1)
attributes = (ctypes.c_uint64 * 4)(0, 1, 0, 0)  # clears read-only
buffer = ctypes.create_string_buffer(4096)
request = (ctypes.c_uint64 * 3)(24, (1 << 64) - 1, 0)  # LSMT_ROOT
if call_name == "statmount" and value("listmount", request, buffer, 100, 0) > 0:
    request = (ctypes.c_uint64 * 3)(24, ctypes.c_uint64.from_buffer(buffer).value, 1)
"""


@pytest.mark.needs("unfiltered")
@pytest.mark.lock("seccomp", beside=("mounts",), because="they would fail on the host's mounts in any case")
@pytest.mark.parametrize("name", MOUNT_CALLS)
def test_c017_cannot_use_the_new_mount_calls(box: Box, only: Only, name: str) -> None:
    """Each is refused, with /usr as read-only as before."""
    attack = MOUNT_PRELUDE + f"""
said = {MOUNT_CALLS[name]}
tell({{"said": said, "usr": os.statvfs("/usr").f_flag & os.ST_RDONLY}})
"""
    with control():  # with the keeper's capabilities
        said = within(only("mounts"), attack, call_name=name)["said"]
        assert "" == said or not is_met(f"kernel>={SINCE.get(name, '5.2')}")

    for sandbox in (box, only("seccomp", "mounts")):
        assert {"said": "EACCES", "usr": os.ST_RDONLY} == within(sandbox, attack, call_name=name)


MOUNT = """
if nest:
    assert "" == call("unshare", 0x10020000)
text = ctypes.create_string_buffer
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_MOVE = 1, 2, 4, 8, 32, 4096, 16384, 8192
def mount(source, target, kind, flags):
    return call("mount", source, target, kind, flags, 0)
said = {"remount": mount(0, b"/usr", 0, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV),
        "remount root": mount(0, b"/", 0, MS_REMOUNT | MS_BIND), "move": mount(b"/usr", b"/tmp", 0, MS_MOVE)}
usr, root = (os.statvfs(path).f_flag & os.ST_RDONLY for path in ("/usr", "/"))
said |= {"proc": mount(b"proc", b"/tmp", b"proc", 0), "sysfs": mount(b"sysfs", b"/tmp", b"sysfs", 0),
        "devpts": mount(b"devpts", b"/tmp", b"devpts", 0), "cgroup2": mount(b"x", b"/tmp", b"cgroup2", 0),
        "overlay": mount(b"x", b"/tmp", b"overlay", 0),
        "over proc": mount(b"/tmp", b"/proc", 0, MS_BIND), "over usr": mount(b"/tmp", b"/usr", 0, MS_BIND),
        "tmpfs": mount(b"tmpfs", b"/tmp", b"tmpfs", 0),
        "device": mount(b"/dev/vda", b"/tmp", b"ext4", 0)}
os.write(1, json.dumps({"said": said, "usr": usr, "root": root}).encode())
os._exit(0)
"""


@pytest.mark.smoke
@pytest.mark.needs("unfiltered")
@pytest.mark.lock("seccomp", beside=("mounts",), because="read-only and the like are said of its own mounts")
@pytest.mark.lock("privileges", beside=("mounts",), because="read-only and the like are said of its own mounts")
@pytest.mark.lock("landlock", beside=("mounts",), because="read-only and the like are said of its own mounts")
def test_c018_cannot_mount(box: Box, only: Only) -> None:
    """No filesystem, no bind, no remount; what is read-only stays so."""
    with control():
        loose = within(only("mounts"), MOUNT, nest=False)
        assert "" == loose["said"]["tmpfs"] == loose["said"]["over proc"] == loose["said"]["remount"]
        assert 0 == loose["usr"]

    for sandbox in (box, only("seccomp", "mounts")):
        got = within(sandbox, MOUNT, nest=False)
        assert {"EACCES"} == set(got["said"].values())
        assert 1 == got["usr"] == got["root"]

    got = within(only("mounts", "privileges"), MOUNT, nest=False)  # no filter: no capability either
    assert {"EPERM"} == set(got["said"].values())
    assert 1 == got["usr"] == got["root"]

    # In a user namespace of its own it may cover things for itself; it can't open a mount up.
    got = within(only("mounts"), MOUNT, nest=True)
    assert "" not in {got["said"][name] for name in ("remount", "remount root", "proc", "device", "move")}
    assert 1 == got["usr"] == got["root"]
    # And Landlock leaves it nothing at all, with the keeper's capabilities neither.
    for nest in (False, True):
        got = within(only("mounts", "landlock"), MOUNT, nest=nest)
        assert "" not in got["said"].values()
        assert 1 == got["usr"] == got["root"]


@pytest.mark.needs("images", "debian", "unfiltered", "user-namespaces")
@pytest.mark.no_single_lock("the mounts, Landlock and no capability hold an image's root together, in any one's place")
def test_c571_cannot_do_any_of_this_as_root_in_an_image(secret: tuple[Path, str], tmp_path: Path) -> None:
    """The same attacks on an image's root, which may be written to, by the image's own Python."""
    path, text = secret
    with control():
        assert text in without(OLD_ROOT, path=str(path))["up"]
    with tempfile.TemporaryDirectory(prefix="leeward-images-", dir=packages.outside_tmp()) as outside:
        store = Images(f"{outside}/store")
        imported(store, of_debian(Path(outside, "root"), "python3", without=("libperl", "perl")), "image")
        config = tmp_path / "config.toml"
        config.write_text(f'images_folder = "{store.folder}"\n')
        config.chmod(0o600)
        with (LiveDaemon(tmp_path, "--config", str(config)) as daemon,
              leeward.Sandbox(image="image", socket=str(daemon.socket)) as box):
            got = in_image(box, OLD_ROOT, path=str(path))
            assert ([], []) == (got["found"], got["up"])
            assert all(name == "/dev/null" or name.startswith(("pipe:", "/memfd:", "/proc/")) for name in got["held"])
            assert {"nested": "EACCES", "said": "EACCES", "again": "EACCES", "read": "ENOENT"} == in_image(
                box, CHROOT, path=str(path))
            got = in_image(box, UNMOUNT, path=str(path), nest=False)
            assert ({"EACCES"}, "ENOENT") == (set(got["said"]), got["read"])
            for name, line in MOUNT_CALLS.items():
                assert {"said": "EACCES"} == in_image(box, f"{MOUNT_PRELUDE}tell({{'said': {line}}})\n", call_name=name)
            assert {"EACCES"} == set(in_image(box, MOUNT, nest=False)["said"].values())
