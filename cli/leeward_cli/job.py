"""Makes a job from a command line, and output and an exit status from a result; for `exec` and `run`."""

from __future__ import annotations

import os

from leeward.base.hints import hint
from leeward.client.arena import piece
from leeward.errors import quoted, reason_of
from leeward.spec.sizes import size_text
from leeward_cli.messages import complain, escape, write
from leeward_cli.options import UsageError

# Imported in functions: what not every start needs; 17 ms of processor time for all of it.

TYPE_CHECKING = False  # see leeward/wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from leeward_cli.live_output import ShownOutput
    from leeward_cli.options import Parsed

#: Messages for jobs that were ended by a limit, a signal or a fault; printed to standard error after the job's output.
ENDS = {
    "timed_out": "time limit reached after {duration:.3g} s",
    "out_of_memory": "memory limit reached (peak {peak})",
    "output_limit": "output limit reached; the rest was cut off",
    "internal": "the worker was lost",
    "signalled": "the job was ended",
}

LIMITS = {"--timeout": "time", "--wall": "wall", "--cpu-time": "cpu_time", "--memory": "memory", "--output": "output",
          "--processes": "processes", "--descriptors": "descriptors", "--files": "files"}

#: The message for a failed job that asked for the network, which may be the reason.
NO_NETWORK = ("the job asked for the network, and there is none in the sandbox; give it what it needs as files or"
              " standard input (`leeward explain network`)")


def _read(fd: int) -> bytes:
    chunks = []
    while chunk := os.read(fd, 1 << 20):
        chunks.append(chunk)
    return b"".join(chunks)


def _standard_input() -> bytes:
    try:
        return _read(0)
    except OSError as error:
        raise OSError(f"can't read standard input: {error.strerror}") from None


def _read_file(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _read(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise UsageError(f"--file {quoted(path)}: {reason_of(error)}") from None


def is_path(word: str) -> bool:
    """Whether *word*, given as code, is probably the name of a file: an existing one, or one of Python's."""
    if not word or len(word) > 4096 or any(char in word for char in " \t\n\0()=\"'"):
        return False
    return word.endswith(".py") or os.path.isfile(word)


def request(parsed: Parsed) -> dict[str, Any]:
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
        fields.update(code=_standard_input(), name="<stdin>")
    else:
        word = parsed.words[0]
        if is_path(word):
            raise UsageError(f"{quoted(word)} is the name of a file, not code; to run that file: --file {word}")
        fields["code"] = os.fsencode(word)
    fields |= common_fields(parsed)
    if parsed.values("--put"):
        from leeward_cli.job_files import put

        fields["files"] = put(parsed.values("--put"))
    if parsed.values("--collect"):
        fields["collect"] = parsed.values("--collect")
    elif parsed.value("--into") is not None:
        raise UsageError("--into says where files go that --collect brings back; there is no --collect")
    return fields


def common_fields(parsed: Parsed) -> dict[str, Any]:
    """The request's fields other than the code: standard input, variables, limits and the label."""
    fields: dict[str, Any] = {}
    if parsed.flag("--stdin"):
        fields["stdin"] = _standard_input()
    limits = {limit: value for option, limit in LIMITS.items() if (value := parsed.value(option)) is not None}
    if parsed.value("--label"):
        fields["label"] = parsed.value("--label")
    if parsed.values("--env"):
        fields["env"] = dict(parsed.values("--env"))
    if limits:
        fields["limits"] = limits
    return fields


def advice(result: Mapping[str, Any], stderr: bytes | memoryview) -> str:
    """`Result.hint` of a result's fields."""
    error = result["error"]
    return hint(result["limit"], error and (error["type"], error["message"]), bytes(stderr) if result["exit_code"] else b"")


def print_end(result: Mapping[str, Any], stderr: bytes | memoryview = b"") -> None:
    """Print a message if the job was ended by a limit, a signal or a fault, and one line of advice."""
    end = ENDS.get(result["outcome"])
    if end is not None:
        text = end.format(duration=result["duration"], peak=size_text(result["memory_peak"]))
        error = result["error"]
        complain(text if error is None or not error["message"] else f"{text}: {error['message']}")
    if line := advice(result, stderr):
        complain(line)
    if result["exit_code"] and result["denied"].get("network"):
        complain(NO_NETWORK)


def show(result: Mapping[str, Any], arenas: Sequence[memoryview], parsed: Parsed,
         shown: ShownOutput | None = None) -> int:
    """Print a result, of which *shown* was shown while the job ran, as the options say. Returns the exit status."""
    stdout, stderr = (piece(result[name], arenas) for name in ("stdout", "stderr"))
    if parsed.flag("--json"):
        import json

        texts = {"stdout": str(stdout, "utf-8", "replace"), "stderr": str(stderr, "utf-8", "replace")}
        shown_fields = {**result, **texts, "hint": advice(result, stderr)}
        shown_fields.pop("files", None)
        if parsed.values("--collect"):
            shown_fields["files"] = {name: len(piece(content, arenas)) for name, content in result["files"].items()}
        write(1, json.dumps(shown_fields).encode() + b"\n")
    else:
        if shown is not None:
            shown.finish(stdout, stderr)
        for fd, content in ((1, stdout), (2, stderr)) if shown is None else ():
            if content:
                write(fd, escape(content) if os.isatty(fd) and not parsed.flag("--raw") else content)
        print_end(result, stderr)
    code: int = result["exit_code"]
    if parsed.values("--collect"):
        from leeward_cli.job_files import bring, left_out

        into = parsed.value("--into")
        files = {name: piece(content, arenas) for name, content in result["files"].items()}
        left = bring(files, into or ".", replace=into is not None)
        for line in left:
            complain(line)
        if result["left_out"] and not parsed.flag("--json"):
            complain(left_out(result["left_out"]))
        code = code or int(bool(left))
    return code
