"""
Makes environments: virtual environments whose packages pip installs in a sandbox.

Runs in:   `leeward env`, run by the user whose daemon is to use them, and programs with `packages=`.
Trust:     none in what pip runs or unpacks. A sandbox writes to the new folder; it shows no other folder of the host,
           and reaches only what its policy allows. Then the folder is checked without following links: the
           interpreter's links and pyvenv.cfg must be unchanged, since the daemon starts that interpreter. All of it is
           made read-only.
Blocks:    while another process makes the same environment, and until pip ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from leeward.base.closing import OwnedFd, on_failure
from leeward.base.file_locks import THERE, locked
from leeward.base.whole_files import names_in, read_whole, write_whole
from leeward.client.daemon_rows import decisions, target
from leeward.client.folder_size import SizeWatch, size_of
from leeward.client.mounts import Mount
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, LeewardError, SandboxOver, Unsupported, quoted, told
from leeward.spec import stored
from leeward.spec.folders import within
from leeward.spec.outcome import Result
from leeward.spec.paths import client_socket
from leeward.spec.sandbox import TRUST
from leeward.spec.stored import Manifest, Named, Recipe

#: The folder of pip in the sandbox; it isn't part of the environment.
_TOOL = "/tmp/tool"
#: Unpacks the pip that this Python or its distribution brings. Installing it would take a second and a half more.
_UNPACK = f"""
import glob, os, sys, sysconfig, zipfile
try:
    import ensurepip
except ImportError:
    sys.exit("this Python has no ensurepip (Debian: python3-venv)")
places = [os.path.join(os.path.dirname(ensurepip.__file__), "_bundled"), sysconfig.get_config_var("WHEEL_PKG_DIR") or ""]
wheels = [wheel for place in filter(None, places) for wheel in sorted(glob.glob(os.path.join(place, "pip-*.whl")))]
if not wheels:
    sys.exit(f"no wheel of pip in {{places}}")
zipfile.ZipFile(wheels[-1]).extractall({_TOOL!r})
"""
#: The paths of folders with packages in the sandbox, with a number after it.
_FOUND = "/packages"
#: Bytes of memory and processes that pip may have; it unpacks even a large wheel in pieces.
_MEMORY, _PROCESSES = 1 << 30, 128
_PIECE = 1 << 20
#: The oldest Python that leeward runs on.
_OLDEST = (3, 11)
#: Packages with compiled code that leeward needs in a job's interpreter. The daemon's copies of them are compiled for
#: the daemon's version of Python.
_NEEDED = ("cffi", "msgpack")
_REPORT = """
import json, os, sys
print(json.dumps([sys.implementation.name, sys.version_info[:2],
                  os.path.realpath(getattr(sys, "_base_executable", sys.executable)),
                  os.path.realpath(sys.base_prefix)]))
