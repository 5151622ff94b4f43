"""
git on the operator's side: the service's repositories for what sandboxes have pushed, and the push to the remote.

Runs in:   the operator's program that decides, and git as a child of it, with the operator's credentials.
Trust:     none in what a sandbox has pushed. It comes as a bundle, and as nothing else that git would fetch from; git
           checks each object as it is fetched, and nothing is checked out. No configuration, hook or attributes file of
           a sandbox is on this side. The project's own repository is the operator's.
Kept:      the commits of requests that are pending or being carried out, and the pushes of open sandboxes. The rest is
           removed within PRUNE_S, and when the service starts.
Bounds:    all repositories together take MOST_STORED bytes. At that size no push is taken in until a request is decided
           or a sandbox ends; nothing that a request needs is removed.
Threads:   any may call. A repository isn't pruned while a push is taken into it, until the request for the push is in
           the queue (`held`).
Source:    git-bundle(1), git-config(1) transfer.fsckObjects, git-push(1)
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import resource
import selectors
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from leeward.errors import BadRequest, Busy, reason_of
from leeward.spec.obeyed.lookup import DOTTED, obeyed_by
from leeward.spec.unseen import LONG_BLANK, blanked_lines, is_hidden, mixed_words

#: Bytes of a bundle, bytes that one call of git prints, and seconds that it takes: at most.
MOST_BUNDLE, MOST_PRINTED, SECONDS = 64 << 20, 4 << 20, 120.0

#: What a bundle begins with. `git fetch` takes any other file for a `.git` file, follows the folder that it names, and
#: reads that repository of the host.
_BUNDLES = b"# v2 git bundle\n", b"# v3 git bundle\n"

#: Bytes by which one sandbox's pushes may let the repository grow, deleted ones too; the last bundle may exceed them.
MOST_TAKEN = 512 << 20

#: Limits of git and its children where they read what a sandbox has pushed: seconds of processor time and bytes of
#: address space for each process, and bytes of a file.
MOST_CPU_S, MOST_MEMORY, MOST_FILE = 120, 4 << 30, 1 << 30

#: A line of the shell that waits until the limits are set, and then executes git. It uses builtins alone.
_GATE = 'read -r _ && exec git "$@" </dev/null'

#: Bytes at the end of git's standard error that are kept.
_MOST_SAID = 1 << 16

#: Branches of a remote that are looked at.
_MOST_KNOWN = 50

#: Commits and files that a request lists.
MOST_COMMITS, MOST_FILES = 50, 200

_CONFIG = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "protocol.ext.allow=never", "gc.auto=0",
           "maintenance.auto=false", "core.attributesFile=/dev/null", "core.pager=cat", "push.recurseSubmodules=no",
           "fetch.recurseSubmodules=no", "submodule.recurse=false", "transfer.fsckObjects=true", "core.quotePath=false",
           "advice.detachedHead=false", "push.followTags=false", "push.gpgSign=false",
           # The commit graph of the project may contradict the objects themselves.
           "core.commitGraph=false",
           # Packs are kept as they come, so that their sizes are the bytes that were taken in.
           "fetch.unpackLimit=1",
           # git shows no diff of a larger file, and doesn't hold it in memory as a whole.
           "core.bigFileThreshold=16m",
           # Packs are mapped piece by piece, so that large packs of the project fit into MOST_MEMORY.
           "core.packedGitWindowSize=32m", "core.packedGitLimit=1g", "pack.threads=2")

#: git fetches no missing object by a command of the repository's configuration (git 2.45, and its releases of 2024 for
#: older versions), and replaces no object by another.
_ENVIRON = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1"}


class GitFailed(BadRequest):
    """A call of git failed; the message has git's own words."""


def without_password(text: str) -> str:
    """*text* without the part before the @ of its URLs, which may have a password."""
    return re.sub(r"://[^/@\s]*@", "://", text)


def is_local(remote: str) -> bool:
    """Whether git reads *remote* as a folder of this host. A push there runs that folder's own hooks."""
    if "://" in remote:
        return remote.casefold().startswith("file:")
    return ":" not in remote.split("/")[0]


