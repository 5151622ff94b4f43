"""`leeward cp`: copies files and folders into a live sandbox, out of one, and within one."""

from __future__ import annotations

import os
import re
import stat

import click

from leeward.client import file_calls
from leeward.client.conversation import checked
from leeward.client.file_trees import Transfer
from leeward.client.files import Files
from leeward.client.host_paths import is_folder
from leeward.client.sandbox import Sandbox
from leeward.errors import LeewardError
from leeward.wire.sandbox_ids import ID_ALPHABET, ID_LENGTH
from leeward_cli.click_options import SOCKET
from leeward_cli.messages import complain
from leeward_cli.progress import Counted, Progress
from leeward_cli.sandbox_command import attached

_INSIDE = re.compile(rf"([{ID_ALPHABET}]{{{ID_LENGTH}}}):(.*)", re.DOTALL)

#: A name, as of an agent, before a colon that no slash is before.
_NAMED = re.compile(r"([A-Za-z0-9][^:/]*):(.*)", re.DOTALL)

_WHY = {
    "special": "neither a file, a folder nor a link", "link": "a link that could lead out of the folder",
    "gone": "it vanished meanwhile", "changed": "it changed meanwhile", "name": "its name leads out of the folder",
}


def split(place: str) -> tuple[str, str]:
    """The sandbox's id or name in *place*, or "" for the host, and the path there. A file of the host comes before a name."""
    found = _INSIDE.fullmatch(place)
    if found is None and not os.path.lexists(place):
        found = _NAMED.fullmatch(place)
    return (found[1], found[2] or ".") if found else ("", place)


@click.command()
@SOCKET
@click.argument("source", metavar="A")
@click.argument("target", metavar="B")
def cp(socket: str | None, source: str, target: str) -> int:
    """
    Copy the file or folder A to B. One of them, or both, must be in a sandbox: ID:PATH, relative to /workspace.

    If B is a folder, A is copied into it. Modes and times are kept. What can't be copied, such as a FIFO, or on the
    way out a link that could lead out of its folder, is left out and listed; the exit status is 1 then.
    """
    (from_id, path), (to_id, to) = split(source), split(target)
    if not (from_id or to_id):
        raise click.UsageError("one of A and B must be in a sandbox: ID:PATH, with an id or a name of `leeward sandbox list`")
    if from_id and to_id and from_id != to_id:
        raise click.UsageError("A and B are in two sandboxes: copy to this host first")
    try:
        with attached(from_id or to_id, socket) as box:
            done = _copy(box, path, to, out=not to_id, within=bool(from_id and to_id))
    except (OSError, LeewardError, ValueError) as error:
        complain(_message(error))
        return 1
    for name, why in done.left_out:
        complain(f"left out: {name}: {_WHY.get(why, why)}")
    return int(bool(done.left_out))


def _copy(box: Sandbox, path: str, to: str, *, out: bool, within: bool) -> Transfer:
    name = os.path.basename(os.path.normpath(path))
    if is_folder(to) if out else _is_folder(box, to):
        to = os.path.join(to, "" if name in (".", "..") else name)
    if within:
        with Progress("copying"):
            box.files.copy(path, to)
        return Transfer()
    counted = Counted(box, (lambda: _inside(box, path)) if out else lambda: _outside(path))
    with Progress("copying", counted.text):
        return Files(counted).download(path, to) if out else Files(counted).upload(path, to)


def _inside(box: Sandbox, path: str) -> int:
    """The bytes of a file, or of all files below a folder, in the sandbox; 0 if that can't be known by one call."""
    below = {"path": file_calls.raw(path)}
    try:
        about = box.files.stat(path)
        if not about.is_folder:
            return about.size
        rows = checked(file_calls.answer_of, "file_walk", below, box.ask("file_walk", below))["rows"]
    except (OSError, LeewardError):
        return 0
    return sum(row[3] for row in rows if row[1] == "file")


def _outside(path: str) -> int:
    """The same on this host."""
    try:
        if not is_folder(path):
            return os.path.getsize(path)
        files = (os.lstat(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)
        return sum(about.st_size for about in files if stat.S_ISREG(about.st_mode))
    except OSError:
        return 0


def _is_folder(box: Sandbox, path: str) -> bool:
    try:
        return box.files.stat(path).is_folder
    except (FileNotFoundError, NotADirectoryError):
        return False


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        name = error.filename
        shown = os.fsdecode(name) if isinstance(name, (str, bytes)) else ""
        return f"{shown}: {error.strerror}" if shown else error.strerror
    return str(error)
