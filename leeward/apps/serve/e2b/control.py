"""E2B's API: sandboxes are made, listed, prolonged and ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, unquote

from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from leeward.apps.serve.calls import Handler, ServeCall, number_of, routed, taken, texts
from leeward.apps.serve.door import Door
from leeward.apps.serve.e2b import code, envd
from leeward.apps.serve.e2b.boxes import (
    NETWORK,
    OWN_TEMPLATES,
    SLEEPS,
    SNAPSHOT,
    SOURCE,
    UNNAMED,
    Boxes,
    OpenBox,
    own_metadata,
    profile_of,
    template_of,
    woken,
)
from leeward.apps.serve.problems import ServeProblem, bad, missing, not_offered, problem_of
from leeward.apps.serve.tokens import ServeTenant
from leeward.errors import DaemonError, RequestRejected, SnapshotFailed, told

#: By this the clients decide what they may ask for: 0.6.2 has metadata of files, which isn't offered.
ENVD_VERSION = "0.6.1"
#: Seconds of a sandbox where the request has none; rows of a list's page.
LASTS_S, PAGE = 300, 100

#: The seconds of which one row of metrics tells, as with E2B's.
METRICS_S = 5

#: What isn't offered: the beginnings of paths.
_ABSENT = ("/templates", "/v2/templates", "/v3/templates", "/volumes", "/volumecontent", "/secrets", "/teams")
#: Seconds of a copy where the request has none; copies of one request; characters of a snapshot's name.
FORK_S, MOST_FORKS, _MOST_NAME = 15, 20, 128

Row = dict[str, Any]


def routes(door: Door) -> list[BaseRoute]:
    boxes = door.boxes
    face = ControlFace(door, boxes)
    table: list[tuple[str, str, Handler]] = [
        ("POST", "/sandboxes", face.create), ("GET", "/sandboxes", face.list), ("GET", "/sandboxes/{id}", face.get),
        ("DELETE", "/sandboxes/{id}", face.kill), ("POST", "/sandboxes/{id}/timeout", face.timeout),
        ("POST", "/sandboxes/{id}/refreshes", face.timeout), ("POST", "/sandboxes/{id}/connect", face.connect),
        ("POST", "/sandboxes/{id}/resume", face.connect), ("POST", "/sandboxes/{id}/pause", face.pause),
        ("GET", "/sandboxes/{id}/metrics", face.metrics), ("POST", "/sandboxes/{id}/fork", face.fork),
        ("PUT", "/sandboxes/{id}/network", face.network),
        ("POST", "/sandboxes/{id}/snapshots", face.snapshot), ("GET", "/snapshots", face.snapshots),
        ("DELETE", "/templates/{id:path}", face.remove_snapshot)]
    absent = "GET POST PUT PATCH DELETE"
    return [
        *(routed(method, f"{version}{path}", door.knows, envd.refused, handler)
          for version in ("", "/v2") for method, path, handler in table),
        *(routed(absent, f"{version}/sandboxes/{{id}}/logs", door.knows, envd.refused, face.absent)
          for version in ("", "/v2")),
        *(routed(absent, f"{path}{rest}", door.knows, envd.refused, face.absent)
          for path in _ABSENT for rest in ("", "/{rest:path}")),
        *envd.routes(door, boxes), *code.routes(door, boxes)]


class ControlFace:
    def __init__(self, door: Door, boxes: Boxes) -> None:
        self._door, self._boxes = door, boxes

    async def absent(self, call: ServeCall) -> Response:
        raise not_offered()

    async def create(self, call: ServeCall) -> Response:
        fields = await call.fields()
        for name in ("mcp", "iam", "volumeMounts"):
            if fields.get(name):
                raise not_offered(name)
        template = taken(fields, "templateID", str, "base")
        lasts, sleeps = self._lasting(call.tenant, fields, LASTS_S), taken(fields, "autoPause", bool, False)
        kept = await self._snapshot(call.tenant, template)
        if kept is not None:
            return JSONResponse(self._row(await self._copy(
                call, kept, texts(fields, "metadata"), lasts, key=call.headers.get("idempotency-key", ""),
                options=options_of_copy(kept.options, call.tenant, fields))), 201)
        box = await self._boxes.open(
            call.tenant, call.use, template, texts(fields, "metadata"), call.headers.get("idempotency-key", ""),
            profile=profile_of(template, call.tenant, self._door.options.box_profile), is_private=_is_private(fields),
            env=texts(fields, "envVars"), lifetime=None if sleeps else lasts, idle=lasts, sleeps=sleeps,
            **egress_of(call.tenant, fields))
        if sleeps:
            await _keep(box, call.tenant)
        return JSONResponse(self._row(box), 201)

    # --- copies ---------------------------------------------------------------------

    async def _copy(self, call: ServeCall, source: OpenBox, metadata: Mapping[str, str], lasts: float,
                    **more: Any) -> OpenBox:
        made = await self._boxes.copy(call.tenant, call.use, source, metadata, lasts, **more)
        if SLEEPS in made.marks:
            await _keep(made, call.tenant)
        return made

    async def fork(self, call: ServeCall) -> Response:
        """Copies with the files and the contexts; each is there or has an error of its own."""
        box, fields = await self._at_rest(call), await call.fields()
        count, lasts = taken(fields, "count", int, 1), self._lasting(call.tenant, fields, FORK_S)
        if not 1 <= count <= MOST_FORKS:
            raise bad(f"count has to be a number, from 1 to {MOST_FORKS}")
        made: list[Row] = []
        for _ in range(count):
            try:
                made.append({"sandbox": self._row(await self._copy(call, box, box.metadata, lasts))})
            except (ServeProblem, DaemonError) as error:
                problem = problem_of(error)
                made.append({"error": {"code": problem.status, "message": problem.message}})
        return JSONResponse(made, 201)

    async def _at_rest(self, call: ServeCall) -> OpenBox:
        """The sandbox of the call, which can be copied: 400 if a program runs there, which its copy would lack."""
        box = await self.found(call)
        await self._boxes.info(box)
        if not box.options:
            raise ServeProblem(501, "another server, or this one before, has opened the sandbox: it can't be copied here")
        if running := [row["title"] for row in await box.box.processes() if not row["over"]]:
            raise bad(f"programs aren't copied, and one runs: {running[0]:.80}")
        return box

    async def snapshot(self, call: ServeCall) -> Response:
        """A copy that sleeps, and is no sandbox to anybody: sandboxes that begin with it are copies of it."""
        box, fields = await self._at_rest(call), await call.fields()
        name = taken(fields, "name", str, "")
        if len(name) > _MOST_NAME:
            raise bad(f"a name has {_MOST_NAME} characters at most")
        kept = await self._boxes.copy(call.tenant, call.use, box, {}, None, name or UNNAMED)
        await _keep(kept, call.tenant)
        return JSONResponse(_snapshot_row(kept.id, name), 201)

    async def _snapshot(self, tenant: ServeTenant, name: str) -> OpenBox | None:
        """The newest snapshot of this id or name."""
        if name in (*OWN_TEMPLATES, *tenant.profiles, UNNAMED):
            return None
        rows = await self._boxes.rows(tenant, snapshots=True)
        found = [row["sandbox"] for row in rows if name in (row["sandbox"], row["metadata"][SNAPSHOT])]
        return await self._boxes.find(tenant, found[-1], snapshot=True) if found else None

    async def snapshots(self, call: ServeCall) -> Response:
        query = call.request.query_params
        rows = [row for row in await self._boxes.rows(call.tenant, snapshots=True)
                if query.get("sandboxID", "") in ("", row["metadata"][SOURCE])
                and query.get("name", "") in ("", row["metadata"][SNAPSHOT])]
        shown, headers = _page(rows, query)
        return JSONResponse([_snapshot_row(row["sandbox"], row["metadata"][SNAPSHOT]) for row in shown], headers=headers)

    async def remove_snapshot(self, call: ServeCall) -> Response:
        kept = await self._snapshot(call.tenant, call.request.path_params["id"])
        if kept is None:
            raise missing("there is no such snapshot")
        await self._boxes.kill(kept)
        return Response(status_code=204)

    # --------------------------------------------------------------------------------

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

    async def found(self, call: ServeCall) -> OpenBox:
        return await self._boxes.find(call.tenant, call.request.path_params["id"])

    async def get(self, call: ServeCall) -> Response:
        box = await self.found(call)
        return JSONResponse({**_described(await self._boxes.info(box)), **self._row(box)})

    async def list(self, call: ServeCall) -> Response:
        query = call.request.query_params
        states = [each for part in query.getlist("state") for each in part.split(",") if each]
        # Names and values are encoded once more.
        wanted = {unquote(name): unquote(value) for name, value in filter_of(query.get("metadata", ""))}
        template = query.get("template", "")
        rows = [row for row in await self._boxes.rows(call.tenant) if (not states or state_of(row) in states)
                and wanted.items() <= own_metadata(row["metadata"]).items()
                and template in ("", template_of(row["metadata"]))]
        if "startedAfter" in query:
            since = seconds_of(query["startedAfter"], "startedAfter")
            rows = [row for row in rows if begun(row) >= since]
        if query.get("order", "") != "asc":
            rows.reverse()  # the newest first
        shown, headers = _page(rows, query)
        return JSONResponse([_described(row) for row in shown], headers=headers)

    async def kill(self, call: ServeCall) -> Response:
        await self._boxes.kill(await self.found(call))
        return Response(status_code=204)

    async def timeout(self, call: ServeCall) -> Response:
        box, fields = await self.found(call), await call.fields()
        seconds = self._lasting(call.tenant, {"timeout": fields.get("timeout", fields.get("duration"))}, LASTS_S)
        await self.extend(box, seconds)
        return Response(status_code=204)

    async def extend(self, box: OpenBox, seconds: float) -> None:
        await self._boxes.info(box)
        await box.box.extend(lifetime=None if SLEEPS in box.marks else seconds, idle=seconds)

    async def network(self, call: ServeCall) -> Response:
        """Change what a sandbox may reach of what its tenant may; connections that are open end."""
        box, fields = await self.found(call), await call.fields()
        if fields.get("rules") or fields.get("egressProxy"):
            raise ServeProblem(501, "rules and egressProxy aren't offered here")
        wanted = egress_of(call.tenant, {"network": fields, "allow_internet_access": fields.get("allow_internet_access")})
        policy = wanted.get("policy") or narrowing(["*"] if wanted else [])
        if (await self._boxes.info(box))["egress"]:
            await self._boxes.change(box, lambda marks: ({name: marks[name] for name in marks if name != NETWORK}, policy))
        elif wanted:
            raise ServeProblem(501, "a sandbox that was opened without the Internet doesn't get it later")
        return Response(status_code=204)

    async def connect(self, call: ServeCall) -> Response:
        box, fields = await self.found(call), await call.fields()
        seconds = self._lasting(call.tenant, fields, LASTS_S)
        row = await self._boxes.info(box)
        paused = state_of(row) == "paused"
        if paused or row["left"] < seconds:
            await self.extend(box, seconds)
        if paused:
            await woken(box)
        return JSONResponse(self._row(box), 201 if call.request.url.path.endswith("resume") else 200)

    async def pause(self, call: ServeCall) -> Response:
        await _keep(await self.put_to_sleep(call), call.tenant)
        return Response(status_code=204)

    async def put_to_sleep(self, call: ServeCall) -> OpenBox:
        """A sandbox that is paused already is 409, which clients take for that, and so nothing else is."""
        box = await self.found(call)
        if state_of(await self._boxes.info(box)) == "paused":
            raise ServeProblem(409, "the sandbox is paused")
        try:
            await box.box.pause()
        except (RequestRejected, SnapshotFailed) as error:
            raise bad(f"the sandbox can't be paused, and goes on: {told(error)}") from None
        return box

    async def metrics(self, call: ServeCall) -> Response:
        row, query = await self._boxes.info(await self.found(call)), call.request.query_params
        now = datetime.now(UTC)
        begin, end = (number_of(query.get(name, str(default)), name, 0, 1 << 53)
                      for name, default in (("start", 0), ("end", 1 << 53)))
        if not begin <= now.timestamp() <= end + METRICS_S:
            return JSONResponse([])  # no state but the present one is known
        return JSONResponse([{
            "timestamp": when(now.timestamp()), "timestampUnix": int(now.timestamp()), "cpuCount": 1,
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
    return {"egress": tenant.egress[0], **({"policy": narrowing(allowed)} if allowed else {})}


def narrowing(allowed: Sequence[str], denied: Sequence[str] = ()) -> Row:
    """A policy within the tenant's, whose ports and addresses are the tenant's."""
    return {"allowed_domains": [*allowed], "blocked_domains": [*denied], "deny_private_ips": False}


def _is_private(fields: Mapping[str, Any]) -> bool:
    return not taken(taken(fields, "network", dict, {}), "allowPublicTraffic", bool, True)


def options_of_copy(kept: Mapping[str, Any], tenant: ServeTenant, fields: Mapping[str, Any]) -> Row:
    """
    How a sandbox is opened that begins with a snapshot of one with the options *kept*, as a request wants it: no more of the
    network than the snapshot's had, the request wants and the tenant may have now.
    """
    network = egress_of(tenant, fields)
    made = {**{name: value for name, value in kept.items() if name not in ("egress", "policy")},
            "is_private": kept.get("is_private", False) or _is_private(fields),
            "env": {**kept.get("env", {}), **texts(fields, "envVars")},
            "sleeps": taken(fields, "autoPause", bool, False), "memory": tenant.quota.memory or None}
    policies = [each["policy"] for each in (kept, network) if each.get("policy")]
    lists = [{*each["allowed_domains"]} for each in policies if "*" not in each["allowed_domains"]] or [{"*"}]
    allowed = sorted(set.intersection(*lists))
    denied = sorted({name for each in policies for name in each["blocked_domains"]})
    if not network or not kept.get("egress") or not allowed:
        return made
    return {**made, "egress": network["egress"], **({"policy": narrowing(allowed, denied)} if policies else {})}


def _page(rows: list[Row], query: Mapping[str, str]) -> tuple[list[Row], dict[str, str]]:
    """The rows that a list's query wants, and the heads that name what is behind them."""
    after, limit = query.get("nextToken", ""), number_of(query.get("limit", str(PAGE)), "limit", 1, PAGE)
    if after:
        names = [row["sandbox"] for row in rows]
        rows = rows[names.index(after) + 1:] if after in names else []
    shown = rows[:limit]
    return shown, {"x-next-token": shown[-1]["sandbox"]} if len(rows) > len(shown) else {}


