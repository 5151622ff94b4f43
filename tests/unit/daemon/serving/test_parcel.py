"""Parcels: what travels inside the frame, and what beside it."""

from __future__ import annotations

import errno
import os

import pytest

from leeward.daemon.run.report import LARGE_REPLY as LARGE
from leeward.daemon.run.report import PLACEMENTS, Report
from leeward.daemon.serving import parcel as parcels
from leeward.daemon.serving.parcel import Parcel, pack
from leeward.spec.outcome import Outcome, Result
from leeward.wire import bundles
from leeward.wire.frames import MAX_REPLY, decode

INLINE = PLACEMENTS["auto"].files
MOST_INLINE, MOST_INLINE_BESIDE_FILES = PLACEMENTS["inline"].output, PLACEMENTS["inline"].output_beside_files


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
    """With as many names as a job may bring back, each as long as it may be."""
    assert len(packed("inline", bytes(MOST_INLINE)).frame) < MAX_REPLY

    names = {f"{number:04}" + 1020 * "\U0001F40D": b"x" for number in range(1000)}
    parcel = packed("inline", bytes(MOST_INLINE_BESIDE_FILES), **names)

    assert len(parcel.frame) < MAX_REPLY
    parcel.close()


def test_files_are_sent_apart_where_shown_values_take_their_room() -> None:
    """Shown values have room in the reply alone."""
    shown = tuple({kind: bytes(bundles.MAX_TOTAL // 2)} for kind in ("image/png", "image/jpeg"))
    result = Result(bytes(MOST_INLINE_BESIDE_FILES), b"", 0, Outcome.FINISHED, files={"a": bytes(1 << 20)},
                    results=shown)

    parcel = pack(1, Report(result=result), "inline")
    answer = decode(bytes(parcel.frame[4:]))["ok"]

    assert (1, [0, 0, 1 << 20], list(shown)) == (len(parcel.arenas), answer["files"]["a"], answer["results"])
    parcel.close()
    assert not packed("inline", bytes(MOST_INLINE_BESIDE_FILES), a=bytes(1 << 20)).arenas


@pytest.mark.parametrize(("results", "size", "weight"), [
    ("auto", 10, 0), ("auto", LARGE, 1), ("auto", INLINE + 1, 1), ("memfd", 1, 1), ("inline", INLINE + 1, 1)])
def test_a_large_result_has_a_weight(results: str, size: int, weight: int):
    parcel = packed(results, name=bytes(size))

    assert weight == parcel.weight
    parcel.close()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_files_go_in_the_reply_where_no_descriptor_is_left(monkeypatch: pytest.MonkeyPatch, error: int):
    """As far as it has room; nothing of the output's memory file is lost for it."""
    def none(name: str) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(parcels, "memory_file", none)
    parcel = packed("auto", name=bytes(2 * INLINE))

    assert bytes(2 * INLINE) == decode(bytes(parcel.frame[4:]))["ok"]["files"]["name"]
    assert ([], 1) == (parcel.arenas, parcel.weight)
    with pytest.raises(OSError, match=os.strerror(error)):
        packed("auto", name=bytes(MAX_REPLY))


def test_another_failure_of_a_memory_file_is_raised(monkeypatch: pytest.MonkeyPatch):
    def none(name: str) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(parcels, "memory_file", none)
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        packed("auto", name=bytes(2 * INLINE))
