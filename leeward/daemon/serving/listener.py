"""
The daemon's socket in the file system: it is made safely, belongs to one daemon, and is removed at the end.

Trust: everybody who can write to the folder can put another socket in its place. So the folder must belong to the
daemon's user, and be closed to others. Mode 0600 and SO_PEERCRED do the rest.

Two daemons that start at once must not both replace a stale socket: check and bind(2) happen under a lock on the
folder, which the kernel releases with the process. After that the listening socket itself shows that a daemon runs.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat

from leeward.daemon.loop.closing import refuse_descriptors
from leeward.errors import BadRequest, Unsupported, quoted, reason_of
from leeward.spec import own_sockets
from leeward.spec.writers import cure, others_write

#: Connections that may wait for accept(2); the kernel reduces it to net.core.somaxconn.
BACKLOG = 4096


class Listener:
    """
    A listening Unix socket at *path*; BadRequest says why it can't be. leeward's *own_folder* is made 0700; any other
    must belong to us and be writable by nobody else, and stays as it is. Members of *group* may connect: the socket is
    theirs as well, 0660, and our own folder 0710. *folder_mode* beyond 0700 lets others see the socket, which only its
    own mode protects then. *kept*: another process owns the socket, and listens on it after this daemon.
    """

    kept = False

    def __init__(self, path: str, own_folder: bool, group: int | None = None) -> None:
        folder, self._name = os.path.split(os.path.abspath(path))
        self.path = path
        self._group = group
        self._folder = _open_folder(folder, own_folder, group)
        try:
            self.folder_mode = stat.S_IMODE(os.fstat(self._folder).st_mode)
            self.socket = self._bind()
        except BaseException:
            os.close(self._folder)
            raise
        self._link = _registered(path)

    def _bind(self) -> socket.socket:
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadRequest(f"another daemon is starting on {quoted(self.path)} right now") from None
        try:
            self._clear()
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
            mask = os.umask(0o177)
            try:
                sock.bind(self._reachable())
                if self._group is not None:
                    # The folder is ours alone: nobody puts another file there meanwhile.
                    os.chown(self._name, -1, self._group, dir_fd=self._folder, follow_symlinks=False)
                    os.chmod(self._name, 0o660, dir_fd=self._folder)
                refuse_descriptors(sock)
                sock.listen(BACKLOG)
                about = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
                self._identity = about.st_dev, about.st_ino
            except OSError as error:
                sock.close()
                raise BadRequest(f"socket {quoted(self.path)}: {reason_of(error)}") from None
            finally:
                os.umask(mask)
            return sock
        finally:
            fcntl.flock(self._folder, fcntl.LOCK_UN)

    def _reachable(self) -> str:
        # By the open folder: nobody can swap it, and no path is too long for sockaddr_un.
        return f"/proc/self/fd/{self._folder}/{self._name}"

    def _clear(self) -> None:
        """Remove a socket that nobody answers; refuse whatever else is there."""
        try:
            about = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(about.st_mode):
            raise BadRequest(f"{quoted(self.path)} is there and is no socket; it stays as it is")
        if about.st_uid != os.geteuid():
            raise BadRequest(f"{quoted(self.path)} is a socket of user {about.st_uid}; it stays as it is")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as probe:
            refused = probe.connect_ex(self._reachable())
        if refused != errno.ECONNREFUSED:  # 0, or EAGAIN: its backlog is full
            raise BadRequest(f"a daemon already answers on {quoted(self.path)}; stop it with `leeward daemon stop`,"
                             " or give this one another --socket")
        os.unlink(self._name, dir_fd=self._folder)

    def close(self) -> None:
        """Stop listening, and remove the socket if it is still this one. May be called repeatedly."""
        if self._folder < 0:
            return
        self.socket.close()
        own_sockets.forget(self._link)
        try:
            about = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
            if (about.st_dev, about.st_ino) == self._identity:
                os.unlink(self._name, dir_fd=self._folder)
        except OSError:
            pass  # gone, or its folder is: nothing of ours is left there
        os.close(self._folder)
        self._folder = -1


class Inherited:
    """A service manager's listening socket: while no daemon runs, the kernel keeps connections for the next one."""

    kept = True
    folder_mode = 0o700  # the manager's to decide on

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.path = os.fsdecode(sock.getsockname())
        self._link = _registered(self.path)
        refuse_descriptors(sock)

    def close(self) -> None:
        """Close our descriptor of the socket. May be called repeatedly."""
        self.socket.close()
        own_sockets.forget(self._link)


def _registered(path: str) -> str:
    """Register a socket, so that other daemons don't show it either. Returns the link for `own_sockets.forget`."""
    try:
        return own_sockets.register(path)
    except OSError:  # this daemon knows it anyway; the folder of the default sockets can't be written
        return ""


def _open_folder(folder: str, own: bool, group: int | None) -> int:
    """Open and check the socket's *folder*, which is made if it is missing. Returns its descriptor."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise BadRequest(f"folder {quoted(folder)} of the socket: {reason_of(error)}") from None
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        why = "is a symbolic link or no folder" if error.errno in (errno.ELOOP, errno.ENOTDIR) \
            else reason_of(error)
        raise BadRequest(f"folder {quoted(folder)} of the socket: {why}") from None
    try:
        about = os.fstat(fd)
        if about.st_uid != os.geteuid():
            raise BadRequest(f"folder {quoted(folder)} of the socket belongs to user {about.st_uid}, not to you")
        if own and group is not None:
            os.fchown(fd, -1, group)
            os.fchmod(fd, 0o710)
        elif own and about.st_mode & 0o077:
            os.fchmod(fd, 0o700)
        elif others_write(fd, about):
            to_do = "" if about.st_mode & stat.S_ISVTX else f"{cure(folder)}, or "  # /tmp is everybody's
            raise BadRequest(f"folder {quoted(folder)} of the socket can be written by others"
                             f" (mode {about.st_mode & 0o7777:04o}); {to_do}use one of your own, mode 0700")
        if not os.path.isdir("/proc/self/fd"):
            raise Unsupported("proc", have="no /proc", need="/proc", cure="mount -t proc proc /proc")
    except PermissionError as error:
        os.close(fd)
        raise BadRequest(f"folder {quoted(folder)} of the socket can't be given to group {group}: {reason_of(error)};"
                         " only root can give it to a group without being a member") from None
    except BaseException:
        os.close(fd)
        raise
    return fd
