"""
Branches of a kernel: processes that a kernel has forked, and that are kernels themselves.

Trust: none in what a kernel and its branch send. The kernel of the system gives a branch's process number
(SCM_CREDENTIALS). Where it also gives a pidfd (SCM_PIDFD), that is the sender's, and the branch is accepted by its first
message, before the interpreter's hooks have run in it. Elsewhere the number is read before and after the pidfd is opened.
A branch is accepted if it is a child of the sandbox's init or of a known process there, leads a session of its own, and
isn't known itself.
Who sends descriptors decides how long their last close takes, so none is received, and none closed by our thread: where
the system doesn't refuse them to the sender, none gives a pidfd here, since one that was sent would take its place.

Theory of operation. A branch inherits its kernel's locks, and shares the group below the leaf and the listener of the
filter with it: both belong to the `Family`. As long as a family has several members, descendants of one are found by
walking the tree of processes, without the other members. The last member has the group to itself again, and the
listener is removed with it. No keeper has made a branch, so its end is seen by its pidfd, and its wait status isn't
known.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import socket
import struct
import sys
from _socket import socket as Socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.closing import refuse_descriptors
from leeward.daemon.loop.reactor import NO_TIMER, READ, Reactor
from leeward.daemon.run.beside import Beside, Interpreter, SharedLeaf
from leeward.daemon.run.launch import Streams
from leeward.daemon.run.lease import Lease
from leeward.daemon.run.live_process import LiveProcess
from leeward.daemon.run.runner import Runner
from leeward.errors import LeewardError
from leeward.isolation.cgroup.descent import has_ended, number_inside, parent_and_session
from leeward.isolation.channel import Channel
from leeward.wire import control
from leeward.wire.job_frames import BRANCH_WORD

if TYPE_CHECKING:
    from leeward.daemon.run.live_runner import LiveRunner
    from leeward.daemon.worker.terms import WorkerSettings
    from leeward.isolation.cgroup.nest import GroupNest

#: Seconds that a branch has to report after its kernel has said that it forked.
BRANCH_S = 10.0
#: The reason why there is no branch, if the kernel doesn't give one.
_NOBODY = "its kernel has forked no branch"

_CREDENTIALS = struct.Struct("iII")
#: Linux 6.5; the socket module doesn't have the names.
_SO_PASSPIDFD, _SCM_PIDFD = 76, 4


class Family:
    """The kernel *of*, whose runner owns the listener, its branches, and their branches; the `Denials` of all."""

    def __init__(self, of: Interpreter) -> None:
        assert of.process is not None
        self._denials, self._root, self._of = of.runner.denials, of.number, of
        self._nest: GroupNest | None = None
        self._members: dict[int, LiveProcess] = {}
        self._listening: set[int] = set()
        self._adopted: dict[int, int] = {}
        self.adopts = of.process.group is None
        self.join(of.process)

    def adopt(self, branch: KernelBranch, pid: int) -> None:
        """Where no group contains *branch*, it and what it leaves are children of the first kernel's, while that lives."""
        if self.adopts and self._root in self._members:
            with contextlib.suppress(OSError):  # it has just ended
                number = self._adopted[branch.number] = number_inside(pid)
                self._of.runner.adopted.add(number)
                branch.runner.dumped = partial(self._has_left, number)

    def _has_left(self, number: int) -> None:
        if isinstance(self._of.tenant, Lease):
            self._of.tenant.reap(number)

    def join(self, process: LiveProcess) -> None:
        self._members[process.number] = process
        self._listening.add(process.number)
        process.spare = partial(self._others, process)

    def share_group(self, of: Interpreter) -> None:
        """Another member joins *of*: if that was the only one, it has the group to itself no longer."""
        if len(self._members) == 1:
            self._nest = of.leave_group()

    def _others(self, process: LiveProcess) -> frozenset[int]:
        members = tuple(self._members.values())  # at once: the watchdog's thread asks, too
        return frozenset(each.host_pid for each in members if each is not process)

    def left(self, process: LiveProcess) -> None:
        """Remove *process*, of which nothing is left."""
        self._members.pop(process.number, None)
        number = self._adopted.pop(process.number, None)
        if number is not None:
            self._of.runner.adopted.discard(number)
            self._has_left(number)
        if len(self._members) == 1:
            (last,) = self._members.values()
            last.have_group(self._nest)
            self._nest = None

    # --- Denials ----------------------------------------------------------------

    def add(self, listener: int, job: int, *, checking: bool = False, of: int = 0) -> None:
        raise LeewardError("a branch has its kernel's listener")

    def counts(self, job: int) -> dict[str, int]:
        return self._denials.counts(self._root)

    def total(self, job: int) -> int:
        return self._denials.total(self._root)

    def place(self, job: int) -> tuple[object, int]:
        return self._denials.place(self._root)

    def charged(self, job: int) -> int:
        return self._denials.charged(self._root)

    def remove(self, job: int) -> dict[str, int]:
        self._listening.discard(job)
        return {} if self._listening else self._denials.remove(self._root)

    def end_check(self, job: int) -> None: ...
    def grant(self, job: int, limit: int, files: int) -> None: ...
    def share(self, job: int, of: int) -> None: ...


