"""
The page about the daemon, a tab of who decides and all of `leeward ui`: it only shows.

Trust:     none in titles, metadata and names of hosts, which jobs choose: templates escape and mark them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from leeward.apps.approvals.daemon_view import DaemonLook
from leeward.apps.approvals.web.blocking_calls import in_slow_thread
from leeward.apps.approvals.web.charts import charts, seconds_text
from leeward.apps.approvals.web.http_call import WebCall
from leeward.apps.approvals.web.pages import common, or_why
from leeward.apps.approvals.web.rendering import draw
from leeward.apps.approvals.web.routes import route
from leeward.client.daemon_rows import is_fine, name_of, subject_of, target

_NONE = DaemonLook({}, (), (), (), ())


@route("GET", "/daemon", "What the daemon does now, and how its last jobs and sandboxes ended.", page=True)
async def daemon_page(call: WebCall) -> Response:
    found, why = await or_why(in_slow_thread("", call.shared.daemon.look), _NONE)
    values = await common(call, "daemon") | {
        "look": found, "why": why, "facts": _facts(found.status), "charts": charts(found.samples),
        "name_of": name_of, "is_fine": is_fine, "subject_of": subject_of, "target": target, "seconds": seconds_text}
    return draw("daemon_now.html" if call.request.query_params.get("part") == "now" else "daemon.html", values)


def _facts(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the daemon's status says in numbers, for people."""
    jobs, workers = _counts(status.get("jobs")), _counts(status.get("workers"))
    degraded = status.get("degraded")
    return [("Running jobs", f"{workers.get('busy', 0)}, of {workers.get('total', 0)} workers"),
            ("Waiting jobs", str(status.get("queued", 0))),
            ("Jobs so far", f"{jobs.get('done', 0):,}, {jobs.get('failed', 0):,} failed, {jobs.get('refused', 0):,} refused"),
            ("Sessions and sandboxes", "{} and {}, {} at most".format(*(
                status.get(name, 0) for name in ("sessions", "sandboxes", "max_sessions")))),
            ("Locks that are missing", ", ".join(map(str, degraded)) if isinstance(degraded, list) and degraded else "none"),
            ("Faults", str(status.get("faults", 0)))] if status else []


def _counts(value: Any) -> dict[str, int]:
    return {name: count for name, count in value.items() if type(count) is int} if isinstance(value, dict) else {}
