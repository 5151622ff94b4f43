"""
REST: the routes for programs, each with its fields and its handler.

Trust:     none in fields. A sandbox gets only its own requests; for another one's the answer is that of an unknown id.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from leeward.apps.approvals.carrying.orders import EXEC_S
from leeward.apps.approvals.queue.approval_request import ApprovalRequest, Resolution
from leeward.apps.approvals.queue.rules import CATEGORIES, MODES, Effect
from leeward.apps.approvals.sync.changes import SyncOutcome
from leeward.apps.approvals.web.blocking_calls import in_long_thread, in_slow_thread, in_thread, in_thread_of
from leeward.apps.approvals.web.bodies import MOST_CONTENT_BODY
from leeward.apps.approvals.web.http_call import WebCall, WebParts
from leeward.apps.approvals.web.json_objects import request_row, resolution_row, rule_row, rules_row
from leeward.apps.approvals.web.problems import WebProblem, bad, missing
from leeward.apps.approvals.web.routes import (
    CATEGORY,
    COMMAND,
    EFFECT,
    OBJECT,
    PROJECT,
    SWITCH,
    VALUE,
    Row,
    WebField,
    number,
    one_of,
    route,
    text,
    unchecked,
    whole,
    wholes,
)

#: Rows of one answer, ids of one decision, hunks of one approval, seconds that a call waits: at most.
MOST_ROWS, MOST_IDS, MOST_HUNKS, MOST_WAIT = 500, 1000, 10_000, 300.0

#: Rows of one answer to a sandbox.
MOST_ROWS_OF_SANDBOX = 50

#: Seconds that an approval waits until the file is written.
CARRIED_OUT_S = 10.0


#: What every call for a request says.
SAID = {"reason": WebField(text(), "for the person who decides", ""),
        "asker": WebField(text(), "the name that the requester gives itself", "")}
ALWAYS = WebField(SWITCH, "store a rule", False)
EVERYWHERE = WebField(SWITCH, "the rule is for all projects", False)
DECISION = {"always": ALWAYS, "everywhere": EVERYWHERE,
            "profile": WebField(text(64), "of a sandbox in which an approved command is run", None),
            "hunks": WebField(wholes(MOST_HUNKS), "of a file's change: those that are approved", None),
            "digest": WebField(text(64), "of the request that was shown", None)}
WAIT = WebField(number(0, MOST_WAIT), "seconds to wait for the end", 0.0)
RULE = WebField(text(), "its text")
KEY = WebField(text(200), "of the configuration")
OF_SANDBOX = WebField(text(100), "its id", operator=True)

_TEXT = {"type": "string"}
#: Of a new request; `asking.parse_request` checks which a category has.
ASKED = {"category": WebField(unchecked(CATEGORY.schema), "of the request; packages have a route of their own"), **{
    name: WebField(unchecked(schema), about, None) for name, schema, about in (
        ("action", _TEXT, "`write`, `edit` or `delete` about a file, or a text about the sandbox"),
        ("host", _TEXT, "of the network"), ("port", {"type": "integer", "minimum": 0}, "of the host"),
        ("path", _TEXT, "of a file, in the project"), ("content", _TEXT, "of a file to write"),
        ("content_base64", _TEXT, "in its place"), ("mode", {"type": "integer"}, "permission bits of a file to write"),
        ("old", _TEXT, "what an edit replaces"), ("old_base64", _TEXT, "in its place"),
        ("new", _TEXT, "what an edit puts there"), ("new_base64", _TEXT, "in its place"),
        ("command", COMMAND.schema, "a line, or a list of arguments"), ("cwd", _TEXT, "the folder to start in"),
        ("timeout", {"type": "number"}, "seconds"), ("profile", _TEXT, "of a sandbox for the command"),
        ("branch", _TEXT, "to push"), ("description", _TEXT, "of the request"),
        ("reason", _TEXT, SAID["reason"].about), ("asker", _TEXT, SAID["asker"].about),
        ("metadata", OBJECT.schema, "what else a person should see"))}}


@route("GET", "/api/status", "When the service was started, how long it has left, what it counts.", who="asks")
async def status(call: WebCall) -> Row:
    found = await in_thread_of(call.sandbox, call.service.status)
    if call.sandbox:  # the numbers of other sandboxes' requests are the operator's alone
        return {key: found[key] for key in ("started", "uptime", "until", "remaining") if key in found}
    return found


@route("GET", "/api/requests", "Requests: the pending ones in their order, or the recent ones.", {
    "limit": WebField(whole(1, MOST_ROWS), f"rows at most; a sandbox gets {MOST_ROWS_OF_SANDBOX} at once", 50),
    "after": WebField(whole(), "the id of the last one that was seen", 0),
    "which": WebField(one_of(("pending", "recent")), "pending or recent", "pending"),
    "category": WebField(CATEGORY, "of pending ones", None), "sandbox": WebField(text(), "its id", None, operator=True)},
    who="asks")
async def requests(call: WebCall, limit: int, after: int, which: str, category: str | None,
                   sandbox: str | None = None) -> Row:
    queue, sandbox = call.service.queue, call.sandbox or sandbox
    if call.sandbox:  # each may have 130 KiB, and the queue is held while they are read
        limit = min(limit, MOST_ROWS_OF_SANDBOX)
    if which == "pending":
        found = await in_thread_of(call.sandbox, queue.pending, limit, after, category, sandbox)
    else:
        found = await in_thread_of(call.sandbox, queue.recent, limit, sandbox)
    return {"requests": [request_row(each, whole=False) for each in found]}


@route("GET", "/api/requests/{id:int}", "One request, as soon as it is decided or `wait` is over.", {"wait": WAIT},
       who="asks")
async def request(call: WebCall, wait: float) -> Row:
    await own_request(call, call.id)
    found = await call.parts.feed.wait(call.id, wait, is_decided, call.sandbox)
    if found is None:
        raise missing("there is no such request")
    return request_row(found)


async def own_request(call: WebCall, number: int) -> ApprovalRequest:
    """A request that the caller may see; WebProblem if there is none, or it is another sandbox's."""
    found = await in_thread_of(call.sandbox, call.service.queue.get, number) if number < 2**63 else None
    if found is None or (call.sandbox and found.sandbox != call.sandbox):
        raise missing("there is no such request")
    return found