class ForkedProcess(LiveProcess):
    """The process of a branch. A walk over processes finds it below its sandbox's init, or below its kernel."""

    _joins = False


class KernelBranch(Interpreter):
    """
    One branch of the kernel *of*. *door* is our end of its door, which *vouches* if pidfds come by
    it, and *known* returns the sandbox's pids, init first.
    """

    def __init__(self, reactor: Reactor, runner: Beside, leaf: SharedLeaf, terms: WorkerSettings,
                 ready: Callable[[Runner], None], failed: Callable[[str, str], None], of: Interpreter, door: Channel,
                 known: Callable[[], list[int]], *, vouches: bool) -> None:
        super().__init__(reactor, runner, leaf, terms, ready, failed)
        self._of, self._known, self._vouches = of, known, vouches
        self._door: Channel | None = door
        self._answered = self._shut = False
        self._heard = self._watched = self._theirs = -1
        self._timer = NO_TIMER
        reactor.watch(door.fileno(), READ, self._hear)

    def forked(self, refused: str) -> None:
        """Take the kernel's answer: *refused* is the reason of a failure, or ""."""
        self._answered = True
        if refused or self._shut:
            self.refuse(refused or _NOBODY)
        elif self._ready is not None:
            self._timer = self._reactor.after(BRANCH_S, partial(self.refuse, _NOBODY))

    def refuse(self, why: str) -> None:
        """Give up the branch. A process forked nevertheless has no pipes, and counts as the kernel's descendant."""
        if self._ready is None:
            return
        self._fail("", why)
        self._let_door_go()
        assert self.process is not None
        self.process.unstarted(control.Unstarted(self.number, control.Stage.CLONE, "", -1))

    def kill(self) -> None:
        if self._ready is None:
            super().kill()
        else:
            self._ready = lambda _runner: super(KernelBranch, self).kill()  # it is known once it is there

    def _hear(self, _events: int) -> None:
        if self._door is None:
            return
        if self.runner.door is not None:
            self._has_begun()
            return
        if self._ready is None:
            return
        sender = _sender(self._door.socket, vouches=self._vouches)
        if sender is None:
            return
        pid, pidfd = sender
        if self._vouches:
            self._heard, self._theirs = pid, pidfd
        if pid == _UNASKED:
            self.refuse("it has sent descriptors")
        elif pid < 0:
            self._ends_early()
        elif self._theirs < 0:
            self._ask(pid)
        elif pid != self._heard or not self._is_branch(pid):
            self.refuse("what answered isn't a branch of the kernel's")
        else:
            self._take_in(pid)

    def _ends_early(self) -> None:
        self._shut = True
        if self._answered:
            self.refuse(_NOBODY)
        else:
            self._let_door_go()  # the kernel may give the reason

    def _ask(self, pid: int) -> None:
        try:
            if self._vouches:
                raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
            self._theirs = os.pidfd_open(pid)
            self._say_it_is_wanted()
        except OSError as error:
            self.refuse(f"it went at once: {error}")
            return
        self._heard = pid

    def _say_it_is_wanted(self) -> None:
        assert self._door is not None
        self._door.socket.send(BRANCH_WORD, socket.MSG_NOSIGNAL)

    def _is_branch(self, pid: int) -> bool:
        known = self._known()
        of = self._of.process
        try:
            parent, session = parent_and_session(pid)
        except (OSError, ValueError):
            return False
        over = of is None or of.exit is not None
        return not over and not has_ended(self._theirs) and pid not in known and parent in known and pid == session

    def _take_in(self, pid: int) -> None:
        runner, process, of = self.runner, self.process, self._of
        assert process is not None
        assert of.process is not None
        assert self._door is not None
        if self._vouches:
            try:
                self._say_it_is_wanted()
            except OSError as error:
                self.refuse(f"it went at once: {error}")
                return
            runner.door = self._door
        else:
            self._door.socket.shutdown(socket.SHUT_RD)
            if not _is_empty(self._door.socket):
                self.refuse("it has sent more than a branch does")
                return
            runner.door = self._door
            self._has_begun()
        family = of.family
        if family is None:
            family = of.family = Family(of)
            of.runner.share(family)
        family.share_group(of)
        self.family = family
        family.join(process)
        runner.share(family)
        self._timer.cancel()
        theirs, self._theirs = self._theirs, -1
        self._watched = os.dup(theirs)
        self._reactor.watch(self._watched, READ, self._gone)
        process.started(control.Started(self.number, pid, 0), theirs)
        family.adopt(self, pid)
        self.started(pid, theirs)

    def _has_begun(self) -> None:
        """It has said all that a branch says: the daemon only sends on the door from now on."""
        door, self._door = self._door, None
        assert door is not None
        self._reactor.forget(door.fileno())
        door.socket.shutdown(socket.SHUT_RD)

    def _gone(self, _events: int) -> None:
        self._let_go()
        if self.process is not None and self.process.exit is None:
            self.process.exited(control.Exited(self.number, None))

    def emptied(self) -> None:
        in_any_case(self._let_go, super().emptied)

    def _let_go(self) -> None:
        watched, self._watched = self._watched, -1
        if watched >= 0:
            self._reactor.forget(watched)
            os.close(watched)
        self._let_door_go()

    def _let_door_go(self) -> None:
        self._timer.cancel()
        door, self._door = self._door, None
        if door is not None:
            self.runner.door = None
            self._reactor.forget(door.fileno())
            sock = socket.socket(fileno=door.socket.detach())
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            (sock.close if _is_empty(sock) else partial(self._reactor.closer.pass_on, sock))()
        theirs, self._theirs = self._theirs, -1
        if theirs >= 0:
            os.close(theirs)


