"""The first turn of a kernel that begins as a copy."""

from __future__ import annotations

import errno
import os
from unittest.mock import Mock

import pytest

from leeward.daemon.run.dumping import KernelState
from leeward.daemon.run.loading import Loading
from leeward.errors import LeewardError
from leeward.spec.limits import Limits


def test_without_descriptors_it_fails_as_a_kernel_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a kernel that is rolled back, or a sandbox that wakes, would wait for ever."""
    monkeypatch.setattr(os, "dup", Mock(side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE))))
    with pytest.raises(LeewardError, match="too many open files"):
        Loading(KernelState(0, 1, "3", {}, ()), Limits(), Mock(), Mock(), same=False)
