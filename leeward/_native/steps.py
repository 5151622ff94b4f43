"""
Tables of system calls, which one process makes and its clone executes.

Runs in:   the zygote makes the tables; the new runner executes them, in `lw_keep`.
Why:       a clone copies each page that it writes; bytecode writes to one with nearly every object that it reads (the
           reference count). C that reads a table writes hardly any. docs/decisions/ has figures.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leeward._native._shim import ffi, lib
from leeward.base.dataclass import dataclass, field
from leeward.errors import KernelRefusal

AT_FDCWD = -100
_INT32 = 4
_ANSWERS = 3
_POINTER = 8


class Call(enum.IntEnum):
    """The numbers, on this architecture, of the system calls that steps make."""

    BIND = lib.SYS_bind
    CAPSET = lib.SYS_capset
    CHDIR = lib.SYS_chdir
    CHROOT = lib.SYS_chroot
    CLONE = lib.SYS_clone
    CLOSE = lib.SYS_close
    CLOSE_RANGE = lib.SYS_close_range
    DUP3 = lib.SYS_dup3
    EXECVE = lib.SYS_execve
    FCHDIR = lib.SYS_fchdir
    FCHMODAT = lib.SYS_fchmodat
    FCNTL = lib.SYS_fcntl
    FSCONFIG = lib.SYS_fsconfig
    FSMOUNT = lib.SYS_fsmount
    FTRUNCATE = lib.SYS_ftruncate
    FSOPEN = lib.SYS_fsopen
    GETPID = lib.SYS_getpid
    GETPPID = lib.SYS_getppid
    GETUID = lib.SYS_getuid
    IOCTL = lib.SYS_ioctl
    IO_URING_SETUP = lib.SYS_io_uring_setup
    LANDLOCK_ADD_RULE = lib.SYS_landlock_add_rule
    LANDLOCK_CREATE_RULESET = lib.SYS_landlock_create_ruleset
    LANDLOCK_RESTRICT_SELF = lib.SYS_landlock_restrict_self
    LISTEN = lib.SYS_listen
    MKDIRAT = lib.SYS_mkdirat
    MOUNT = lib.SYS_mount
    MOUNT_SETATTR = lib.SYS_mount_setattr
    MOVE_MOUNT = lib.SYS_move_mount
    OPEN_TREE = lib.SYS_open_tree
    OPENAT = lib.SYS_openat
    PIVOT_ROOT = lib.SYS_pivot_root
    PRCTL = lib.SYS_prctl
    PRLIMIT64 = lib.SYS_prlimit64
    READ = lib.SYS_read
    READLINKAT = lib.SYS_readlinkat
    RECVMSG = lib.SYS_recvmsg
    RT_SIGACTION = lib.SYS_rt_sigaction
    SECCOMP = lib.SYS_seccomp
    SENDMSG = lib.SYS_sendmsg
    SETDOMAINNAME = lib.SYS_setdomainname
    SETGROUPS = lib.SYS_setgroups
    SETHOSTNAME = lib.SYS_sethostname
    SETNS = lib.SYS_setns
    SETRESGID = lib.SYS_setresgid
    SETRESUID = lib.SYS_setresuid
    SETSID = lib.SYS_setsid
    SETSOCKOPT = lib.SYS_setsockopt
    SYNCFS = lib.SYS_syncfs
    SIGALTSTACK = lib.SYS_sigaltstack
    SOCKET = lib.SYS_socket
    STATX = lib.SYS_statx
    SYMLINKAT = lib.SYS_symlinkat
    UMASK = lib.SYS_umask
    UMOUNT2 = lib.SYS_umount2
    UNSHARE = lib.SYS_unshare
    WAIT4 = lib.SYS_wait4
    WRITE = lib.SYS_write


class Gives(enum.IntEnum):
    NOTHING = 0
    #: Any result that isn't negative, for example a descriptor.
    SOMETHING = 1
    ANYTHING = 2


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """A place of 32 bits for the result of one call, which can be an argument of later calls. *name* is for messages."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    data: bytes
    cells: Mapping[int, Cell] = field(default_factory=dict)    # by offset: those that lie in the memory
    blocks: Mapping[int, Block] = field(default_factory=dict)  # by offset: those whose addresses are written into it


