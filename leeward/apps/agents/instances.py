"""
The registry of running agents: for each one a file, and a lock that the process holds which undoes its steps.

Trust:     the folder is the user's alone, and in no sandbox's mounts. A file in it that can't be read is reported and
           left.
Stands if: that process, the daemon or both are killed: each step is written into the file before it is taken,
           and the kernel releases the lock when the process ends.
Theory:    NAME.lock is made and locked first, then NAME.json is written; they are removed in the reverse order. A
           process that opens a lock file then compares it with the file of that name, since the one that it opened may
           have been removed meanwhile.
Source:    flock(2): a lock belongs to the open file, and ends with its last descriptor.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from typing import Any

from leeward.apps.agents.errors import printable
from leeward.apps.agents.instance_names import is_instance_name
from leeward.apps.agents.state_files import own_folder, read_state, write_at_once
from leeward.base.closing import Closing, OwnedFd, on_failure
from leeward.base.dataclass import dataclass, names
from leeward.base.file_locks import MADE, locked
from leeward.errors import BadRequest, Busy, LeewardError

#: The values of `UndoStep.kind`.
UNDO_KINDS = ("sandbox", "hook")

#: Steps of one instance, and instances whose end is remembered, at most.
MAX_STEPS, MAX_ENDED = 1000, 64
#: Below the registry's folder: a file for each that has ended, with its sandbox's id.
_ENDED = "ended"
_SANDBOX = r"[0-9a-z]{1,64}"


@dataclass(frozen=True, slots=True)
class UndoStep:
    """A clean-up step for the end of an agent. It can be carried out repeatedly."""

    kind: str  # "sandbox": destroy it; "hook": run a line on the host, in the project's folder
    what: str  # the sandbox's id, or the hook's line


@dataclass(frozen=True, slots=True)
class Instance:
    name: str  # from `names.instance_name`
    agent: str  # the definition's name
    project: str  # the absolute path of the project's folder
    pid: int  # of the process that started it
    started: float  # seconds since the epoch
    sandbox: str = ""  # the sandbox's id; "" until it is open
    hosts: tuple[str, ...] = ()  # rules of egress, as text
    undo: tuple[UndoStep, ...] = ()  # the steps that have to be undone, in the order in which they were taken
    folder: str = ""  # `identity_of` the project's folder: another one may get its path; "" if unknown


class HeldInstance(Closing):
    """An instance whose lock this process holds; a context, which releases the lock and leaves the file."""

    def __init__(self, folder: str, lock: int, instance: Instance) -> None:
        self._folder, self._lock, self.instance = folder, lock, instance

    def record(self, instance: Instance) -> None:
        """Replace the file's content by *instance*, atomically. Called before each step that has to be undone."""
        # After a crash of the machine there is no sandbox to undo, but a hook has to be.
        write_at_once(self._folder, f"{self.instance.name}.json", _encoded(instance),
                      lasting=any(step.kind == "hook" for step in instance.undo))
        self.instance = instance

    def remove(self) -> None:
        """Remove the file and the lock, when everything is undone. The sandbox's id is kept for `leeward agent logs`."""
        if self.instance.sandbox:
            with contextlib.suppress(LeewardError, OSError):  # a convenience
                _remember(os.path.join(self._folder, _ENDED), self.instance)
        for ending in ("json", "lock"):
            try:
                os.unlink(os.path.join(self._folder, f"{self.instance.name}.{ending}"))
            except FileNotFoundError:
                pass
        self.close()

    def close(self) -> None:
        """Release the lock. The next `reap` undoes the steps in the file."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class InstanceRegistry:
    """The running agents of one user, in *folder*, which is made; Unsupported if other users can enter or own it."""

    def __init__(self, folder: str) -> None:
        own_folder(folder)
        self._folder = own_folder(os.path.join(folder, "instances"))
        self._complaints: dict[str, str] = {}

    def claim(self, instance: Instance, *, later: bool = False) -> HeldInstance:
        """
        Record a new instance, and hold its lock; Busy if one with this name runs, or was killed and isn't undone yet.

        With *later* only the lock is held: nobody finds the instance until the caller calls `record`.
        """
        lock = self._locked(instance.name, make=True)
        # A file whose lock nobody holds is of a killed instance, which `reap` has to undo first.
        if lock < 0 or os.path.lexists(os.path.join(self._folder, f"{instance.name}.json")):
            if lock >= 0:
                os.close(lock)
            raise Busy(f"there is an agent {instance.name} already")
        held = HeldInstance(self._folder, lock, instance)
        with on_failure(held.remove):
            if not later:
                held.record(instance)
        return held

    def running(self) -> list[Instance]:
        """The instances whose lock a process holds, the oldest first."""
        found = []
        for name in self._names():
            lock = self._locked(name)
            if lock >= 0:
                os.close(lock)
                continue
            instance = self._read(name)
            if instance is not None:
                found.append(instance)
        return sorted(found, key=lambda instance: (instance.started, instance.name))

    def find(self, text: str) -> Instance:
        """The running instance *text*, or the only one whose name begins or ends so or whose agent it is; or BadRequest."""
        running = self.running()
        whole = [each for each in running if each.name == text]
        found = whole or [each for each in running
                          if text and (each.name.startswith(text) or each.name.endswith(text) or each.agent == text)]
        if len(found) == 1:
            return found[0]
        names = ", ".join(each.name for each in found or running)
        if not running:
            raise BadRequest(f"{text!a:.120}: no agent runs")
        raise BadRequest(f"{text!a:.120} fits {'several' if found else 'none'} of the running agents: {names}")

    def sandbox_of(self, text: str) -> str:
        """The id of the sandbox of `find`'s instance, or else of the last one that has ended and that *text* names so."""
        folder = os.path.join(self._folder, _ENDED)
        try:
            return self.find(text).sandbox
        except BadRequest:
            names = _ended(folder)
            for name in (*(name for name in names if name == text),
                         *(name for name in names if text and (name.startswith(text) or name.endswith(text)
                                                               or name.rpartition("-")[0].endswith(f"-{text}")))):
                found = (read_state(folder, name) or b"").decode("ascii", "replace")
                if re.fullmatch(_SANDBOX, found):
                    return found
            raise

    def reap(self) -> Iterator[HeldInstance]:
        """Instances whose process was killed, each locked: the caller undoes their steps, then calls `remove` or `close`."""
        for name in self._names():
            lock = self._locked(name)
            if lock < 0:
                continue
            instance = self._read(name)
            if instance is not None:
                yield HeldInstance(self._folder, lock, instance)
                continue
            with OwnedFd(lock):
                # The process was killed before it took any step; or the machine crashed before the content was on the
                # disk. Only instances with hooks wait for the disk, so there is nothing to undo.
                if read_state(self._folder, f"{name}.json") == b"":
                    os.unlink(os.path.join(self._folder, f"{name}.json"))
                    del self._complaints[name]
                if not os.path.lexists(os.path.join(self._folder, f"{name}.json")):
                    os.unlink(os.path.join(self._folder, f"{name}.lock"))

    def complaints(self) -> list[str]:
        """A line for each file that can't be read."""
        for name in self._names():
            self._read(name)
        return [self._complaints[name] for name in sorted(self._complaints)]

    def _names(self) -> list[str]:
        found = {name.removesuffix(ending) for name in os.listdir(self._folder) for ending in (".json", ".lock")
                 if name.endswith(ending)}
        return sorted(name for name in found if is_instance_name(name))

    def _locked(self, name: str, make: bool = False) -> int:
        """A descriptor that holds the lock; -1 if another process holds it, or there is no such instance."""
        path = os.path.join(self._folder, f"{name}.lock")
        # A JSON file without a lock file, whose lock was removed, gets a new one.
        makes = make or os.path.lexists(os.path.join(self._folder, f"{name}.json"))
        try:
            held = locked(path, MADE if makes else MADE & ~os.O_CREAT)
            with on_failure(os.close, held):
                if os.path.samestat(os.fstat(held), os.stat(path, follow_symlinks=False)):
                    return held
            os.close(held)
        except OSError:
            pass
        return -1

    def _read(self, name: str) -> Instance | None:
        self._complaints.pop(name, None)
        content = read_state(self._folder, f"{name}.json")
        path = os.path.join(self._folder, f"{name}.json")
        if content is None and not os.path.lexists(path):
            return None
        try:
            instance = parse_instance(content or b"")
            if instance.name != name:
                raise ValueError("it has the name of another agent")
            return instance
        except ValueError as error:
            self._complaints[name] = f"{printable(path)}: can't be read: {printable(str(error))}"
            return None


