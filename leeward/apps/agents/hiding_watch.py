"""
Hides matching names that appear while an agent runs, and hidden files that the host replaces.

Theory of operation. The kernel removes a mount whose file is renamed over or removed on the host, and a new name has no
mount. So a thread checks the known names every LOOK_S, and the whole project as often as takes a twentieth of the time.
The daemon covers new names in the running sandbox. A name with another inode is new. A file that has only changed may
have been replaced by one with the same inode number, so the request for it is repeated once in a while; a file that is
covered already is left alone.
Trust:     none in the names: the agent makes some of them. For a name that can't be covered, its folder is covered, or
           the next one above. Where that fails as well (the sandbox has all covers that it may have, the tree can't be
           read, or the daemon refuses) the agent is ended, so that it doesn't run with a file that must be hidden.
Leaves:    the moment between a name's appearance and its cover, in which the agent can read it or open it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from leeward.apps.agents.hiding import FileRules
from leeward.apps.agents.project_tree import check_text, hiding_plan
from leeward.client.sandbox import Sandbox
from leeward.errors import Busy, RequestRejected, SandboxOver

#: Seconds between two checks of the known names; the inverse of the share of time for searches of the whole project;
#: seconds between two requests for a file that only changes.
LOOK_S, _SHARE, _AGAIN_S = 0.1, 20, 5.0
#: Seconds before the first search of the whole project, in which the agent starts.
_FIRST_S = 1.0
#: Seconds for which searches or covers may fail before the agent is ended.
_PATIENCE_S = 10.0
#: Names of one request, and bytes of them: a porter's order holds 64 KiB.
_MOST, _MOST_BYTES = 256, 32 << 10
#: Names that are remembered while they don't exist, and names that are told at the end: an agent can make any number.
_MOST_KNOWN = 10_000

#: Device, inode and ctime of a file.
_Identity = tuple[int, int, int]


class HidingWatch:
    """
    Covers new names in *box* until `stop`; `covered` has their names.

    *project* is a descriptor of the project's folder, which the caller keeps open, *shown* its path and *inside* that
    in the sandbox. *hidden* are names that were hidden when the sandbox was opened, each with the device and inode that
    it had before; *absent* ones have to be hidden and didn't exist then. *end* ends the agent for a reason, once.
    """

    def __init__(self, box: Sandbox, rules: FileRules, project: int, shown: str, inside: str,
                 hidden: Mapping[str, tuple[int, int]], absent: Iterable[str], tell: Callable[[str], None],
                 end: Callable[[str], None]) -> None:
        self._box, self._rules, self._project, self._shown, self._inside = box, rules, project, shown, inside
        self._tell, self._end = tell, end
        self._failing: dict[str, float] = {}
        # With the ctime 0, which no file has, so that each is requested once: it may have been replaced meanwhile.
        self._known: dict[str, _Identity | None] = {path: (*found, 0) for path, found in hidden.items()}
        self._known |= dict.fromkeys(absent)
        self._first = frozenset(self._known)
        self._asked = dict.fromkeys(self._known, 0.0)
        self.covered: set[str] = set()
        self._over = threading.Event()
        self._warned: set[str] = set()
        self._thread = threading.Thread(target=self._watch, name="leeward-hiding", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def look(self) -> None:
        """
        Search the whole project once, in the caller's thread and before `start`, and cover what is found.

        Raises OSError, Busy or RequestRejected if it can't be searched, or a name can't be covered.
        """
        found = hiding_plan(self._project, self._rules, self._shown, running=True).hidden
        self._cover([*self._known, *(each.path for each in found)])
        if "busy" in self._failing:
            raise Busy("names in the project can't be hidden now; try again")

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _identity(self, path: str) -> _Identity | None:
        try:
            about = os.stat(path, dir_fd=self._project, follow_symlinks=False)
        except (OSError, ValueError):
            return None
        return about.st_dev, about.st_ino, about.st_ctime_ns

    def _watch(self) -> None:
        whole = time.monotonic() + _FIRST_S
        try:
            while not self._over.wait(LOOK_S):
                names = list(self._known)
                began = time.monotonic()
                if began >= whole:
                    names += self._found()
                    whole = time.monotonic() + _SHARE * (time.monotonic() - began)
                self._cover(names)
                if len(self._known) > _MOST_KNOWN:
                    # Names that don't exist any more; a search of the project finds them if they come back.
                    self._known = {path: found for path, found in self._known.items()
                                   if found is not None or path in self._first}
                    self._asked = {path: asked for path, asked in self._asked.items() if path in self._known}
        except SandboxOver:
            pass  # no program runs in it any more
        except Exception as error:  # any: the thread ends, so the agent has to end
            if not self._over.is_set():
                self._end(f"new names can't be hidden any more: {error}")

    def _found(self) -> list[str]:
        try:
            found = hiding_plan(self._project, self._rules, self._shown, running=True).hidden
        except OSError as error:
            self._fails("tree", error)
            return []
        self._failing.pop("tree", None)
        return [each.path for each in found]

    def _fails(self, what: str, error: Exception) -> None:
        """Record a failure, which is tried again for some time; raise *error* if it has failed for too long."""
        now = time.monotonic()
        if now > self._failing.setdefault(what, now) + _PATIENCE_S:
            raise error

    def _warn(self, what: str, line: str) -> None:
        """Show *line* if it is the first one about *what*, since an agent can cause any number."""
        if what not in self._warned:
            self._warned.add(what)
            self._tell(line)

    def _cover(self, names: Iterable[str]) -> None:
        now, new = time.monotonic(), list[str]()
        for path in dict.fromkeys(names):
            found, before = self._identity(path), self._known.get(path)
            self._known[path] = found
            if found is None or found == before:
                continue
            if before is None or found[:2] != before[:2]:
                if len(self.covered) < _MOST_KNOWN:
                    self.covered.add(path)
            elif now < self._asked.get(path, 0.0) + _AGAIN_S:
                self._known[path] = before  # so that the next check requests it
                continue
            self._asked[path] = now
            new.append(path)
        some, size = list[str](), 0
        for path in new:
            length = len(os.fsencode(self._inside)) + len(os.fsencode(path))
            if some and (len(some) >= _MOST or size + length > _MOST_BYTES):
                self._ask(some)
                some, size = [], 0
            some, size = [*some, path], size + length
        if some:
            self._ask(some)

    def _ask(self, paths: list[str]) -> None:
        try:
            self._box.ask("sandbox_hide", {"hide": [os.path.join(self._inside, path) for path in paths]})
            self._failing.pop("busy", None)
        except Busy as error:
            self._fails("busy", error)
            self._warn("busy", f"new names are hidden later: {error}")
            self._known.update(dict.fromkeys(paths))  # as absent, so that the next check requests them again
        except (RequestRejected, UnicodeError):
            folder = os.path.dirname(paths[0])
            if len(paths) > 1:
                for path in paths:
                    self._ask([path])
            elif folder:
                self._warn("name", f"{paths[0]!a:.120} can't be hidden, so its folder is")
                self.covered.add(folder)
                self._ask([folder])
            else:
                check_text(paths)  # says what helps
                raise
