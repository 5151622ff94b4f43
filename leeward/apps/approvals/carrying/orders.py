"""
What an approved request carries out: a change of one file, a command, a push, a setting.

Trust:     none in names, content, modes and links.
Holds:     an order is complete at the time of the request, with the whole content that was shown and the hash of the
           host's at that time, and the queue keeps its bytes unchanged: what is carried out is what was shown.
"""

from __future__ import annotations

import hashlib
import math
import os
import posixpath
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from leeward.apps.approvals.queue.approval_request import MOST_PAYLOAD, NewRequest
from leeward.apps.approvals.queue.subjects import (
    WORKSPACE,
    Invocation,
    ProjectPath,
    branch,
    invocation,
    starting_folder,
)
from leeward.client.applying import leads_out
from leeward.client.changes import FolderChange
from leeward.errors import BadRequest, Bug, EditError
from leeward.spec.obeyed.lookup import DOTTED, obeyed_by
from leeward.spec.obeyed.repositories import names_repository
from leeward.spec.unseen import LONG_BLANK, blanked_lines, is_hidden, is_seen, longest_line, mixed_words

#: Seconds that an approved command may run: the default, and the most that a request or the configuration can set.
EXEC_S, LONGEST_EXEC_S = 300.0, 3600.0


@dataclass(frozen=True, slots=True)
class CommandOrder:
    """A command."""

    argv: tuple[str, ...]  # the arguments, the program first; () if there is a line
    line: str = ""  # of a shell; "" if there are arguments
    cwd: str = ""  # the folder to start in, an absolute path; "" for the project
    timeout: float = EXEC_S  # seconds
    profile: str = ""  # of a sandbox that is opened for the command; "" to run it in the sandbox that has requested it

    @property
    def subject(self) -> Invocation:
        return Invocation(self.argv, self.line, starting_folder(self.cwd))


@dataclass(frozen=True, slots=True)
class PushOrder:
    """A push of a branch."""

    repository: str  # the folder of the service's repository on the host, which has the commits
    remote: str  # the URL or folder to push to
    branch: str  # the name of the branch there
    commit: str  # the commit that was shown, in hexadecimal


@dataclass(frozen=True, slots=True)
class ConfigOrder:
    """A new value for a key of the configuration."""

    key: str
    value: str | float


CarriedOrder = CommandOrder | PushOrder | ConfigOrder


def is_profile(name: str) -> bool:
    """Whether *name* may name a profile, or is "" for none."""
    return len(name) <= 64 and (not name or name.replace("-", "").replace("_", "").isalnum())


def command_order(command: Any, *, cwd: str = "", timeout: Any = EXEC_S, profile: str = "") -> CommandOrder:
    """Check the fields of a command and make its order."""
    if not isinstance(command, str) and not (isinstance(command, Sequence)
                                             and all(isinstance(each, str) for each in command)):
        raise BadRequest("a command is a line, or a list of arguments")
    if not (isinstance(timeout, (int, float)) and math.isfinite(timeout) and 0 < timeout <= LONGEST_EXEC_S):
        raise BadRequest(f"a command runs for more than nothing, and {LONGEST_EXEC_S:.0f} seconds at most")
    if not is_profile(profile):
        raise BadRequest("a profile is named by letters, digits, - and _")
    try:
        os.fsencode(cwd.join((command,) if isinstance(command, str) else command))
    except UnicodeEncodeError:
        raise BadRequest("a command isn't valid Unicode") from None
    found = invocation(command, cwd)
    folder = posixpath.join(WORKSPACE, found.cwd) if found.cwd else ""
    return CommandOrder(found.argv, found.line, folder, float(timeout), profile)


def push_order(repository: str, remote: str, name: str, commit: str) -> PushOrder:
    """Check the fields of a push and make its order."""
    if not 40 <= len(commit) <= 64 or not set(commit) <= set("0123456789abcdef"):
        raise BadRequest("no commit")
    return PushOrder(repository, remote, branch(name).name, commit)


def pack_order(order: CarriedOrder) -> bytes:
    """The bytes of *order* that the queue keeps."""
    match order:
        case CommandOrder(argv=argv, line=line, cwd=cwd, timeout=timeout, profile=profile):
            said: list[Any] = ["command", [each.encode("utf-8", "surrogateescape") for each in argv],
                               line.encode("utf-8", "surrogateescape"), cwd, timeout, profile]
        case PushOrder(repository=repository, remote=remote, branch=name, commit=commit):
            said = ["push", repository, remote, name, commit]
        case ConfigOrder(key=key, value=value):
            said = ["config", key, value]
    packed: bytes = msgpack.packb(said)
    return packed


