"""
The keeper of one worker: owns its user and network namespaces and its mount template, makes runners.

Runs in:   its own process, cloned by the zygote; one thread; never sees a job's code.
Ends:      when the daemon's end of its control channel closes. Its runners die with it
           (PR_SET_PDEATHSIG of their inits).

Not pid 1 of a pid namespace: OpenSSL tells a fork by getpid(), and two processes that
are both pid 1 would draw the same random bytes.
"""

from __future__ import annotations

import os
import resource
import select

from leeward._native import privileges
from leeward._native.spawn import Clone, Init
from leeward.crossing import birth, runner
from leeward.crossing.birth import Birth
from leeward.errors import LeewardError
from leeward.isolation import landlock, mounts
from leeward.isolation.channel import Channel
from leeward.isolation.plan import WorkerPlan
from leeward.wire import control

_RUNNER_NAMESPACES = Clone.NEWPID | Clone.NEWNS | Clone.NEWIPC | Clone.NEWUTS


def main(channel: Channel, plan: WorkerPlan) -> None:
    """
    Build the template, then serve until the daemon is gone.
    """
    received = channel.receive()
    if received is None:
        return
    assert isinstance(received[0], control.Mapped)
    try:
        ruleset = settle(plan)
        made = birth.of(plan)
    except (LeewardError, OSError) as error:
        channel.send(control.Failed(-1, "mounts", str(error)))
        return
    channel.send(control.Ready({}))
    Keeper(channel, plan, ruleset, made).serve()


def settle(plan: WorkerPlan) -> int:
    """
    Become the keeper: template, loopback, ids, no way back.

    Returns:
        The ruleset of the inits, or -1.
    """
    opened = mounts.sources(plan.view)  # before the host uid changes: they may lie in its home
    os.setresgid(plan.uid, plan.uid, plan.uid)
    os.setresuid(plan.uid, plan.uid, plan.uid)
    mounts.build(plan.view, opened)
    privileges.loopback_up()
    if plan.watched:
        privileges.no_huge_pages()
    os.umask(0o022)
    privileges.drop_bounding()  # inherited by every runner; the keeper's own permitted set stays
    privileges.no_new_privs()
    privileges.set_dumpable(False)
    return landlock.deny_all(plan.landlock.abi)


class Keeper:
    """
    Arms runners on demand and reaps them.
    """

    def __init__(self, channel: Channel, plan: WorkerPlan, ruleset: int, birth: Birth) -> None:
        self._channel = channel
        self._birth = birth
        self._plan = plan
        self._ruleset = ruleset
        self._runners: dict[int, tuple[int, Init]] = {}  # pidfd -> runner number, init
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)

    def serve(self) -> None:
        try:
            while True:
                for fd, _ in self._poll.poll():
                    if fd in self._runners:
                        self._reap(fd)
                    elif not self._hear():
                        return
        except BrokenPipeError:
            return  # the daemon let us go between two messages

    def _hear(self) -> bool:
        received = self._channel.receive()
        if received is None:
            return False
        message, fds = received
        assert isinstance(message, control.Arm)
        try:
            self._arm(message, fds)
        except (LeewardError, OSError) as error:
            self._channel.send(control.Failed(message.runner, "namespaces", str(error)))
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _arm(self, message: control.Arm, fds: list[int]) -> None:
        birth, *entry = fds
        into = entry.pop(0) if message.into else -1
        # Made here, so that they belong to the worker's uid: a job may reopen /dev/stdout.
        pipes = [os.pipe() for _ in range(4)]
        job, reply, out, err = pipes
        init = Init()
        try:
            if init.spawn(_RUNNER_NAMESPACES, cgroup=into, attach=entry, ruleset=self._ruleset,
                          filter=self._plan.init_seccomp):
                ends = runner.Ends(job[0], reply[1], out[1], err[1], birth)
                runner.main(self._birth, ends, init.join_error(), message.cpu, rehearse=self._plan.rehearse)
            self._runners[init.pidfd] = (message.runner, init)
            self._poll.register(init.pidfd, select.POLLIN)
            self._channel.send(control.Armed(message.runner, init.pid),
                               [init.pidfd, job[1], reply[0], out[0], err[0]])
        except LeewardError:
            init.free()
            raise
        finally:
            for pair in pipes:
                os.close(pair[0])
                os.close(pair[1])

    def _reap(self, pidfd: int) -> None:
        self._poll.unregister(pidfd)
        number, init = self._runners.pop(pidfd)
        _, _, usage = os.wait4(init.pid, 0)
        os.close(pidfd)
        status = init.status()
        init.free()
        self._channel.send(control.Ended(number, status, _seconds(usage)))


def _seconds(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime
