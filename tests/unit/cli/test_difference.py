"""The difference of changes as text."""

from __future__ import annotations

from typing import Any, cast

import pytest

from leeward.client.changes import FolderChange
from leeward.client.overlay import Overlay
from leeward.errors import RequestRejected
from leeward_cli import difference
from leeward_cli.difference import lines_of, show_difference


class Both:
    """An overlay with these contents of one file on the host and in the sandbox."""

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before, self._after = before, after

    def host_content(self, _path: str, most: int) -> bytes:
        return self._bounded(self._before, most)

    def content(self, _path: str, most: int) -> bytes:
        return self._bounded(self._after, most)

    @staticmethod
    def _bounded(content: bytes, most: int) -> bytes:
        if len(content) > most:
            raise RequestRejected("too large")
        return content


def shown(before: bytes, after: bytes, kind: str = "modified", **more: Any) -> list[str]:
    return [*lines_of(cast("Overlay", Both(before, after)), FolderChange("a", kind, **{"type": "file", **more}))]


def test_lines_that_go_and_come_with_those_around() -> None:
    before = b"".join(b"%d\n" % number for number in range(1, 21))
    after = before.replace(b"5\n6\n", b"five\nsix\n").replace(b"9\n", b"nine\n", 1).replace(b"20\n", b"20")
    assert ["@ line 5", " 2", " 3", " 4", "-5", "-6", "+five", "+six", " 7", " 8", "-9", "+nine", " 10", " 11", " 12",
            "@ line 20", " 17", " 18", " 19", "-20", "+20  (no newline at the end)"] == shown(before, after)
    assert ["@ line 1", "+a"] == shown(b"b\n", b"a\n", "created")
    assert ["@ line 1", "-b"] == shown(b"b\n", b"a\n", "deleted")


def test_what_a_terminal_interprets_is_escaped() -> None:
    after = "\x1b]0;evil\x07\r\na\tb\u202e".encode() + b"\xff\n"
    assert ["@ line 1", "+\\x1b]0;evil\\x07\\r", "+a    b\\u202e\\xff"] == shown(b"", after)


@pytest.mark.parametrize(("more", "line"), [
    ({"kind": "mode", "mode": 0o755}, "  its mode is 755 then"),
    ({"type": "link", "link": "/etc\x1b"}, "+ a link to /etc\\x1b"),
    ({"after": b"a\0b", "size": 3}, "  3 bytes that aren't compared by lines"), ({"after": b"a" * (2 << 20)}, "  too large"),
    ({"type": "folder", "kind": "created"}, "")])
def test_what_has_no_lines_is_told(more: dict[str, Any], line: str) -> None:
    assert ([line] if line else []) == shown(b"", more.pop("after", b""), more.pop("kind", "modified"), **more)


def test_the_output_is_bounded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(difference, "_MOST_LINES", 10)
    monkeypatch.setattr(difference, "_MOST_OF_FILE", 5)
    after = b"a" * 1000 + b"\n" + b"b\n" * 100
    show_difference(cast("Overlay", Both(b"", after)), [
        FolderChange(name, "created", "file", sha256="0") for name in "abcdef"])
    said = capsys.readouterr().err.splitlines()
    assert "A a" == said[0]
    assert f"+{'a' * 499} ..." == said[2]
    assert "  and more, which isn't shown" in said
    assert "4 more files aren't shown" == said[-1]
    assert len(said) < 20
