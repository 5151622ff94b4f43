"""
Finds the environments that `leeward env` has made, by name, when a pool begins.

Runs in:   the daemon, on the reactor's thread. It reads two small files and checks some folders. It starts no
           interpreter, because the manifest has what the interpreter would report.
Trust:     the folder and its content belong to the daemon's user or root, and nobody else may write there.
"""

from __future__ import annotations

import fcntl
import os

from leeward.dataclass import replace
from leeward.errors import BadRequest, PoolFailed
from leeward.isolation import interpreter, ownership
from leeward.spec.pool_key import is_name
from leeward.spec.profiles import HostPython
from leeward.spec.stored import (
    MOST_WRITTEN,
    Manifest,
    Named,
    built_path,
    manifest_path,
    name_path,
    read_manifest,
    read_named,
)

#: Environments that are locked against removal, at most: as many as there may be branches.
_MOST_HELD = 16
#: Names in a message, at most.
_MOST_NAMED = 32


class Stored:
    """
    The environments in a folder.

    Args:
        folder: path of the folder; "" for none.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}

    def find(self, name: str) -> tuple[Named, HostPython] | None:
        """
        Return the environment *name*, and its interpreter; None if there is no environment of that name.

        Raises:
            PoolFailed: the environment can't be used.
        """
        try:
            data = self._read(name_path(self._folder, name)) if self._folder else None
            if data is None:
                return None
            named = read_named(data)
            written = self._read(manifest_path(self._folder, named.built))
            if written is None:
                raise BadRequest("what it stands for was removed; `leeward env create` makes it again")
            return named, self._python(named, read_manifest(written))
        except (BadRequest, OSError) as error:
            raise PoolFailed(f"environment {name!r}: {error}") from None

    def names(self) -> list[str]:
        """Return the names of the first environments, sorted, for a message."""
        try:
            found = os.listdir(os.path.join(self._folder, "names")) if self._folder else []
        except OSError:
            found = []
        names = (name.removesuffix(".json") for name in found if name.endswith(".json"))
        return sorted(name for name in names if is_name(name))[:_MOST_NAMED]

    def _python(self, named: Named, manifest: Manifest) -> HostPython:
        own = interpreter.find()
        if not manifest.prefix and (manifest.python, manifest.version) != (own.executable, own.version):
            raise BadRequest(f"it was made for {manifest.python}, and the daemon runs on {own.executable};"
                             " `leeward env create` makes it again")
        env = os.path.realpath(built_path(self._folder, named.built))
        interpreter.check_place(env)
        for part in ("", "bin"):
            ownership.check(os.path.join(env, part), "environment")
        executable = os.path.join(env, "bin", "python")
        if os.path.realpath(executable) != manifest.python:
            raise BadRequest(f"{executable!r} leads to another interpreter than {manifest.python}")
        other = interpreter.other(executable, env, manifest.version, manifest.prefix) if manifest.prefix else None
        self._hold(env)
        return other or replace(own, executable=executable, env=env)

    def _hold(self, env: str) -> None:
        """
        Lock the environment's folder, so that `leeward env prune` doesn't remove it, until this daemon ends or has used
        many others since.
        """
        if env in self._held:
            self._held[env] = self._held.pop(env)
            return
        if len(self._held) >= _MOST_HELD:
            os.close(self._held.pop(next(iter(self._held))))
        fd = os.open(env, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise BadRequest("it is just being removed") from None
        self._held[env] = fd

    @staticmethod
    def _read(path: str) -> bytes | None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            return os.read(fd, MOST_WRITTEN + 1)
        finally:
            os.close(fd)