def lay_out(reactor: Reactor, number: int, live: LiveRunner, of: Interpreter, terms: WorkerSettings,
            ready: Callable[[Runner], None], failed: Callable[[str, str], None],
            made: Callable[[KernelBranch, LiveProcess], None]) -> KernelBranch:
    """
    Make everything that a branch of *of* needs except its process, tell *made* of it, and send the kernel the
    descriptors: without a branch if it has closed its door or is over. LeewardError without descriptors.
    """
    with Streams.opened(live.owner, "a branch") as streams:
        job, reply, out, err = (streams.pipe(write=write) for write in (False, True, True, True))
        door, far = streams.birth_channel()
        door.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        vouches = refuse_descriptors(door.socket)
        if vouches:
            door.socket.setsockopt(socket.SOL_SOCKET, _SO_PASSPIDFD, 1)
        leaf = SharedLeaf(live.runner.leaf, None)
        runner = Beside(number, leaf, None, of.runner.denials, live.runner.number, of.runner.descriptors)
        runner.job, runner.reply, runner.out, runner.err = job, reply, out, err
        runner.memory = of.runner.memory

        def known() -> list[int]:
            return [live.runner.pid, *(process.host_pid for process in live.all_processes)]

        branch = KernelBranch(reactor, runner, leaf, terms, ready, failed, of, door, known, vouches=vouches)
        process = ForkedProcess(reactor, number, live, live.runner, None, of.runner.denials, None, (-1, -1, -1),
                                on_output=None, on_exit=branch.exited)
        streams.kept.pop_all()
        branch.is_process(process)
        made(branch, process)
        try:
            if of.runner.door is None:
                raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
            of.runner.door.socket.sendmsg([BRANCH_WORD], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                                                           array.array("i", [far, *streams.theirs]))],
                                          socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except OSError as error:
            branch.refuse(f"the kernel takes no descriptors: {error}")
    return branch


#: The credentials of a message's sender, and no room for descriptors: they stay in the queue (MSG_CTRUNC).
_ROOM, _LOOKS = socket.CMSG_SPACE(_CREDENTIALS.size), 8
_ROOM_FOR_PIDFD = _ROOM + socket.CMSG_SPACE(4)
_UNASKED = -2


def _next(door: Socket) -> tuple[bytes, list[tuple[int, int, bytes]]] | None:
    """The next message and its credentials, without any at the end; None if there are descriptors in it. OSError."""
    data, ancillary, flags, _ = door.recvmsg(2, _ROOM, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    if flags & socket.MSG_CTRUNC:
        return None
    door.recvmsg(2, _ROOM, socket.MSG_DONTWAIT)
    return data, ancillary


def _sender(door: Socket, *, vouches: bool) -> tuple[int, int] | None:
    """
    The pid of the sender of a message, and its pidfd, or -1, which the caller owns; None if there is no message. The pid is
    -1 at the end or for an invalid one, _UNASKED for one with descriptors.
    """
    try:
        found = door.recvmsg(2, _ROOM_FOR_PIDFD, socket.MSG_DONTWAIT) if vouches else _next(door)
    except BlockingIOError:
        return None
    except OSError:
        return -1, -1
    if found is None:
        return _UNASKED, -1
    pid = pidfd = -1
    for level, kind, content in found[1]:
        if (level, kind) == (socket.SOL_SOCKET, _SCM_PIDFD):
            pidfd = int.from_bytes(content, sys.byteorder, signed=True)
        elif (level, kind, len(content)) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, _CREDENTIALS.size):
            pid = _CREDENTIALS.unpack(content)[0] if found[0] == BRANCH_WORD else -1
    return pid, pidfd


def _is_empty(door: Socket) -> bool:
    """Empty the queue of a door that nothing reaches any more. False if it has a descriptor, or many messages."""
    try:
        for _ in range(_LOOKS):
            found = _next(door)
            if found is None:
                return False
            if not found[1]:  # the end, since each message has credentials
                return True
    except OSError:
        return False
    return False
