"""
The path of the daemon's socket, for daemon and clients.

Of the configuration files clients read one line of TOML, without a parser: importing tomllib would take longer than a
job. leeward/clients/c/place.c is the same in C; a test compares both with tomllib. The CLI's fast path imports this.
Trust:     a file that another user owns or can write is refused, as the daemon refuses it.
"""

from __future__ import annotations

import errno
import os
import stat

from leeward.errors import BadRequest
from leeward.spec.writers import distrust

TYPE_CHECKING = False  # see wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Mapping

SYSTEM_FILE = "/etc/leeward/leeward.toml"
USER_FILE = ".config/leeward/config.toml"

#: Bytes; a configuration has some hundred lines at most.
MAX_FILE = 1 << 20

_KEYS = ("socket", '"socket"', "'socket'")


def configured(home: str, uid: int, system_file: str = SYSTEM_FILE) -> str:
    """
    The socket that the user's file names, or else the system's; "", the default, if none does, or the user's has "".

    The folder *home* is used only if it belongs to *uid*. Raises BadRequest if a file belongs to somebody else, can be
    written by others, or has the key in a form that isn't read here.
    """
    files = [system_file]
    try:
        if home.startswith("/") and os.stat(home).st_uid == uid:
            files.insert(0, os.path.join(home, USER_FILE))
    except OSError:
        pass
    for path in files:
        content = _read(path, uid)
        named = named_in(content, path) if content else None
        if named is not None:
            return named
    return ""


