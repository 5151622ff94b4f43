"""
`leeward exec --profile NAME -- LINE`: runs one shell line in a sandbox of its own.

The line's output is shown as it arrives, and its end as that of a job. The first Ctrl-C interrupts the line, and the
second one ends it. Any other end of this command ends the sandbox, by its connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leeward.client.arena import map_arenas
from leeward.client.sandbox import Sandbox
from leeward.client.sandbox_calls import bounded_fields
from leeward.wire.replies import parse_result
from leeward_cli import job
from leeward_cli.options import UsageError
from leeward_cli.passing import passed

if TYPE_CHECKING:
    from typing import Any

    from leeward_cli.options import Parsed

#: Options that are only for Python code.
_CODES = ("--file", "-m", "--put", "--collect", "--into")


def run_line(parsed: Parsed) -> int:
    """Run the words after `--`: one is a line for the shell, several are a program and its arguments."""
    for name in _CODES:
        if parsed.flag(name):
            raise UsageError(f"{name} is for Python code, and --profile for a line of the shell")
    if parsed.words:
        raise UsageError("--image runs a line, -- 'LINE', or a program and its arguments: no code yet")
    if not parsed.after:
        raise UsageError("--profile NAME takes code, or -- 'LINE': a line of the shell behind --")
    fields: dict[str, Any] = {"argv": parsed.after} if len(parsed.after) > 1 else {"shell": parsed.after[0]}
    fields |= job.common_fields(parsed)
    if "label" in fields:
        fields["title"] = fields.pop("label")
    limits = fields.pop("limits", {})
    asked: dict[str, Any] = {"timeout" if name == "time" else name: value for name, value in limits.items()}
    asked["overflow"] = "end"  # a file that this output goes to is whole, or the exit status says that it isn't
    for option in ("profile", "environment", "egress", "image", "user"):
        if parsed.value(f"--{option}"):
            asked[option] = parsed.value(f"--{option}")
    if parsed.values("--package"):
        asked["packages"] = parsed.values("--package")
    if parsed.flag("--network"):
        asked["allow_network"] = True
    with Sandbox(socket=parsed.value("--socket"), held=True, show_secrets=parsed.flag("--show-secrets"), **asked) as box:
        if parsed.flag("--json"):
            reply, descriptors = box.run_fields(fields)
            return job.show(parse_result(reply), map_arenas(descriptors, reply.arenas), parsed)
        result, status = passed(box.start_fields(bounded_fields(fields)), parsed.flag("--raw"))
        job.print_end({"outcome": result.outcome.value, "duration": result.duration, "memory_peak": result.memory_peak,
                       "error": result.error and {"type": result.error.type, "message": result.error.message},
                       "exit_code": result.exit_code,
                       "denied": result.denied, "limit": result.limit})
        return status
