"""
A porter: mounts, compares, reads, keeps and restores the folders of a live sandbox, and connects to its servers.

Runs in:   a copy of the keeper, in the namespaces of one sandbox, for one order; it never sees a client's code.
Holds:     the keeper's capabilities in its user namespace when it mounts; for other orders it keeps only the one to
           read files whatever their mode is.
Trust:     the daemon's order. None in the files: paths are opened only beneath a folder, and only regular files are
           read. Mounts are made before the first process of a client is in the sandbox.
Source:    move_mount(2), pivot_root(2), landlock(7), openat2(2), the kernel's overlayfs document

An order and its answer are one datagram of MessagePack each, on the channel that is a runner's birth channel.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
from typing import Any, NoReturn

import msgpack

from leeward._native import landlock as rights
from leeward._native import mounts as native
from leeward._native.keeper_loop import Born, Way
from leeward._native.mounts import MountAttr
from leeward._native.steps import Block, Call, Cell, Table, returns
from leeward.base.dataclass import dataclass
from leeward.crossing import birth, home_folder, image_root, layers, overlay_states, scratch_copies, veil, walk
from leeward.crossing.scratch_copies import Top
from leeward.errors import LeewardError
from leeward.isolation import descriptors, landlock, mounts
from leeward.isolation.plan import WorkerPlan
from leeward.spec.folders import within
from leeward.spec.sandbox import Root

#: The porter's channel and the sandbox's ruleset: behind null, stdout, stderr, job and reply, as in an interpreter.
CHANNEL, RULESET = birth.BIRTH, birth.BIRTH + 1

_MOST = 1 << 16
_FDS = 96
_RULES = Cell("ruleset")
#: What every folder of the host is mounted with.
_SHOWN = MountAttr.NOSUID | MountAttr.NODEV
#: The folder in which the new root is built; mounts on it are moved before.
_STAGE = "/tmp"
_LOOK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: CAP_DAC_READ_SEARCH; with it CAP_DAC_OVERRIDE and CAP_FOWNER, to copy and remove files whatever their mode is; and
#: with these CAP_SYS_ADMIN, to mount; and CAP_SYS_CHROOT, to come back from a mount namespace.
_READ_SEARCH, _FILES, _MOUNTS, _ROOTS = 1 << 2, 0b1110, 0b1110 | 1 << 21, 0b1110 | 1 << 21 | 1 << 18


@dataclass(frozen=True, slots=True)
class Carried:
    handled: int  # rights on files that the sandbox's ruleset denies unless a rule allows them; 0 without Landlock
    folders: tuple[str, ...]  # of the scratch file system; the first one lies over its root
    steps: int  # the number of a porter's steps
    root: Root | None  # an image's


def carried(plan: WorkerPlan) -> Carried:
    return Carried(plan.landlock.fs, plan.view.scratch.targets, len(way(plan).table.steps), plan.view.root)


def way(plan: WorkerPlan) -> Way:
    """The steps of a porter: its only lock closes all descriptors except its own."""
    job, reply, out, err, channel = birth.ENDS
    rules = [_RULES] if plan.landlock.abi else []
    steps = descriptors.steps([None, out, err, job, reply, channel, *rules], birth.INHERITED)
    return Way(Table(steps), [job, reply, out, err, channel, *rules])


def main(carried: Carried, born: Born) -> NoReturn:
    """Carry out the order. Never returns."""
    if born.join_error or born.affinity_error or born.done < carried.steps:
        os._exit(1)  # the descriptors aren't as they should be; the daemon sees the end of the channel
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=CHANNEL)
    sys.path.clear()  # where the host's modules were are an image's now, and capabilities are here
    os.chdir("/")
    try:
        data, fds, _, _ = socket.recv_fds(channel, _MOST, _FDS)
        order = msgpack.unpackb(data)
        given: list[int] = []
        try:
            answer = _ORDERS[order["order"]](carried, order, fds, given)
        except (LeewardError, OSError) as error:
            answer, given = {"error": str(error), "errno": getattr(error, "errno", 0) or 0}, []
        socket.send_fds(channel, [msgpack.packb(answer)], given)
    except BaseException as error:  # the last frame of this process; the daemon sees the end of the channel
        os.write(2, f"leeward porter: {type(error).__name__}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(0)


def _mount(carried: Carried, order: dict[str, Any], fds: list[int], given: list[int]) -> dict[str, Any]:
    """Mount the trees *fds* on their targets, and allow them in the ruleset."""
    rows: list[dict[str, Any]] = order["mounts"]
    own: dict[str, Any] | None = order["home"]
    has_home = own is not None and bool(own["path"])
    tops: home_folder.Tops = {row["target"]: None if row["overlay"] else _identity(tree)
                              for row, tree in zip(rows, fds, strict=True)}
    trees = iter(layers.scratch_trees(carried.folders[0], sum(row["overlay"] for row in rows) + has_home))
    home = own["path"] if own is not None and has_home else ""
    deep = [row for row in rows if row["deep"] and not (home and within(row["target"], home))]
    if own is not None and own["deep"]:
        deep.insert(0, {"target": home, "file": False})
    if deep:
        _new_root(deep, carried.handled)
    if own is not None and has_home:
        inner = {row["target"]: row["file"] for row in rows if row["target"] != home and within(row["target"], home)}
        inner = {target: is_file for target, is_file in inner.items()
                 if not any(target.startswith(f"{other}/") for other in inner)}  # a part of another has its place there
        kept = next((tree for row, tree in zip(rows, fds, strict=True) if row["target"] == home), -1)
        if carried.root is not None:
            image_root.make(home, file=False)
        made = home_folder.AgentHome(next(trees), home, inner, kept, in_image=carried.root is not None)
        _allow(home, int(landlock.SCRATCH) & carried.handled)
        made.put(own["texts"])
    for number, (row, tree) in enumerate(zip(rows, fds, strict=True)):
        target: str = row["target"]
        if target == home:
            continue
        if carried.root is not None:
            image_root.make(target, file=row["file"])
        elif not home or target not in inner:
            _make(target.lstrip("/"), file=row["file"])
        if any(target.startswith(f"{other['target']}/") for other in rows) and os.path.realpath(target) != target:
            raise LeewardError(f"{target!r:.200} is, or lies behind, a link of the folder that it is a part of")
        if row["overlay"]:
            layers.lay(scratch := next(trees), tree, number, target)
            given.append(scratch)
        else:
            native.attach(tree, target, _SHOWN if row["writable"] else _SHOWN | MountAttr.RDONLY)
        access = landlock.SCRATCH if row["writable"] or row["overlay"] else landlock.READ_ONLY
        _allow(target, int(access & landlock.FILE_ACCESS if row["file"] else access) & carried.handled)
    if own is not None:
        if has_home:
            made.check()
        home_folder.guard(own["protect"], own["pin"], tops)
        if has_home:
            home_folder.hide_all(made.scratch, own["hide"], tops)
            given.append(made.scratch)
    if order["cwd"] and not os.access(order["cwd"], os.R_OK | os.X_OK):
        raise LeewardError(f"{order['cwd']!r:.200} is a folder that root alone reads, and can't be shown: it is in /etc,"
                           " /boot or another user's, or its file system doesn't take id maps (the root of most"
                           " containers, Linux before 5.12). Start in a folder that everybody reads")
    if order["hides"] is not None:
        for folder in veil.hide(order["hides"]):
            _allow(folder, int(landlock.READ_ONLY) & carried.handled)
    return {"ok": True}


def _identity(fd: int) -> tuple[int, int]:
    about = os.fstat(fd)
    return about.st_dev, about.st_ino


def _allow(path: str, access: int) -> None:
    if access:
        table = Table(rights.path_steps(_RULES, path, access))
        table.address(_RULES)[0] = RULESET
        table.run()


def _make(path: str, *, file: bool) -> None:
    """Make the mount point *path* below the root, if it is missing. Links are the view's: no client was here."""
    folder = path if not file else os.path.dirname(path)
    if folder and not os.path.isdir(folder):
        os.makedirs(folder, 0o755)
    if file and not os.path.lexists(path):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o444))


