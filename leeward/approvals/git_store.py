"""
The service's repositories for what sandboxes push, and what of them is kept.

Runs in:   the operator's program that decides, and git as a child of it.
Kept:      the commits that a request needs which waits or is carried out, and what sandboxes have pushed that are open.
           The rest goes within PRUNE_S, and when the service starts.
Bounds:    all repositories together take MOST_STORED bytes. Beyond that no push is taken in before something is decided
           or a sandbox ends: what waits for a person isn't thrown away.
Threads:   any may call. A repository isn't pruned between the moment at which a push is taken in and the one at which
           its request is in the queue (`held`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping

from leeward.approvals.git_host import GitFailed, git
from leeward.errors import Busy

#: Bytes of all repositories together; what is being taken in may go beyond.
MOST_STORED = 2 << 30

#: Seconds between two times that what nobody needs any more goes.
PRUNE_S = 600.0

#: Seconds after which a file that git or this program has left behind half-written goes.
_LEFT_S = 3600.0

#: Seconds that the end waits for it.
_CLOSE_S = 5.0

#: What a repository is called while it is removed: half of one is none, and no push would get on with it.
_GONE = ".gone"

#: Where commits are named that requests need.
_NEEDED = "refs/needed/"

#: Commits that are needed, by the folder of their repository.
Needed = Callable[[], Mapping[str, Collection[str]]]


class GitStore:
    """
    Args:
        folder: of the service.
        needed: tells which commits of which repository requests need that wait or are carried out.
        live: tells the ids of the sandboxes that are open.
    """

    def __init__(self, folder: str, needed: Needed, live: Callable[[], Collection[str]]) -> None:
        self._folder, self._needed, self._live = os.path.join(folder, "git"), needed, live
        self._changed, self._held = threading.Condition(), dict[str, int]()
        self._pruned: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="git", daemon=True)

    def start(self) -> None:
        """
        Prune now, and again and again.
        """
        self._thread.start()

    def close(self) -> None:
        """
        Prune no more. A git that packs comes to its end by itself.
        """
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while True:
            with contextlib.suppress(Exception):  # it costs this time
                self.prune()
            if self._over.wait(PRUNE_S):
                return

    @contextlib.contextmanager
    def held(self, repository: str) -> Iterator[None]:
        """
        While a push is taken into the folder *repository*, and until its request is in the queue.

        Raises:
            Busy: the repositories take too much already.
        """
        if self.size() >= MOST_STORED:
            raise Busy(f"what sandboxes have pushed takes {MOST_STORED} bytes already; decide what waits")
        with self._changed:
            self._changed.wait_for(lambda: repository not in self._pruned)
            self._held[repository] = self._held.get(repository, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                self._held[repository] -= 1
                if not self._held[repository]:
                    del self._held[repository]

    def size(self) -> int:
        """
        Bytes of all repositories.
        """
        return _bytes_of(self._folder)

    def prune(self) -> None:
        """
        Remove what nobody needs any more.
        """
        for name in self._names(_GONE):  # of a service that was killed
            shutil.rmtree(os.path.join(self._folder, name), ignore_errors=True)
        for name in self._names(".git"):
            path = os.path.join(self._folder, name)
            with self._changed:
                if path in self._held:
                    continue
                self._pruned.add(path)
            try:
                # Asked for only now: what was taken in before is in the queue, or its sandbox is open.
                self._prune_one(path, set(self._needed().get(path, ())), set(self._live()))
            except (GitFailed, OSError):
                pass  # it is tried again
            finally:
                with self._changed:
                    self._pruned.discard(path)
                    self._changed.notify_all()

    def _names(self, ending: str) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._folder) if name.endswith(ending))
        except FileNotFoundError:
            return []

    def _prune_one(self, path: str, needed: set[str], live: set[str]) -> None:
        found = _refs(path)
        kept = {ref for ref in found if ref.startswith("refs/sandbox/") and ref.split("/")[2] in live}
        if not needed and not kept:
            os.rename(path, path + _GONE)
            shutil.rmtree(path + _GONE)
            return
        named = {_NEEDED + commit for commit in needed}
        gone = [ref for ref in found if ref not in kept | named]
        for each in _left(path):
            os.unlink(each)
        if not gone:
            return
        for commit in sorted(needed):
            # One that isn't there has no name; its push will say so. Whatever else fails leaves all as it is.
            if git("rev-list", "--no-walk", "--ignore-missing", commit, folder=path):
                git("update-ref", _NEEDED + commit, commit, folder=path)
        for ref in gone:
            git("update-ref", "-d", ref, folder=path)
        # Of what is no more named nothing is packed anew.
        git("repack", "-a", "-d", "-l", "-q", folder=path)


def _refs(path: str) -> list[str]:
    said = git("for-each-ref", "--format=%(refname)", folder=path).decode("utf-8", "surrogateescape")
    return [line for line in said.split("\n") if line]


def _bytes_of(folder: str) -> int:
    """
    Of all files below *folder*. One that goes meanwhile has none.
    """
    found = 0
    for where, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                found += os.lstat(os.path.join(where, name)).st_size
    return found


def _left(path: str) -> list[str]:
    """
    Files that a bundle was in, or a pack before it was whole, of a service or a git that was killed.
    """
    found, old = list[str](), time.time() - _LEFT_S
    for where, marks in ((path, (".bundle",)), (os.path.join(path, "objects", "pack"), ("tmp_",))):
        with contextlib.suppress(FileNotFoundError):
            for each in os.scandir(where):
                is_left = each.name.endswith(marks) if where == path else each.name.startswith(marks)
                if is_left and each.stat(follow_symlinks=False).st_mtime < old:
                    found.append(each.path)
    return found
