"""The line about what takes long: on a terminal alone, after a second, and gone at the end."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import termios
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from leeward.wire.replies import Reply
from leeward_cli import progress


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "AFTER_S", 0.05)
    monkeypatch.setattr(progress, "_EACH_S", 0.02)


@contextlib.contextmanager
def terminal() -> Iterator[int]:
    """Standard error is a terminal for the time of the block; its other end."""
    ours, theirs = pty.openpty()
    kept = os.dup(2)
    os.dup2(theirs, 2)
    try:
        yield ours
    finally:
        os.dup2(kept, 2)
        for fd in (kept, ours, theirs):
            os.close(fd)


def shows() -> bool:
    """Whether a thread runs that writes the line."""
    return any("leeward progress" == thread.name for thread in threading.enumerate())


def read(screen: int, until: bytes = b"") -> bytes:
    data, give_up = b"", time.monotonic() + 10
    while time.monotonic() < give_up and not (until and until in data):
        if not select.select([screen], [], [], 10 if until else 0)[0]:
            break
        data += os.read(screen, 4096)
    return data


def test_a_long_task_has_a_progress_line_that_is_erased() -> None:
    """Without characters that a terminal would act on."""
    with terminal() as screen:
        with progress.Progress("copying", lambda: "3 files\x1b[2J"):
            assert shows()  # so `shows` can tell where there is no line
            shown = read(screen, b" s")
        assert b"\r\x1b[Kleeward: copying: 3 files\\x1b[2J, 0 s" in shown
        assert read(screen).endswith(b"\r\x1b[K")


def test_the_line_is_no_longer_than_the_terminal_is_wide() -> None:
    """Else each update would leave the row before."""
    with terminal() as screen:
        termios.tcsetwinsize(screen, (24, 40))
        with progress.Progress("copying", lambda: "3 files, " + "#" * 100):
            shown = read(screen, b"#\r\x1b[K")
    rows = shown.split(b"\r\x1b[K")
    assert 39 == len(rows[1])
    assert rows[1].startswith(b"leeward: copying: 3 files, ###")


def test_a_text_that_comes_after_the_end_is_not_shown() -> None:
    """Nor does the line's end clear what was printed meanwhile."""
    texts = ["far"]
    waits, goes_on = threading.Event(), threading.Event()

    def text() -> str:
        if not texts:
            waits.set()
            goes_on.wait(10)
        return texts.pop() if texts else "late"

    with terminal() as screen:
        with progress.Progress("copying", text) as line:
            read(screen, b" s")
            assert waits.wait(10)
        assert b"\r\x1b[K" == read(screen)
        goes_on.set()
        assert line._thread is not None
        line._thread.join(10)
        assert not line._thread.is_alive()
        assert b"" == read(screen)


def test_a_short_task_has_no_progress_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor has a task without a terminal, or with one that can't clear a line."""
    monkeypatch.setattr(progress, "AFTER_S", 10.0)
    with terminal() as screen:
        with progress.Progress("copying"):
            pass
        monkeypatch.setattr(progress, "AFTER_S", 0.0)
        monkeypatch.setenv("TERM", "dumb")
        with progress.Progress("copying"):
            assert not shows()
        monkeypatch.setenv("TERM", "xterm")
        read_end, write_end = os.pipe()
        tty = os.dup(2)
        os.dup2(write_end, 2)
        with progress.Progress("copying"):
            assert not shows()
        os.dup2(tty, 2)
        for fd in (tty, write_end):
            os.close(fd)
        assert b"" == os.read(read_end, 100)
        os.close(read_end)
        assert b"" == read(screen)


def test_lines_of_others_are_above_the_line() -> None:
    """It isn't drawn behind a half one."""
    with terminal() as screen, progress.Progress("installing") as line:
        read(screen, b" s")
        line.above(progress.write, b"Collecting")
        read(screen, b"Collecting")
        line.above(progress.write, b" numpy\n")
        shown = read(screen, b" s")
    assert shown.startswith(b" numpy\r\n\r\x1b[Kleeward: installing: ")


@pytest.mark.parametrize(("total", "shown"), [
    (0, "6.0 MiB, 2.0 MiB/s"), (12 << 20, f"[{'#' * 12}{' ' * 12}] 6.0 of 12.0 MiB, 2.0 MiB/s, 0:03 left")])
def test_an_amount_has_a_rate_and_the_time_left_where_all_is_known(total: int, shown: str) -> None:
    assert shown == progress.amount(6 << 20, total, 3.0)


def test_files_are_counted_with_their_bytes() -> None:
    """In either direction, each when its last piece has come."""
    class Box:
        def ask(self, op: str, fields: Mapping[str, Any], deadline: float | None = None) -> Reply:
            return Reply(1, {"data": bytes(1 << 20), "handle": fields.get("next", 0)}, "", "", [])

    counted = progress.Counted(Box())
    counted.ask("file_stat", {"path": b"x"})
    assert counted.text().startswith("0 files, 0.0 MiB, 0.0 MiB/s")
    counted.ask("file_read", {"path": b"x", "next": 7})
    assert counted.text().startswith("0 files, 1.0 MiB, ")
    counted.ask("file_read", {"path": b"x"})
    counted.ask("file_write", {"path": b"x", "data": bytes(1 << 19), "more": True, "next": 7})
    counted.ask("file_write", {"path": b"x", "data": bytes(1 << 19), "more": False})
    assert counted.text().startswith("2 files, 3.0 MiB, ")

    asked = list[int]()
    known = progress.Counted(Box(), lambda: asked.append(1) or 4 << 20)  # type: ignore[func-returns-value]
    known.ask("file_read", {"path": b"x"})
    assert not asked  # a short copy costs nothing more
    assert f"1 files, [{'#' * 6}{' ' * 18}] 1.0 of 4.0 MiB, " in known.text()
    assert "of 4.0 MiB" in known.text()
    assert [1] == asked


@pytest.mark.parametrize(("share", "seconds", "shown"), [
    (0.0, 5.0, ""), (0.01, 9.0, ""), (0.5, 0.01, ""), (0.5, 30.0, ", 0:30 left"), (0.25, 60.0, ", 3:00 left"),
    (1.0, 7.0, ", 0:00 left"), (1.5, 7.0, ", 0:00 left"),
])
def test_the_time_left_is_told_when_it_is_no_guess(share: float, seconds: float, shown: str) -> None:
    assert shown == progress.left(share, seconds)


def test_a_bar_is_as_full_as_the_share() -> None:
    assert ["[" + " " * 24 + "]", "[" + "#" * 12 + " " * 12 + "]", "[" + "#" * 24 + "]"] == [
        progress.bar(share) for share in (0.0, 0.5, 2.0)]