Argument = int | str | Cell | Block


@dataclass(frozen=True, slots=True)
class Step:
    call: Call
    #: A str stands for the address of its bytes with a NUL; a Cell for its value when the step is taken.
    arguments: tuple[Argument, ...]
    answers: tuple[int, ...] = (0,)  # allowed results, three at most; an errno is negative
    gives: Gives = Gives.NOTHING     # further allowed results
    into: Cell | None = None         # gets the result
    hints: Mapping[int, str] = field(default_factory=dict)  # by errno: its meaning for this call, if errno(3) doesn't say

    def __str__(self) -> str:
        return f"{self.call.name.lower()}({', '.join(map(_shown, self.arguments))})"


def gives(cell: Cell, call: Call, *arguments: Argument, optional: bool = False) -> Step:
    """A step that opens something: *cell* gets the descriptor, or the negative errno if the step may fail (*optional*)."""
    return Step(call, arguments, (), Gives.ANYTHING if optional else Gives.SOMETHING, cell)


def returns(call: Call, *arguments: Argument, value: int = 0, unless: Sequence[int] = ()) -> Step:
    """A step that has to return *value*, or to fail with one of the errnos in *unless*."""
    return Step(call, arguments, (value, *(-number for number in unless)))


def fails(call: Call, *arguments: Argument, errnos: Sequence[int]) -> Step:
    """A step that has to fail, with one of *errnos*: the proof that a lock holds."""
    return Step(call, arguments, tuple(-number for number in errnos))


class Table:
    """Steps, laid out in memory so that C can execute them."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self.steps = tuple(steps)
        layout = _Layout()
        arguments = [argument for step in self.steps for argument in step.arguments]
        for argument in arguments:
            if not isinstance(argument, (int, Cell)):
                layout.place(argument)
        for cell in [*arguments, *(step.into for step in self.steps)]:
            if isinstance(cell, Cell):  # a cell that is in no block
                layout.place(cell)
        self._memory = ffi.new("char[]", max(1, layout.size))
        self._places = layout.places
        self._base = base = int(ffi.cast("uintptr_t", self._memory))
        ffi.memmove(self._memory, layout.content(base), layout.size)
        self._steps = ffi.new("struct lw_step[]", len(self.steps))
        for row, step in zip(self._steps, self.steps, strict=True):
            row.call, row.gives = step.call, step.gives
            if step.answers:
                row.answers = [step.answers[min(at, len(step.answers) - 1)] for at in range(_ANSWERS)]
            for number, argument in enumerate(step.arguments):
                if isinstance(argument, int):
                    row.arguments[number] = argument & 0xFFFF_FFFF_FFFF_FFFF
                else:
                    row.arguments[number] = base + layout.places[argument]
                    row.loaded |= isinstance(argument, Cell) << number
            if step.into is not None:
                row.into = ffi.cast("int32_t *", base + layout.places[step.into])

    @property
    def rows(self) -> tuple[Any, int]:
        """The struct lw_step * of the first step, and the number of steps. The memory is freed with this table."""
        return self._steps, len(self.steps)

    def address(self, cell: Cell) -> Any:
        """The address of *cell*, an int32_t *, to set a value that is known only when the steps are taken."""
        return ffi.cast("int32_t *", self._base + self._places[cell])

    def take(self, first: int = 0, end: int | None = None) -> tuple[int, int]:
        """
        Take the steps from *first* to before *end*, in order, up to the first whose result isn't allowed. Returns the
        number of that step, or *end*; and the last result.
        """
        end = len(self.steps) if end is None else end
        result = ffi.new("int64_t *")
        return first + int(lib.lw_run_steps(self._steps + first, end - first, result)), int(result[0])

    def run(self, first: int = 0, end: int | None = None) -> None:
        """Take the steps from *first* to before *end*, in order; KernelRefusal at the first whose result isn't allowed."""
        done, result = self.take(first, end)
        if done < (len(self.steps) if end is None else end):
            raise refusal(self.steps[done], result)

    def run_aside(self, first: int, end: int, *, namespaces: int = 0, descriptors: bool = False) -> None:
        """
        As `run`, in a child, in new *namespaces* (CLONE_NEW*), that ends afterwards, with the namespaces that it has entered
        and its descriptors; or these are the caller's *descriptors*. Linux 5.3.
        """
        result = ffi.new("int64_t *")
        flags = namespaces | (lib.CLONE_FILES if descriptors else 0)
        done = int(lib.lw_run_steps_aside(flags, self._steps + first, end - first, result))
        if done < 0:
            raise KernelRefusal("clone3", f"flags={flags:#x}", -int(result[0]))
        if done < end - first:
            raise refusal(self.steps[first + done], int(result[0]))

    def value(self, cell: Cell) -> int:
        """The value of *cell*; 0 before its step was taken."""
        return int(self.address(cell)[0])

    def content(self, block: Block) -> bytes:
        """The present content of *block*, which a call may have written."""
        return bytes(ffi.buffer(self._memory + self._places[block], len(block.data)))


