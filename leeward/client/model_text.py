"""A result as text for a language model, which reads what a tool answers."""

from __future__ import annotations

from leeward.spec.outcome import Outcome, Result

#: The greatest number of characters of an answer, which takes room in the model's context.
MOST = 20_000


def text_of(result: Result) -> str:
    """The value of its last expression, if that is shown; its output; and how it ended, if not by itself with 0."""
    parts = ["" if result.value is None else str(result.value), result.stdout_text.rstrip("\n")]
    if result.stderr_text.strip():
        parts.append(f"[stderr]:\n{result.stderr_text.rstrip()}")
    omitted = result.stdout_omitted + result.stderr_omitted
    if omitted:  # the note within the output may itself be cut
        parts.append(f"[Output limit: {omitted} bytes left out]")
    if result.outcome is Outcome.TIMED_OUT:
        parts.append(f"[Timed out after {result.duration:.0f} s]")
    elif result.outcome is not Outcome.FINISHED:
        parts.append(f"[Ended: {result.outcome}]")
    if result.limit is None and result.hint:
        parts.append(f"[{result.hint}]")
    if result.exit_code:
        parts.append(f"[Exit code: {result.exit_code}]")
    return "\n".join(filter(None, parts)) or "[No output]"


def cut(text: str) -> str:
    """*text* without its middle, if it has more than MOST characters."""
    if len(text) <= MOST:
        return text
    half = MOST // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters cut]\n{text[-half:]}"