def is_decided(request: ApprovalRequest) -> bool:
    return request.status != "pending"


@route("GET", "/api/requests/{id:int}/detail", "What it would carry out: before and after of a file, with its hunks.")
async def request_detail(call: WebCall) -> Row:
    await own_request(call, call.id)
    return await in_slow_thread("", call.service.detail, call.id)


@route("POST", "/api/requests", "Ask.", ASKED, who="asks", status=201, most_body=MOST_CONTENT_BODY)
async def ask(call: WebCall) -> Row:
    return request_row(await in_slow_thread(call.sandbox, call.service.ask, call.fields, call.sandbox))


@route("POST", "/api/requests/{id:int}/approve", "Approve.", DECISION)
async def approve(call: WebCall, always: bool, everywhere: bool, profile: str | None, hunks: list[int] | None,
                  digest: str | None) -> Row:
    return resolution_row(await decide_one(
        call.parts, call.id, True, call.operator.by, always=always, everywhere=everywhere, profile=profile, hunks=hunks,
        digest=digest, in_browser=call.in_browser))


@route("POST", "/api/requests/{id:int}/deny", "Deny.", DECISION)
async def deny(call: WebCall, always: bool, everywhere: bool, profile: str | None, hunks: list[int] | None,
               digest: str | None) -> Row:
    return resolution_row(await decide_one(
        call.parts, call.id, False, call.operator.by, always=always, everywhere=everywhere, profile=profile, hunks=hunks,
        digest=digest, in_browser=call.in_browser))


