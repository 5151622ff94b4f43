"""
Egress of sandboxes: each pool's policy, the broker that enforces them all, the record of connections, and the values of
secrets, which the broker reads from descriptors that the daemon opens.

Stands if: the daemon's memory is read later on: it never had the value of a file or a command. A value of the daemon's
environment is only there, where the operator has put it. Bound: a command has COMMAND_S. Its error output is dropped,
since it may contain the secret.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward.base.closing import OwnedFd
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import READ, Reactor
from leeward.daemon.pool.asks import AskBook
from leeward.daemon.pool.begin import Settings
from leeward.daemon.pool.broker import Answered, BrokerConnection, check
from leeward.daemon.pool.confinement import Confinement
from leeward.daemon.pool.egress_record import EgressRecord
from leeward.daemon.pool.zygotes import EventLog
from leeward.daemon.worker.orphans import STARTED
from leeward.daemon.worker.terms import NOTHING_LENT, Lent, WaysOut
from leeward.daemon.worker.zygote_start import import_path
from leeward.errors import Busy
from leeward.isolation import landlock
from leeward.isolation.egress_route import EgressPlan
from leeward.isolation.seccomp import filters
from leeward.spec.sandbox import FURTHER
from leeward.wire.egress_control import Begin, Sealed

if TYPE_CHECKING:
    import subprocess

    from leeward.daemon.pool.pool import Ticket
    from leeward.spec.egress_policy import Policy, Secret
    from leeward.spec.egress_tls import LeaseSeal, Seal


# Imported in functions: what not every start needs; 16 ms of processor time for all of it.


#: A policy, and that of fetches if it differs, as `policy_map` makes them.
Narrowed = tuple[dict[str, Any], dict[str, Any]]

#: The number of authorities that are made together.
_BATCH = 8
#: What the C library's resolver reads, and the folders in which systemd and others keep the list of name servers.
_RESOLVERS = ("/etc", "/usr", "/lib", "/lib32", "/lib64", "/run/systemd/resolve", "/run/resolvconf",
              "/run/NetworkManager", "/run/nscd")


class PoolWays(WaysOut):
    """For the workers of a pool; *policy* is as `policy_map` makes it, *seals* has the authorities for TLS, if any."""

    def __init__(self, broker: BrokerConnection, record: EgressRecord, asks: AskBook, plan: EgressPlan,
                 policy: dict[str, Any], name: str, seals: LeaseSeals | None) -> None:
        self._broker, self._record, self._plan, self._policy, self._name = broker, record, plan, policy, name
        self._asks, self._seals, self.listeners, self.ports = asks, seals, plan.listeners, plan.ports
        self.certificates = None if seals is None else seals.certificates
        self._runners: dict[object, int] = {}
        self._standing: set[object] = set()

    def stand(self, worker: object, listeners: Sequence[int]) -> None:
        if self._seals is None:
            self._broker.stand(worker, self._plan, listeners)
            return
        self._broker.stand(worker, self._plan, listeners, self._seals.opened)
        self._standing.add(worker)
        self._seals.fill(len(self._standing) - len(self._runners))

    def lease(self, worker: object, runner: int, policy: Mapping[str, Any] | None) -> Lent:
        self._forget(worker)
        own = None if self._seals is None else self._seals.take()
        self._runners[worker] = runner
        self._record.leased(runner, self._name)
        self._broker.lease(worker, runner, self._policy if policy is None else dict(policy), own)
        return NOTHING_LENT if self._seals is None or own is None else self._seals.lent(own)

    def owned(self, runner: int, ticket: Ticket) -> None:
        about = {"kind": "session"} if ticket.take is not None else {"kind": "job", "job": ticket.number}
        self._record.owned(runner, ticket.user, about)

    def over(self, worker: object, cleared: Callable[[], None]) -> bool:
        self._forget(worker)
        nothing_left = self._broker.over(worker, cleared)
        if self._seals is not None:  # while the broker clears the listeners
            self._seals.fill(len(self._standing) - len(self._runners))
        return nothing_left

    def gone(self, worker: object) -> None:
        self._broker.gone(worker)
        self._forget(worker)
        self._standing.discard(worker)

    def _forget(self, worker: object) -> None:
        runner = self._runners.pop(worker, None)
        if runner is not None:
            self._record.over(runner)
            self._asks.over(runner)


class LeaseSeals:
    """
    Authorities and placeholders of a pool, each for one lease. One is kept for each worker without a lease, so that no
    request waits for it. Making several together takes a fifth of the time for each: 0.15 ms. All leases share
    *opened*, the pool's seal; *certificates* are those that the host trusts, and the policy's own authorities.
    """

    def __init__(self, seal: Seal, opened: OpenSeal) -> None:
        self.opened, self.certificates = opened, seal.certificates.rstrip(b"\n") + b"\n" + FURTHER + seal.trusted
        self._secrets = seal.secrets
        self._stock: deque[LeaseSeal] = deque()

    def fill(self, workers: int) -> None:
        """Make one for each of *workers* workers without a lease."""
        if len(self._stock) < workers:
            self._stock += [self._make() for _ in range(_BATCH)]

    def take(self) -> LeaseSeal:
        """Remove and return one, for a new lease. It is never used for another lease."""
        return self._stock.popleft() if self._stock else self._make()

    def lent(self, own: LeaseSeal) -> Lent:
        """Return the part of the seal that the sandbox gets."""
        return Lent(dict(zip(self._secrets, own.placeholders, strict=True)), own.certificate)

    def _make(self) -> LeaseSeal:
        from leeward.daemon.pool import seals

        return seals.make_for_lease(len(self._secrets))


class Exits:
    def __init__(self, reactor: Reactor, log: EventLog) -> None:
        self._reactor, self._log = reactor, log
        self.record = EgressRecord()  # the egress log
        self.asks = AskBook(reactor, self.record)  # the connections that wait for an answer
        self.broker: BrokerConnection | None = None

    def ways(self, settings: Settings, confinement: Confinement) -> WaysOut:
        """The ways out of a pool with these *settings*; Unsupported if a package isn't installed."""
        plan = confinement.plan.egress
        if settings.egress is None or plan is None:
            return WaysOut()
        check()
        if not plan.routes:
            self._log.warning("egress: this host refuses the route by which every address is a sandbox's own;"
                              " sandboxes have the proxy alone", policy=settings.egress.name)
        from leeward.spec.egress_policy import policy_map

        if self.broker is None:
            self.broker = BrokerConnection(self._reactor, self._log, partial(begin, confinement), self.record.add,
                                     self.asks)
        policy = settings.egress
        seals = None
        if confinement.seal is not None:
            opened = OpenSeal(self._reactor, self._log, confinement.seal, policy.secrets)
            seals = LeaseSeals(confinement.seal, opened)
            policy = unsourced(policy)
        return PoolWays(self.broker, self.record, self.asks, plan, policy_map(policy), policy.name, seals)

    def seated(self, runner: int, sandbox: str, narrowed: Narrowed | None) -> None:
        """Note that a sandbox got this runner, with its client's policies for programs and for fetches."""
        self.record.seated(runner, sandbox)
        if narrowed is not None and self.broker is not None:
            self.broker.narrow(runner, *narrowed)

    def fetch(self, lease: int, about: dict[str, object], fds: Sequence[int], user: int,
              answered: Answered) -> Callable[[], None]:
        if self.broker is None:
            raise Busy("there is no broker")
        return self.broker.fetch(lease, about, fds, user, answered)

    def close(self) -> None:
        if self.broker is not None:
            self.broker.close()


