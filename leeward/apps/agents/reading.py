"""
Reads files of settings, which may be hostile.

Trust:     none in a project. Its file is opened from the descriptor of its folder, name by name and through no link; it
           has to be a regular file of a bounded size with TOML. A file of the user says which commands run on the host,
           so one that another user owns or can write is refused.
Source:    open(2): with O_NOFOLLOW a link gives ELOOP, or ENOTDIR with O_DIRECTORY; with O_NONBLOCK opening a FIFO
           doesn't wait for the other end.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any

from leeward.apps.agents.errors import SettingsError
from leeward.apps.agents.settings_paths import OURS
from leeward.errors import reason_of
from leeward.spec.writers import distrust

#: Bytes of a file of settings, at most.
MAX_FILE = 256 << 10

#: Depth of nested tables and arrays, at most.
MAX_DEPTH = 8

#: The path of a project's settings, below its folder.
PROJECT_FILE = ".leeward/agent.toml"
#: That of another program, of which a part is used.
HOLE_FILE = ".hole/settings.json"

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def read_project_file(project: int, shown: str) -> dict[str, Any] | None:
    """
    The table in the settings file of the open folder *project*, whose path is *shown*; None if it has none.

    Raises SettingsError as `read_in_project`, and if the file isn't TOML.
    """
    content = read_in_project(project, PROJECT_FILE, shown)
    return None if content is None else parse_settings(content, shown)


def read_in_project(project: int, file: str, shown: str) -> bytes | None:
    """
    The content of *file*, a name in a folder of the open folder *project*, whose path is *shown*; None if it has none.

    Raises SettingsError if the file is a link, is behind one, isn't regular, or is too large.
    """
    above, name = file.split("/")
    try:
        folder = os.open(above, _FOLDER, dir_fd=project)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unopened(error, shown) from None
    try:
        opened = os.open(name, _FILE, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unopened(error, shown) from None
    finally:
        os.close(folder)
    return _content(opened, shown)


def read_user_file(path: str) -> dict[str, Any] | None:
    """
    The table in a file of the user or of this package; None if there is none. Links are followed: users manage such
    files by links.

    Raises SettingsError as `read_project_file`, and if others than root and the user own the file or can write it.
    """
    try:
        file = os.open(path, _FILE & ~os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise SettingsError(path, "", f"can't be opened: {reason_of(error)}") from None
    about = os.fstat(file)
    wrong = help_ = ""
    # Whoever has installed this package can write its code as well.
    if not path.startswith(f"{OURS}/") and stat.S_ISREG(about.st_mode):
        wrong, help_ = distrust(path, file, about, os.geteuid())
    if wrong:
        os.close(file)
        raise SettingsError(path, "", wrong, help_)
    return parse_settings(_content(file, path), path)


def parse_settings(content: bytes, shown: str) -> dict[str, Any]:
    """The table in TOML; SettingsError if it isn't UTF-8 or TOML, or is nested deeper than MAX_DEPTH."""
    import tomllib  # 2 ms, and many starts read no such file

    try:
        table = tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise SettingsError(shown, "", "isn't UTF-8") from None
    except RecursionError:
        raise SettingsError(shown, "", f"has more than {MAX_DEPTH} tables within each other") from None
    except ValueError as error:  # tomllib.TOMLDecodeError, or of a number with thousands of digits
        raise SettingsError(shown, "", f"isn't TOML: {error}") from None
    check_depth(table, shown)
    return table


def beginning(path: str, most: int, *, follow: bool = False) -> bytes | None:
    """At most *most* bytes of a regular file; None of anything else, such as a FIFO, at which a read would wait."""
    try:
        fd = os.open(path, _FILE & ~os.O_NOFOLLOW if follow else _FILE)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        with open(fd, "rb", closefd=False) as file:
            return file.read(most)
    except OSError:
        return None
    finally:
        os.close(fd)


def _unopened(error: OSError, shown: str) -> SettingsError:
    reasons = {errno.ELOOP: "is a link, which isn't followed",
               errno.ENOTDIR: "isn't in a folder: a link isn't followed",  # the error for a link with O_DIRECTORY
               errno.ENXIO: "is no regular file"}
    code = error.errno or 0
    return SettingsError(shown, "", reasons.get(code) or f"can't be opened: {os.strerror(code).lower()}")


def _content(file: int, shown: str) -> bytes:
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise SettingsError(shown, "", "is no regular file")
        content = b""
        while len(content) <= MAX_FILE:
            piece = os.read(file, MAX_FILE + 1 - len(content))
            if not piece:
                break
            content += piece
    except OSError as error:
        raise SettingsError(shown, "", f"can't be read: {reason_of(error)}") from None
    finally:
        os.close(file)
    if len(content) > MAX_FILE:
        raise SettingsError(shown, "", f"has more than {MAX_FILE} bytes")
    return content


def check_depth(table: object, shown: str) -> None:
    """SettingsError if *table* is nested deeper than MAX_DEPTH."""
    # Without recursion, since the parser accepts dotted keys of any length.
    waiting = [(table, 1)]
    while waiting:
        item, depth = waiting.pop()
        inner = list(item.values()) if isinstance(item, dict) else item if isinstance(item, list) else []
        if inner and depth > MAX_DEPTH:
            raise SettingsError(shown, "", f"has more than {MAX_DEPTH} tables within each other")
        waiting += [(each, depth + 1) for each in inner]
