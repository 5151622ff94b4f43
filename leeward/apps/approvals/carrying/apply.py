"""
Carries out approved changes of files: beneath the project, atomically, once, and only on the content against which the
request was made.

Trust:     none in an order's names, content and links. Everything is opened beneath the project; no link is followed.
Once:      the queue records that an order is begun before anything is written. If the program ends in between, the
           file on the host has either the old content or the new one, since one rename replaces it.
Leaves:    a write of another program to the same file, in the microseconds between the comparison and the rename, is
           lost.
Source:    openat2(2), rename(2), link(2), fsync(2)
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import posixpath
import secrets
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

from leeward._native.beneath import open_beneath
from leeward.apps.approvals.carrying.orders import MOST_CONTENT, NOTHING, FileOrder, FileState, unpacked
from leeward.apps.approvals.queue.approval_request import ApprovalRequest, NewRequest, reached
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.queue.subjects import ProjectPath, project_path
from leeward.base.closing import OwnedFd
from leeward.client.changes import CHUNK, FOLDER, type_of
from leeward.client.placing import NewFile, put_link
from leeward.errors import BadRequest, Busy, Stale, reason_of
from leeward.spec.obeyed.repositories import makes_repository

#: Projects at once.
MOST_PROJECTS = 256

_LOOK = os.O_PATH | os.O_NOFOLLOW
#: Errors of a write where the host has something else than the order's base.
_OF_ANOTHER_STATE = (errno.EEXIST, errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY)


@contextlib.contextmanager
def beneath(folder: int, path: str, flags: int = _LOOK) -> Iterator[int | None]:
    """A descriptor of *path* beneath *folder*; None if it isn't there, or a part of the path is a link or another mount."""
    try:
        fd = open_beneath(folder, os.fsencode(path) or b".", flags)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV):
            raise
        yield None
        return
    with OwnedFd(fd):
        yield fd


