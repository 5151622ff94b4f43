"""
A keeper, seen from the daemon: its channel, its process, and the sockets of its network namespace.

Runs in:   the daemon.
Owns:      the channel's ends, the keeper's pidfd, its devpts, its listeners where there is egress, a descriptor of its
           namespace's /proc/net/sockstat, the files that tell jobs how much they may use, and the file of
           certificates that they trust.
"""

from __future__ import annotations

import contextlib
import os
import signal
from functools import partial

from leeward.isolation.cgroup.entry import Entry
from leeward.isolation.channel import Channel
from leeward.loop.barrier import in_any_case
from leeward.loop.reactor import Reactor
from leeward.points import point
from leeward.spec import machine
from leeward.spec.limits import Limits
from leeward.wire import control
from leeward.worker.idmaps import write_id_maps
from leeward.worker.orphans import reap


class Keeper:
    """
    Attributes:
        pid: -1 until it was made.
        gone: it has ended, or will not be made.
        devpts: out of which terminals are opened; -1 where sandboxes have none.
        rested: `rest` was called.
        proved: one of its runners has passed the whole self-check, so later ones needn't test the supervisor.
        listeners: the sockets that the broker accepts from, in the order of `isolation.egress.steps`.
    """

    def __init__(self, reactor: Reactor, limits: Limits) -> None:
        """
        Args:
            limits: those that its files are made with.
        """
        self.pid = -1
        self.gone = False
        self.listeners: list[int] = []
        self.devpts = -1
        self.rested = self.proved = False
        self._reactor = reactor
        self._channel, self._far_end = Channel.pair()
        self._channel.socket.setblocking(False)
        self._pidfd = -1
        self._sockets = -1  # /proc/net/sockstat of its network namespace
        self._sized: tuple[int, ...] = ()  # the files of machine.SIZED
        self._trust = -1
        self._certificates = 0  # bytes of them that all jobs trust, in front of the job's own
        self._limits, self._shown = limits, machine.sizes(limits)

    def prove(self) -> None:
        """
        One of its runners is ready.
        """
        self.proved = True

    # --- making ---------------------------------------------------------------

    def order(self, slot: int, entry: Entry) -> tuple[control.MakeKeeper, list[int]]:
        """
        The message that orders the keeper, and its descriptors.
        """
        fds = [self._far_end.fileno(), *([entry.into] if entry.into >= 0 else []), *entry.attach]
        return control.MakeKeeper(slot, entry.into >= 0, len(entry.attach)), fds

    def ordered(self) -> int:
        """
        The order was sent: only the keeper holds the far end now.

        Returns:
            Our end, for the worker to watch: `receive` when it is readable. `close` ends that.
        """
        self._far_end.close()
        return self._channel.fileno()

    def made(self, pid: int, pidfd: int) -> None:
        """
        The keeper exists, and waits for its id maps. This object owns *pidfd* from now on, and the worker watches it;
        when it is readable the keeper has ended, and has to be `collect`ed.
        """
        self.pid, self._pidfd = pid, pidfd

    def map(self, inside: int, ids: tuple[int, int]) -> None:
        """
        Write its id maps, and let it continue.

        Args:
            inside: the uid and gid in its user namespace.
            ids: the host's.

        Raises:
            KernelRefusal, OSError: it can't be mapped, or is gone.
        """
        self._sockets = os.open(f"/proc/{self.pid}/net/sockstat", os.O_RDONLY | os.O_CLOEXEC)
        write_id_maps(self.pid, inside, *ids)
        self._channel.send(control.Mapped())

    def ready(self, fds: list[int], listeners: int = 0, certificates: bytes | None = None) -> bool:
        """
        It serves. *fds* are this object's from now on: its devpts, if sandboxes have terminals, the files of
        `machine.SIZED`, if jobs see them, that of certificates, if there are *certificates* that all jobs trust, and
        so many *listeners*.

        Returns:
            Are the listeners there? If not, no descriptors were left for them.

        Raises:
            OSError: the certificates can't be written.
        """
        ours = len(fds) - listeners
        if ours < 0 or self.listeners:
            for fd in fds:
                os.close(fd)
            return False
        self.listeners, fds = fds[ours:], fds[:ours]
        if certificates is not None and fds:
            self._trust = fds.pop()
        if len(fds) >= len(machine.SIZED) and not self._sized:
            self._sized = tuple(fds[-len(machine.SIZED):])
            del fds[-len(machine.SIZED):]
        self.devpts = fds.pop(0) if fds and self.devpts < 0 else self.devpts
        for fd in fds:
            os.close(fd)
        if certificates is not None:
            self._begin_trust(certificates)
        return True

    def abandon(self) -> None:
        """
        Stop waiting for it: if it is made later, it reads end of file and ends.
        """
        if self._pidfd < 0:
            self.gone = True

    # --- messages -------------------------------------------------------------

    def receive(self) -> tuple[control.Message, list[int]] | None:
        """
        Its next message with descriptors, which the caller owns; None when it has ended.

        Raises:
            BlockingIOError: there is none yet.
            PeerError, OSError: as of the channel.
        """
        return self._channel.receive()

    def send(self, message: control.Message, fds: list[int]) -> None:
        """
        Raises:
            OSError: its channel is full, or it has ended.
        """
        self._channel.send(message, fds)

    @point("worker.sockets")
    def sockets(self) -> int:
        """
        How many sockets there are in its network namespace, and ends of connections over TCP that the kernel keeps for
        a minute after they were closed; beside its listeners. One read, 10 us.
        """
        if self._sockets < 0:
            return 0
        # "sockets: used N\nTCP: inuse N orphan N tw N alloc N mem N"
        words = os.pread(self._sockets, 128, 0).split(maxsplit=11)
        return int(words[2]) + int(words[9]) - len(self.listeners)

    # --- what its jobs see ----------------------------------------------------

    def show(self, limits: Limits) -> None:
        """
        Write *limits* of its next job into the files in which programs look for a machine's size.

        Raises:
            OSError: a file can't be written.
        """
        if limits is self._limits and self._shown:  # usual: the content needn't be made and compared
            return
        sizes = machine.sizes(limits)
        if sizes == self._shown:
            self._limits = limits
            return
        self._shown = ()  # until all are written
        for fd, content in zip(self._sized, sizes, strict=False):
            os.pwrite(fd, content, 0)
            os.ftruncate(fd, len(content))
        self._limits, self._shown = limits, sizes

    def _begin_trust(self, certificates: bytes) -> None:
        _write(self._trust, certificates, 0)
        self._certificates = len(certificates)

    def trust(self, certificate: bytes) -> None:
        """
        Its next job trusts *certificate*, and no certificate of an earlier job.

        Raises:
            OSError: it can't be written.
        """
        os.ftruncate(self._trust, self._certificates)
        _write(self._trust, certificate, self._certificates)

    def rest(self) -> None:
        """
        A live sandbox keeps it for longer: close the descriptors that only a next job needs. It gets no other job.
        """
        fds, self._sized, self._trust, self.rested = (*self._sized, self._trust), (), -1, True
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    # --- the end --------------------------------------------------------------

    def close(self) -> None:
        """
        Close the channel. May be called repeatedly.
        """
        self._far_end.close()
        if self._channel.fileno() >= 0:
            self._reactor.forget(self._channel.fileno())
            self._channel.close()

    def kill(self) -> None:
        """
        Kill its process, and with it its runners.
        """
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):  # gone already
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)  # end of file wouldn't reach a stopped one

    def collect(self) -> None:
        """
        It has ended: reap it, and close its descriptors.
        """
        pidfd, self._pidfd = self._pidfd, -1
        self.gone = True
        in_any_case(partial(self._reactor.forget, pidfd), partial(reap, pidfd), partial(os.close, pidfd),
                    self._close_rest)

    def _close_rest(self) -> None:
        rest = (self._sockets, self.devpts, self._trust, *self._sized, *self.listeners)
        self._sockets = self.devpts = self._trust = -1
        self._sized, self.listeners = (), []
        in_any_case(*(partial(os.close, fd) for fd in rest if fd >= 0))


def _write(fd: int, data: bytes, at: int) -> None:
    """
    Write all of *data* at offset *at*.

    Raises:
        OSError: it can't be written.
    """
    rest = memoryview(data)
    while rest:
        count = os.pwrite(fd, rest, at)
        rest, at = rest[count:], at + count
