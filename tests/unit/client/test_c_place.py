"""Where C looks for the daemon, beside Python."""

from __future__ import annotations

import ctypes
import grp
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.configured import written
from leeward.errors import BadRequest
from leeward.spec.paths import USER_FILE, client_socket, named_in
from leeward.spec.writers import others_write
from unit.client.test_c_wire import SHARED
from unit.spec.test_socket_key import PLAIN, REFUSED

pytestmark = pytest.mark.needs("compiler")

#: Pieces of lines that look like the key.
PIECES = st.sampled_from(["socket", '"socket"', "'socket'", "=", " ", "\t", "\n", "\r\n", '"', "'", "/a", "\\", "#",
                          "[", "]", "b", "\x00", "\x7f", "é"])


def both(c_inside: ctypes.CDLL, content: bytes) -> tuple[object, object]:
    """What Python finds, and what C does: a path, None, or "refused"."""
    value, length = ctypes.c_void_p(), ctypes.c_size_t()
    found = c_inside.lw_place_named(content, ctypes.c_size_t(len(content)), ctypes.byref(value), ctypes.byref(length))
    ours: object = None if not found else "refused"
    if found > 0:
        ours = ctypes.string_at(value.value or 0, length.value).decode("utf-8", "surrogateescape")
    try:
        return named_in(content, "x.toml"), ours
    except BadRequest:
        return "refused", ours


@pytest.mark.parametrize("text", [*PLAIN, *REFUSED])
def test_the_key_is_read_as_python_reads_it(c_inside: ctypes.CDLL, text: str) -> None:
    """Plain values, and those that are refused."""
    python, ours = both(c_inside, text.encode())

    assert python == ours


@SHARED
@given(pieces=st.lists(PIECES, max_size=30))
def test_c_and_python_judge_hostile_files_alike(c_inside: ctypes.CDLL, pieces: list[str]) -> None:
    """Whatever bytes there are: the same verdict."""
    python, ours = both(c_inside, "".join(pieces).encode())

    assert python == ours


def test_a_file_reaches_c_as_well(c_inside: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own; and one that others can write is refused by both."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LEEWARD_SOCKET", raising=False)
    file = written(tmp_path / USER_FILE, 'socket = "/from/file"\n')
    path = ctypes.c_char_p()

    assert 0 == c_inside.lw_place(None, ctypes.byref(path))
    assert b"/from/file" == path.value == client_socket(None).encode()
    file.chmod(0o620)
    try:
        python = client_socket(None)
    except BadRequest:
        python = ""
    assert bool(python) is (0 == c_inside.lw_place(None, ctypes.byref(path)))  # by the owner's group
    file.chmod(0o622)
    assert 0 != c_inside.lw_place(None, ctypes.byref(path))
    file.chmod(0o600)
    file.parent.chmod(0o777)  # others can put another file in its place
    assert 0 != c_inside.lw_place(None, ctypes.byref(path))
    file.parent.chmod(0o1777)
    assert 0 == c_inside.lw_place(None, ctypes.byref(path))
    assert 0 == c_inside.lw_place(b"/named", ctypes.byref(path))
    assert b"/named" == path.value


@pytest.mark.needs("root")
def test_c_and_python_know_the_same_private_groups(c_inside: ctypes.CDLL, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LEEWARD_SOCKET", raising=False)
    file = written(tmp_path / USER_FILE, 'socket = "/from/file"\n')
    path, found = ctypes.c_char_p(), set()
    for group in (*(each.gr_gid for each in grp.getgrall()), 4321):
        os.chown(file, 0, group)
        file.chmod(0o664)
        python = not others_write(str(file), file.stat())
        assert python is (0 == c_inside.lw_place(None, ctypes.byref(path))), group
        found.add(python)
    assert False in found