class Project:
    """
    A folder of the host, not a link to one, held open: all paths are resolved beneath its descriptor. *fault* is called
    before each step, with the step's name.
    """

    def __init__(self, path: str, fault: Callable[[str], None] = reached) -> None:
        self.path, self._fault = path, fault
        self._fd = os.open(path, FOLDER | os.O_CLOEXEC)
        self._writing = threading.Lock()  # one write at a time, and none by a closed descriptor's number

    def close(self) -> None:
        with self._writing:
            fd, self._fd = self._fd, -1
            os.close(fd)

    @property
    def fd(self) -> int:
        """The descriptor of the folder, which this object owns."""
        return self._fd

    def resolve(self, path: str) -> ProjectPath:
        """
        *path* as rules compare it, with its links followed, but for one at its end; BadRequest if it leads out of the
        project.
        """
        folder, name = posixpath.split(path.rstrip("/"))
        if name in ("", ".", ".."):
            return project_path(path, self._link)
        inner = project_path(f"{folder}/x" if folder else "x", self._link).path
        return project_path(posixpath.join(posixpath.dirname(inner), name))

    def _link(self, path: str) -> str | None:
        # Not by `state`, which reads the whole file to hash it.
        with beneath(self._fd, path) as fd:
            return os.readlink("", dir_fd=fd) if fd is not None and stat.S_ISLNK(os.fstat(fd).st_mode) else None

    def state(self, path: str) -> FileState:
        """
        The state of *path*; NOTHING if a part of the path is a link or another mount. A file above MOST_CONTENT bytes
        isn't read and has no hash; no order can be about one.
        """
        return self._read(path, None)

    def in_repository(self, path: str) -> bool:
        """Whether *path* lies in a folder that git recognises as a repository, or makes one of a folder above it."""
        above, _, name = f"/{path}".rpartition("/")
        while True:
            try:
                with beneath(self._fd, above[1:], FOLDER) as fd:
                    if fd is not None and makes_repository(name, os.listdir(fd)):
                        return True
            except OSError:
                return True  # it isn't known
            if not above:
                return False
            above, _, name = above.rpartition("/")

    def changed_since(self, path: str, when: int) -> bool:
        """Whether there is a file at *path* whose ctime is *when* or later, in nanoseconds by the clock of file systems."""
        try:
            with beneath(self._fd, path) as fd:
                about = None if fd is None else os.fstat(fd)
        except OSError:
            return False
        return about is not None and not stat.S_ISDIR(about.st_mode) and about.st_ctime_ns >= when

    def content(self, path: str) -> tuple[FileState, bytes]:
        """The state of *path*, and the content if it is a file (else b""); BadRequest above MOST_CONTENT bytes."""
        held: list[bytes] = []
        state = self._read(path, held)
        return state, b"".join(held)

    def _read(self, path: str, held: list[bytes] | None) -> FileState:
        with beneath(self._fd, path) as fd:
            if fd is None:
                return NOTHING
            about = os.fstat(fd)
            kind, mode = type_of(about.st_mode), stat.S_IMODE(about.st_mode)
            if kind == "link":
                return FileState(kind, link=os.readlink("", dir_fd=fd))
            if kind != "file":
                return FileState(kind, mode if kind == "folder" else 0)
            if held is None and about.st_size > MOST_CONTENT:
                return FileState(kind, mode)
            file = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with OwnedFd(file):
            found, size = hashlib.sha256(), 0
            while data := os.read(file, CHUNK):
                found.update(data)
                size += len(data)
                if size > MOST_CONTENT:  # without `held`: the file has grown since fstat
                    if held is None:
                        return FileState(kind, mode)
                    raise BadRequest(f"a file has {MOST_CONTENT} bytes at most here")
                if held is not None:
                    held.append(data)
            return FileState(kind, mode, found.hexdigest())

    def put(self, order: FileOrder, temporary: str) -> None:
        """
        Carry out *order*; Stale if the host's file isn't `order.base`. The new file's name is *temporary* until it is
        renamed.
        """
        with self._writing:
            self._put(order, temporary)

    def _put(self, order: FileOrder, temporary: str) -> None:
        self._compare(order)
        parent, name = self._parent(order)
        try:
            if order.goal.type == "none":
                self._fault("remove")
                self._compare(order)
                (os.rmdir if order.base.type == "folder" else os.unlink)(name, dir_fd=parent)
            elif order.goal.type == "folder":
                self._folder(order, parent, name)
            else:
                self._place(order, parent, name, os.fsencode(temporary))
            self._fault("sync")
            os.fsync(parent)
        except OSError as error:
            if error.errno not in _OF_ANOTHER_STATE:
                raise
            raise Stale(f"{order.path!r:.120}: {reason_of(error)}", order.path) from None
        finally:
            os.close(parent)

    def _compare(self, order: FileOrder) -> None:
        check_base(order, self.state(order.path))

    def _parent(self, order: FileOrder) -> tuple[int, bytes]:
        """
        Open the folder of the order's path, and make the folders that a new file lacks. Returns a descriptor that the
        caller owns, and the file's name; Stale if the folder is gone, or can't be opened beneath the project.
        """
        folder, name = os.path.split(os.fsencode(order.path))
        parts = folder.split(b"/") if folder else []
        for end in range(len(parts) + 1):
            try:
                fd = open_beneath(self._fd, b"/".join(parts[:end]) or b".", FOLDER)
            except FileNotFoundError:
                if order.base.type != "none":
                    raise Stale(f"the folder of {order.path!r:.120} is gone", order.path) from None
                with OwnedFd(open_beneath(self._fd, b"/".join(parts[:end - 1]) or b".", FOLDER)) as above:
                    os.mkdir(parts[end - 1], 0o755, dir_fd=above)
                fd = open_beneath(self._fd, b"/".join(parts[:end]), FOLDER)
            except OSError as error:
                why = reason_of(error)
                raise Stale(f"the folder of {order.path!r:.120}: {why}", order.path) from None
            if end == len(parts):
                return fd, name
            os.close(fd)
        raise AssertionError("a path has a last folder")

    def _folder(self, order: FileOrder, parent: int, name: bytes) -> None:
        self._fault("place")
        if order.base.type != "folder":
            if order.base.type != "none":
                os.unlink(name, dir_fd=parent)
            os.mkdir(name, 0o700, dir_fd=parent)
        with OwnedFd(os.open(name, FOLDER | os.O_CLOEXEC, dir_fd=parent)) as fd:
            os.fchmod(fd, order.goal.mode)

    def _place(self, order: FileOrder, parent: int, name: bytes, temporary: bytes) -> None:
        self._fault("write")
        replaces = order.base.type not in ("none", "folder")
        if order.goal.type == "link":
            self._make_room(order, parent, name)
            put_link(parent, temporary, name, os.fsencode(order.goal.link), replaces=replaces)
            return
        file = NewFile(parent, temporary)
        try:
            self._content(order, parent, name, file.fd)
            self._make_room(order, parent, name)
            file.put(name, replaces=replaces)
        finally:
            self._fault("clean")
            file.close()

    def _make_room(self, order: FileOrder, parent: int, name: bytes) -> None:
        self._fault("place")
        self._compare(order)  # again: writing the content took a while
        if order.base.type == "folder":
            os.rmdir(name, dir_fd=parent)

    @staticmethod
    def _content(order: FileOrder, parent: int, name: bytes, fd: int) -> None:
        rest = memoryview(order.content)
        while rest:
            rest = rest[os.write(fd, rest):]
        if os.geteuid() == 0:  # a file that root writes gets the owner of the old file, or of the folder
            about = os.fstat(parent) if order.base.type != "file" else os.stat(name, dir_fd=parent,
                                                                               follow_symlinks=False)
            os.fchown(fd, about.st_uid, about.st_gid)
        os.fchmod(fd, order.goal.mode)
        os.fsync(fd)

    def clean(self, order: FileOrder, temporary: str) -> None:
        """Remove the temporary file that a program which ended in between has left beside the order's file."""
        with contextlib.suppress(FileNotFoundError), beneath(self._fd, os.path.dirname(order.path), FOLDER) as parent:
            if parent is not None:
                os.unlink(os.fsencode(temporary), dir_fd=parent)


