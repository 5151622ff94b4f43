"""
An image's layers for root's workers: mounts of them in which root's files are the worker's.

Only root can make such mounts. So its daemon hands them to the keeper with the message that lets it continue; a keeper
of an ordinary user's daemon opens the layers itself. The opener makes the user namespace that maps the ids.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

from leeward._native import mounts
from leeward._native.mounts import MountAttr
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.worker.opener import Opener
from leeward.errors import LeewardError

_ALWAYS = MountAttr.RDONLY | MountAttr.NOSUID | MountAttr.NODEV


class RootLayers:
    """The *folders* of an image's layers, which belong to root, as are all files in them."""

    def __init__(self, opener: Opener, folders: Sequence[str]) -> None:
        self._opener, self._folders = opener, folders

    def show_as(self, ids: tuple[int, int], done: Callable[[list[int] | LeewardError], None]) -> Callable[[], None]:
        """
        Make mounts of the layers in which root's files belong to *ids* of the host. *done* is called later, with the
        mounts, which this closes afterwards, or with the failure. Returns what cancels that. LeewardError if they can't
        be made, Busy.
        """
        trees: list[int] = []

        def mapped(what: list[int] | LeewardError, _found: object) -> None:
            try:
                done(trees if isinstance(what, list) else what)
            finally:
                _close(trees)

        try:
            for folder in self._folders:
                trees.append(mounts.copy(folder, recursive=False))
                mounts.set_attributes(trees[-1], _ALWAYS)
            order = self._opener.map(trees, (0, 0), ids, mapped)
        except BaseException:
            _close(trees)
            raise
        return partial(in_any_case, order.cancel, partial(_close, trees))


def _close(trees: list[int]) -> None:
    while trees:
        os.close(trees.pop())
