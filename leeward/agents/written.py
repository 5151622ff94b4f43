"""
What agents can write, and paths that lead there: whoever writes a folder can put a link into it, which the next start
would follow with the caller's rights.

Runs in:   the caller's program.
Holds:     each name of a path is opened below the folder that was opened before it, so nothing can be swapped between
           the check and the use.
Source:    open(2): O_PATH with O_NOFOLLOW opens a link itself; readlink(2) of such a descriptor takes an empty path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping

from leeward.agents.places import config_home
from leeward.agents.reading import MAX_FILE
from leeward.errors import RequestRejected
from leeward.spec.folders import within

#: Links in one path, as path_resolution(7) has it.
_MOST_LINKS = 40
#: A list of texts in one pair of brackets, as nearly every definition has it.
_STATE = r"(?m)^state *= *\[((?: *\"[^\"\]\n]*\",?\s*)*)\]"  # only for links: to compile it takes 0.2 ms
_NAME = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


#: Gets the folder of a link, its name, and the result of lstat(2). Raises RequestRejected if the link mustn't be
#: followed.
LinkCheck = Callable[[str, str, os.stat_result], None]


def open_through(path: str, check: LinkCheck) -> int:
    """
    A descriptor, with O_PATH, of what *path* leads to by links that *check* accepts.

    Args:
        path: absolute, or relative to the current folder.

    Raises:
        RequestRejected: *check* has raised it.
        OSError: it isn't there, or can't be reached.
    """
    names, links = path.split("/")[::-1], 0
    here = os.open("/" if path.startswith("/") else ".", _NAME)
    try:
        while names:
            name = names.pop()
            if name in ("", "."):
                continue
            found = os.open(name, _NAME, dir_fd=here)
            about = os.fstat(found)
            if not stat.S_ISLNK(about.st_mode):
                here = _instead(here, found)
                continue
            links += 1
            try:
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                folder = os.readlink(f"/proc/self/fd/{here}")
                check(folder, name, about)
                if folder.startswith("/proc/"):  # such as the fd/3 of a process, whose text is no path to open
                    here = _instead(here, os.open(name, _NAME & ~os.O_NOFOLLOW, dir_fd=here))
                    continue
                target = os.readlink("", dir_fd=found)
            finally:
                os.close(found)
            names += target.split("/")[::-1]
            if target.startswith("/"):
                here = _instead(here, os.open("/", _NAME))
        return here
    except BaseException:
        os.close(here)
        raise


def open_beside(path: str, written: Callable[[str], Iterable[str]]) -> int:
    """
    A descriptor, with O_PATH, of what *path* leads to by no link that an agent could have made.

    Args:
        path: absolute.
        written: the real paths of folders that agents write; called where there is a link, with its folder.

    Raises:
        RequestRejected: a link is in such a folder.
        OSError: it isn't there, or can't be reached.
    """
    def check(folder: str, name: str, _about: os.stat_result) -> None:
        if any(within(folder, each) for each in written(folder)):
            raise RequestRejected(f"{path!a:.200}: {os.path.join(folder, name)!a:.200} is a link that an agent can"
                                  " have made, and isn't followed")
    return open_through(path, check)


def open_real(path: str) -> int:
    """
    A descriptor, with O_PATH, of what has the real path *path*.

    Raises:
        RequestRejected: a link has been put into the path since it was resolved.
        OSError: it isn't there, or can't be reached.
    """
    def check(folder: str, name: str, _about: os.stat_result) -> None:
        raise RequestRejected(f"{path!a:.200}: {os.path.join(folder, name)!a:.200} has become a link since it was"
                              " looked at, and isn't followed")
    return open_through(path, check)


def open_own(path: str) -> int:
    """
    A descriptor, with O_PATH, of what *path* leads to by links of this user and root: somebody else who can write to a
    folder on the path could make it lead to any folder of this user.

    Raises:
        RequestRejected: a link on the path belongs to another user.
        OSError: it isn't there, or can't be reached.
    """
    def check(folder: str, name: str, about: os.stat_result) -> None:
        if about.st_uid not in (0, os.geteuid()):
            raise RequestRejected(f"{path!a:.200}: {os.path.join(folder, name)!a:.200} is a link of user"
                                  f" {about.st_uid}, and isn't followed; name the folder that you mean")
    return open_through(path, check)


def real_beside(path: str, written: Callable[[str], Iterable[str]]) -> str:
    """
    The real path of what `open_beside` opens; "" where that isn't there.

    Raises:
        RequestRejected: as for `open_beside`.
    """
    try:
        found = open_beside(path, written)
    except OSError:
        return ""
    try:
        return os.readlink(f"/proc/self/fd/{found}")
    finally:
        os.close(found)


def _instead(former: int, latter: int) -> int:
    os.close(former)
    return latter


def writable_by_agents(own: Iterable[str], environ: Mapping[str, str]) -> Callable[[str], Iterator[str]]:
    """For `open_beside`: *own* and the state folders of all agents, which no system's folder is."""
    def found(folder: str) -> Iterator[str]:
        yield from own
        if folder != "/" and not any(within(folder, each) for each in ("/usr", "/etc")):
            yield from state_folders(environ)
    return found


def state_folders(environ: Mapping[str, str]) -> list[str]:
    """The real paths of the state folders of all agents, the user's and ours."""
    from leeward.agents.definition import definition_names  # most paths have no link
    from leeward.agents.places import FILE, OURS

    found, own, home = list[str](), config_home(environ), environ.get("HOME") or "/"
    for name in definition_names(own):
        for folder in (os.path.join(own, "agents"), OURS):
            with contextlib.suppress(OSError, UnicodeDecodeError, ValueError):  # no start can use that one either
                with open(os.path.join(folder, name, FILE), encoding="utf-8") as file:
                    text = file.read(MAX_FILE)
                found += [os.path.realpath(home_path(path, home)) for path in _state_of(text)]
    return found


def _state_of(text: str) -> list[str]:
    """The state folders of a definition: a parser takes a millisecond for each, and a start would wait for all."""
    if "state" not in text:
        return []
    plain = re.findall(_STATE, text)
    if len(plain) == 1 and not set(plain[0]) & set("\\#'"):
        return [each for each in plain[0].split('"')[1::2] if each]
    import tomllib

    folders = tomllib.loads(text).get("state", [])
    return [each for each in folders if isinstance(each, str)] if isinstance(folders, list) else []


def home_path(path: str, home: str) -> str:
    """A path of a definition's, absolute."""
    return os.path.join(home, path[2:]) if path.startswith("~/") else path