def _limit(process: int, is_bounded: bool) -> None:
    """Lower the limits of *process* and its later children: MOST_CPU_S, MOST_FILE, MOST_MEMORY. Linux 2.6.36; prlimit(2)."""
    wanted = {resource.RLIMIT_CPU: MOST_CPU_S, resource.RLIMIT_FSIZE: MOST_FILE, resource.RLIMIT_CORE: 0}
    for kind, most in {**wanted, **({resource.RLIMIT_AS: MOST_MEMORY} if is_bounded else {})}.items():
        hard = resource.prlimit(process, kind)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.prlimit(process, kind, (least, least))


def git(*argv: str, folder: str, seconds: float = SECONDS, cut: bool = False) -> bytes:
    """
    Run git in the repository *folder*; returns the bytes of its standard output. GitFailed if it failed, took more than
    *seconds*, isn't installed, or printed more than MOST_PRINTED bytes; with *cut* it is ended there, and these are
    returned.
    """
    words = [word for each in _CONFIG for word in ("-c", each)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _ENVIRON
    try:
        with subprocess.Popen(["/bin/sh", "-c", _GATE, "git", *words, "-C", folder, *argv], env=environ,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              start_new_session=True) as child:
            try:
                assert child.stdin is not None
                # A push runs the operator's credential helpers, which may need more memory.
                _limit(child.pid, argv[0] != "push")
                with child.stdin as gate:
                    gate.write(b"\n")
                out, err, is_whole = _printed(child, seconds)
            except TimeoutError:
                raise GitFailed(f"git {argv[0]} took more than {seconds:.0f} seconds") from None
            finally:
                if child.poll() is None:  # with its children, which are in its process group
                    os.killpg(child.pid, signal.SIGKILL)
    except OSError as error:
        raise GitFailed(f"git: {reason_of(error)}") from None
    if not is_whole and not cut:
        raise GitFailed(f"git {argv[0]} printed more than {MOST_PRINTED} bytes")
    if child.returncode == 127:
        raise GitFailed("git: no such file or directory")
    if child.returncode and is_whole:
        raise GitFailed(f"git {argv[0]}: {_why(err, child.returncode)}")
    return out


def _line(*argv: str, folder: str) -> str:
    """The one line that git prints."""
    return git(*argv, folder=folder).decode("utf-8", "surrogateescape").strip()


def _why(err: bytes, status: int) -> str:
    """The lines of standard error that say why git failed, git's own and the remote's, without advice."""
    lines = [line.strip() for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("fatal:", "error:", "remote:", "! "))] or lines[-1:]
    return without_password("; ".join(dict.fromkeys(told)))[:500] or f"exit status {status}"


def _printed(child: subprocess.Popen[bytes], seconds: float) -> tuple[bytes, bytes, bool]:
    """
    The first MOST_PRINTED bytes of the output, the last _MOST_SAID bytes of the errors, and whether the output is
    whole. No more is held in memory, since a small bundle can give gigabytes of a diff. TimeoutError after *seconds*.
    """
    assert child.stdout is not None
    assert child.stderr is not None
    out, err, end = bytearray(), bytearray(), time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for pipe, held in ((child.stdout, out), (child.stderr, err)):
            selector.register(pipe, selectors.EVENT_READ, held)
        while selector.get_map():
            ready = selector.select(max(0.0, end - time.monotonic()))
            if time.monotonic() >= end:
                raise TimeoutError
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                key.data.extend(data)
            del err[:-_MOST_SAID]
            if len(out) > MOST_PRINTED:
                return bytes(out[:MOST_PRINTED]), bytes(err), False
    try:
        child.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    return bytes(out), bytes(err), True


def remote_of(project: str) -> tuple[str, str]:
    """The URLs of `origin` in the repository *project*: for fetches and for pushes; both "" if it has no `origin`."""
    if not os.path.lexists(os.path.join(project, ".git")):
        return "", ""
    try:
        found = _line("config", "--get", "remote.origin.url", folder=project)
    except GitFailed:
        return "", ""
    try:
        return found, _line("config", "--get", "remote.origin.pushurl", folder=project)
    except GitFailed:
        return found, found


def resolved_remote(project: str, remote: str) -> str:
    """*remote* with a relative path of this host resolved against the folder *project*; any other is unchanged."""
    is_path = remote and is_local(remote) and "://" not in remote
    return os.path.normpath(os.path.join(project, remote)) if is_path else remote


