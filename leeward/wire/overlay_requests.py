"""
Requests about the folders of a live sandbox: its overlays, and what is hidden in its mounts.

Runs in:   anywhere; pure.
"""

from __future__ import annotations

from typing import ClassVar

from leeward.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class OverlayDiff:
    """Ask what *sandbox* has changed in its overlay at *target*."""

    op: ClassVar[str] = "overlay_diff"

    id: int
    sandbox: str
    target: str


@dataclass(frozen=True, slots=True)
class OverlayRead:
    """
    Read a piece of a changed file in the overlay at *target*.

    Attributes:
        path: relative to *target*.
        offset: in bytes.
    """

    op: ClassVar[str] = "overlay_read"

    id: int
    sandbox: str
    target: str
    path: bytes
    offset: int = 0


@dataclass(frozen=True, slots=True)
class OverlayCheckpoint:
    """Keep a copy of what *sandbox* has changed in its overlay at *target*, as *name*; "" stands for the next number."""

    op: ClassVar[str] = "overlay_checkpoint"

    id: int
    sandbox: str
    target: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class OverlayRestore:
    """Make the overlay at *target* what it was at the checkpoint *name*."""

    op: ClassVar[str] = "overlay_restore"

    id: int
    sandbox: str
    target: str
    name: str


@dataclass(frozen=True, slots=True)
class OverlayDiscard:
    """
    Undo what *sandbox* has changed in its overlay at *target*.

    Attributes:
        paths: relative to *target*, each with everything in it; without any, everything is undone.
    """

    op: ClassVar[str] = "overlay_discard"

    id: int
    sandbox: str
    target: str
    paths: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class SandboxHide:
    """
    Hide names in the mounts of *sandbox*, which has a home of its own, as `hide` of sandbox_open does.

    Attributes:
        hide: absolute paths in it. What isn't there, or is hidden already, is left as it is.
    """

    op: ClassVar[str] = "sandbox_hide"

    id: int
    sandbox: str
    hide: tuple[str, ...]


OverlayRequest = OverlayDiff | OverlayRead | OverlayCheckpoint | OverlayRestore | OverlayDiscard | SandboxHide
