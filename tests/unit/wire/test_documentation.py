"""
docs/wire.md says what the code does: every field, kind, word and bound.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leeward.client import slots
from leeward.daemon import arena, connection, leases
from leeward.daemon.config import Config
from leeward.daemon.parcel import INLINE, LARGE
from leeward.errors import BY_KIND
from leeward.outcome import Outcome, Result
from leeward.wire import frames, messages, replies
from leeward.wire.frames import HEADER, decode
from leeward.worker.output import INLINE as OUTPUT_INLINE

PAGE = Path(__file__).resolve().parents[3] / "docs" / "wire.md"


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text()


def section(page: str, title: str) -> str:
    return page.split(f"### `{title}`\n")[1].split("\n##")[0]


def rows(text: str) -> set[str]:
    """
    The names in the first column of every table.
    """
    first = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in first for name in re.findall(r"`([^`]+)`", cell)}


def test_every_operation_and_field(page: str) -> None:
    """
    None is missing, none is made up.
    """
    assert set(messages.FIELDS) == set(re.findall(r"^### `(\w+)`$", page, re.MULTILINE))
    request, answer = section(page, "execute").split("The answer:")
    asked, limits = request.split("| limit |")
    assert set(messages.FIELDS["execute"][1]) == rows(asked)
    assert {"memory", "processes", "time", "output"} == rows(limits)
    assert {"target"} == rows(section(page, "cancel"))
    for name in ("session_open", "session_reset", "session_close", "interrupt"):
        assert set(messages.FIELDS[name][1]) == rows(section(page, name))
    assert set(messages.FIELDS["slot"][1]) == rows(section(page, "slot"))
    assert {"slots", "size", "arenas"} == rows(section(page, "arena"))

    result = Result(b"", b"", 0, Outcome.FINISHED, files={"a": b""})
    sent = decode(messages.encode_result(1, result, arenas=(1,))[HEADER:])
    assert set(sent["ok"]) == rows(answer)
    for word in replies.OUTCOMES | replies.LIMITS:
        assert f"`{word}`" in answer


def test_every_kind_of_refusal(page: str) -> None:
    """
    With its error's name.
    """
    table = page.split("| kind |")[1].split("\n\n")[0]

    assert {*BY_KIND, "internal"} == rows(table)
    for kind, error in BY_KIND.items():
        assert f"| `{kind}` | `{error.__name__}` |" in table


def test_every_bound(page: str) -> None:
    """
    As the code has it.
    """
    text = " ".join(page.split())
    for said in (
        f"Version of everything below: **{frames.VERSION}**",
        f"a request's payload | {frames.MAX_REQUEST >> 20} MiB", f"a reply's payload | {frames.MAX_REPLY >> 20} MiB",
        f"inside each other | {frames.MAX_DEPTH}", f"one map or array | {frames.MAX_ENTRIES:,}",
        f"keys included | {frames.MAX_VALUES:,}", f"at most {frames.MAX_KEY:,} characters, and occurs once",
        f"may have {connection.IN_FLIGHT} requests in flight", f"at most {messages.MAX_CODE >> 20} MiB",
        f"at most {messages.MAX_STRINGS:,}, together 2^20 characters",
        f"at most {messages.MAX_FILE_COUNT:,}, together {messages.MAX_FILES >> 20} MiB",
        f"at most {messages.MAX_STDIN >> 20} MiB", f"to bring back; at most {messages.MAX_PATTERNS}",
        f"at most {messages.MAX_DENIED}",
        f"at most {messages.MAX_NAME} characters and {messages.MAX_TRACEBACK >> 10} KiB",
        f"with this frame, at most {replies.MAX_ARENAS}", f"at most {messages.MAX_ERROR:,} characters",
        f"last | {connection.FRAME_S:.0f} s", f"waits for it | {connection.UNREAD_S:.0f} s",
        f"| {connection.OUTPUT >> 20} MiB |",
        f"`idle_timeout`, {Config().idle_timeout:.0f} s", f"`max_connections`, {Config().max_connections:,}",
        f"sessions of one connection | {leases.SESSIONS} |", f"`session_idle`, {Config().session_idle:.0f} s",
        f"`session_lifetime`, {Config().session_lifetime:,.0f} s",
        f"connections together | {connection.INPUT >> 20} MiB", f"for their clients | {connection.ARENAS},",
        f"replies above {LARGE >> 10} KiB", f"output above {OUTPUT_INLINE >> 10} KiB",
        f"{arena.SLOTS} now", f"{arena.SLOT >> 20} MiB now", f"connections together | {arena.TOTAL >> 30} GiB",
        f"of {slots.LARGE >> 20} MiB or more",
        f"collected files above {INLINE >> 20} MiB",
    ):
        assert said in text, said
