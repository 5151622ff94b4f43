"""
The opener: clones the folders of the host that clients give to their sandboxes.

Runs in:   a separate process, exec'd by the daemon once the daemon is ready; and, for each order, a child
           of it with a deadline, because a client's file system may be slow, or never answer. The child is made
           before its order comes: a fork takes a millisecond, and copying the pages that a child writes another one.
Holds:     if root runs it, only CAP_SYS_ADMIN, CAP_SETUID and CAP_SETGID; otherwise no capability: each child makes a
           user and a mount namespace, in which it may clone mounts.
Trust:     the daemon's orders. None in a client: it sends descriptors, which the daemon never receives. The child here
           receives them from the client's socket, and clones only the folder that the descriptor itself refers to.
Ends:      when the daemon's end of its channel closes.
Source:    open_tree(2), mount_setattr(2), user_namespaces(7), unix(7)

Orders and answers are one datagram of MessagePack each; an order brings the socket that its answer goes to.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import stat
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

import msgpack

from leeward._native import mounts as native
from leeward._native import privileges
from leeward._native.mounts import MountAttr
from leeward._native.spawn import Clone
from leeward._native.steps import Block, Call, Table, returns
from leeward.errors import BadRequest, LeewardError, reason_of
from leeward.spec import folders, own_sockets
from leeward.spec.folders import Folder
from leeward.spec.own_sockets import OwnPlace

#: Seconds that an order may take, whatever a client's file system does.
DEADLINE_S = 5
#: Seconds without an order before the next child is made: that takes 3 ms, which an opening sandbox needs first.
CALM_S = 0.006
#: User namespaces that are kept for the next sandbox of the same user in the same worker: making one takes 13 ms.
MOST_MAPS = 64
_maps: dict[tuple[int, ...], int] = {}

#: File systems and folders of the host's root that a sandbox of root's is shown, at most.
MOST_SHOWN = 64

_MOST = 1 << 17
_FDS = folders.MOST + 2
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
#: CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN; and _LINUX_CAPABILITY_VERSION_3, this thread.
_KEPT = 1 << 6 | 1 << 7 | 1 << 21
_HEADER = struct.pack("Ii", 0x20080522, 0)


def main(control: int) -> None:
    """Serve until the daemon closes the channel."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=control)
    root = os.geteuid() == 0
    if root:
        os.setgroups([])
        data = struct.pack("IIIIII", _KEPT, _KEPT, 0, 0, 0, 0)
        Table([returns(Call.CAPSET, Block(_HEADER), Block(data))]).run()
    privileges.no_new_privs()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects the children
    child: socket.socket | None = _child(channel, root)
    while True:
        if child is None and not select.select([channel], [], [], CALM_S)[0]:
            child = _child(channel, root)
        data, fds, _, _ = socket.recv_fds(channel, _MOST, _FDS)
        if not data:
            return
        order = msgpack.unpackb(data)
        if order["order"] == "map":
            # `_map` only changes mounts, and never waits for a client's file system.
            _answer(fds[0], partial(_map, fds[1:], *order["ids"]))
        else:
            if order["order"] == "host":
                fds.insert(1, os.dup(_map_of(*order["ids"])))
            _hand_over(child or _child(channel, root), data, fds, partial(_child, channel, root))
            child = None
        _close(fds)


