"""
The registry of running agents: a file for each, and a lock that is its liveness.

Runs in:   the user's program. The process that starts an agent holds its lock until everything is undone.
Trust:     the folder is the user's alone; no sandbox is shown it. A file in it that can't be read is named and left.
Stands if: that process, the daemon or both are killed: what the start was about to do stands in the file beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UndoStep:
    """
    Something to be undone when an agent has ended, whoever ended it. Each can be carried out twice.

    Attributes:
        kind: "sandbox" (destroy the sandbox with the id *what*), "folder" (remove the folder *what*, below the
            registry's own), or "hook" (run the line *what* on the host, in the project's folder).
        what: as said.
    """

    kind: str
    what: str


@dataclass(frozen=True, slots=True)
class Instance:
    """
    One running agent.

    Attributes:
        name: as `names.instance_name` makes it.
        agent: the definition's name.
        project: the absolute path of its folder.
        pid: of the process that started it.
        started: seconds since the epoch.
        sandbox: the id; "" until there is one.
        memory: the limit in bytes, 0 for none of its own.
        hosts: rules of egress, as text.
        undo: what has to be undone, in the order in which it was done.
    """

    name: str
    agent: str
    project: str
    pid: int
    started: float
    sandbox: str = ""
    memory: int = 0
    hosts: tuple[str, ...] = ()
    undo: tuple[UndoStep, ...] = ()


class HeldInstance:
    """
    An instance whose lock this process holds; a context, which lets go of the lock and leaves the file.
    """

    instance: Instance

    def record(self, instance: Instance) -> None:
        """
        Put *instance* in the place of what the file says, at once or not at all. Called before each step that has to
        be undone is taken.
        """
        raise NotImplementedError

    def remove(self) -> None:
        """
        Everything is undone: the file and the lock go.
        """
        raise NotImplementedError

    def close(self) -> None:
        """
        Let go of the lock. What the file says is undone by the next `reap`.
        """
        raise NotImplementedError


class InstanceRegistry:
    """
    The running agents of one user.

    Args:
        folder: below the user's state folder, as `places.state_home` gives it; made where it isn't there.

    Raises:
        Unsupported: others may enter or own the folder.
    """

    def __init__(self, folder: str) -> None:
        raise NotImplementedError

    def claim(self, instance: Instance) -> HeldInstance:
        """
        Record a new instance, and hold its lock.

        Raises:
            Busy: one of this name is there.
        """
        raise NotImplementedError

    def running(self) -> list[Instance]:
        """
        Those whose lock somebody holds, the oldest first.
        """
        raise NotImplementedError

    def find(self, text: str) -> Instance:
        """
        The running instance whose name is *text*, or the one that begins or ends so.

        Raises:
            BadRequest: none, or several.
        """
        raise NotImplementedError

    def reap(self) -> Iterator[HeldInstance]:
        """
        Those that nobody holds any more, each with its lock held: carry out `instance.undo` from its end to its
        beginning, then call `remove`, or `close` where something failed.
        """
        raise NotImplementedError

    def complaints(self) -> list[str]:
        """
        Files that can't be read, a line for each.
        """
        raise NotImplementedError