def _read(path: str, uid: int) -> bytes:
    """Return the content of one file; it is empty if the file doesn't exist or can't be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BadRequest(f"{path}: is a symbolic link; name the file itself") from None
        return b""
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise BadRequest(f"{path}: is no regular file")
        why, help_ = distrust(path, fd, about, uid)
        if why:
            raise BadRequest(f"{path}: {why}; {help_}")
        if about.st_size > MAX_FILE:
            raise BadRequest(f"{path}: is larger than {MAX_FILE} bytes")
        return os.read(fd, MAX_FILE)
    finally:
        os.close(fd)


def named_in(content: bytes, path: str) -> str | None:
    """
    The value of the key `socket` before the first table; None if there is no such key. Pure.

    Raises BadRequest if it isn't an absolute path in plain quotes on the key's own line.
    """
    for line in content.split(b"\n"):
        words = line.strip(b" \t\r")
        if words.startswith(b"["):
            break
        key, equals, value = words.partition(b"=")
        if not equals or os.fsdecode(key.rstrip(b" \t")) not in _KEYS:
            continue
        value = value.lstrip(b" \t")
        quote = value[:1]
        inner, closed, rest = value[1:].partition(quote) if quote in (b'"', b"'") else (b"", b"", b"")
        rest = rest.lstrip(b" \t")
        if not closed or rest[:1] not in (b"", b"#") or (quote == b'"' and b"\\" in inner) \
                or any(byte < 32 or byte == 127 for byte in inner) or inner[:1] not in (b"", b"/"):
            raise BadRequest(f'{path}: socket: clients read an absolute path in plain quotes, "/run/x.sock", on one'
                             " line")
        return os.fsdecode(inner)
    return None


#: The environment variable with the socket's path, for daemon and clients.
SOCKET_VARIABLE = "LEEWARD_SOCKET"

#: The one with the path of the operator's socket for approvals.
APPROVALS_VARIABLE = "LEEWARD_APPROVALS_SOCKET"

#: Those of a client with the RemoteHost of a daemon, and the token for it.
HOST_VARIABLE, TOKEN_VARIABLE = "LEEWARD_HOST", "LEEWARD_TOKEN"

#: The environment variable with the number of one more user whose daemon a client trusts, beside root and itself.
TRUSTED_VARIABLE = "LEEWARD_TRUSTED_UID"


def default_socket(environ: Mapping[str, str], uid: int) -> str:
    """
    The default socket of *uid*'s daemon: root's is /run/leeward/leeward.sock, any other user's is in $XDG_RUNTIME_DIR.

    A login without that variable (cron, su) uses the same folder in /run/user, or else one in /tmp, which daemon and
    clients only use if the folder and the peer belong to the user.
    """
    if uid == 0:
        return "/run/leeward/leeward.sock"
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if not runtime.startswith("/"):
        runtime = f"/run/user/{uid}"
        if not os.access(runtime, os.W_OK | os.X_OK):
            return f"/tmp/leeward-{uid}/leeward.sock"
    return f"{runtime}/leeward/leeward.sock"


def approvals_socket(explicit: str | None, environ: Mapping[str, str], uid: int) -> str:
    """
    The path of the operator's socket of `leeward approvals serve`: *explicit*, else LEEWARD_APPROVALS_SOCKET, else
    `approvals.sock` in $XDG_RUNTIME_DIR/leeward, else beside the default socket of the user's daemon.
    """
    named = explicit or environ.get(APPROVALS_VARIABLE, "")
    if named:
        return named
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        return os.path.join(runtime, "leeward", "approvals.sock")
    return os.path.join(os.path.dirname(default_socket(environ, uid)), "approvals.sock")


class OwnSocket(str):
    """The default socket of this user, if none was named: if no daemon answers there, `client.autostart` may start one."""

    __slots__ = ()


class RemoteHost(str):
    """
    A daemon on another machine, in place of a socket's path: `https://NAME` of its `leeward serve leeward`, or
    `ssh://[USER@]NAME[:PORT][/SOCKET]`, by which ssh forwards the daemon's socket. BadRequest for anything else, and for
    http beyond this machine.

    Attributes:
        token: for https; by default that in LEEWARD_TOKEN.
    """

    __slots__ = ("token",)
    token: str

    def __new__(cls, url: str, token: str | None = None) -> RemoteHost:
        from urllib.parse import urlsplit  # most clients need none

        try:
            parts = urlsplit(url)
            name, port = parts.hostname or "", parts.port
        except ValueError:
            parts, name, port = urlsplit(""), "", 0
        at_root = parts.path in ("", "/") and not parts.username
        if not (name and name.isascii() and name[0] != "-" and not parts.query and not parts.fragment and not parts.password
                and all(each.isalnum() or each in "-._:" for each in name) and port != 0
                and (parts.scheme == "ssh" or (parts.scheme in ("https", "http") and at_root))):
            raise BadRequest("a host is https://NAME or ssh://USER@NAME/SOCKET, where each part but NAME may be missing")
        if parts.scheme == "http" and name not in ("localhost", "127.0.0.1", "::1"):
            raise BadRequest("http beyond this machine shows the token to everybody on the way: https")
        made = str.__new__(cls, url)
        made.token = os.environ.get(TOKEN_VARIABLE, "") if token is None else token
        if not made.token.isascii() or not made.token.isprintable():
            raise BadRequest("a token has printable ASCII alone")
        return made


def client_socket(explicit: str | os.PathLike[str] | None, token: str | None = None) -> str:
    """
    A client's socket: *explicit*, LEEWARD_HOST, LEEWARD_SOCKET, that of the user's or system's configuration, or the
    default. A RemoteHost if that is on another machine, with *token*.

    Raises BadRequest if a configuration file isn't to be trusted, or its `socket` isn't plainly written; as RemoteHost, and
    for a token without one.
    """
    named = os.fspath(explicit) if explicit is not None else ""
    if isinstance(explicit, RemoteHost) and token is None:
        return explicit
    remote = named if "://" in named else "" if named else os.environ.get(HOST_VARIABLE, "")
    if remote:
        return RemoteHost(remote, token)
    if token is not None:
        raise BadRequest("a token is for a daemon on another machine: https://NAME")
    uid = os.geteuid()
    named = named or os.environ.get(SOCKET_VARIABLE) or configured(os.environ.get("HOME", ""), uid)
    return named or OwnSocket(default_socket(os.environ, uid))
