"""
Prunes the service's repositories for what sandboxes push.

Kept:      the commits of requests that are pending or being carried out, and the pushes of open sandboxes. The rest is
           removed within PRUNE_S, and when the service starts.
Bounds:    all repositories together take MOST_STORED bytes. At that size no push is taken in until a request is decided
           or a sandbox ends; nothing that a request needs is removed.
Threads:   any may call. A repository isn't pruned while a push is taken into it, until the request for the push is in
           the queue (`held`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping

from leeward.approvals.git.git_host import GitFailed, git
from leeward.errors import Busy

#: Bytes of all repositories together; a push that is being taken in may exceed it.
MOST_STORED = 2 << 30

#: Seconds between two prunings.
PRUNE_S = 600.0

#: Age in seconds at which a file that git or this program has left behind half-written is removed.
_LEFT_S = 3600.0

#: Seconds that `close` waits for the thread.
_CLOSE_S = 5.0

#: The ending of a repository's name while it is removed, so that no push uses one that is half removed.
_GONE = ".gone"

#: The refs of the commits that requests need.
_NEEDED = "refs/needed/"

#: Returns the commits that requests need, by the folder of their repository.
Needed = Callable[[], Mapping[str, Collection[str]]]


class GitStore:
    """
    The service's repositories, pruned by a thread. *needed* returns the commits of requests that are pending or being
    carried out, *live* the ids of the open sandboxes.
    """

    def __init__(self, folder: str, needed: Needed, live: Callable[[], Collection[str]]) -> None:
        self._folder, self._needed, self._live = os.path.join(folder, "git"), needed, live
        self._changed, self._held = threading.Condition(), dict[str, int]()
        self._pruned: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="git", daemon=True)

    def start(self) -> None:
        """Prune now, and every PRUNE_S seconds."""
        self._thread.start()

    def close(self) -> None:
        """Prune no more. Waits 5 seconds at most; a git that repacks ends by itself later."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while True:
            with contextlib.suppress(Exception):  # it costs this pruning; the next one tries again
                self.prune()
            if self._over.wait(PRUNE_S):
                return

    @contextlib.contextmanager
    def held(self, repository: str) -> Iterator[None]:
        """
        A context in which the folder *repository* isn't pruned; Busy if the repositories take MOST_STORED bytes
        already.
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
        """The bytes of all repositories."""
        return _bytes_of(self._folder)

    def prune(self) -> None:
        """Remove what no request and no open sandbox needs."""
        for name in self._names(_GONE):  # left by a service that was killed
            shutil.rmtree(os.path.join(self._folder, name), ignore_errors=True)
        for name in self._names(".git"):
            path = os.path.join(self._folder, name)
            with self._changed:
                if path in self._held:
                    continue
                self._pruned.add(path)
            try:
                # Only now: what was taken in before this moment is in the queue, or its sandbox is open.
                self._prune_one(path, set(self._needed().get(path, ())), set(self._live()))
            except (GitFailed, OSError):
                pass  # the next pruning tries again
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
            # A missing commit gets no ref; its push will fail. Any other failure raises before a ref is deleted.
            if git("rev-list", "--no-walk", "--ignore-missing", commit, folder=path):
                git("update-ref", _NEEDED + commit, commit, folder=path)
        for ref in gone:
            git("update-ref", "-d", ref, folder=path)
        # This drops the objects that no ref leads to.
        git("repack", "-a", "-d", "-l", "-q", folder=path)


def _refs(path: str) -> list[str]:
    said = git("for-each-ref", "--format=%(refname)", folder=path).decode("utf-8", "surrogateescape")
    return [line for line in said.split("\n") if line]


def _bytes_of(folder: str) -> int:
    """The bytes of all files below *folder*. A file that is removed meanwhile counts as 0."""
    found = 0
    for where, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                found += os.lstat(os.path.join(where, name)).st_size
    return found


def _left(path: str) -> list[str]:
    """Bundles and unfinished packs that a killed service or git has left behind, older than _LEFT_S."""
    found, old = list[str](), time.time() - _LEFT_S
    for where, marks in ((path, (".bundle",)), (os.path.join(path, "objects", "pack"), ("tmp_",))):
        with contextlib.suppress(FileNotFoundError):
            for each in os.scandir(where):
                is_left = each.name.endswith(marks) if where == path else each.name.startswith(marks)
                if is_left and each.stat(follow_symlinks=False).st_mtime < old:
                    found.append(each.path)
    return found
