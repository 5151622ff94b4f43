"""
The file of certificates: there as long as its object, and swept where a daemon was killed.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from leeward.pool import trust
from leeward.pool.trust import TrustFile, sweep


def test_the_file_goes_with_its_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "place", lambda: str(tmp_path))
    made = TrustFile(b"certificates")
    path = Path(made.path)
    assert b"certificates" == path.read_bytes()
    assert (0o444, 0o755) == (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777)
    os.utime(path.parent, (1, 1))
    sweep()
    assert path.exists()  # it is in use

    del made
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_what_nobody_uses_is_swept_once_it_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "place", lambda: str(tmp_path))
    left = tmp_path / "leeward-trust-x"
    left.mkdir()
    (left / "certificates.pem").touch()
    sweep()
    assert left.exists()

    os.utime(left, (1, 1))
    (tmp_path / "leeward-trust-y").symlink_to(left)
    sweep()
    assert not left.exists()