class GitIntake:
    """
    The service's own repository for one project, below the service's *folder*, into which pushes of a sandbox are
    taken; it shares the objects of *project*, the operator's. Approved branches are pushed to the URL `remote`.
    """

    def __init__(self, folder: str, project: str) -> None:
        self._project, self.remote, self._taken = project, resolved_remote(project, remote_of(project)[1]), 0
        self.path = os.path.join(folder, "git", hashlib.sha256(os.fsencode(project)).hexdigest()[:32] + ".git")
        self._objects()

    def _make(self) -> None:
        """Make the repository unless it exists; GitStore removes one that no request needs."""
        objects = self._objects()
        if not os.path.isdir(os.path.join(self.path, "objects")):
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            git("init", "--quiet", "--bare", "--template=", ".", folder=self.path)
        with open(os.path.join(self.path, "objects", "info", "alternates"), "w", encoding="utf-8",
                  errors="surrogateescape") as file:
            file.write(objects + "\n")

    def _objects(self) -> str:
        """The folder of the project's objects."""
        common = os.fsdecode(git("rev-parse", "--path-format=absolute", "--git-common-dir", folder=self._project))
        return os.path.join(common.rstrip("\n"), "objects")

    def take_in(self, bundle: bytes, sandbox: str, name: str) -> str:
        """
        Fetch the branch *name* from a bundle of *sandbox*; returns its commit, in hexadecimal. GitFailed if the bundle
        is broken or lacks objects, Busy if the sandbox's pushes have taken MOST_TAKEN bytes already.
        """
        if not bundle.startswith(_BUNDLES):
            raise GitFailed("what was pushed is no bundle of git")
        if self._taken >= MOST_TAKEN:
            raise Busy(f"what this sandbox has pushed takes {MOST_TAKEN} bytes already")
        self._make()
        ref = f"refs/sandbox/{sandbox}/{name}"
        with tempfile.NamedTemporaryFile(dir=self.path, suffix=".bundle") as file:
            file.write(bundle)
            file.flush()
            before = self._size()
            try:
                git("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", file.name, f"+refs/heads/{name}:{ref}",
                    folder=self.path)
            finally:
                self._taken += max(0, self._size() - before)  # also after a failure, which may have left a pack
        return _line("rev-parse", "--verify", f"{ref}^{{commit}}", folder=self.path)

    def _size(self) -> int:
        """The bytes of all packs."""
        try:
            with os.scandir(os.path.join(self.path, "objects", "pack")) as found:
                return sum(each.stat(follow_symlinks=False).st_size for each in found)
        except FileNotFoundError:
            return 0

    def base_of(self, name: str, commit: str) -> str:
        """
        The commit with which *commit*, the tip of branch *name*, is compared: the project's remote-tracking branch
        *name*, else the merge base with another remote-tracking branch, else "". Commits that the operator hasn't
        pushed are no base: the push would publish them, and the diff wouldn't show them.
        """
        known = self._known(f"refs/remotes/origin/{name}")
        if name in known:
            try:
                return _line("rev-parse", "--verify", "--quiet", f"{known[name]}^{{commit}}", folder=self.path)
            except GitFailed:
                pass
        known = self._known("refs/remotes/origin/main", "refs/remotes/origin/master") or known
        known |= self._known("refs/remotes/origin/")
        for tip in known.values():
            try:
                return _line("merge-base", commit, tip, folder=self.path).split()[0]
            except (GitFailed, IndexError):
                continue
        return ""

    def _known(self, *patterns: str) -> dict[str, str]:
        """
        The project's remote-tracking branches, with their commits. The objects themselves are read in the service's
        repository alone: in the project's, git might run a command of its configuration to get a missing one.
        """
        found = git("for-each-ref", f"--count={_MOST_KNOWN}", "--format=%(objectname) %(refname)", *patterns,
                    folder=self._project).decode("utf-8", "surrogateescape")
        rows = (line.partition(" ") for line in found.split("\n") if line)
        return {name.removeprefix("refs/remotes/origin/"): commit for commit, _, name in rows}

    def about(self, base: str, commit: str) -> tuple[list[str], str, list[str]]:
        """
        What a person needs to decide about a push: the commits since *base*, the newest first, a line each; the diff;
        warnings.
        """
        before = base or empty_tree(self.path)
        commits, diff = diff_of(self.path, base, commit)
        raw = git("diff-tree", "-r", "-z", "--no-renames", before, commit, folder=self.path)
        remarks = _remarks(raw, diff)
        if len(commits) > MOST_COMMITS:
            commits = commits[:MOST_COMMITS]
            remarks.append(f"more than {MOST_COMMITS} commits")
        if base:
            try:
                git("merge-base", "--is-ancestor", base, commit, folder=self.path)
            except GitFailed:
                remarks.append("it doesn't follow what the remote has: the push will be refused there")
        return commits, diff, remarks