def unpack_order(data: bytes) -> CarriedOrder:
    """The order that `pack_order` has written."""
    match msgpack.unpackb(data):
        case ["command", [*argv], bytes(line), str(cwd), float(timeout), str(profile)]:
            return CommandOrder(tuple(each.decode("utf-8", "surrogateescape") for each in argv),
                                line.decode("utf-8", "surrogateescape"), cwd, timeout, profile)
        case ["push", str(repository), str(remote), str(name), str(commit)]:
            return PushOrder(repository, remote, name, commit)
        case ["config", str(key), str() | int() | float() as value]:
            return ConfigOrder(key, value)
    raise Bug("a payload that pack_order hasn't written")


#: Bytes of a file's content, at most; the rest of the payload is for the other fields.
MOST_CONTENT = MOST_PAYLOAD - 65536

#: Bytes and lines of a file, and characters of a line, up to which the whole is shown at once.
MOST_SHOWN, MOST_LINES, MOST_WIDTH = 1 << 20, 20_000, 1000

#: The permission bits of a new file whose request has no mode.
NEW_MODE = 0o644


@dataclass(frozen=True, slots=True)
class FileState:
    """What is at a path."""

    type: str  # "none", "file", "folder", "link" or "special"
    mode: int = 0  # permission bits of a file or folder; else 0
    sha256: str = ""  # of a file's content, in hexadecimal
    link: str = ""


NOTHING = FileState("none")


@dataclass(frozen=True, slots=True)
class FileOrder:
    """One change of one path."""

    path: str  # relative to the project, as `ProjectPath` has it
    base: FileState  # the state of the path on the host at the time of the request
    goal: FileState  # the state that the change makes
    content: bytes = b""  # of a file; else b""

    @property
    def action(self) -> str:
        """What it does, in a word: "add", "change" or "delete"."""
        return "delete" if self.goal.type == "none" else "add" if self.base.type == "none" else "change"

    def packed(self) -> bytes:
        """As the queue keeps it."""
        packed: bytes = msgpack.packb([os.fsencode(self.path), *(_state_row(each) for each in (self.base, self.goal)),
                                       self.content])
        return packed


def _state_row(state: FileState) -> list[Any]:
    return [state.type, state.mode, state.sha256, os.fsencode(state.link)]


def unpacked(data: bytes) -> FileOrder:
    """The order that `FileOrder.packed` has written."""
    match msgpack.unpackb(data):
        case [bytes(path), [*base], [*goal], bytes(content)]:
            return FileOrder(os.fsdecode(path), _state(base), _state(goal), content)
    raise Bug("a payload that FileOrder.packed hasn't written")


def _state(row: list[Any]) -> FileState:
    kind, mode, found, link = row
    return FileState(kind, mode, found, os.fsdecode(link))


def write_order(path: str, base: FileState, content: bytes, mode: int | None = None) -> FileOrder:
    """
    The order to write a whole file; BadRequest if *content* is too large, or *base* is neither a file nor NOTHING. By
    None the mode is that of the file that is there, or NEW_MODE.
    """
    if base.type not in ("none", "file"):
        raise BadRequest(f"{path!r:.120} is a {base.type}, and no file")
    if mode is None:
        mode = base.mode if base.type == "file" else NEW_MODE
    return _file_order(path, base, content, mode)


def _file_order(path: str, base: FileState, content: bytes, mode: int) -> FileOrder:
    if len(content) > MOST_CONTENT:
        raise BadRequest(f"a file has {MOST_CONTENT} bytes at most here")
    return FileOrder(path, base, FileState("file", mode & 0o777, digest(content)), content)


def edit_order(path: str, base: FileState, before: bytes, old: bytes, new: bytes) -> FileOrder:
    """The order to replace *old* by *new*; EditError unless *old* is once in *before*, the content of the file *base*."""
    if base.type != "file" or digest(before) != base.sha256:
        raise BadRequest(f"{path!r:.120} is no file, or it is being changed")
    if not old:
        raise BadRequest("what is to be replaced is empty")
    first = before.find(old)
    if first < 0 or before.find(old, first + 1) >= 0:
        raise EditError(path, before.count(old) if first < 0 else max(2, before.count(old)))
    return write_order(path, base, before[:first] + new + before[first + len(old):])


def delete_order(path: str, base: FileState) -> FileOrder:
    """The order to delete a file, a link or an empty folder; BadRequest if *base* is NOTHING."""
    if base.type == "none":
        raise BadRequest(f"{path!r:.120} isn't there")
    return FileOrder(path, base, NOTHING)