def _new_root(rows: list[dict[str, Any]], handled: int) -> None:
    """Give the sandbox a root of its own with the targets of *rows*: all runners of a keeper share one root."""
    taken: list[tuple[str, int, str]] = []  # a path, and a mount for it or a link's text; with neither, a folder
    _take_along("", [row["target"] for row in rows], taken)
    fd = native.filesystem("tmpfs", {"size": "1m", "nr_inodes": "512", "mode": "0755"},
                           MountAttr.NOSUID | MountAttr.NODEV)
    native.move_mount(fd, _STAGE)
    os.close(fd)
    os.chdir(_STAGE)
    for path, mount, link in taken:
        if link:
            os.symlink(link, path)
        elif mount < 0:
            os.mkdir(path, 0o755)
        else:
            _make(path, file=not stat.S_ISDIR(os.fstat(mount).st_mode))
            native.move_mount(mount, path)
            os.close(mount)
    for row in rows:
        _make(row["target"].lstrip("/"), file=row["file"])
    Table([returns(Call.PIVOT_ROOT, ".", "."), native.unmount_step("."), returns(Call.CHDIR, "/"),
           native.remount_step("/", MountAttr.RDONLY | MountAttr.NOSUID | MountAttr.NODEV)]).run()
    _allow("/", int(landlock.LISTED) & handled)


