"""
REST: the handlers of the routes in `leeward.approvals.routes`, by their names.

Runs in:   the operator's program that decides, on its event loop; the queue and the daemon are called in threads.
Trust:     none in fields. A sandbox gets only its own requests; for another one's the answer is that of an unknown id.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

from starlette.responses import JSONResponse, Response

from leeward.approvals.changes import SyncOutcome
from leeward.approvals.orders import EXEC_S
from leeward.approvals.requests import ApprovalRequest, Resolution
from leeward.approvals.rules import CATEGORIES, Effect
from leeward.approvals.web import bodies
from leeward.approvals.web.bodies import bad
from leeward.approvals.web.calls import Handler, WebCall, WebParts
from leeward.approvals.web.problems import WebProblem, missing
from leeward.approvals.web.rows import request_row, resolution_row, rule_row, rules_row
from leeward.approvals.web.threads import in_long_thread, in_slow_thread, in_thread, in_thread_of

#: Rows of one answer, ids of one decision, hunks of one approval, seconds that a call waits: at most.
MOST_ROWS, MOST_IDS, MOST_HUNKS, MOST_WAIT = 500, 1000, 10_000, 300.0

#: Rows of one answer to a sandbox.
MOST_ROWS_OF_SANDBOX = 50

#: Seconds that an approval waits until the file is written.
CARRIED_OUT_S = 10.0


async def status(call: WebCall) -> Response:
    found = await in_thread_of(call.sandbox, call.service.status)
    if call.sandbox:  # the numbers of other sandboxes' requests are the operator's alone
        return JSONResponse({key: found[key] for key in ("started", "uptime", "until", "remaining") if key in found})
    return JSONResponse(found)


async def requests(call: WebCall) -> Response:
    query = call.request.query_params
    limit = bodies.whole(query, "limit", 50, least=1, most=MOST_ROWS)
    after = bodies.whole(query, "after", 0)
    which, category = query.get("which", "pending"), query.get("category")
    if which not in ("pending", "recent"):
        raise bad("which: pending or recent")
    if category is not None and category not in CATEGORIES:
        raise bad(f"category: one of {', '.join(CATEGORIES)}")
    queue, sandbox = call.service.queue, call.sandbox or query.get("sandbox")
    if call.sandbox:  # each may have 130 KiB, and the queue is held while they are read
        limit = min(limit, MOST_ROWS_OF_SANDBOX)
    if which == "pending":
        found = await in_thread_of(call.sandbox, queue.pending, limit, after, category, sandbox)
    else:
        found = await in_thread_of(call.sandbox, queue.recent, limit, sandbox)
    return JSONResponse({"requests": [request_row(each, whole=False) for each in found]})


async def request(call: WebCall) -> Response:
    wait = bodies.number(call.request.query_params, "wait", 0, most=MOST_WAIT)
    await own_request(call, call.id)
    found = await call.parts.feed.wait(call.id, wait, is_decided, call.sandbox)
    if found is None:
        raise missing("there is no such request")
    return JSONResponse(request_row(found))


async def own_request(call: WebCall, number: int) -> ApprovalRequest:
    """
    A request that the caller may see.

    Raises:
        WebProblem: there is no such request, or it is another sandbox's.
    """
    found = await in_thread_of(call.sandbox, call.service.queue.get, number) if number < 2**63 else None
    if found is None or (call.sandbox and found.sandbox != call.sandbox):
        raise missing("there is no such request")
    return found


def is_decided(request: ApprovalRequest) -> bool:
    return request.status != "pending"


async def request_detail(call: WebCall) -> Response:
    await own_request(call, call.id)
    return JSONResponse(await in_slow_thread("", call.service.detail, call.id))


async def ask(call: WebCall) -> Response:
    found = await in_slow_thread(call.sandbox, call.service.ask, call.fields, call.sandbox)
    return JSONResponse(request_row(found), 201)


async def approve(call: WebCall) -> Response:
    return await decided(call, True)


async def deny(call: WebCall) -> Response:
    return await decided(call, False)


async def decided(call: WebCall, approved: bool) -> Response:
    return JSONResponse(resolution_row(await decide_one(
        call.parts, call.id, approved, call.operator.by, always=bodies.switch(call.fields, "always", False),
        everywhere=bodies.switch(call.fields, "everywhere", False),
        profile=bodies.text(call.fields, "profile", most=64) if "profile" in call.fields else None,
        hunks=bodies.numbers(call.fields, "hunks", MOST_HUNKS))))


async def decide_one(parts: WebParts, number: int, approved: bool, by: str, *, always: bool = False,
                     everywhere: bool = False, profile: str | None = None,
                     hunks: list[int] | None = None) -> Resolution:
    """
    Decide one request. If it is about a file, wait until the file is written, CARRIED_OUT_S seconds at most.

    Raises:
        WebProblem: there is no such request, it was decided before, or the file was changed after it (status 409).
    """
    queue = parts.service.queue
    if number >= 2**63 or await in_thread(queue.get, number) is None:
        raise missing("there is no such request")
    if hunks is not None or profile is not None:
        if not approved or always or (hunks is not None and profile is not None):
            raise bad("hunks, profile: of what is approved, of this request alone")
        resolution = await (in_slow_thread("", parts.service.approve_hunks, number, hunks, by) if hunks is not None
                            else in_slow_thread("", parts.service.approve_in, number, profile or "", by))
    else:
        resolution = await in_thread(queue.decide, [number], approved, by, always=always, everywhere=everywhere)
    if resolution.rule:
        parts.feed.rules_changed()
    if not resolution.decided and resolution.before:
        before = resolution.before[0]
        raise WebProblem(409, "decided", f"request {number} is {before.status} already, by {before.decided_by}",
                         more={"request": request_row(before, whole=False)})
    await _carried_out(parts, resolution, number if hunks is None else None)
    return resolution


async def _carried_out(parts: WebParts, resolution: Resolution, number: int | None) -> None:
    """
    Wait until the approved files are written, that of request *number* or by None all.

    Raises:
        WebProblem: a file on the host was changed after the request.
    """
    for each in resolution.decided:
        if each.category == "filesystem" and each.stage == "due" and number in (each.id, None):
            found = await parts.feed.wait(each.id, CARRIED_OUT_S, lambda one: one.stage not in ("due", "applying"))
            if found is not None and found.decided_by == "stale":
                raise WebProblem(409, "stale", found.note, more={"request": request_row(found, whole=False)})


async def bulk(call: WebCall) -> Response:
    approved = bodies.switch(call.fields, "approved")
    numbers, by = bodies.numbers(call.fields, "ids", MOST_IDS), call.operator.by
    queue = call.service.queue
    if numbers is not None:
        found = await in_thread(queue.decide, numbers, approved, by)
    else:
        category = bodies.text(call.fields, "category")
        if category not in CATEGORIES:
            raise bad(f"category: one of {', '.join(CATEGORIES)}")
        upto = bodies.whole(call.fields, "upto")
        found = await in_thread(queue.decide_category, category, approved, by, upto)
    return JSONResponse(resolution_row(found))


async def rules(call: WebCall) -> Response:
    return JSONResponse(rules_row(call.service.queue.rules()))


def effect_of(fields: Mapping[str, Any]) -> Effect:
    effect = bodies.text(fields, "effect")
    if effect not in ("allow", "deny"):
        raise bad("effect: allow or deny")
    return cast("Effect", effect)


def project_in(fields: Mapping[str, Any]) -> str | None:
    """
    The project in which a rule holds: "" for all projects, None if the field is missing.

    Raises:
        WebProblem: the field is no absolute path.
    """
    if fields.get("project") is None:
        return None
    found = bodies.text(fields, "project", most=4096)
    if found and not found.startswith("/"):
        raise bad("project: the absolute path of a project, or nothing for all projects")
    return found


def rules_were_changed(call: WebCall, action: str, decision: str, **metadata: Any) -> None:
    """Record a change by the operator, and send the new rules to viewers."""
    call.service.changed(call.operator.by, action, decision, **metadata)
    call.parts.feed.rules_changed()


async def add_rule(call: WebCall) -> Response:
    rule, resolution = await in_thread(call.service.queue.add_rule, bodies.text(call.fields, "rule"),
                                       effect_of(call.fields), project_in(call.fields) or "")
    rules_were_changed(call, "rule", "added", rule=f"{rule.effect} {rule.text}", project=rule.project)
    return JSONResponse({**rule_row(rule), "resolution": resolution_row(resolution)}, 201)


async def remove_rule(call: WebCall) -> Response:
    text, project = bodies.text(call.fields, "rule"), project_in(call.fields)
    if not await in_thread(call.service.queue.remove_rule, text, project):
        raise missing("there is no such rule")
    rules_were_changed(call, "rule", "removed", rule=text, project=project)
    return JSONResponse({})


async def set_mode(call: WebCall) -> Response:
    category, mode = bodies.text(call.fields, "category"), bodies.text(call.fields, "mode")
    found = await in_thread(call.service.queue.set_mode, category, mode)
    rules_were_changed(call, "mode", "set", category=category, mode=mode)
    return JSONResponse(resolution_row(found))


async def config(call: WebCall) -> Response:
    return JSONResponse(await in_thread_of(call.sandbox, call.service.config))


def key_and_value(fields: Mapping[str, Any]) -> tuple[str, Any]:
    if "value" not in fields:
        raise bad("value: of the key")
    return bodies.text(fields, "key", most=200), fields["value"]


async def set_config(call: WebCall) -> Response:
    key, value = key_and_value(call.fields)
    found = await in_slow_thread("", call.service.set_config, key, value)
    rules_were_changed(call, "config", "set", key=key, value=value)
    return JSONResponse(found)


async def propose(call: WebCall) -> Response:
    found = await in_slow_thread(call.sandbox, call.service.propose_config, *key_and_value(call.fields),
                                 **_said(call))
    return JSONResponse(request_row(found), 201)


def _said(call: WebCall) -> dict[str, str]:
    """The fields that every call for a request has."""
    return {"reason": bodies.text(call.fields, "reason", ""), "sandbox": call.sandbox,
            "asker": bodies.text(call.fields, "asker", "")}


def _command(fields: Mapping[str, Any]) -> str | list[str]:
    command = fields.get("command")
    if isinstance(command, str):
        return command
    if isinstance(command, list) and all(isinstance(each, str) for each in command):
        return command
    raise bad("command: a line, or a list of arguments")


async def run_command(call: WebCall) -> Response:
    found = await in_slow_thread(
        call.sandbox, call.service.submit_exec, _command(call.fields), cwd=bodies.text(call.fields, "cwd", ""),
        timeout=bodies.number(call.fields, "timeout", EXEC_S, least=0.001),
        profile=bodies.text(call.fields, "profile", "", 100), **_said(call))
    return JSONResponse(request_row(found), 201)


async def runs(call: WebCall) -> Response:
    return JSONResponse({"runs": await in_thread(call.service.runs)})


async def run(call: WebCall) -> Response:
    wait, number = bodies.number(call.request.query_params, "wait", 0, most=MOST_WAIT), call.id
    found: ApprovalRequest | None = await own_request(call, number)
    if wait:  # on the event loop: no thread blocks on a person or a command
        found = await call.parts.feed.wait(number, wait, is_over, call.sandbox)
    if found is not None and found.replaced_by:  # a person has approved the command in another profile
        number = found.replaced_by
        found = await call.parts.feed.wait(number, wait, is_over, call.sandbox)
    # The request is finished a moment before the run has its exit code.
    rest = 1.0 if wait and found is not None and is_over(found) else 0.0
    return JSONResponse(await in_slow_thread(call.sandbox, call.service.run, number, rest))


def is_over(request: ApprovalRequest) -> bool:
    return request.status != "pending" and request.stage not in ("due", "applying")


async def packages(call: WebCall) -> Response:
    found = await in_slow_thread(call.sandbox, call.service.submit_packages, _command(call.fields), **_said(call))
    return JSONResponse({"requests": [request_row(each) for each in found]}, 201)


async def sync_files(call: WebCall) -> Response:
    if call.sandbox or not bodies.switch(call.fields, "over", False):
        return await _synced(call, call.service.sync_files)
    return await _synced(call, functools.partial(call.service.collect_files,
                                                 again=bodies.switch(call.fields, "again", False)))


async def sync_git(call: WebCall) -> Response:
    return await _synced(call, call.service.sync_git)


async def _synced(call: WebCall, sync: Callable[[str, str, str], SyncOutcome]) -> Response:
    said = _said(call)
    sandbox = call.sandbox or bodies.text(call.fields, "sandbox", most=100)
    # A sandbox can make its own git take as long as it likes, so it gets one thread alone.
    if call.sandbox and call.sandbox in call.parts.syncing:
        raise WebProblem(429, "busy", "another call is reading this sandbox's changes already", retry_after=1)
    own = {call.sandbox} - {""}
    call.parts.syncing.update(own)
    try:
        found = await in_long_thread(sync, sandbox, said["reason"], said["asker"])
    finally:
        call.parts.syncing.difference_update(own)
    return JSONResponse({"requests": [request_row(each, whole=False) for each in found.requests[:MOST_IDS]],
                         "refused": [{"path": path, "reason": reason} for path, reason in found.refused[:1000]],
                         "pending": sum(each.status == "pending" for each in found.requests),
                         "left_out": found.left_out, "more": found.more, "again": found.again}, 201)


async def sandboxes(call: WebCall) -> Response:
    return JSONResponse({"sandboxes": await in_slow_thread("", call.service.sandboxes)})


async def open_sandbox(call: WebCall) -> Response:
    options = call.fields.get("options", {})
    if not isinstance(options, dict):
        raise bad("options: an object")
    found = await in_slow_thread("", call.service.open_sandbox, bodies.text(call.fields, "path"), options)
    return JSONResponse(found, 201)


async def close_sandbox(call: WebCall) -> Response:
    stays = await in_slow_thread("", functools.partial(
        call.service.close_sandbox, left=bodies.switch(call.fields, "left", False)),
        call.request.path_params["sandbox"][:100])
    return JSONResponse({"stays": stays})


async def audit(call: WebCall) -> Response:
    query = call.request.query_params
    found = await in_slow_thread("", call.service.audit, bodies.whole(query, "limit", 100, least=1, most=1000),
                                 query.get("sandbox", "")[:100])
    return JSONResponse({"rows": found})


async def login_link(call: WebCall) -> Response:
    token = call.parts.access.login_token()
    call.service.changed(call.operator.by, "login link", "made")
    return JSONResponse({"path": f"/login?token={token}"}, 201)


async def program_token(call: WebCall) -> Response:
    token = call.parts.access.program_token()
    call.service.changed(call.operator.by, "token", "made")
    return JSONResponse({"token": token}, 201)


#: By the name of the route. The WebSocket `live` is in live.py.
HANDLERS: Mapping[str, Handler] = {
    "status": status, "requests": requests, "ask": ask, "request": request, "request_detail": request_detail,
    "approve": approve, "deny": deny, "bulk": bulk, "rules": rules, "add_rule": add_rule, "remove_rule": remove_rule,
    "config": config, "set_config": set_config, "propose": propose, "exec": run_command, "runs": runs, "run": run,
    "packages": packages, "sync_files": sync_files, "sync_git": sync_git, "sandboxes": sandboxes,
    "open_sandbox": open_sandbox, "close_sandbox": close_sandbox, "audit": audit, "set_mode": set_mode,
    "login_link": login_link, "program_token": program_token,
}