async def decide_one(parts: WebParts, number: int, approved: bool, by: str, *, always: bool = False,
                     everywhere: bool = False, profile: str | None = None, hunks: list[int] | None = None,
                     digest: str | None = None, in_browser: bool = False) -> Resolution:
    """
    Decide one request. If it is about a file, wait until the file is written, CARRIED_OUT_S seconds at most. WebProblem
    if there is no such request, it was decided before, or the file was changed after it (status 409).

    A change whose hunks a browser shows is approved by the hunks that were chosen and the digest of what was shown, and
    not without them.
    """
    queue = parts.service.queue
    request = await in_thread(queue.get, number) if number < 2**63 else None
    if request is None:
        raise missing("there is no such request")
    if digest is not None and digest != request.digest:
        raise bad("digest: this isn't the request that was shown")
    if approved and (in_browser or hunks is not None) and request.status == "pending":
        hunks = await _chosen(parts, request, hunks, in_browser and digest is None)
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


async def _chosen(parts: WebParts, request: ApprovalRequest, hunks: list[int] | None, is_unseen: bool) -> list[int] | None:
    """
    The hunks that are approved, None for the whole request. WebProblem if the page shows hunks, and the decision lacks
    them, or the digest (*is_unseen*).
    """
    if request.category != "filesystem":
        return hunks
    shown = (await in_slow_thread("", parts.service.detail, request.id)).get("hunks", [])
    if shown and (hunks is None or is_unseen):
        raise bad("hunks, digest: an approval of this change says which of its hunks were chosen, and what was shown")
    return None if shown and set(hunks or ()) == set(range(len(shown))) else hunks


async def _carried_out(parts: WebParts, resolution: Resolution, number: int | None) -> None:
    """Wait until the approved files are written, that of request *number* or by None all; WebProblem if one was changed."""
    for each in resolution.decided:
        if each.category == "filesystem" and each.stage == "due" and number in (each.id, None):
            found = await parts.feed.wait(each.id, CARRIED_OUT_S, lambda one: one.stage not in ("due", "applying"))
            if found is not None and found.decided_by == "stale":
                raise WebProblem(409, "stale", found.note, more={"request": request_row(found, whole=False)})


@route("POST", "/api/bulk", "Decide several: `ids`, or a category up to the last request that was seen.", {
    "approved": WebField(SWITCH, "or denied"), "ids": WebField(wholes(MOST_IDS), "of requests", None),
    "category": WebField(CATEGORY, "without `ids`", only=lambda given: given.get("ids") is None),
    "upto": WebField(whole(), "the id of the last one, without `ids`", only=lambda given: given.get("ids") is None)})
async def bulk(call: WebCall, approved: bool, ids: list[int] | None, category: str = "", upto: int = 0) -> Row:
    queue, by = call.service.queue, call.operator.by
    if ids is None:
        return resolution_row(await in_thread(queue.decide_category, category, approved, by, upto))
    resolution = await in_thread(queue.decide, ids, approved, by)
    return resolution_row(replace(resolution, decided=await _outcomes(call.parts, resolution.decided)))


async def _outcomes(parts: WebParts, decided: Sequence[ApprovalRequest]) -> tuple[ApprovalRequest, ...]:
    """The requests after their files were written, CARRIED_OUT_S seconds later at most."""
    until, found = time.monotonic() + CARRIED_OUT_S, list[ApprovalRequest]()
    for each in decided:
        if each.category == "filesystem" and each.stage == "due":
            left = max(0.0, until - time.monotonic())
            each = await parts.feed.wait(each.id, left, lambda one: one.stage not in ("due", "applying")) or each
        found.append(each)
    return tuple(found)


@route("GET", "/api/rules", "Rules and modes.")
async def rules(call: WebCall) -> Row:
    return rules_row(call.service.queue.rules())


def rules_were_changed(call: WebCall, action: str, decision: str, **metadata: Any) -> None:
    """Record a change by the operator, and send the new rules to viewers."""
    call.service.changed(call.operator.by, action, decision, **metadata)
    call.parts.feed.rules_changed()


@route("POST", "/api/rules", "Store a rule.", {
    "rule": RULE, "effect": WebField(EFFECT, "of the rule"),
    "project": WebField(PROJECT, "its path, if the rule isn't for all projects", None)}, status=201)
async def add_rule(call: WebCall, rule: str, effect: Effect, project: str | None) -> Row:
    made, resolution = await in_thread(call.service.queue.add_rule, rule, effect, project or "")
    rules_were_changed(call, "rule", "added", rule=f"{made.effect} {made.text}", project=made.project)
    return {**rule_row(made), "resolution": resolution_row(resolution)}


