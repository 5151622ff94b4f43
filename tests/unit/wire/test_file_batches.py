"""Many files in one binary value, right and wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.wire.file_batches import file_of, files_in, found_in, found_of


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=9), st.integers(-1, 0o777), st.binary(max_size=9)), max_size=4))
def test_files_are_told_apart(files: list[tuple[bytes, int, bytes]]) -> None:
    assert files == [(path, mode, bytes(content)) for path, mode, content in files_in(b"".join(
        piece for one in files for piece in file_of(*one)))]


@given(st.lists(st.tuples(st.integers(0, 4095), st.binary(max_size=9)), max_size=4))
def test_contents_are_told_apart(found: list[tuple[int, bytes]]) -> None:
    assert found == [*found_in(b"".join(found_of(*one) for one in found))]


@given(st.binary(max_size=99))
def test_any_bytes_are_whole_ones_or_refused(data: bytes) -> None:
    for read in (files_in, found_in):
        try:
            assert len([*read(data)]) <= len(data)
        except ValueError:
            pass


def test_what_is_cut_is_refused() -> None:
    """At any byte, after the whole ones before it."""
    whole = b"".join(file_of(b"a", -1, b"12"))
    for end in range(1, len(whole)):
        files = files_in(whole + whole[:end])
        path, mode, content = next(files)
        assert (b"a", -1, b"12") == (path, mode, bytes(content))
        with pytest.raises(ValueError, match="cut short"):
            next(files)
