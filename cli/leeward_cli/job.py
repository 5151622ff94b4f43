"""
From a command line to a job, and from a result to bytes and an exit status.

Runs in:   the CLI; shared by `exec` and `run`, so that they can't differ.
"""

from __future__ import annotations

import os

from leeward.client.arena import piece
from leeward.spec.sizes import parse_size, size_text
from leeward_cli.options import UsageError

TYPE_CHECKING = False  # see leeward/wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from leeward_cli.options import Parsed

#: What an end that isn't the job's own doing is called, on standard error after the job's.
ENDS = {
    "timed_out": "time limit reached after {duration:.3g} s",
    "out_of_memory": "memory limit reached (peak {peak})",
    "output_limit": "output limit reached; the rest was cut off",
    "internal": "the worker was lost",
}

#: Control characters that a terminal acts on: C0 but newline and tab, DEL, C1.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}


def _read(fd: int) -> bytes:
    chunks = []
    while chunk := os.read(fd, 1 << 20):
        chunks.append(chunk)
    return b"".join(chunks)


def _read_file(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _read(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise UsageError(f"--file {path!a}: {(error.strerror or '').lower()}") from None


def _number(text: str, option: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise UsageError(f"{option} takes a number of seconds above 0, not {text!a}")
    return value


def request(parsed: Parsed) -> dict[str, Any]:
    """
    The fields of the execute request that the command line describes.

    Raises:
        UsageError: not exactly one source, or a value that is none.
    """
    path, module = parsed.value("--file"), parsed.value("-m")
    sources = len(parsed.words) + (path is not None) + (module is not None)
    if sources != 1:
        what = "nothing to run" if not sources else "more than one thing to run"
        raise UsageError(f"{what}; give one of CODE, -, --file PATH and -m MODULE, and arguments after --")
    fields: dict[str, Any] = {"args": parsed.after}
    from_stdin = parsed.words == ["-"]
    if from_stdin and parsed.flag("--stdin"):
        raise UsageError("- and --stdin both want standard input")
    if module is not None:
        fields["module"] = module
    elif path is not None:
        name = os.path.basename(path)
        fields.update(code=_read_file(path), name=name if name.isprintable() else "<file>")
    elif from_stdin:
        fields.update(code=_read(0), name="<stdin>")
    else:
        fields["code"] = os.fsencode(parsed.words[0])
    if parsed.flag("--stdin"):
        fields["stdin"] = _read(0)
    env = {}
    for setting in parsed.values("--env"):
        key, equals, value = setting.partition("=")
        if not key or not equals:
            raise UsageError(f"--env takes K=V, not {setting!a}")
        env[key] = value
    limits: dict[str, Any] = {}
    timeout, memory = parsed.value("--timeout"), parsed.value("--memory")
    if timeout is not None:
        limits["time"] = _number(timeout, "--timeout")
    if memory is not None:
        try:
            limits["memory"] = parse_size(memory)
        except ValueError as error:
            raise UsageError(f"--memory: {error}") from None
    if env:
        fields["env"] = env
    if limits:
        fields["limits"] = limits
    return fields


def escape(content: bytes | memoryview) -> bytes:
    """
    *content* with everything that a terminal would act on shown as \\xNN.
    """
    return str(content, "utf-8", "backslashreplace").translate(_CONTROLS).encode()


def write(fd: int, content: bytes | memoryview) -> None:
    """
    All of *content* to *fd*.
    """
    rest = memoryview(content)
    while rest:
        # Some file systems and pipes refuse one write of more than 2 GiB.
        rest = rest[os.write(fd, rest[:1 << 30]):]


def complain(message: str) -> None:
    """
    One line of our own on standard error.
    """
    try:
        write(2, escape(f"leeward: {message}".replace("\n", " ").encode("utf-8", "backslashreplace")) + b"\n")
    except OSError:
        pass  # nobody listens


def show(result: Mapping[str, Any], arenas: Sequence[memoryview], parsed: Parsed) -> int:
    """
    Print a result as the options say; return the exit status.

    Args:
        result: as leeward.wire.replies.parse_result gives it.
    """
    stdout, stderr = (piece(result[name], arenas) for name in ("stdout", "stderr"))
    if parsed.flag("--json"):
        import json

        texts = {"stdout": str(stdout, "utf-8", "replace"), "stderr": str(stderr, "utf-8", "replace")}
        shown = {key: value for key, value in {**result, **texts}.items() if key != "files"}
        write(1, json.dumps(shown).encode() + b"\n")
    else:
        for fd, content in ((1, stdout), (2, stderr)):
            if content:
                write(fd, escape(content) if os.isatty(fd) and not parsed.flag("--raw") else content)
        end = ENDS.get(result["outcome"])
        if end is not None:
            text = end.format(duration=result["duration"], peak=size_text(result["memory_peak"]))
            error = result["error"]
            complain(text if error is None or not error["message"] else f"{text}: {error['message']}")
    code: int = result["exit_code"]
    return code