@route("DELETE", "/api/rules", "Remove a rule.", {
    "rule": RULE, "project": WebField(PROJECT, "its path, if the rule isn't to be removed everywhere", None)})
async def remove_rule(call: WebCall, rule: str, project: str | None) -> Row:
    if not await in_thread(call.service.queue.remove_rule, rule, project):
        raise missing("there is no such rule")
    rules_were_changed(call, "rule", "removed", rule=rule, project=project)
    return {}


@route("PUT", "/api/modes", "Set the mode of a category.", {
    "category": WebField(text(), f"one of {', '.join(CATEGORIES)}"), "mode": WebField(text(), f"one of {', '.join(MODES)}")})
async def set_mode(call: WebCall, category: str, mode: str) -> Row:
    found = await in_thread(call.service.queue.set_mode, category, mode)
    rules_were_changed(call, "mode", "set", category=category, mode=mode)
    return resolution_row(found)


@route("GET", "/api/config", "The configuration.", who="asks")
async def config(call: WebCall) -> Row:
    return await in_thread_of(call.sandbox, call.service.config)


@route("PUT", "/api/config", "Set one key.", {"value": WebField(VALUE, "for it"), "key": KEY})
async def set_config(call: WebCall, key: str, value: Any) -> Row:
    found = await in_slow_thread("", call.service.set_config, key, value)
    rules_were_changed(call, "config", "set", key=key, value=value)
    return found


@route("POST", "/api/propose", "Ask for a key to be set.", {"value": WebField(VALUE, "for it"), "key": KEY, **SAID},
       who="asks", status=201)
async def propose(call: WebCall, key: str, value: Any, reason: str, asker: str) -> Row:
    return request_row(await in_slow_thread(call.sandbox, call.service.propose_config, key, value, reason=reason,
                                            sandbox=call.sandbox, asker=asker))


@route("POST", "/api/exec", "Ask for a command.", {
    "command": WebField(COMMAND, "a line, or a list of arguments"), "cwd": WebField(text(), "the folder to start in", ""),
    "timeout": WebField(number(0.001), "seconds", EXEC_S),
    "profile": WebField(text(100), "of a sandbox for the command, which a sandbox can't choose", ""), **SAID},
       who="asks", status=201)
async def exec_(call: WebCall, command: str | list[str], cwd: str, timeout: float, profile: str, reason: str,
                asker: str) -> Row:
    return request_row(await in_slow_thread(
        call.sandbox, call.service.submit_exec, command, cwd=cwd, timeout=timeout, profile=profile, reason=reason,
        sandbox=call.sandbox, asker=asker))


@route("GET", "/api/exec", "The commands that were run, the newest first.")
async def runs(call: WebCall) -> Row:
    return {"runs": await in_thread(call.service.runs)}


@route("GET", "/api/exec/{id:int}", "One command: how far it is, and its output.", {"wait": WAIT}, who="asks")
async def run(call: WebCall, wait: float) -> Row:
    number = call.id
    found: ApprovalRequest | None = await own_request(call, number)
    if wait:  # on the event loop: no thread blocks on a person or a command
        found = await call.parts.feed.wait(number, wait, is_over, call.sandbox)
    if found is not None and found.replaced_by:  # a person has approved the command in another profile
        number = found.replaced_by
        found = await call.parts.feed.wait(number, wait, is_over, call.sandbox)
    # The request is finished a moment before the run has its exit code.
    rest = 1.0 if wait and found is not None and is_over(found) else 0.0
    return await in_slow_thread(call.sandbox, call.service.run, number, rest)


def is_over(request: ApprovalRequest) -> bool:
    return request.status != "pending" and request.stage not in ("due", "applying")


@route("POST", "/api/packages", "Ask for packages; the answer has a request for each.", {
    "command": WebField(COMMAND, "of a package manager"), **SAID}, who="asks", status=201)
