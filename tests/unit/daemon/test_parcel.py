"""
Parcels: what travels inside the frame, and what beside it.
"""

from __future__ import annotations

import os

import pytest

from leeward.daemon.parcel import INLINE, LARGE, Parcel, pack
from leeward.outcome import Outcome, Result
from leeward.pool.report import Report
from leeward.wire.frames import MAX_REPLY, decode
from leeward.worker.output import MOST_INLINE, MOST_INLINE_BESIDE_FILES


def packed(results: str, stdout: bytes = b"", **files: bytes) -> Parcel:
    return pack(1, Report(result=Result(stdout, b"", 0, Outcome.FINISHED, files=files)), results)


@pytest.mark.parametrize(("results", "size", "apart"), [
    ("auto", 1, False), ("auto", INLINE, False), ("auto", INLINE + 1, True),
    ("memfd", 0, False), ("memfd", 1, True), ("inline", INLINE + 1, False), ("inline", MAX_REPLY, True),
])
def test_files_go_by_the_switch(results: str, size: int, apart: bool):
    parcel = packed(results, name=bytes(size))

    file = decode(bytes(parcel.frame[4:]))["ok"]["files"]["name"]
    assert ([0, 0, size] if apart else bytes(size)) == file
    assert apart == len(parcel.arenas)
    if apart:
        assert "/memfd:leeward_results (deleted)" == os.readlink(f"/proc/self/fd/{parcel.arenas[0].fd}")
    parcel.close()


def test_the_most_that_may_be_inline_fits_into_a_reply():
    """
    With as many names as a job may bring back, each as long as it may be.
    """
    assert len(packed("inline", bytes(MOST_INLINE)).frame) < MAX_REPLY

    names = {f"{number:04}" + 1020 * "\U0001F40D": b"x" for number in range(1000)}
    parcel = packed("inline", bytes(MOST_INLINE_BESIDE_FILES), **names)

    assert len(parcel.frame) < MAX_REPLY
    parcel.close()


@pytest.mark.parametrize(("results", "size", "weight"), [
    ("auto", 10, 0), ("auto", LARGE, 1), ("auto", INLINE + 1, 1), ("memfd", 1, 1), ("inline", INLINE + 1, 1)])
def test_what_is_large_counts(results: str, size: int, weight: int):
    parcel = packed(results, name=bytes(size))

    assert weight == parcel.weight
    parcel.close()
