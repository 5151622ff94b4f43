"""
A state in a file, after its machine was started anew: the first boot leaves it, and matrix.py hands it to a second one.

Only in a guest.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

import leeward
from kit.live_daemon import LiveDaemon

pytestmark = pytest.mark.needs("guest")

#: From the boot before, and for the next one: a line with the boot's id, and the state.
BEFORE, AFTER = Path("/leeward-vm/kept"), Path("/leeward-vm/out/kept")
BOOT = Path("/proc/sys/kernel/random/boot_id").read_bytes()


def test_a_state_in_a_file_outlives_its_machine(tmp_path: Path) -> None:
    """With the modules that it has imported, whose files are the same ones."""
    path = tmp_path / "state"
    with LiveDaemon(tmp_path) as daemon, leeward.Sandbox(socket=daemon.socket) as box:
        if BEFORE.exists():
            boot, _, state = BEFORE.read_bytes().partition(b"\n")
            assert BOOT.strip() != boot  # control
            path.write_bytes(zlib.decompress(state))
            with leeward.Snapshot.load(path, socket=daemon.socket) as snapshot:
                assert "'1/3'" == box.kernel(snapshot=snapshot).execute("str(number)").value
            return
        kernel = box.kernel()
        assert kernel.execute("import fractions, sqlite3\nnumber = fractions.Fraction(2, 6)").ok
        with kernel.snapshot() as snapshot:
            snapshot.save(path)
        AFTER.write_bytes(BOOT + zlib.compress(path.read_bytes(), 1))
