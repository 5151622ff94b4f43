"""
Mounts for an image's root that the daemon hands to a keeper, with the message that lets it continue.

Of root's daemon those are the layers, with root's files as the worker's: only root can make such mounts, and the opener
makes the user namespace that maps the ids; a keeper of an ordinary user's daemon opens the layers itself. Where the upper
layers lie on a disk it is the keeper's folder there, too: the host's tree that a keeper has is read-only.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from leeward._native import mounts
from leeward._native.mounts import MountAttr
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.worker.opener import Opener, OpenerOrder
from leeward.errors import KernelRefusal, LeewardError

if TYPE_CHECKING:
    from leeward.daemon.worker.uppers import Upper, Uppers

_ALWAYS = MountAttr.RDONLY | MountAttr.NOSUID | MountAttr.NODEV


class HandedMounts:
    """The *folders* of an image's layers, which belong to root, as are all files in them; *uppers* if they are on a disk."""

    def __init__(self, opener: Opener, folders: Sequence[str], uppers: Uppers | None) -> None:
        self._opener, self._folders, self.uppers = opener, folders, uppers

    def make(self, ids: tuple[int, int], upper: Upper | None,
             done: Callable[[list[int] | LeewardError], None]) -> Callable[[], None]:
        """
        Make mounts of the layers in which root's files belong to *ids* of the host, and one of *upper*. *done* is called
        later, with the mounts, which this closes afterwards, or with the failure. Returns what cancels that. LeewardError
        if they can't be made, Busy; OSError.
        """
        trees: list[int] = []
        orders: list[OpenerOrder] = []

        def mapped(what: list[int] | LeewardError, _found: object) -> None:
            try:
                done(trees if isinstance(what, list) else what)
            finally:
                _close(trees)

        def show(more: list[int]) -> None:
            try:
                for folder in self._folders:
                    trees.append(_copied(folder))
                    mounts.set_attributes(trees[-1], _ALWAYS)
                orders.append(self._opener.map(trees, (0, 0), ids, mapped))
                trees.extend(more)
            except BaseException:
                _close([*trees, *more])
                trees.clear()
                raise

        def opened(what: list[int] | LeewardError, found: object) -> None:
            if isinstance(what, LeewardError) or not self._folders:
                trees.extend(what if isinstance(what, list) else ())
                mapped(what, found)
                return
            try:
                show(what)
            except (LeewardError, OSError) as error:
                done(error if isinstance(error, LeewardError) else LeewardError(str(error)))

        if upper is None:
            show([])
        else:
            orders.append(upper.mount(opened))
        return lambda: in_any_case(*(order.cancel for order in orders), partial(_close, trees))


def _copied(folder: str) -> int:
    try:
        return mounts.copy(folder, recursive=False)
    except KernelRefusal as refused:
        if refused.errno != errno.EPERM:
            raise
        raise LeewardError(f"{refused}: root's daemon mounts the layers of images, which takes CAP_SYS_ADMIN; a container has"
                           " it by --cap-add SYS_ADMIN, and a daemon of another user than root needs none") from None


def _close(trees: list[int]) -> None:
    while trees:
        os.close(trees.pop())