def _take_along(folder: str, targets: list[str], rows: list[tuple[str, int, str]]) -> None:
    """Collect everything in *folder* that has to be in the new root."""
    for name in sorted(os.listdir(folder or "/")):
        path = f"{folder}/{name}"
        below = [target for target in targets if target.startswith(f"{path}/")]
        if os.path.islink(path):
            rows.append((path[1:], -1, os.readlink(path)))
        elif below and not os.path.ismount(path):
            rows.append((path[1:], -1, ""))
            _take_along(path, below, rows)
        else:
            rows.append((path[1:], native.copy(path), ""))


def _cover(carried: Carried, order: dict[str, Any], fds: list[int], given: list[int]) -> dict[str, Any]:
    """Hide names by descriptors, opened without following links: a client's processes may have put links there."""
    _bare(_MOUNTS)
    tops = {target: None if number is None else (device, number) for target, device, number in order["tops"]}
    return {"ok": True, "made": home_folder.hide_all(fds[0], order["hide"], tops)}


def _bare(held: int = _READ_SEARCH) -> None:
    """Drop all capabilities except *held*, because the content of the upper folder comes from the sandbox."""
    header = Block(struct.pack("Ii", 0x20080522, 0))  # _LINUX_CAPABILITY_VERSION_3, this thread
    data = Block(struct.pack("IIIIII", held, held, 0, 0, 0, 0))
    Table([returns(Call.CAPSET, header, data)]).run()


def _diff(carried: Carried, order: dict[str, Any], fds: list[int], given: list[int]) -> dict[str, Any]:
    upper = _upper(carried, order, fds)
    return {"rows": walk.rows(upper, fds[-1])}


def _upper(carried: Carried, order: dict[str, Any], fds: list[int]) -> int:
    """The upper folder that *order* is about: of the root, or of an overlay whose layers are in *fds*."""
    number, first = order["number"], carried.folders[0]
    upper = layers.upper_of_root(first) if number == mounts.ROOT else layers.upper(fds[0], number)
    _bare()
    return upper


def _read(carried: Carried, order: dict[str, Any], fds: list[int], given: list[int]) -> dict[str, Any]:
    upper = _upper(carried, order, fds)
    if order["paths"]:
        return {"files": walk.whole_files(upper, [order["path"], *order["paths"]], fds[-1])}
    return {"bytes": walk.piece(upper, order["path"], order["offset"], fds[-1])}


def _weigh(carried: Carried, order: dict[str, Any], fds: list[int], given: list[int]) -> dict[str, Any]:
    all_layers = layers.upper_of_root(carried.folders[0], ".")
    _bare()
    return {"bytes": walk.weight(all_layers)}


def _keep(carried: Carried, order: dict[str, Any], fds: list[int], given: list[int]) -> dict[str, Any]:
    scratch = layers.upper_of_root(carried.folders[0], ".") if order["number"] == mounts.ROOT else fds[0]
    _bare(_FILES)
    overlay_states.keep(scratch, order["number"], order["name"], overlay_states.Room(
        scratch, order["most"], weighed=carried.root is not None and bool(carried.root.disk)))
    return {"ok": True}


