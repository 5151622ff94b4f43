"""E2B's API: sandboxes are made, listed, prolonged and ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, unquote

from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from leeward.apps.serve.calls import Handler, ServeCall, routed, taken, texts
from leeward.apps.serve.door import Door
from leeward.apps.serve.e2b import code, envd
from leeward.apps.serve.e2b.boxes import Boxes, OpenBox, own_metadata, profile_of, template_of
from leeward.apps.serve.problems import ServeProblem, bad
from leeward.apps.serve.tokens import ServeTenant
from leeward.errors import Busy, RequestRejected, SnapshotFailed, told

#: By this the clients decide what they may ask for: 0.6.2 has metadata of files, which isn't offered.
ENVD_VERSION = "0.6.1"
#: Seconds of a sandbox where the request has none; rows of a list's page.
LASTS_S, PAGE = 300, 100

#: Seconds that a paused sandbox may take to wake, and between two looks whether it has.
WAKE_S, SOON_S = 10.0, 0.02
#: The seconds of which one row of metrics tells, as with E2B's.
METRICS_S = 5

#: The default profile: a loopback network, terminals and more processes than a job has.
_PROFILE = "workdir"
#: What isn't offered: the beginnings of paths.
_ABSENT = ("/templates", "/v2/templates", "/v3/templates", "/volumes", "/volumecontent", "/secrets", "/snapshots", "/teams")

Row = dict[str, Any]


def routes(door: Door) -> list[BaseRoute]:
    boxes = door.boxes
    face = ControlFace(door, boxes)
    table: list[tuple[str, str, Handler]] = [
        ("POST", "/sandboxes", face.create), ("GET", "/sandboxes", face.list), ("GET", "/sandboxes/{id}", face.get),
        ("DELETE", "/sandboxes/{id}", face.kill), ("POST", "/sandboxes/{id}/timeout", face.timeout),
        ("POST", "/sandboxes/{id}/refreshes", face.timeout), ("POST", "/sandboxes/{id}/connect", face.connect),
        ("POST", "/sandboxes/{id}/resume", face.connect), ("POST", "/sandboxes/{id}/pause", face.pause),
        ("GET", "/sandboxes/{id}/metrics", face.metrics)]
    absent = "GET POST PUT PATCH DELETE"
    return [
        *(routed(method, f"{version}{path}", door.knows, envd.refused, handler)
          for version in ("", "/v2") for method, path, handler in table),
        *(routed(absent, f"{version}/sandboxes/{{id}}/{name}", door.knows, envd.refused, face.absent)
          for version in ("", "/v2") for name in ("snapshots", "fork", "network", "logs")),
        *(routed(absent, f"{path}{rest}", door.knows, envd.refused, face.absent)
          for path in _ABSENT for rest in ("", "/{rest:path}")),
        *envd.routes(door, boxes), *code.routes(door, boxes)]


class ControlFace:
    def __init__(self, door: Door, boxes: Boxes) -> None:
        self._door, self._boxes = door, boxes

    async def absent(self, call: ServeCall) -> Response:
        raise ServeProblem(501, "this isn't offered here; docs/serve.md lists what is")

    async def create(self, call: ServeCall) -> Response:
        fields = await call.fields()
        for name in ("mcp", "iam", "volumeMounts"):
            if fields.get(name):
                raise ServeProblem(501, f"{name} isn't offered here; docs/serve.md lists what is")
        template = taken(fields, "templateID", str, "base")
        lasts = self._lasting(call.tenant, fields, LASTS_S)
        options = self._door.options
        box = await self._boxes.open(
            call.tenant, call.use, template, texts(fields, "metadata"), call.headers.get("idempotency-key", ""),
            profile=profile_of(template, call.tenant, options.profile or _PROFILE), environment=options.environment or None,
            is_private=not taken(taken(fields, "network", dict, {}), "allowPublicTraffic", bool, True),
            env=texts(fields, "envVars"), lifetime=lasts, idle=lasts, memory=call.tenant.quota.memory or None,
            **egress_of(call.tenant, fields))
        return JSONResponse(self._row(box), 201)

    def _lasting(self, tenant: ServeTenant, fields: Mapping[str, Any], default: float) -> float:
        seconds = taken(fields, "timeout", float, default)
        if not 0 <= seconds <= tenant.quota.lifetime:
            raise bad(f"timeout has to be seconds, {tenant.quota.lifetime} at most")
        return max(0.001, seconds)

    def _row(self, box: OpenBox) -> Row:
        tokens = self._door.tokens
        return {"templateID": box.template, "sandboxID": box.id, "clientID": "leeward", "alias": box.template,
                "envdVersion": ENVD_VERSION, "envdAccessToken": tokens.derived("envd", box.id),
                "trafficAccessToken": tokens.derived("traffic", box.id), "domain": self._door.options.domain}

    async def _found(self, call: ServeCall) -> OpenBox:
        return await self._boxes.find(call.tenant, call.request.path_params["id"])

    async def get(self, call: ServeCall) -> Response:
        box = await self._found(call)
        return JSONResponse({**_described(await self._boxes.info(box)), **self._row(box)})

    async def list(self, call: ServeCall) -> Response:
        query = call.request.query_params
        states = [each for part in query.getlist("state") for each in part.split(",") if each]
        wanted, template = _encoded_thrice(query.get("metadata", "")), query.get("template", "")
        after, limit = query.get("nextToken", ""), query.get("limit", str(PAGE))
        if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= PAGE:
            raise bad(f"limit has to be a number, from 1 to {PAGE}")
        rows = [row for row in await self._boxes.rows(call.tenant) if (not states or _state(row) in states)
                and wanted.items() <= own_metadata(row["metadata"]).items()
                and template in ("", template_of(row["metadata"]))]
        if "startedAfter" in query:
            since = seconds_of(query["startedAfter"])
            rows = [row for row in rows if _begun(row) >= since]
        if query.get("order", "") != "asc":
            rows.reverse()  # the newest first
        if after:
            names = [row["sandbox"] for row in rows]
            rows = rows[names.index(after) + 1:] if after in names else []
        shown, more = rows[:int(limit)], len(rows) > int(limit)
        headers = {"x-next-token": shown[-1]["sandbox"]} if more else {}
        return JSONResponse([_described(row) for row in shown], headers=headers)

    async def kill(self, call: ServeCall) -> Response:
        await self._boxes.kill(await self._found(call))
        return Response(status_code=204)

    async def timeout(self, call: ServeCall) -> Response:
        box, fields = await self._found(call), await call.fields()
        seconds = self._lasting(call.tenant, {"timeout": fields.get("timeout", fields.get("duration"))}, LASTS_S)
        await self._extend(box, seconds)
        return Response(status_code=204)

    async def _extend(self, box: OpenBox, seconds: float) -> None:
        await self._boxes.info(box)
        await box.box.extend(lifetime=seconds, idle=seconds)

    async def connect(self, call: ServeCall) -> Response:
        box, fields = await self._found(call), await call.fields()
        seconds = self._lasting(call.tenant, fields, LASTS_S)
        row = await self._boxes.info(box)
        paused = _state(row) == "paused"
        if paused or row["left"] < seconds:
            await self._extend(box, seconds)
        if paused:
            await _wake(box)
        return JSONResponse(self._row(box), 201 if call.request.url.path.endswith("resume") else 200)

    async def pause(self, call: ServeCall) -> Response:
        """A sandbox that is paused already is 409, which clients take for that, and so nothing else is."""
        box = await self._found(call)
        if _state(await self._boxes.info(box)) == "paused":
            raise ServeProblem(409, "the sandbox is paused")
        try:
            await box.box.pause()
        except (RequestRejected, SnapshotFailed) as error:
            raise bad(f"the sandbox can't be paused, and goes on: {told(error)}") from None
        with suppress(RequestRejected):  # the daemon's own bound is lower: then it has the time that it had
            await box.box.extend(lifetime=float(call.tenant.quota.lifetime))
        return Response(status_code=204)

    async def metrics(self, call: ServeCall) -> Response:
        row, query = await self._boxes.info(await self._found(call)), call.request.query_params
        now = datetime.now(UTC)
        begin, end = (_number(query.get(name, value)) for name, value in (("start", "0"), ("end", str(1 << 53))))
        if not begin <= now.timestamp() <= end + METRICS_S:
            return JSONResponse([])  # no state but the present one is known
        return JSONResponse([{
            "timestamp": _when(now.timestamp()), "timestampUnix": int(now.timestamp()), "cpuCount": 1,
            "cpuUsedPct": round(100 * row["cpu_time"] / max(row["age"], 0.001), 2), "memUsed": row["memory"],
            "memTotal": row["memory_limit"], "memCache": 0, "diskUsed": 0, "diskTotal": row["memory_limit"]}])


def egress_of(tenant: ServeTenant, fields: Mapping[str, Any]) -> Row:
    """
    The policy of a sandbox: the tenant's first one, unless the request wants no Internet; narrowed to the names that the
    request allows. ServeProblem for what can't be held.
    """
    network = taken(fields, "network", dict, {})
    allowed, denied = taken(network, "allowOut", list, []), taken(network, "denyOut", list, [])
    if not all(isinstance(each, str) for each in [*allowed, *denied]):
        raise bad("allowOut and denyOut have to be lists of texts")
    wanted = taken(fields, "allow_internet_access", bool, True) and not ("0.0.0.0/0" in denied and not allowed)
    if not wanted or not tenant.egress:
        return {}
    if [each for each in denied if each != "0.0.0.0/0"]:
        raise ServeProblem(501, "denyOut is offered for 0.0.0.0/0 alone")
    return {"egress": tenant.egress[0], **({"policy": {"allow": allowed}} if allowed else {})}


def _described(row: Mapping[str, Any]) -> Row:
    """A row of the daemon's as E2B's lists have it."""
    return {"templateID": template_of(row["metadata"]), "alias": template_of(row["metadata"]), "sandboxID": row["sandbox"],
            "clientID": "leeward",
            # Whole seconds, so that they are the same at each call.
            "startedAt": _when(_begun(row)), "endAt": _when(round(time.time() + row["left"])),
            "envdVersion": ENVD_VERSION, "cpuCount": 1, "memoryMB": row["memory_limit"] >> 20,
            "diskSizeMB": row["memory_limit"] >> 20, "state": _state(row), "metadata": own_metadata(row["metadata"])}


async def _wake(box: OpenBox) -> None:
    """Any request wakes it, and is refused until it is awake. ServeProblem 429 if that takes too long."""
    until = time.monotonic() + WAKE_S
    while True:
        try:
            await box.box.processes()
            return
        except Busy as error:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(error.retry_after or SOON_S)


def _state(row: Mapping[str, Any]) -> str:
    return "paused" if row.get("asleep") else "running"


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _begun(row: Mapping[str, Any]) -> int:
    return round(time.time() - float(row["age"]))


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 16:
        raise bad("start and end have to be seconds since 1970")
    return int(text)


def seconds_of(text: str) -> float:
    """A time as ISO 8601 has it, in seconds since 1970."""
    try:
        return datetime.fromisoformat(text.replace(" ", "+")).astimezone(UTC).timestamp()
    except (ValueError, OverflowError, OSError):
        raise bad("startedAfter has to be a time, such as 2026-01-31T12:00:00Z") from None


def _encoded_thrice(text: str) -> dict[str, str]:
    """The metadata of a filter: a query in the query, whose names and values are encoded once more."""
    try:
        return {unquote(name): unquote(value) for name, value in parse_qsl(text, keep_blank_values=True, max_num_fields=64)}
    except ValueError:
        raise bad("metadata has to be name=value, encoded") from None