"""
_REPORT_S = 30.0
_PIP = {"HOME": "/tmp", "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_CACHE_DIR": "1",
        "PIP_PROGRESS_BAR": "off", "PIP_ROOT_USER_ACTION": "ignore", "PIP_RETRIES": "2"}
#: What pip says of a certificate that it doesn't trust.
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
#: Connections that were refused, in a message, at most.
_MOST_DENIED = 5


class BuildFailed(LeewardError):
    """pip, or a program that pip ran, failed. The message has the last line of the output; `said` got all of it."""


@dataclass(frozen=True, slots=True)
class PackageSource:
    """
    The source from which pip gets packages, and its bounds.

    Attributes:
        socket: that of the daemon in whose sandbox pip runs; None for the default.
        egress: the daemon's policy by which pip reaches the index; "" for no network.
        index_url: the URL of the index; "" for pip's default.
        trusted: hosts of an index without TLS, or with a certificate that the sandbox can't verify.
        folders: folders of this host with packages. Without `egress` they are the only source.
        timeout: seconds for each call of pip.
        size: bytes that all environments may have together.
    """

    socket: str | None = None
    egress: str = ""
    index_url: str = ""
    trusted: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    timeout: float = 600.0
    size: int = 20 << 30


@contextlib.contextmanager
def unused(path: str) -> Iterator[bool]:
    """
    Whether no other process, as the daemon that uses it, has an flock(2) of the file or folder *path*; in the context none
    gets one.
    """
    try:
        fd = locked(path, THERE)
    except BlockingIOError:
        yield False
        return
    except OSError:
        yield True
        return
    with OwnedFd(fd):
        yield True


class Environments:
    """
    The environments in a folder, which the first one makes. It belongs to this user, and no other user may write there.
    Several processes may use it at once.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def recipe(self, requirements: Sequence[str], source: PackageSource, *, from_source: bool) -> Recipe:
        """The recipe of an environment for the interpreter of this program."""
        return Recipe(tuple(requirements), os.path.realpath(getattr(sys, "_base_executable", sys.executable)),
                     sys.version_info[:2], from_source, (source.index_url, *map(os.path.realpath, source.folders)))

    def create(self, name: str, recipe: Recipe, source: PackageSource, named: Callable[[str], Named],
               said: Callable[[bytes], object], grew: Callable[[int], object] = int) -> tuple[Manifest, bool]:
        """
        Give *name* to the environment of *recipe*, which is made unless it exists: its manifest, and whether it was
        made now.

        Args:
            name: the environment's name.
            recipe: from `recipe`.
            source: the source of the packages.
            named: returns the record of the name for the environment's hash.
            said: called with each piece of pip's output as it arrives.
            grew: called with the bytes that are installed so far, some times a second, by another thread.

        Raises:
            BuildFailed: pip failed; nothing is left behind.
            BadRequest: the name or a requirement isn't valid, or the environments take too much room.
            Unsupported: this Python has no module venv.
            DaemonError: as for Sandbox.
        """
        place = stored.name_path(self.folder, name)
        if any(line.startswith("-") or not line.strip() for line in recipe.requirements):
            raise BadRequest("a requirement can't be empty or begin with '-'")
        for part in ("built", "names"):
            os.makedirs(os.path.join(self.folder, part), mode=0o755, exist_ok=True)
        with self._locked(recipe.hash):
            manifest = self.manifest(recipe.hash)
            made = manifest is None
            if manifest is None:
                manifest = self._make(recipe, source, said, grew)
            write_whole(place, stored.write_named(named(recipe.hash)), 0o644)
        return manifest, made

    def names(self) -> dict[str, Named | None]:
        """Each name with its record; None in place of a record that can't be read."""
        found: dict[str, Named | None] = {}
        for entry in sorted(self._list("names")):
            name, ending = os.path.splitext(entry)
            if ending == ".json":
                with contextlib.suppress(BadRequest):
                    found[name] = None
                    found[name] = self.named(name)
        return found

    def named(self, name: str) -> Named:
        """The record of a name; BadRequest if there is no such environment, or its record can't be read."""
        data = read_record(stored.name_path(self.folder, name), stored.MOST_WRITTEN)
        if data is None:
            raise BadRequest(f"there is no environment {name!r} in {self.folder}; it has:"
                             f" {', '.join(entry.removesuffix('.json') for entry in self._list('names')) or 'none'}")
        return stored.read_named(data)

    def manifest(self, built: str) -> Manifest | None:
        """
        The manifest of the environment with the hash *built*; None if there is none, it isn't finished, or can't be read:
        `create` makes it again.
        """
        with contextlib.suppress(BadRequest):
            data = read_record(stored.manifest_path(self.folder, built), stored.MOST_WRITTEN)
            return None if data is None else stored.read_manifest(data)
        return None

    def remove(self, name: str) -> None:
        """Remove *name*; BadRequest if there is none. The environment stays until `prune`."""
        if not remove_record(stored.name_path(self.folder, name)):
            raise BadRequest(f"there is no environment {name!r} in {self.folder}")

    def prune(self) -> tuple[list[str], list[str]]:
        """
        Remove environments that only `packages=` or nobody names, and unfinished ones. Returns the hashes of those
        removed, and of those that stay since a daemon uses them.
        """
        gone: list[str] = []
        busy: list[str] = []
        for built in sorted(filter(stored.is_hash, {entry.split(".")[0] for entry in self._list("built")})):
            with self._locked(built):
                short = [name for name, named in self.names().items() if named is not None and built == named.built]
                if not all(map(stored.is_packages_name, short)):
                    continue
                with unused(stored.built_path(self.folder, built)) as free:
                    if free:
                        for name in short:
                            self.remove(name)
                        self._discard(built)
                    (gone if free else busy).append(built)
        return gone, busy

    # --- making one -----------------------------------------------------------------

    def _make(self, recipe: Recipe, source: PackageSource, said: Callable[[bytes], object],
              grew: Callable[[int], object]) -> Manifest:
        used = self._used()
        if used >= source.size:
            raise BadRequest(f"environments have {used} bytes of the {source.size} that they may have"
                             " (environments_size): `leeward env prune` removes those without a name")
        self._discard(recipe.hash)
        path = stored.built_path(self.folder, recipe.hash)
        with on_failure(self._discard, recipe.hash):
            done = subprocess.run([recipe.python, "-I", "-m", "venv", "--without-pip", "--symlinks", path],
                                  capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
            if done.returncode:
                told = (done.stdout + done.stderr).strip()[-300:]
                if "No module named" in told:
                    raise Unsupported("venv", have=told, need="Python's module venv",
                                      cure="install it, Debian's python3-venv")
                raise BadRequest(f"no environment could be made at {path}: {told}")
            before = _interpreter(path)
            packages = _install(path, recipe, source, said, lambda: _check_interpreter(path, before),
                                source.size - used, grew)
            _check_interpreter(path, before)
            size, content = seal(path)
            if used + size > source.size:
                raise BadRequest(f"the environment has {size} bytes, and {used} of {source.size} are taken"
                                 " (environments_size)")
            manifest = Manifest(recipe.python, recipe.version, recipe.requirements, packages, size, content,
                                int(time.time()), recipe.prefix)
            write_whole(stored.manifest_path(self.folder, recipe.hash), stored.write_manifest(manifest), 0o644)
            return manifest

    def _used(self) -> int:
        manifests = (self.manifest(entry.removesuffix(".json")) for entry in self._list("built")
                     if entry.endswith(".json"))
        return sum(manifest.size for manifest in manifests if manifest is not None)

    def _discard(self, built: str) -> None:
        remove_record(stored.manifest_path(self.folder, built))
        remove_tree(stored.built_path(self.folder, built))

    @contextlib.contextmanager
    def _locked(self, built: str) -> Iterator[None]:
        """A context in which no other process makes or removes this environment; the kernel ends it with the process."""
        path = os.path.join(self.folder, "built", f".{built}.lock")
        while True:
            fd = locked(path, wait=True)
            try:
                same = os.path.samestat(os.fstat(fd), os.lstat(path))
            except FileNotFoundError:
                same = False
            if same:
                break
            os.close(fd)  # the former holder has removed the file
        try:
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            os.close(fd)

    def _list(self, part: str) -> list[str]:
        return names_in(os.path.join(self.folder, part))


def _check_interpreter(path: str, before: list[tuple[str, str]]) -> None:
    if _interpreter(path) != before:
        raise BuildFailed("a package has replaced the interpreter or pyvenv.cfg of the environment")


def _install(path: str, recipe: Recipe, source: PackageSource, said: Callable[[bytes], object],
             check: Callable[[], object], room: int, grew: Callable[[int], object]) -> dict[str, str]:
    """Run pip in a sandbox to install the packages of *recipe* into *path*. Returns all installed packages with versions."""
    found = [Mount(folder, f"{_FOUND}{number}") for number, folder in enumerate(source.folders)]
    pip = [f"{path}/bin/python", f"{_TOOL}/pip/__pip-runner__.py"]  # what its option --python runs
    words = [*pip, "install", "--no-warn-script-location"]
    words += [] if recipe.from_source else ["--only-binary", ":all:"]
    words += ["--index-url", source.index_url] if source.index_url else []
    words += [] if source.egress else ["--no-index"]
    for host in source.trusted:
        words += ["--trusted-host", host]
    for mount in found:
        words += ["--find-links", mount.target]
    if recipe.prefix and not within(recipe.prefix, "/usr"):
        found.append(Mount(recipe.prefix, recipe.prefix))  # the sandbox shows only the daemon's own prefix
    # pip has a list of its own, without an operator's own authority; under a policy that has one the daemon sets it
    env = {**_PIP, "PIP_CERT": TRUST} if os.path.isfile(TRUST) else _PIP
    with Sandbox(socket=source.socket, mounts=[Mount(path, path, writable=True), *found], memory=_MEMORY,
                 processes=_PROCESSES, egress=source.egress, env=env, held=True) as box, _bounded(path, room, box, grew):
        def run(argv: list[str]) -> Result:
            got = box.run(argv, timeout=source.timeout, on_stdout=said, on_stderr=said)
            if not got.ok:
                last = got.stderr_text.strip().splitlines() or [repr(got)]
                what = "pip failed" if argv[0] != recipe.python else "pip can't be installed"
                if _UNTRUSTED in got.stdout_text + got.stderr_text:
                    what += ": the index's certificate isn't trusted"
                raise BuildFailed(f"{what}: {last[-1]:.300}{_denied(source.socket, box.id) if source.egress else ''}")
            return got

        run([recipe.python, "-I", "-c", _UNPACK])
        if recipe.requirements:
            run([*words, "--", *recipe.requirements])
            check()  # before that interpreter runs anything
            run([*pip, "check"])
        listed = box.run([*pip, "list", "--format=json"], timeout=source.timeout)
    try:
        return {str(row["name"]): str(row["version"]) for row in json.loads(listed.stdout)}
    except (ValueError, KeyError, TypeError):
        raise BuildFailed(f"pip list: {listed!r:.200}") from None


def _denied(socket: str | None, sandbox: str) -> str:
    """The connections that the daemon refused to *sandbox*, as the end of a message."""
    found = dict[str, None]()
    with contextlib.suppress(LeewardError):  # the failure itself is told
        found = dict.fromkeys(target(row)[:300] for row in decisions(client_socket(socket)).rows()
                              if row.get("sandbox") == sandbox and row["verdict"] == "denied")
    shown = ", ".join(quoted(each) for each in list(found)[:_MOST_DENIED])
    return f"; the policy denied {shown}" if found else ""


@contextlib.contextmanager
def _bounded(path: str, room: int, box: Sandbox, grew: Callable[[int], object]) -> Iterator[None]:
    """A context that kills *box*, which writes to *path*, when the folder has more than *room* bytes; BadRequest then."""
    def end() -> None:
        with contextlib.suppress(LeewardError):  # the sandbox or the daemon has ended
            box.kill()

    with SizeWatch(path, room, end, grew) as watch:
        try:
            yield
        except (BuildFailed, SandboxOver):
            if not watch.over:
                raise
    if watch.over or size_of(path, room) > room:
        raise BadRequest(f"the environment has more than the {room} bytes that were left of environments_size")


def _interpreter(path: str) -> list[tuple[str, str]]:
    """The interpreter's links and a hash of pyvenv.cfg, which decide which interpreter is started."""
    found = []
    for name in sorted(os.listdir(os.path.join(path, "bin"))):
        if name.startswith("python"):
            link = os.path.join(path, "bin", name)
            found.append((name, os.readlink(link) if os.path.islink(link) else ""))
    config = os.path.join(path, "pyvenv.cfg")
    data = None if os.path.islink(config) else read_record(config, stored.MOST_WRITTEN)
    return [*found, ("pyvenv.cfg", "" if data is None else hashlib.sha256(data).hexdigest())]


def seal(path: str) -> tuple[int, str]:
    """
    Make the tree at *path* read-only. Returns the bytes of its files, and a SHA-256 of its names, types, modes and
    contents; BuildFailed if it has anything but regular files, folders and links.
    """
    total, tree = 0, hashlib.sha256()
    for folder, folders, files, at in os.fwalk(path):  # follows no links
        folders.sort()
        for name in sorted([*files, *folders]):
            about = os.stat(name, dir_fd=at, follow_symlinks=False)
            where = os.path.relpath(os.path.join(folder, name), path)
            tree.update(f"{where}\0".encode(errors="surrogateescape"))
            if stat.S_ISLNK(about.st_mode):
                tree.update(f"link {os.readlink(name, dir_fd=at)}\0".encode(errors="surrogateescape"))
            elif stat.S_ISREG(about.st_mode):
                size, content = _seal_file(name, at)
                total += size
                tree.update(f"file {about.st_mode & 0o111:o} {content}\0".encode())
            elif not stat.S_ISDIR(about.st_mode):
                raise BuildFailed(f"{where!r} is no file, folder or link")
        os.fchmod(at, 0o555)
    return total, tree.hexdigest()


def _seal_file(name: str, at: int) -> tuple[int, str]:
    with OwnedFd(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)) as fd:
        about = os.fstat(fd)
        os.fchmod(fd, 0o555 if about.st_mode & 0o100 else 0o444)
        digest = hashlib.sha256()
        while piece := os.read(fd, _PIECE):
            digest.update(piece)
        return about.st_size, digest.hexdigest()


