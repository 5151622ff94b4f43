"""
What agents can write, and paths that lead there: whoever writes a folder can put a link into it, which the next start
would follow with the caller's rights. Paths are opened as by `client.host_paths`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from leeward.apps.agents.reading import MAX_FILE
from leeward.apps.agents.settings_paths import FILE, OURS, config_home
from leeward.base.closing import OwnedFd
from leeward.client.host_paths import open_through
from leeward.errors import RequestRejected
from leeward.spec.folders import within

# Imported in functions: what not every start needs; 5 ms of processor time for all of it.

#: A list of texts in one pair of brackets, as nearly every definition has it.
_STATE = r"(?m)^state *= *\[((?: *\"[^\"\]\n]*\",?\s*)*)\]"  # only for links: to compile it takes 0.2 ms


def open_beside(path: str, written: Callable[[str], Iterable[str]]) -> int:
    """
    A descriptor, with O_PATH, of what the absolute *path* leads to by no link that an agent could have made.

    RequestRejected if a link is in a folder of *written*, which is called only with a link's folder.
    """
    def check(folder: str, name: str, _about: os.stat_result) -> None:
        if any(within(folder, each) for each in written(folder)):
            raise RequestRejected(f"{path!a:.200}: {os.path.join(folder, name)!a:.200} is a link that an agent can"
                                  " have made, and isn't followed")
    return open_through(path, check)


def open_real(path: str) -> int:
    """A descriptor, with O_PATH, of the real path *path*; RequestRejected if a link was put there since."""
    def check(folder: str, name: str, _about: os.stat_result) -> None:
        raise RequestRejected(f"{path!a:.200}: {os.path.join(folder, name)!a:.200} has become a link since it was"
                              " looked at, and isn't followed")
    return open_through(path, check)


def real_beside(path: str, written: Callable[[str], Iterable[str]]) -> str:
    """The real path of what `open_beside` opens; "" where that isn't there."""
    try:
        found = open_beside(path, written)
    except OSError:
        return ""
    return closed_path(found)


def closed_path(fd: int) -> str:
    """The path of what *fd* is open on, which is closed."""
    with OwnedFd(fd):
        return os.readlink(f"/proc/self/fd/{fd}")


def writable_by_agents(own: Iterable[str], environ: Mapping[str, str]) -> Callable[[str], Iterator[str]]:
    """For `open_beside`: *own* and the state folders of all agents, which no system's folder is."""
    def found(folder: str) -> Iterator[str]:
        yield from own
        if folder != "/" and not any(within(folder, each) for each in ("/usr", "/etc")):
            yield from state_folders(environ)
    return found


def state_folders(environ: Mapping[str, str]) -> list[str]:
    from leeward.apps.agents.definition import definition_names  # most paths have no link

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
    return os.path.join(home, path[2:]) if path.startswith("~/") else path