def unsourced(policy: Policy) -> Policy:
    """Return *policy* as the broker gets it, without the sources of values and certificates."""
    from dataclasses import replace

    return replace(policy, secrets=tuple(replace(each, source="") for each in policy.secrets), authorities="",
                   within=None if policy.within is None else unsourced(policy.within))


def begin(confinement: Confinement) -> Begin:
    """Return the first message for a broker, by any pool's confinement: its id is the one before all workers'."""
    number = confinement.first_id - 1
    prefixes = (sys.prefix, sys.base_prefix, *import_path())
    return Begin(
        ids=[number, number] if confinement.first_id > 0 else [], filter=filters.broker_program(os.uname().machine),
        landlock=list(landlock.reader_rights(landlock.probe())),
        readable=list(dict.fromkeys((*_RESOLVERS, *prefixes))))


# Imported in functions: what not every start needs; 2 ms of processor time for all of it.


#: Seconds that a command has to print a value.
COMMAND_S = 30.0


#: Bytes that a value can have; the broker takes no more than `egress.sealing.MOST` of them.
_MOST = 32768
#: The marker after a value, which is written only if the command has succeeded.
_SHELL = "(eval \"$1\") && printf '\\0'"


class OpenSeal:
    """The seal of a pool, as the broker gets it."""

    def __init__(self, reactor: Reactor, log: EventLog, seal: Seal, secrets: tuple[Secret, ...]) -> None:
        self._reactor, self._log, self._seal, self._secrets = reactor, log, seal, secrets
        self.number = 0  # its number for the broker; 0 before it was sent

    def message(self) -> Sealed:
        """Return the message for the broker, without the descriptors."""
        return Sealed(self.number, self._seal.bundle, self._seal.trusted, [each.name for each in self._secrets])

    @contextmanager
    def opened(self) -> Iterator[list[int]]:
        """Open a descriptor for each secret, until the context ends; it is at end of file if the source fails."""
        fds: list[int] = []
        try:
            for secret in self._secrets:
                fds.append(self._open(secret))  # noqa: PERF401 - each is closed, if the next one fails
            yield fds
        finally:
            in_any_case(*(partial(os.close, fd) for fd in fds))

    def _open(self, secret: Secret) -> int:
        kind, _, rest = secret.source.partition(":")
        out, into = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if kind == "env":
                value = os.environb.get(rest.encode(), b"")
                if 0 < len(value) < _MOST:
                    os.write(into, value + b"\0")
            elif kind == "file":
                self._copy(rest, into)
            else:
                self._run(secret.name, rest, into)
        except OSError as error:
            self._log.warning("a secret can't be had", secret=secret.name, error=str(error.strerror))
        finally:
            os.close(into)
        return out

    @staticmethod
    def _copy(path: str, into: int) -> None:
        """Copy by splice(2), so that the bytes don't come into this process."""
        with OwnedFd(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)) as fd:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                while os.splice(fd, into, _MOST, flags=os.SPLICE_F_NONBLOCK):
                    pass
                os.write(into, b"\0")

    def _run(self, name: str, command: str, into: int) -> None:
        import subprocess

        os.set_blocking(into, True)
        process = subprocess.Popen(["/bin/sh", "-c", _SHELL, "sh", command], stdin=subprocess.DEVNULL, stdout=into,
                                   stderr=subprocess.DEVNULL, cwd="/", start_new_session=True)
        STARTED.add(process.pid)
        try:
            _Command(self._reactor, self._log, name, process)
        except OSError:
            process.kill()
            process.wait()
            raise


class _Command:
    """A command that runs, until it has ended and was collected."""

    def __init__(self, reactor: Reactor, log: EventLog, name: str, process: subprocess.Popen[bytes]) -> None:
        self._reactor, self._log, self._name, self._process = reactor, log, name, process
        self._pidfd = os.pidfd_open(process.pid)
        self._timer = reactor.after(COMMAND_S, self._late)
        reactor.watch(self._pidfd, READ, self._ended)

    def _ended(self, _events: int) -> None:
        self._timer.cancel()
        self._reactor.forget(self._pidfd)
        os.close(self._pidfd)
        if self._process.wait():
            self._log.warning("the command of a secret has failed", secret=self._name, status=self._process.returncode)

    def _late(self) -> None:
        self._log.warning("the command of a secret took too long", secret=self._name, seconds=COMMAND_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
