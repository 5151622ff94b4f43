"""Requests of every operation that sandboxes and jobs have, with every field: for tests of the wire, and for its fuzzer."""

from leeward.wire.requests import (
    Cancel,
    Execute,
    Interrupt,
    Ping,
    SessionClose,
    SessionOpen,
    SessionReset,
    Shutdown,
    Status,
)
from leeward.wire.sandbox_requests import (
    KernelBind,
    KernelClose,
    KernelFork,
    KernelInterrupt,
    KernelOpen,
    KernelReset,
    ProcessKill,
    ProcessList,
    ProcessRead,
    ProcessRun,
    ProcessSignal,
    ProcessStart,
    ProcessWait,
    ProcessWrite,
    SandboxExecute,
    SandboxExtend,
    SandboxInfo,
    SandboxKill,
    SandboxList,
    SandboxOpen,
)
from leeward.wire.schema import ClientRequest

FULL = Execute(id=7, code=b"print(1)", name="job.py", args=("-a", ""), env={"A": "b"}, files={"in/x.csv": b"1,2"},
               stdin=b"\xff", collect=("*.png", "out/*"), limits={"time": 1.5, "memory": 1 << 26})

#: The id of a sandbox.
BOX = "abcdefghijklmnopqrstuvwxyz"
SANDBOX_REQUESTS: tuple[ClientRequest, ...] = (
    SandboxOpen(1), SandboxOpen(1, limits={"memory": 1 << 26}, idle=2.0, lifetime=9.5, env={"A": "b"},
                                metadata={"run": "7"}),
    SandboxList(2), SandboxInfo(3, BOX), SandboxExtend(4, BOX, idle=3.0), SandboxKill(5, BOX),
    ProcessRun(6, BOX, argv=("ls", "-l"), cwd="/tmp", stdin=b"x", limits={"time": 1.5}), ProcessRun(7, BOX, shell="ls"),
    ProcessRun(7, BOX, shell="ls", cpu_time=1.5, clean=True, ends_children=True),
    ProcessStart(7, BOX, shell="ls", cpu_time=3600.0, clean=True),
    ProcessRun(7, BOX, argv=("node", "-"), stdin=b"1", warm=True),
    ProcessStart(8, BOX, argv=("cat",), open=True, bounded=True, title="a cat", env={"A": "b"}), ProcessList(9, BOX),
    ProcessRead(10, BOX, 1, after=7, wait=30.0), ProcessRead(10, BOX, 0), ProcessWrite(11, BOX, 1, data=b"x", end=True),
    SandboxExecute(15, BOX, code=b"", files={"a": b"1"}), SandboxExecute(16, BOX, kernel=3, code=b"x"),
    KernelOpen(17, BOX), KernelInterrupt(18, BOX, 1), KernelReset(19, BOX, 1), KernelClose(20, BOX, 0),
    KernelFork(20, BOX, 1), KernelBind(20, BOX, 1),
    ProcessSignal(12, BOX, 1, signal=15), ProcessKill(13, BOX, 1), ProcessWait(14, BOX, 1, wait=0.5),
)

REQUESTS: tuple[ClientRequest, ...] = (
    FULL, Execute(id=1, code=b""), Execute(id=2, module="json.tool", args=("x",)), Ping(3), Status(4),
    Status(4, "json"), Shutdown(5),
    Cancel(6, target=3), Execute(id=7, session=3, code=b"x", limits={"time": 1.5}), SessionOpen(8),
    SessionOpen(9, limits={"memory": 1 << 26}, idle=2.5), SessionReset(10, session=1),
    SessionClose(11, session=2**53 - 1), Interrupt(12, session=1), *SANDBOX_REQUESTS,
)