def _child(channel: socket.socket, root: bool) -> socket.socket:
    """Make a child that waits for an order. Returns the socket for its order; the child ends when the socket is closed."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        if not os.fork():
            channel.close()
            here.close()
            _serve(there, root)
    return here


def _hand_over(child: socket.socket, data: bytes, fds: list[int], another: Callable[[], socket.socket]) -> None:
    """Give *child* its order, or *another* if it has died."""
    with child:
        try:
            socket.send_fds(child, [data], fds)
            return
        except (BrokenPipeError, ConnectionResetError):
            pass
    with another() as child:
        socket.send_fds(child, [data], fds)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _rehearse() -> None:
    """Take the steps of an order once, so that this process has its own copies of the pages that the steps write."""
    root = os.open("/", _LOOK)
    with contextlib.suppress(BadRequest):
        _check_mounts(root, "/", "")
    os.close(root)
    msgpack.unpackb(msgpack.packb({"found": [[root, root]]}))


def _serve(channel: socket.socket, root: bool) -> NoReturn:
    """In a child: carry out the one order on *channel*, which opens folders. Never returns."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _rehearse()
        data, fds, _, _ = socket.recv_fds(channel, _MOST, _FDS)
        if not data:
            os._exit(0)  # the opener is gone
        order: Mapping[str, Any] = msgpack.unpackb(data)
        signal.alarm(DEADLINE_S)
        _answer(fds[0], (lambda: _show_host(order["paths"], fds[1], fds[2:])) if order["order"] == "host" else lambda: _clone(
            fds[1], [Folder(**row) for row in order["folders"]], _own_places(order, root), root))
    except BaseException as error:  # the last frame of this process; the daemon sees the end of the socket
        os.write(2, f"leeward opener: {type(error).__name__}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(0)


def _answer(end: int, does: Callable[[], tuple[dict[str, Any], list[int]]]) -> None:
    """Send the result of *does*, or the reason of its failure, on the socket *end*."""
    trees: list[int] = []
    try:
        answer, trees = does()
    except (LeewardError, OSError) as error:
        answer = {"error": str(error), "asked": isinstance(error, BadRequest)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=os.dup(end)) as reply:
        try:
            socket.send_fds(reply, [msgpack.packb(answer)], trees)
        except OSError:
            pass  # nobody waits for the answer any more


def _own_places(order: Mapping[str, Any], root: bool) -> list[OwnPlace]:
    """Leeward's own sockets that no sandbox of the order's user is shown. That user's are looked for with its rights."""
    user, rows = order["user"], order["registries"]
    own = list(own_sockets.places(order["own"], [row for row in rows if row[0] != user or not root]))
    if root:
        os.seteuid(user)  # root has no CAP_DAC_OVERRIDE here
        try:
            own += own_sockets.places((), [row for row in rows if row[0] == user])
        finally:
            os.seteuid(0)
    return own


def _clone(dock: int, wanted: list[Folder], own: list[OwnPlace],
           root: bool) -> tuple[dict[str, Any], list[int]]:
    """
    A tree, device and inode for each of *wanted*, from the descriptors that the client has sent on *dock*; BadRequest
    if it sent others. They are closed before the answer, so that the owner may unmount the file systems after it.
    """
    with contextlib.ExitStack() as held, contextlib.ExitStack() as made:
        given = _given(dock, len(wanted))
        held.callback(_close, given)
        if not root:
            Table([returns(Call.UNSHARE, int(Clone.NEWUSER | Clone.NEWNS))]).run()
        trees, found = [], []
        for fd, folder in zip(given, wanted, strict=True):
            about = os.fstat(fd)
            what = f"mount {folder.target!r:.80}"
            if not (stat.S_ISREG(about.st_mode) if folder.file else stat.S_ISDIR(about.st_mode)):
                raise BadRequest(f"{what}: {folder.path!r:.80} is no {'file' if folder.file else 'folder'}")
            at = fd
            if not root:
                at = _found(folder, about, what)
                held.callback(os.close, at)
            _check(at, folder, own, what)
            trees.append(_tree(at, folder, what))
            made.callback(os.close, trees[-1])
            found.append((about.st_dev, about.st_ino))
        made.pop_all()
        return {"found": found}, trees


def _tree(at: int, folder: Folder, what: str) -> int:
    """Make a detached mount of *at*, with the attributes of *folder*; BadRequest if that isn't possible."""
    try:
        tree = native.copy(at)
    except LeewardError as error:
        raise BadRequest(f"{what}: {folder.path!r:.80} can't be mounted in the sandbox: {error}") from None
    try:
        always = MountAttr.NOSUID | MountAttr.NODEV
        if native.sets_attributes():  # else the porter does, where it attaches the tree
            native.set_attributes(tree, always if folder.writable else always | MountAttr.RDONLY)
        if folder.writable and os.fstatvfs(tree).f_flag & os.ST_RDONLY:
            raise BadRequest(f"{what}: {folder.path!r:.80} is read-only for the daemon; it can be mounted read-only, or"
                             " as an overlay")
    except BaseException:
        os.close(tree)
        raise
    return tree


def _given(dock: int, count: int) -> list[int]:
    """Receive the descriptors that the client has sent. Closes *dock*."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=dock) as sock:
        sock.setblocking(False)
        try:
            _, given, flags, _ = socket.recv_fds(sock, 1, folders.MOST, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            raise BadRequest("mounts without a descriptor: a client opens its folders itself") from None
    if flags & socket.MSG_CTRUNC or len(given) != count:
        _close(given)
        raise BadRequest(f"{count} mounts, and {len(given)} descriptors came with them")
    return given


def _found(folder: Folder, about: os.stat_result, what: str) -> int:
    """Open the folder in this mount namespace: a mount of another namespace can't be cloned."""
    try:
        at = os.open(folder.path, _LOOK)
    except OSError as error:
        raise BadRequest(f"{what}: {folder.path!r:.80}: {reason_of(error)}") from None
    found = os.fstat(at)
    if (found.st_dev, found.st_ino) != (about.st_dev, about.st_ino):
        os.close(at)
        raise BadRequest(f"{what}: {folder.path!r:.80} isn't what the client's descriptor refers to")
    return at


def _check(at: int, folder: Folder, own: list[OwnPlace], what: str) -> None:
    """Check the folder *at*; BadRequest if it isn't at the given path, or must not be mounted."""
    path = os.readlink(f"/proc/self/fd/{at}")
    if path != folder.path:
        raise BadRequest(f"{what}: {folder.path!r:.80} has become {path!r:.80}")
    if not folders.shown(path):
        raise BadRequest(f"{what}: no sandbox is shown {path!r:.80} of the host")
    about = os.fstat(at)
    for place in own:
        if place.is_in(path, about.st_dev, about.st_ino):
            more = "; it has another name, which may be there" if place.linked else ""
            raise BadRequest(f"{what}: leeward's own {place.path!r:.80} is there, by which a program could command"
                             f" what confines it{more}")
    _check_mounts(at, path, what)


def _check_mounts(at: int, path: str, what: str) -> None:
    """Check the mounts of the folder *at*; BadRequest if it is of a file system such as proc, or has one below."""
    own = native.mount_id(at)
    for row in native.mounted():
        if row.number == own and row.kind in folders.KERNELS:
            raise BadRequest(f"{what}: {path!r:.80} is of the kernel's file system {row.kind}")
        if row.point != path and folders.within(row.point, path):
            raise BadRequest(f"{what}: {row.point!r:.80} below it is a mount; mount that folder, or unmount it first")


def _show_host(paths: list[str], ids: int, given: list[int]) -> tuple[dict[str, Any], list[int]]:
    """
    Show root's files, in those of *paths* that are folders and in the trees *given*, as those of the sandbox's
    processes, by the user namespace *ids*, where the file system can. Returns the targets and the read-only trees; the
    kernel's file systems aren't among them.
    """
    _check_owners(given)
    for tree in given:
        with contextlib.suppress(LeewardError):
            native.set_attributes(tree, MountAttr(0), ids)
    points = sorted((row.point, row.kind) for row in native.mounted())
    shown = dict[str, int]()
    for path in filter(lambda path: stat.S_ISDIR(os.lstat(path).st_mode), paths):
        below = [point for point, kind in points if point.startswith(f"{path}/") and kind not in folders.KERNELS]
        kernels = [point for point, kind in points if folders.within(point, path) and kind in folders.KERNELS]
        if path in kernels:
            continue
        found = {path: -1 if kernels else _shown_by(path, ids, recursive=True)}
        if found[path] < 0 and (tree := _shown_by(path, ids, recursive=False)) >= 0:
            # Each for itself: one below can't be shown so, or must not be shown. Others keep their owners.
            found = {path: tree, **{point: _shown_by(point, ids, recursive=False, plain=True) for point in below
                                    if os.path.isdir(point)}}
        found = {path: tree for path, tree in found.items() if tree >= 0}
        if len(shown) + len(found) <= MOST_SHOWN:
            shown |= found
        else:  # the view shows it as everybody reads it
            _close([*found.values()])
    return {"found": [[path] for path in shown]}, [*shown.values()]


def _shown_by(path: str, ids: int, *, recursive: bool, plain: bool = False) -> int:
    """A detached read-only copy of *path* whose owners are shown by *ids*, or with *plain* perhaps as they are; or -1."""
    with contextlib.suppress(LeewardError):  # it has gone meanwhile
        tree = native.copy(path, recursive=recursive)
        for each in (ids, -1)[:1 + plain]:
            with contextlib.suppress(LeewardError):
                native.set_attributes(tree, MountAttr.RDONLY | MountAttr.NOSUID | MountAttr.NODEV, each)
                return tree
        os.close(tree)
    return -1


def _map(trees: list[int], *ids: int) -> tuple[dict[str, Any], list[int]]:
    """
    Map the owner of the files in *trees* (uid and gid, the first two of *ids*) to the sandbox's processes, whose host
    ids are the last two. The processes then have that user's rights there, and files that they create are that user's.
    """
    _check_owners(trees)
    found = _map_of(*ids)
    for tree in trees:
        try:
            native.set_attributes(tree, MountAttr(0), found)
        except LeewardError as error:
            raise BadRequest("the file system of a folder can't show its files as another user's, as a daemon of root's has"
                             " to: ext4, xfs and btrfs can, a tmpfs since Linux 6.3, an overlay never. A daemon of an"
                             f" ordinary user's can show folders of each: {error}") from None
    return {}, []


def _check_owners(trees: list[int]) -> None:
    """BadRequest if this kernel can't show files as another user's."""
    if trees and not native.sets_attributes():
        raise BadRequest("a daemon of root's shows no folder on this kernel: it needs Linux 5.12 (mount_setattr) to make"
                         " the files a sandbox's. A daemon of an ordinary user's can show folders")


def _map_of(*ids: int) -> int:
    found = _maps.pop(ids, -1)
    _maps[ids] = found = _new_map(*ids) if found < 0 else found  # the last is the one that was used last
    while len(_maps) > MOST_MAPS:
        os.close(_maps.pop(next(iter(_maps))))
    return found


def _new_map(uid: int, gid: int, host_uid: int, host_gid: int) -> int:
    """Make a user namespace without processes that maps only these ids."""
    ready, begin = os.pipe()
    go_on, end = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(end)
            Table([returns(Call.UNSHARE, int(Clone.NEWUSER))]).run()
            os.write(begin, b"1")
            os.read(go_on, 1)  # returns at end of file
        finally:
            os._exit(0)
    os.close(begin)
    os.close(go_on)
    try:
        if not os.read(ready, 1):
            raise LeewardError("no user namespace for the owners of a folder's files")
        for name, inner, outer in (("uid_map", uid, host_uid), ("gid_map", gid, host_gid)):
            with open(f"/proc/{child}/{name}", "w") as file:
                file.write(f"{inner} {outer} 1")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready)
        os.close(end)