def check_base(order: FileOrder, state: FileState) -> None:
    """Stale if *state*, the one on the host, isn't that against which *order* was made."""
    if state != order.base:
        raise Stale(f"{order.path!r:.120} isn't on the host what it was when this was asked for", order.path)


def carry_out(queue: ApprovalQueue, project: Project, number: int, fault: Callable[[str], None] = reached) -> bool:
    """
    Carry out one approved order about a file, and tell the queue; returns False if another caller has begun it. *fault*
    is as for Project.
    """
    request = queue.get(number)
    if request is not None and request.category != "filesystem":
        raise BadRequest(f"request {number} isn't about a file")
    temporary = f".leeward-{secrets.token_hex(8)}"
    fault("begin")
    payload = queue.begin(number, temporary)
    if payload is None:
        return False
    fault("begun")
    if request is not None:
        _finish(queue, project, request, unpacked(payload), temporary)
    fault("finished")
    return True


def recover(queue: ApprovalQueue, project: Project, request: ApprovalRequest, temporary: str) -> bool:
    """
    Complete an order about a file that another program had begun when it ended. One whose file has its goal is recorded
    as done, one whose file has its base is carried out now, and any other is recorded as stale. *request* and
    *temporary* are from `queue.interrupted()`; returns False if the request has no order any more.
    """
    payload = queue.payload(request.id)
    if payload is None:
        return False
    order = unpacked(payload)
    project.clean(order, temporary)
    try:
        is_done = project.state(order.path) == order.goal
    except OSError:
        is_done = False  # `_finish` reads the file again and records the error
    if is_done:
        queue.finish(request.id)
    else:
        _finish(queue, project, request, order, temporary)
    return True


def _finish(queue: ApprovalQueue, project: Project, request: ApprovalRequest, order: FileOrder, temporary: str) -> None:
    try:
        if request.subject != ProjectPath(order.path):
            raise BadRequest("it is about another file than the one that was shown")
        project.put(order, temporary)
    except Stale as error:
        queue.finish(request.id, str(error), stale=True)
    except BadRequest as error:
        queue.finish(request.id, str(error), failed=True)
    except OSError as error:
        queue.finish(request.id, f"{order.path!r:.120}: {reason_of(error)}", failed=True)
    else:
        queue.finish(request.id)


# --- projects -------------------------------------------------------------------------


def in_project(new: NewRequest, project: Project) -> NewRequest:
    """*new* with *project* as its project, also in its metadata."""
    return replace(new, metadata={**new.metadata, "project": project.path}, project=project.path)


class OpenProjects:
    """
    The open projects by their paths, MOST_PROJECTS at most. Each is opened once, so that comparing and writing use one
    descriptor even if the folder at the path is replaced. *default* is the project of requests that name none.
    """

    def __init__(self, default: Project | None) -> None:
        self.default = default
        self._lock, self._open = threading.Lock(), dict[str, Project]()
        if default is not None:
            self._open[default.path] = default

    def open(self, path: str) -> Project:
        """The project at *path*, an absolute path without links, opened at the first call; BadRequest if it can't be."""
        with self._lock:
            found = self._open.get(path)
            if found is None:
                if len(self._open) >= MOST_PROJECTS:
                    raise Busy(f"{MOST_PROJECTS} projects are open already")
                try:
                    found = self._open[path] = Project(path)
                except OSError as error:
                    raise BadRequest(f"{path!r:.200}: {reason_of(error)}") from None
            return found

    def of(self, request: ApprovalRequest) -> Project:
        """The project that *request* is about; BadRequest if it names none and there is no default."""
        named = request.metadata.get("project", "")  # of `in_project`
        if isinstance(named, str) and os.path.isabs(named):
            return self.open(named)
        if self.default is None:
            raise BadRequest("the request names no project, and the service has no default one")
        return self.default

    def close(self) -> None:
        """Close all projects except the default, which belongs to the caller."""
        with self._lock:
            for project in self._open.values():
                if project is not self.default:
                    project.close()
            self._open.clear()