def _restore(carried: Carried, order: dict[str, Any], fds: list[int], given: list[int]) -> dict[str, Any]:
    if order["number"] == mounts.ROOT:
        return _replace(carried, order, fds, given, name=order["name"])
    _bare(_MOUNTS)
    overlay_states.restore(fds[0], order["number"], order["target"], order["name"], order["most"])
    return _covered(carried, order)


def _replace(carried: Carried, order: dict[str, Any], fds: list[int], given: list[int], **copy: Any) -> dict[str, Any]:
    """Give the sandbox another root of its image, *copy* of what it has written."""
    assert carried.root is not None
    _bare(_ROOTS)
    copied = image_root.Copied(carried.root, carried.folders[0], order["most"], **copy)
    given.append(copied.attach(fds[0]))
    try:
        copied.replace()
    except (LeewardError, OSError) as error:
        return {"refused": str(error)}  # with the layers, of which the ones that were sent are used up
    return _covered(carried, order)


def _discard(carried: Carried, order: dict[str, Any], fds: list[int], given: list[int]) -> dict[str, Any]:
    if order["number"] == mounts.ROOT:
        return _replace(carried, order, fds, given, paths=order["paths"])
    _bare(_MOUNTS)
    overlay_states.discard(fds[0], order["number"], order["target"], order["paths"])
    return _covered(carried, order)


def _covered(carried: Carried, order: dict[str, Any]) -> dict[str, Any]:
    """Mount the overlay again, and allow its root in the ruleset, because the new mount has a new root."""
    try:
        _allow(order["target"], int(landlock.SCRATCH) & carried.handled)
    except LeewardError as error:
        raise overlay_states.Lost(str(error)) from None
    return {"ok": True}


def _give(carried: Carried, order: dict[str, Any], fds: list[int], given: list[int]) -> dict[str, Any]:
    """Give the pipe in *fds* all that is the sandbox's own; behind the pipe are the layers of the overlays."""
    mounts = order.get("mounts", [])
    targets = [target for target, _ in mounts]
    for target in targets:
        os.close(layers.mounted(target, os.O_PATH))
    folders = [-1 if folder in targets else os.open(folder, _READ) for folder in carried.folders]
    numbers = [number for number, (_, is_overlay) in enumerate(mounts) if is_overlay]
    folders += [layers.upper(scratch, number) for scratch, number in zip(fds[1:], numbers, strict=True)]
    if carried.root is not None:
        folders.append(layers.upper_of_root(carried.folders[0]))
    _bare(_FILES)
    scratch_copies.give(folders, fds[0])
    return {"ok": True}


def _take(carried: Carried, order: dict[str, Any], fds: list[int], given: list[int]) -> dict[str, Any]:
    """As `_give`, in another sandbox with the same mounts."""
    _bare(_FILES)
    mounts = order.get("mounts", [])
    targets = [target for target, _ in mounts]
    tops = [Top(folder, -1 if folder in targets else os.open(folder, _READ)) for folder in carried.folders]
    tops += [Top(target, layers.mounted(target, _READ), merges=True) for target, is_overlay in mounts if is_overlay]
    if carried.root is not None:
        tops.append(Top("/", os.open("/", _READ), merges=True))
    return {"made": scratch_copies.take(tops, fds[0], targets)}


def _connect(carried: Carried, order: dict[str, Any], fds: list[int], given: list[int]) -> dict[str, Any]:
    """Give a socket that is connected to a port in the keeper's network, the sandbox's; none if nobody listens."""
    _bare(0)
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            made = socket.socket(family, socket.SOCK_STREAM)
            made.settimeout(order["seconds"])
            made.connect((host, order["port"]))
        except OSError:
            continue  # no server, or no such family
        if made.getsockname() != made.getpeername():  # else TCP has connected the socket to itself
            given.append(made.detach())
            break
    return {"ok": True}


_ORDERS = {"mount": _mount, "cover": _cover, "diff": _diff, "read": _read, "weigh": _weigh, "keep": _keep,
           "restore": _restore, "discard": _discard, "connect": _connect, "give": _give, "take": _take}