def diff_of(repository: str, base: str, commit: str) -> tuple[list[str], str]:
    """
    The commits after *base* ("": an empty tree) up to *commit*, the newest first, a line each, and the diff. Of commits
    there are MOST_COMMITS + 1 at most, and of the diff MOST_PRINTED bytes. GitFailed if a commit is missing.
    """
    between = f"{base}..{commit}" if base else commit
    commits = git("log", "-z", f"--max-count={MOST_COMMITS + 1}", "--no-show-signature", "--format=%h %an: %s", between,
                  folder=repository).decode("utf-8", "replace").split("\0")
    diff = git("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--submodule=short",
               base or empty_tree(repository), commit, folder=repository, cut=True).decode("utf-8", "replace")
    return [line for line in commits if line], diff


def empty_tree(repository: str) -> str:
    """The id of the tree without files."""
    return _line("hash-object", "-t", "tree", "/dev/null", folder=repository)


def git_push(repository: str, remote: str, name: str, commit: str) -> None:
    """
    Push *commit* of the folder *repository* to *remote* as the branch *name*, without force; GitFailed if it is
    refused.
    """
    git("push", "--quiet", "--no-verify", "--", remote, f"{commit}:refs/heads/{name}", folder=repository)


def _remarks(raw: bytes, diff: str) -> list[str]:
    found, fields = list[str](), raw.split(b"\0")
    for about, name in zip(fields[::2], fields[1::2], strict=False):
        old, new = about.split()[0].decode().lstrip(":"), about.split()[1].decode()
        shown = os.fsdecode(name)
        parts = shown.split("/")
        said = {"120000": "is a link", "160000": "is a submodule"}.get(new, "")
        if new == "100755" != old:
            said = "can be run"
        elif old == "100755" and new == "100644":
            said = "can't be run any more"
        if said:
            found.append(f"{shown!r:.200} {said}")
        obeyed = obeyed_by(shown)
        if parts[-1].casefold().startswith(".git"):
            found.append(f"{shown!r:.200}: git obeys such a file")
        elif obeyed not in (None, DOTTED):
            found.append(f"{shown!r:.200}: obeyed on the host by {obeyed.who}: {obeyed.kind}")
        if mixed_words(shown):
            found.append(f"{shown!r:.200}: the name has letters of another alphabet that look like Latin ones")
        if any(map(is_hidden, shown)):
            found.append(f"{shown!r:.200}: the name has characters that can't be seen")
    added = sum(sum(map(is_hidden, line)) for line in diff.split("\n") if line.startswith("+"))
    if added:
        found.append(f"{added} characters in what is added can't be seen")
    new = "\n".join(line[1:] for line in diff.split("\n") if line.startswith("+"))
    if mixed := mixed_words(new):
        found.append(f"a word that is added has letters of another alphabet that look like Latin ones: {min(mixed)!r:.60}")
    if blanked_lines(new):
        found.append(f"a line that is added goes on behind {LONG_BLANK} blanks or more")
    if len(diff) >= MOST_PRINTED:
        found.append("the diff is longer than what is shown")
    if len(found) > MOST_FILES:
        found = [*found[:MOST_FILES], f"{len(found) - MOST_FILES} remarks more"]
    return found


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
        """The bytes of all repositories. A file that is removed meanwhile counts as 0."""
        found = 0
        for where, _, files in os.walk(self._folder):
            for name in files:
                with contextlib.suppress(OSError):
                    found += os.lstat(os.path.join(where, name)).st_size
        return found

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
        said = git("for-each-ref", "--format=%(refname)", folder=path).decode("utf-8", "surrogateescape")
        found = [ref for ref in said.split("\n") if ref]
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


def _left(path: str) -> list[str]:
    """Bundles and unfinished packs that a killed service or git has left behind, older than _LEFT_S."""
    found, old = [*Path(path).glob("*.bundle"), *Path(path, "objects", "pack").glob("tmp_*")], time.time() - _LEFT_S
    return [str(each) for each in found if each.lstat().st_mtime < old]
