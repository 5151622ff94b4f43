"""
Orders other than those about files: commands, pushes and settings, which are carried out after their approval.

Runs in:   the operator's program; pure.
Trust:     none in a request. An order is complete at the time of the request, and the queue keeps its bytes unchanged,
           so what is carried out is what was shown.
"""

from __future__ import annotations

import math
import os
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from leeward.approvals.queue.subjects import WORKSPACE, Invocation, branch, invocation, starting_folder
from leeward.errors import BadRequest, Bug

#: Seconds that an approved command may run: the default, and the most that a request or the configuration can set.
EXEC_S, LONGEST_EXEC_S = 300.0, 3600.0


@dataclass(frozen=True, slots=True)
class CommandOrder:
    """
    A command.

    Attributes:
        argv: the arguments, the program first; () if there is a line.
        line: of a shell; "" if there are arguments.
        cwd: the folder to start in, an absolute path; "" for the project.
        timeout: seconds.
        profile: of a sandbox that is opened for the command; "" to run it in the sandbox that has requested it.
    """

    argv: tuple[str, ...]
    line: str = ""
    cwd: str = ""
    timeout: float = EXEC_S
    profile: str = ""

    @property
    def subject(self) -> Invocation:
        return Invocation(self.argv, self.line, starting_folder(self.cwd))


@dataclass(frozen=True, slots=True)
class PushOrder:
    """
    A push of a branch.

    Attributes:
        repository: the folder of the service's repository on the host, which has the commits.
        remote: the URL or folder to push to.
        branch: the name of the branch there.
        commit: the commit that was shown, in hexadecimal.
    """

    repository: str
    remote: str
    branch: str
    commit: str


@dataclass(frozen=True, slots=True)
class ConfigOrder:
    """A new value for a key of the configuration."""

    key: str
    value: str | float


CarriedOrder = CommandOrder | PushOrder | ConfigOrder


def command_order(command: Any, *, cwd: str = "", timeout: Any = EXEC_S, profile: str = "") -> CommandOrder:
    """
    Check the fields of a command and make its order.

    Raises:
        BadRequest: a field isn't valid; the message says which.
    """
    if not isinstance(command, str) and not (isinstance(command, Sequence)
                                             and all(isinstance(each, str) for each in command)):
        raise BadRequest("a command is a line, or a list of arguments")
    if not (isinstance(timeout, (int, float)) and math.isfinite(timeout) and 0 < timeout <= LONGEST_EXEC_S):
        raise BadRequest(f"a command runs for more than nothing, and {LONGEST_EXEC_S:.0f} seconds at most")
    if len(profile) > 64 or not (profile.replace("-", "").replace("_", "").isalnum() or not profile):
        raise BadRequest("a profile is named by letters, digits, - and _")
    try:
        os.fsencode(cwd.join((command,) if isinstance(command, str) else command))
    except UnicodeEncodeError:
        raise BadRequest("a command isn't valid Unicode") from None
    found = invocation(command, cwd)
    folder = posixpath.join(WORKSPACE, found.cwd) if found.cwd else ""
    return CommandOrder(found.argv, found.line, folder, float(timeout), profile)


def push_order(repository: str, remote: str, name: str, commit: str) -> PushOrder:
    """
    Check the fields of a push and make its order.

    Raises:
        BadRequest: *name* is no name of a branch, or *commit* no hash.
    """
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