async def packages(call: WebCall, command: str | list[str], reason: str, asker: str) -> Row:
    found = await in_slow_thread(call.sandbox, call.service.submit_packages, command, reason=reason,
                                 sandbox=call.sandbox, asker=asker)
    return {"requests": [request_row(each) for each in found]}


@route("POST", "/api/sync/files", "Make requests of what a sandbox has changed in its copy of the project.", {
    "over": WebField(SWITCH, "its work is over: take all there is room for", False, operator=True),
    "again": WebField(SWITCH, "with `over`, leave out what the calls before have asked for", False, operator=True,
                   only=lambda given: given.get("over") in (True, "true")),
    **SAID, "sandbox": OF_SANDBOX}, who="asks", status=201)
async def sync_files(call: WebCall, reason: str, asker: str, over: bool = False, again: bool = False,
                     sandbox: str = "") -> Row:
    sync = functools.partial(call.service.collect_files, again=again) if over else call.service.sync_files
    return await _synced(call, sync, sandbox, reason, asker)


@route("POST", "/api/sync/git", "Make requests of the branches that were pushed inside.", {**SAID, "sandbox": OF_SANDBOX},
       who="asks", status=201)
async def sync_git(call: WebCall, reason: str, asker: str, sandbox: str = "") -> Row:
    return await _synced(call, call.service.sync_git, sandbox, reason, asker)


async def _synced(call: WebCall, sync: Callable[[str, str, str], SyncOutcome], sandbox: str, reason: str,
                  asker: str) -> Row:
    # A sandbox can make its own git take as long as it likes, so it gets one thread alone.
    if call.sandbox and call.sandbox in call.parts.syncing:
        raise WebProblem(429, "busy", "another call is reading this sandbox's changes already", retry_after=1)
    own = {call.sandbox} - {""}
    call.parts.syncing.update(own)
    try:
        found = await in_long_thread(sync, call.sandbox or sandbox, reason, asker)
    finally:
        call.parts.syncing.difference_update(own)
    return {"requests": [request_row(each, whole=False) for each in found.requests[:MOST_IDS]],
            "refused": [{"path": path, "reason": reason} for path, reason in found.refused[:1000]],
            "pending": sum(each.status == "pending" for each in found.requests),
            "left_out": found.left_out, "more": found.more, "again": found.again}


@route("GET", "/api/sandboxes", "The sandboxes that can ask.")
async def sandboxes(call: WebCall) -> Row:
    return {"sandboxes": await in_slow_thread("", call.service.sandboxes)}


@route("POST", "/api/sandboxes", "Open one.", {
    "options": WebField(OBJECT, "as of `leeward approvals run`", {}), "path": WebField(text(), "of a project")}, status=201)
async def open_sandbox(call: WebCall, options: dict[str, Any], path: str) -> Row:
    return await in_slow_thread("", call.service.open_sandbox, path, options)


@route("DELETE", "/api/sandboxes/{sandbox}", "End one.", {
    "left": WebField(SWITCH, "not before all its changes are decided", False)})
async def close_sandbox(call: WebCall, left: bool) -> Row:
    return {"stays": await in_slow_thread("", functools.partial(call.service.close_sandbox, left=left),
                                          call.request.path_params["sandbox"][:100])}


@route("GET", "/api/audit", "Lines of the record, the newest first.", {
    "limit": WebField(whole(1, 1000), "lines at most", 100), "sandbox": WebField(text(), "its id", "")})
async def audit(call: WebCall, limit: int, sandbox: str) -> Row:
    return {"rows": await in_slow_thread("", call.service.audit, limit, sandbox[:100])}


@route("POST", "/api/login-links", "A path for a browser on this machine that logs in once, within five minutes.", status=201)
async def login_link(call: WebCall) -> Row:
    token = call.parts.access.login_token()
    call.service.changed(call.operator.by, "login link", "made")
    return {"path": f"/login?token={token}"}


@route("POST", "/api/tokens", "A token for a program that comes by TCP (`Authorization: Bearer`), until the service ends.",
       status=201)
async def program_token(call: WebCall) -> Row:
    token = call.parts.access.program_token()
    call.service.changed(call.operator.by, "token", "made")
    return {"token": token}
