"""
Requests about the kernels of a live sandbox: interpreters that keep their state.

Runs in:   the daemon; pure. `sandbox_requests` has their fields.
Trust:     a request is hostile; see `requests`.
"""

from __future__ import annotations

from typing import ClassVar

from leeward.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class KernelOpen:
    """
    Start a Python in *sandbox* that keeps its state between requests.

    Attributes:
        held: it is closed when this connection ends.
    """

    op: ClassVar[str] = "kernel_open"

    id: int
    sandbox: str
    held: bool = False


@dataclass(frozen=True, slots=True)
class KernelInterrupt:
    """Raise KeyboardInterrupt in the code that a kernel runs."""

    op: ClassVar[str] = "kernel_interrupt"

    id: int
    sandbox: str
    kernel: int


@dataclass(frozen=True, slots=True)
class KernelReset:
    """Give a kernel a new process, without the state of the old one."""

    op: ClassVar[str] = "kernel_reset"

    id: int
    sandbox: str
    kernel: int


@dataclass(frozen=True, slots=True)
class KernelFork:
    """Start a kernel with the state that *kernel* has; *held* as for `kernel_open`."""

    op: ClassVar[str] = "kernel_fork"

    id: int
    sandbox: str
    kernel: int
    held: bool = False


@dataclass(frozen=True, slots=True)
class KernelBind:
    """Give a kernel a number on this connection, by which it takes code alone as a session does."""

    op: ClassVar[str] = "kernel_bind"

    id: int
    sandbox: str
    kernel: int


@dataclass(frozen=True, slots=True)
class KernelClose:
    op: ClassVar[str] = "kernel_close"

    id: int
    sandbox: str
    kernel: int