async def _keep(box: OpenBox, tenant: ServeTenant) -> None:
    """Let it live for as long as its tenant may have one."""
    with suppress(RequestRejected):  # the daemon's own bound is lower: then it has the time that it had
        await box.box.extend(lifetime=float(tenant.quota.lifetime))


def _snapshot_row(identity: str, name: str) -> Row:
    return {"snapshotID": identity, "names": [identity if name in ("", UNNAMED) else name]}


def _described(row: Mapping[str, Any]) -> Row:
    """A row of the daemon's as E2B's lists have it."""
    return {"templateID": template_of(row["metadata"]), "alias": template_of(row["metadata"]), "sandboxID": row["sandbox"],
            "clientID": "leeward",
            # Whole seconds, so that they are the same at each call.
            "startedAt": when(begun(row)), "endAt": when(round(time.time() + _left(row))),
            "envdVersion": ENVD_VERSION, "cpuCount": 1, "memoryMB": row["memory_limit"] >> 20,
            "diskSizeMB": row["memory_limit"] >> 20, "state": state_of(row), "metadata": own_metadata(row["metadata"])}


def _left(row: Mapping[str, Any]) -> float:
    """Seconds until it ends, or is paused if it is to be so then."""
    left = float(row["left"])
    return left if SLEEPS not in row["metadata"] or row.get("asleep") else min(left, row["idle"] - row["unused"])


def state_of(row: Mapping[str, Any]) -> str:
    return "paused" if row.get("asleep") else "running"


def when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def begun(row: Mapping[str, Any]) -> int:
    return round(time.time() - float(row["age"]))


def seconds_of(text: str, name: str) -> float:
    """A time as ISO 8601 has it, in seconds since 1970; ServeProblem with the field's *name* for anything else."""
    try:
        return datetime.fromisoformat(text.replace(" ", "+")).astimezone(UTC).timestamp()
    except (ValueError, OverflowError, OSError):
        raise bad(f"{name} has to be a time, such as 2026-01-31T12:00:00Z") from None


def filter_of(text: str) -> list[tuple[str, str]]:
    """The names and values of a filter by metadata, a query in the query; ServeProblem for what is none."""
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=64)
    except ValueError:
        raise bad("metadata has to be name=value, encoded") from None