def _remember(folder: str, instance: Instance) -> None:
    own_folder(folder)
    write_at_once(folder, instance.name, instance.sandbox.encode(), lasting=False)
    for name in _ended(folder)[MAX_ENDED:]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))


def _ended(folder: str) -> list[str]:
    """Names of those that have ended, the last one first."""
    times = dict[str, int]()
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if is_instance_name(entry.name):
                with contextlib.suppress(FileNotFoundError):
                    times[entry.name] = entry.stat(follow_symlinks=False).st_mtime_ns
    return sorted(times, key=lambda name: -times[name])


def identity_of(folder: str) -> str:
    """Owner and inode of a folder, or "". Not its device, whose number may change when the machine is started again."""
    try:
        about = os.stat(folder)
    except OSError:
        return ""
    return f"{about.st_uid}:{about.st_ino}" if stat.S_ISDIR(about.st_mode) else ""


def parse_instance(content: bytes) -> Instance:
    """The instance that `HeldInstance.record` wrote; ValueError if *content* isn't one."""
    import json  # as in `_encoded`

    try:
        table = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if isinstance(table, dict):
        # Of earlier versions, whose agents may still run.
        table.pop("memory", None)
        table.setdefault("folder", "")
    if not isinstance(table, dict) or set(table) != {*names(Instance)}:
        raise ValueError("its keys aren't those of an instance")
    for key, fits in _FORMS.items():
        if not fits(table[key]):
            raise ValueError(f"{key} can't be {table[key]!a:.60}")
    steps = tuple(UndoStep(*step) for step in table["undo"])
    return Instance(**{**table, "hosts": tuple(table["hosts"]), "undo": steps})


def _encoded(instance: Instance) -> bytes:
    import json  # 2 ms, which a start spends while the daemon opens its sandbox

    table: dict[str, Any] = {name: getattr(instance, name) for name in names(Instance)}
    table["undo"] = [[step.kind, step.what] for step in instance.undo]
    return json.dumps(table).encode()


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_step(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_text, value)) and value[0] in UNDO_KINDS


_FORMS: dict[str, Callable[[Any], bool]] = {
    "name": lambda value: isinstance(value, str) and is_instance_name(value),
    "agent": _is_text,
    "project": lambda value: _is_text(value) and value.startswith("/"),
    "pid": lambda value: type(value) is int and 0 < value < 1 << 31,
    "started": lambda value: type(value) in (int, float) and 0 <= value < 1e12,
    "sandbox": _is_text,
    "hosts": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "folder": _is_text,
    "undo": lambda value: isinstance(value, list) and len(value) <= MAX_STEPS and all(map(_is_step, value)),
}