def result_of(call: Call, *arguments: Argument, optional: bool = False) -> int:
    """What one system call gives, at once; if it may fail (*optional*), its negative errno, else KernelRefusal."""
    cell = Cell("result")
    table = Table([gives(cell, call, *arguments, optional=optional)])
    table.run()
    return table.value(cell)


def refusal(step: Step, result: int) -> KernelRefusal:
    """The error that *step* had the result *result*, which isn't allowed."""
    call, arguments = str(step)[:-1].split("(", 1)
    if result < 0:
        return KernelRefusal(call, arguments, -result, step.hints.get(-result, ""))
    return KernelRefusal(call, arguments, 0, f"it returned {result}, and must not")


class _Layout:
    """The places of blocks, texts and cells in one piece of memory, each at a multiple of 8."""

    def __init__(self) -> None:
        self.places: dict[Any, int] = {}
        self.size = 0
        self._blocks: list[tuple[int, Block]] = []

    def place(self, argument: Argument) -> None:
        if isinstance(argument, int) or argument in self.places:
            return
        if isinstance(argument, Cell):
            self._take(argument, _INT32)
            return
        block = argument if isinstance(argument, Block) else Block(os.fsencode(argument) + b"\0")
        self._blocks.append((self._take(argument, len(block.data)), block))
        for offset, cell in block.cells.items():
            if cell in self.places:
                raise ValueError(f"cell {cell.name} can't lie in a second place")
            self.places[cell] = self.places[argument] + offset
        for inner in block.blocks.values():
            self.place(inner)

    def _take(self, what: Argument, size: int) -> int:
        place = self.places[what] = self.size
        self.size += -(-size // _POINTER) * _POINTER
        return place

    def content(self, base: int) -> bytes:
        """The memory's first content, if it lies at address *base*."""
        memory = bytearray(self.size)
        for place, block in self._blocks:
            memory[place : place + len(block.data)] = block.data
            for offset, inner in block.blocks.items():
                at = place + offset
                memory[at : at + _POINTER] = (base + self.places[inner]).to_bytes(_POINTER, "little")
        return bytes(memory)


def _shown(argument: Argument) -> str:
    if isinstance(argument, Cell):
        return argument.name
    if isinstance(argument, Block):
        return f"[{len(argument.data)} bytes]"
    return repr(argument) if isinstance(argument, str) else hex(argument) if argument > 9 else str(argument)
