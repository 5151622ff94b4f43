"""
The zygote: a fresh interpreter with warm modules that makes keepers.

Runs in: its own process, exec'd by the daemon; one thread; backstage: in a mount and a network namespace of its own
(isolation/backstage.py). Holds: its plan. No request, no result, no secret ever reaches it. Ends: when the daemon's end
of the control channel closes.

It has no capability when it starts. If root runs the daemon it keeps uid 0, because the interpreter may be in root's
home; each keeper changes to an unprivileged uid before it makes a runner.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import sys
from collections.abc import Sequence

from leeward._native import privileges, state
from leeward._native.spawn import twin
from leeward.crossing import handlers, keeper, left_threads, scout, setup, snapshot
from leeward.errors import LeewardError, PeerError
from leeward.inside import image_python, reseeding
from leeward.inside import main as inside
from leeward.isolation import backstage
from leeward.isolation.channel import Channel
from leeward.isolation.plan import WorkerPlan, ZygotePlan
from leeward.spec.sandbox import FURTHER, TRUST
from leeward.wire import control, records


def main(control_fd: int) -> None:
    """Warm up, read the workers' plan, and serve until the daemon closes the channel."""
    channel = Channel.adopt(control_fd)
    os.set_inheritable(channel.fileno(), False)
    plan = records.unpack(ZygotePlan, channel.socket.recv(control.MAX_MESSAGE))
    records.learn(WorkerPlan)  # before the warm-up removes its module from sys.modules
    try:
        if privileges.capabilities_left():
            raise LeewardError("it has capabilities; a zygote is started without any")
        warm_up(plan, channel)
        handlers.take()
    except (LeewardError, OSError, ImportError) as error:
        with contextlib.suppress(OSError):  # the daemon has ended
            channel.send(control.Failed(-1, "", f"zygote: {error}"))
        return
    decided = channel.socket.recv(control.MAX_MESSAGE)
    if not decided:
        return
    workers = records.unpack(WorkerPlan, decided)
    try:
        ways = keeper.ways(workers)
        if workers.view.root is not None:
            image_python.pack(setup.ours(), state.alone())
    except (LeewardError, OSError) as error:
        channel.send(control.Failed(-1, "mounts", str(error)))
        return
    gc.freeze()
    inside.prepare()  # last, because the interpreter is the job's from here on
    keeper.begin_early(ways)
    memory = snapshot.lay_out(plan.rehearse)  # not for one job alone: a snapshot costs as much as dozens of jobs gain
    if plan.rehearse:
        ways.kept.copy_at_once(scout.written())  # last, since new objects would change which pages jobs write
        keeper.look_ahead(ways)
    taken = memory if isinstance(memory, str) else snapshot.take(memory)
    if taken == snapshot.TAKEN and not isinstance(memory, str):
        ways.kept.taken(memory)
    if taken.startswith(snapshot.NONE):
        os.write(2, f"clones copy all of its page tables: {taken.removeprefix(snapshot.NONE)}\n".encode())
    backstage.behind()
    files = [] if isinstance(memory, str) or memory.file < 0 else [memory.file]
    channel.send(control.Ready({"modules": str(len(sys.modules)), "snapshot": taken}), files)
    for fd in files:
        os.close(fd)  # before there is a keeper
    whole = keeper.whole(ways)
    if whole is None:
        KeeperSpawner(channel, ways).serve()
    else:
        keeper.make_all(ways, whole, channel.fileno())


def warm_up(plan: ZygotePlan, channel: Channel) -> None:
    """Import the modules that jobs are likely to use, and tell before which: it may end us. ImportError as `preload`."""
    setup.interpreter(plan)
    setup.signals()
    with setup.own_variables(plan):
        for number, name in enumerate(plan.preload):
            if name not in sys.modules:
                channel.send(control.Importing(number))
            preload(name, plan.idle_threads)
        channel.send(control.Importing(len(plan.preload)))
    if dict(plan.environment).get("SSL_CERT_FILE") == TRUST:
        reseeding.find_contexts(TRUST, FURTHER)
    setup.keep_ours_apart()
    if plan.warm:
        gc.collect()
        setup.room_for_names()
    # The present objects stay: no collection in a job touches their pages, which would be copied.
    gc.freeze()


def preload(name: str, idle: Sequence[str]) -> None:
    """Import one module; ImportError also if it left a thread that isn't in *idle*: a clone would lack it."""
    try:
        with reseeding.recorded():
            importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ImportError(f"preload: module {name}: {type(error).__name__}: {error}{_hint(error)}") from error
    finally:
        # Otherwise every job would inherit the content of these buffers.
        sys.stdout.flush()
        sys.stderr.flush()
    left = left_threads.leave_one(idle)
    if left:
        raise ImportError(f"preload: module {name} starts a thread ({', '.join(left)}); "
                          "jobs have to import it themselves")


def _hint(error: BaseException | None) -> str:
    """A hint for the operator, if the error's cause is a file or the network; otherwise ""."""
    while error is not None:
        if isinstance(error, OSError):
            return ("; while modules of `preload` are imported there is no network and no home, and no file but those"
                    " that jobs see")
        error = error.__cause__ or error.__context__
    return ""


class KeeperSpawner:
    """Makes keepers on demand and reaps them, where a part of what they do first is Python's."""

    def __init__(self, channel: Channel, ways: keeper.Ways) -> None:
        self._channel = channel
        self._ways = ways
        self._keepers: dict[int, int] = {}  # pidfd -> pid
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)

    def serve(self) -> None:
        while True:
            for fd, _ in self._poll.poll():
                if fd in self._keepers:
                    self._reap(fd)
                elif not self._hear():
                    for pidfd in self._keepers:  # those that aren't dead yet are the daemon's to reap
                        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
                    return

    def _hear(self) -> bool:
        received = self._channel.receive()
        if received is None:
            return False
        message, fds = received
        assert isinstance(message, control.MakeKeeper)
        if not fds:
            raise PeerError("no descriptor is left for an order's: the daemon makes another zygote")
        try:
            self._make(message, fds)
        except LeewardError as error:
            self._channel.send(control.Failed(message.slot, "namespaces", str(error)))
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _make(self, message: control.MakeKeeper, fds: list[int]) -> None:
        end, *entry = fds
        into = entry.pop(0) if message.into else -1
        pid, pidfd = twin(keeper.keepers_namespaces(), into)
        if pid == 0:
            self._become_keeper(message, end, entry)
        self._keepers[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        self._channel.send(control.Made(message.slot, pid), [pidfd])

    def _become_keeper(self, message: control.MakeKeeper, end: int, attach: list[int]) -> None:
        """In the child: run the keeper, as `keeper.make_all` does."""
        try:
            for fd in attach:
                os.write(fd, b"0")
            for fd in self._keepers:
                os.close(fd)
            keep = os.dup(end)  # a low number: a keeper needs those from landlock.HELD on
            self._channel.close()
            for fd in (end, *attach):
                os.close(fd)
            keeper.main(keep, self._ways)
        except BaseException as error:  # the last frame of this process
            keeper.end(error)
        finally:
            os._exit(1)

    def _reap(self, pidfd: int) -> None:
        self._poll.unregister(pidfd)
        os.waitpid(self._keepers.pop(pidfd), 0)
        os.close(pidfd)