def change_order(change: FolderChange, base: FileState, content: bytes = b"") -> FileOrder:
    """
    The order for one row of `Sandbox.diff`, with a file's content as it was read through the sandbox. BadRequest if the
    row is a special file or a link that leads out of the project, or *content* doesn't have its hash or is too large.
    """
    if change.kind == "deleted":
        return delete_order(change.path, base)
    if change.type == "special":
        raise BadRequest(f"{change.path!r:.120} is a FIFO, a socket or a device")
    if change.type == "link":
        if leads_out(change):
            raise BadRequest(f"{change.path!r:.120} is a link that leads out of the project")
        return FileOrder(change.path, base, FileState("link", link=change.link or ""))
    if change.type == "folder":
        return FileOrder(change.path, base, FileState("folder", change.mode & 0o777))
    if change.sha256 is None or digest(content) != change.sha256:
        raise BadRequest(f"{change.path!r:.120}: its content isn't what was listed, or too large to be listed by hash")
    return _file_order(change.path, base, content, change.mode)


def file_request(order: FileOrder, action: str = "", *, before: bytes = b"", description: str = "", reason: str = "",
                 sandbox: str = "", asker: str = "", more: Sequence[str] = (),
                 in_repository: bool = False) -> NewRequest:
    """
    The request for *order*, which does *action*, by default the order's. Rules decide by its path, and its metadata has
    `remarks` and *more*; one in a repository goes to a person.
    """
    said = [*remarks(order, before, in_repository), *_hardly_shown(order.content, before), *more]
    metadata = {"remarks": said, "before": order.base.sha256,
                "after": order.goal.sha256, "type": order.goal.type, "mode": order.goal.mode}
    return NewRequest(ProjectPath(order.path, in_repository), action or order.action, description, reason, metadata,
                      sandbox, asker, order.packed())


def mode_text(mode: int) -> str:
    """Permission bits as `ls -l` shows them: `rw-r--r--`."""
    return stat.filemode(stat.S_IFREG | mode & 0o777)[1:]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def remarks(order: FileOrder, before: bytes = b"", in_repository: bool = False) -> list[str]:
    """
    Warnings for the person who decides about what a diff doesn't show well, one line each. *before* is the content on
    the host.
    """
    found = []
    if not is_seen(order.path):
        found.append("the name has characters that can't be seen")
    if mixed_words(order.path):
        found.append("the name has letters of another alphabet that look like Latin ones")
    row = obeyed_by(order.path)
    if in_repository or names_repository(order.path):
        found.append("it is a file of a repository's own, which git or another such program may run or obey")
    elif row is not None:
        found.append(f"obeyed on the host by {row.who}: {row.kind}" if row is not DOTTED else
                     "its name begins with a dot, as those of settings do")
    if order.goal.type == "link":
        found.append("it is a link")
    if order.base.type not in ("none", order.goal.type) and order.goal.type != "none":
        found.append(f"a {order.base.type} becomes a {order.goal.type}")
    was = order.base.mode if order.base.type != "none" else 0
    if order.goal.type == "file" and order.goal.mode != was and (order.goal.mode | was) & 0o111:
        found.append(f"it can be run: {mode_text(order.goal.mode)}" if order.goal.mode & 0o111
                     else f"it can't be run any more: {mode_text(order.goal.mode)}")
    elif order.base.type == order.goal.type and order.goal.mode != was:
        found.append(f"the mode {mode_text(was)} becomes {mode_text(order.goal.mode)}")
    if order.goal.type == "file":
        found += _content_remarks(order.content, before)
    return found


def _content_remarks(content: bytes, before: bytes) -> list[str]:
    found = list[str]()
    if b"\0" in content:
        return found  # it isn't text
    if before and content != before and content.replace(b"\r\n", b"\n") == before.replace(b"\r\n", b"\n"):
        found.append("only the ends of lines differ")
    text, was = content.decode("utf-8", "replace"), before.decode("utf-8", "replace")
    count = sum(map(is_hidden, text)) - sum(map(is_hidden, was))
    if count > 0:
        found.append(f"{count} character{'s' * (count > 1)} more that can't be seen")
    mixed = mixed_words(text) - mixed_words(was)
    if mixed:
        found.append(f"a word has letters of another alphabet that look like Latin ones: {min(mixed)!r:.60}")
    if blanked_lines(text) > blanked_lines(was):
        found.append(f"a line goes on behind {LONG_BLANK} blanks or more")
    return found


def _hardly_shown(content: bytes, before: bytes) -> list[str]:
    """What the view of a change doesn't show at once. It is no reason to ask a person where nobody looks."""
    if b"\0" in content:
        return []
    found = list[str]()
    longest = longest_line(content.decode("utf-8", "replace"))
    if longest > max(MOST_WIDTH, longest_line(before.decode("utf-8", "replace"))):
        found.append(f"a line has {longest:,} characters; {MOST_WIDTH:,} of a line are shown at first")
    if len(content) > MOST_SHOWN or content.count(b"\n") > MOST_LINES:
        found.append(f"it is large, {len(content):,} bytes; its beginning and its end are shown at first")
    return found
