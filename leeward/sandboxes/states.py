"""The states of a sandbox and of a process in it, as tables."""

from __future__ import annotations

import enum
from collections.abc import Mapping


class State(enum.Enum):
    OPENING = "opening"  # waits for a runner
    OPEN = "open"
    OVER = "over"


class Event(enum.Enum):
    OPENED = "opened"
    ENDED = "ended"


#: For a pair that is missing, `run.states.after` raises Bug.
SANDBOX: Mapping[tuple[State, Event], State] = {
    (State.OPENING, Event.OPENED): State.OPEN,
    (State.OPENING, Event.ENDED): State.OVER,
    (State.OPEN, Event.ENDED): State.OVER,
}


class Life(enum.Enum):
    STARTING = "starting"
    RUNNING = "running"
    OVER = "over"


class Moment(enum.Enum):
    STARTED = "started"
    ENDED = "ended"  # and what it wrote was read


PROCESS: Mapping[tuple[Life, Moment], Life] = {
    (Life.STARTING, Moment.STARTED): Life.RUNNING,
    (Life.STARTING, Moment.ENDED): Life.OVER,  # its sandbox has gone
    (Life.RUNNING, Moment.ENDED): Life.OVER,
}


class Reason(enum.StrEnum):
    """Why a sandbox is over, as clients are told."""

    IDLE = "idle"
    LIFETIME = "lifetime"
    KILLED = "killed"
    PARTED = "parted"      # it was to end with the connection that had opened it
    MEMORY = "memory"
    FILES = "files"        # it can write to a file system of the host that has too little space left
    EXITED = "exited"
    SHUTDOWN = "shutdown"
    RESTART = "restart"    # the daemon that had it is gone
    LOST = "lost"          # its runner was lost, by a fault of leeward's or the host's
    UNOPENED = "unopened"  # it never had a runner
    UNKNOWN = "unknown"    # none of this user's, or over for long


#: What a client reads, after "the sandbox is over: ".
SAID: Mapping[Reason, str] = {
    Reason.IDLE: "nobody used it for as long as it may be idle",
    Reason.LIFETIME: "its lifetime has passed",
    Reason.KILLED: "it was killed",
    Reason.PARTED: "the program that had opened it has ended, or closed its connection",
    Reason.MEMORY: "it ran out of memory",
    Reason.FILES: "the file system of a folder that it can write to has less space left than the daemon keeps free"
                  " (folder_reserve)",
    Reason.EXITED: "its first process has ended",
    Reason.SHUTDOWN: "the daemon is shutting down",
    Reason.RESTART: "the daemon was started anew, which ends every sandbox",
    Reason.LOST: "its process was lost",
    Reason.UNOPENED: "it could not be opened",
    Reason.UNKNOWN: "this user has none by this id: there never was one, or it ended long ago",
}

#: The limit that the sandbox has reached, by the reason of its end.
LIMITS: Mapping[Reason, str] = {Reason.LIFETIME: "time", Reason.MEMORY: "memory", Reason.FILES: "files"}
