"""docs/wire.md says what the code does: every field, kind, word and bound."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leeward.client import slots, throttle
from leeward.client.retry import BUSY_S
from leeward.daemon.config import Config
from leeward.daemon.descriptors import RESULTS
from leeward.daemon.run.report import LARGE_REPLY, PLACEMENTS
from leeward.daemon.sandboxes import file_process as sandbox_files
from leeward.daemon.sandboxes import kernel, program, registry, sandbox, streams
from leeward.daemon.sandboxes.registry import Reason
from leeward.daemon.serving import connection, inbox
from leeward.errors import BY_KIND
from leeward.inside import file_content
from leeward.spec.limits import OF_JOBS, OVERFLOW
from leeward.spec.outcome import LeftOut, LeftOutReason, Limit, Outcome, Result
from leeward.wire import (
    answers,
    bundles,
    fields,
    file_answers,
    file_requests,
    frames,
    replies,
    sandbox_fields,
    sandbox_ids,
)
from leeward.wire.frames import HEADER, decode
from leeward.wire.job_frames import MAX_FILES, MAX_LEFT_OUT, MAX_SHOWN
from leeward.wire.patterns import MOST_ALTERNATIVES
from leeward.wire.requests import OPERATIONS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "wire.md"


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text()


def section(page: str, title: str) -> str:
    return page.split(f"### `{title}`\n")[1].split("\n##")[0]


def rows(text: str) -> set[str]:
    """The names in the first column of every table."""
    first = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in first for name in re.findall(r"`([^`]+)`", cell)}


def test_every_operation_and_answer(page: str) -> None:
    """None is missing, none is made up; the fields of requests are written by packaging/wire_files.py."""
    assert set(OPERATIONS) == set(re.findall(r"^### `(\w+)`$", page, re.MULTILINE))
    request, answer = section(page, "execute").split("The answer:")
    assert {*OF_JOBS, OVERFLOW} == rows(request.split("| limit |")[1])
    for name, operation in OPERATIONS.items():
        if operation.answers is not answers.RESULT and name not in ("process_wait", "sandbox_extend"):  # as another's
            of_others = OPERATIONS["process_wait"].answers.keys() - {"over"} if name == "process_read" else {"arenas?"}
            for part in operation.answers.keys() - of_others:
                assert re.search(rf"[`\"]{part.removesuffix('?')}[`\"]", section(page, name)), (name, part)
    for reason in Reason:
        assert f"`{reason}`" in section(page, "sandbox_open")
    assert set(OPERATIONS["arena"].answers) == rows(section(page, "arena"))

    result = Result(b"", b"", 0, Outcome.FINISHED, files={"a": b""}, label="x", stdout_omitted=1, limit=Limit.OUTPUT,
                    left_out=(LeftOut("", LeftOutReason.MORE),), results=({"text/plain": "1"},), value="1",
                        starved=0.0)
    sent = decode(answers.encode_result(1, result, arenas=(1,))[HEADER:])
    assert set(sent["ok"]) == rows(answer) == {name.removesuffix("?") for name in answers.RESULT}
    assert {name.removesuffix("?") for name in answers.FIGURES} == set(answers.result_fields(result))
    for word in replies.OUTCOMES | replies.LIMITS | replies.LEFT_OUT:
        assert f"`{word}`" in answer


def test_the_document_names_every_mime_type_and_bound(page: str) -> None:
    """Every MIME type, and the bounds."""
    text = section(page, "execute")
    said = text[text.index("The MIME types in"):text.index("A *place*")]
    as_text, as_bytes = said.split("whose content is text")

    assert set(bundles.IS_TEXT) == set(re.findall(r"`(\w+/[\w+]+)`", said.split("There are")[0]))
    for kind, is_text in bundles.IS_TEXT.items():
        assert f"`{kind}`" in (as_text if is_text else as_bytes)
    for bound in (f"at most {bundles.MAX_RESULTS} maps", f"{bundles.MAX_ONE >> 20} MiB",
                  f"{bundles.MAX_TOTAL >> 20} MiB", f"beyond {bundles.MAX_PLAIN:,} characters lacks its middle"):
        assert bound in said


def test_every_kind_of_refusal(page: str) -> None:
    """With its error's name."""
    table = page.split("| kind |")[1].split("\n\n")[0]

    assert {*BY_KIND, "internal"} == rows(table)
    for kind, error in BY_KIND.items():
        assert f"| `{kind}` | `{error.__name__}` |" in table