def read_record(path: str, most: int) -> bytes | None:
    """A record of *most* bytes and one more, at most; None if there is none. BadRequest for what can't be read as a file."""
    try:
        return read_whole(path, most + 1)
    except OSError as error:  # a folder or a link, say
        raise BadRequest(f"{path}: {told(error)}") from None


def remove_record(path: str) -> bool:
    """Remove a record, or what is in its place. Returns whether there was one."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except (IsADirectoryError, PermissionError):
        remove_tree(path)
    return True


def remove_tree(path: str) -> None:
    """Remove a tree of any depth, if it is there. OSError if it can't be removed."""
    if os.path.lexists(path):
        for words in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):  # they follow no links
            subprocess.run([*words, "--", path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, check=False)
        if os.path.lexists(path):
            shutil.rmtree(path)  # raises the reason


def of_another(recipe: Recipe, python: str) -> Recipe:
    """
    A copy of *recipe* for the interpreter *python*, a path or a name in PATH, which this starts with its own user's
    rights. BadRequest if it doesn't report its version, Unsupported if leeward doesn't run on it.
    """
    path = shutil.which(python)
    if path is None:
        raise BadRequest(f"--python {python!r}: there is no such program")
    try:
        said = subprocess.run([path, "-I", "-c", _REPORT], capture_output=True, timeout=_REPORT_S, check=True,
                              stdin=subprocess.DEVNULL).stdout
        kind, (major, minor), base, prefix = json.loads(said)
    except (OSError, subprocess.SubprocessError, ValueError, TypeError) as error:
        raise BadRequest(f"--python {python!r}: its version can't be read: {error}") from None
    if kind != "cpython" or (major, minor) < _OLDEST:
        raise Unsupported("python", have=f"{kind} {major}.{minor} at {path}",
                          need=f"CPython {_OLDEST[0]}.{_OLDEST[1]} or later")
    if base == recipe.python:
        return recipe
    return replace(recipe, python=base, version=(major, minor), prefix=prefix,
                   requirements=(*recipe.requirements, *_NEEDED))