def test_every_bound_is_as_the_code_has_it(page: str) -> None:
    """As the code has it."""
    text = " ".join(page.split())
    for said in (
        f"Version of everything below: **{frames.VERSION}**",
        f"a request's payload | {frames.MAX_REQUEST >> 20} MiB", f"a reply's payload | {frames.MAX_REPLY >> 20} MiB",
        f"inside each other | {frames.MAX_DEPTH}", f"one map or array | {frames.MAX_ENTRIES:,}",
        f"keys included | {frames.MAX_VALUES:,}", f"at most {frames.MAX_KEY:,} characters, and occurs once",
        f"may have {Config().connection_requests} requests in flight", f"at most {fields.MAX_CODE >> 20} MiB",
        f"at most {fields.MAX_STRINGS:,}, together 2^20 characters",
        f"at most {fields.MAX_FILE_COUNT:,}, together {fields.MAX_FILES >> 20} MiB",
        f"at most {fields.MAX_STDIN >> 20} MiB", f"to bring back; at most {fields.MAX_PATTERNS}",
        f"at most {answers.MAX_DENIED}",
        f"at most {fields.MAX_NAME} characters and {answers.MAX_TRACEBACK >> 10} KiB",
        f"with this frame, at most {replies.MAX_ARENAS}", f"at most {answers.MAX_ERROR:,} characters",
        f"last | {inbox.FRAME_S:.0f} s", f"waits for it | {connection.UNREAD_S:.0f} s",
        f"| {connection.OUTPUT >> 20} MiB |",
        f"`idle_timeout`, {Config().idle_timeout:.0f} s", f"`max_connections`, {Config().max_connections:,}",
        f"sessions of one connection | `connection_sessions`, {Config().connection_sessions} |",
        f"`connection_requests` says, which is {throttle.LEAST} or more",
        f"`max_collected` files come back, {MAX_FILES:,}",
        f"may expand to {MOST_ALTERNATIVES} patterns", f"two texts, at most {MAX_LEFT_OUT + 1}",
        f"at most {replies.MAX_LEFT_OUT:,} entries", f"A name has at most {MAX_SHOWN} characters",
        f"or for {BUSY_S:.0f} s where", f"`session_idle`, {Config().session_idle:.0f} s",
        f"`session_lifetime`, {Config().session_lifetime:,.0f} s", f"`session_grace`, {Config().session_grace:.0f} s",
        f"connections together | {inbox.INPUT >> 20} MiB", f"for their clients | {RESULTS},",
        f"replies above {LARGE_REPLY >> 10} KiB", f"output above {PLACEMENTS['auto'].output >> 10} KiB",
        f"{inbox.SLOTS} now", f"{inbox.SLOT >> 20} MiB now", f"connections together | {inbox.TOTAL >> 30} GiB",
        f"of {slots.LARGE >> 20} MiB or more",
        f"`sandbox_idle`, {Config().sandbox_idle:.0f} s", f"`sandbox_lifetime`, {Config().sandbox_lifetime:,.0f} s",
        f"The id has {sandbox_ids.ID_LENGTH} characters", (f"at most {sandbox_fields.MAX_METADATA} entries,"
        f" {sandbox_fields.MAX_METADATA_TOTAL:,} characters"), (f"the last {registry.ENDED:,} sandboxes,"
        f" {registry.ENDED_OF_ONE} of one user"), f"at most {sandbox_fields.MAX_ARGUMENT:,} characters",
        f"at most {sandbox_fields.MAX_PATH:,} characters", f"the newest {sandbox.REMEMBERED} are",
        f"at most {sandbox_fields.MAX_WAIT:,.0f}", f"While {streams.ROOM >> 10} KiB wait",
        f"at most {sandbox_fields.MAX_WRITE >> 20} MiB", f"while {streams.MOST_INPUT >> 20} MiB wait",
        f"{kernel.MOST_WAITING} may wait", f"A sandbox has {sandbox.MOST_KERNELS} kernels",
        f"At most {program.MOST_WAITING} requests wait", f"at most {sandbox_fields.MAX_ARGV:,}, of at most",
        f"collected files above {PLACEMENTS['auto'].files >> 20} MiB",
        f"at most {file_answers.MAX_PATH:,} bytes without NUL",
        f"{file_requests.CALL_S:.0f} where it is left out, at most {file_requests.MAX_CALL_S:.0f}",
        f"at most {file_answers.MAX_WHY} characters of explanation",
        f"There are {file_content.MOST_HANDLES} handles", f"In one sandbox {sandbox_files.MOST_CALLS} calls may wait",
        f"of {sandbox_files.MOST_BYTES >> 20} MiB together", f"at most {file_answers.MAX_ROWS:,} rows",
        f"about {file_answers.MAX_ROW_BYTES >> 20} MiB of them", f"at most {file_requests.MAX_EDIT >> 20} MiB each",
        f"The file has at most {file_content.MOST_EDITED >> 20} MiB", f"at most {file_requests.MAX_PATTERN:,} bytes",
        f"its first {file_answers.MAX_LINE:,} bytes",
    ):
        assert said in text, said
