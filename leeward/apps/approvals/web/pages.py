"""
The page's routes: its tabs, and its forms, which work without a script.

Trust:     none in the texts: see drawing.py. A form names its request, and the content under an id never changes, so a
           decision is about what was shown.
"""

from __future__ import annotations

import functools
import posixpath
import shlex
import time
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from importlib import resources
from typing import Any, TypeVar
from urllib.parse import urlencode

from starlette.responses import RedirectResponse, Response

from leeward.apps.approvals.carrying.detail import content_kind
from leeward.apps.approvals.carrying.orders import mode_text
from leeward.apps.approvals.git.pushed_changes import PushedChanges
from leeward.apps.approvals.queue.approval_request import ApprovalRequest, CollapsedRow, collapsed
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.queue.rules import CATEGORIES, Effect, generate_rule
from leeward.apps.approvals.queue.subjects import subject_title
from leeward.apps.approvals.web.api import add_rule, decide_one, remove_rule, set_config, set_mode
from leeward.apps.approvals.web.blocking_calls import in_slow_thread, in_thread
from leeward.apps.approvals.web.change_view import ChangeView, commit_rows, file_view, push_views
from leeward.apps.approvals.web.drawing import MOST_FULL, MOST_SHOWN
from leeward.apps.approvals.web.gate import cookie_name
from leeward.apps.approvals.web.http_call import WebCall
from leeward.apps.approvals.web.json_objects import rules_row
from leeward.apps.approvals.web.problems import WebProblem, bad, missing
from leeward.apps.approvals.web.rendering import draw, remarks_of
from leeward.apps.approvals.web.routes import CATEGORY, EFFECT, PROJECT, WebField, one_of, route, text, whole
from leeward.errors import LeewardError

Value = TypeVar("Value")

#: Requests of one list, at most, before rows of one sandbox are collapsed.
MOST_LISTED = 100

ANSWERS = ("approve", "deny", "always-allow", "always-deny", "profile")

#: Of the list of pending requests.
LISTED = {"category": WebField(one_of(("", *CATEGORIES), f"one of {', '.join(CATEGORIES)}"), "of them", ""),
          "after": WebField(whole(), "the id of the last one of the page before", 0)}

_STATIC = {"page.css": "text/css", "page.js": "text/javascript", "daemon.js": "text/javascript",
           "icon.svg": "image/svg+xml"}


async def common(call: WebCall, tab: str) -> dict[str, Any]:
    """The values that every page shows; without a service those of one that only shows."""
    if not call.shared.frame.decides:
        return {"frame": call.shared.frame, "tab": tab, "session": call.session, "now": time.time()}
    status = await in_thread(call.service.status)
    return {"frame": call.shared.frame, "tab": tab, "session": call.session, "counts": status["pending_by_category"],
            "pending": status["pending"], "now": time.time(),
            "status": status, "categories": CATEGORIES, "held": call.parts.held.all(),
            "said": call.request.query_params.get("said", "")[:20],
            "about": call.request.query_params.get("about", "")[:20]}


@route("GET", "/", "Leads to the first tab.", page=True)
async def home(call: WebCall) -> Response:
    return RedirectResponse(call.shared.frame.home, 303)


async def _listed(call: WebCall, category: str, after: int) -> dict[str, Any]:
    query = call.request.query_params
    found = await in_thread(call.service.queue.pending, MOST_LISTED, after, category or None)
    more, held = found[-1].id if len(found) == MOST_LISTED else None, _held(call)
    found = [each for each in found if each.id not in held]
    rows = collapsed(found) if "all" not in query else [CollapsedRow(each) for each in found]
    return {"rows": rows, "category": category or None, "title_of": subject_title, "after": after, "is_all": "all" in query,
            "more": more, "upto": found[-1].id if found else 0,
            "runs": await in_thread(_runs, call.service.queue, found, more is not None),
            "bulk": {each: sum(row.category == each for row in found) for each in CATEGORIES}}


def _held(call: WebCall) -> set[int]:
    """The requests about which a decision was made that can still be taken back."""
    return {number for each in call.parts.held.all() for number in each.numbers}


def _runs(queue: ApprovalQueue, found: Sequence[ApprovalRequest], is_part: bool) -> list[dict[str, Any]]:
    """The sandboxes that have several files in *found*, which is a part of all requests if *is_part*."""
    files = [each for each in found if each.category == "filesystem"]
    projects = {each.sandbox: each.project for each in files}
    return [{"sandbox": sandbox, "project": projects[sandbox],
             "count": queue.counts(sandbox)["filesystem"] if is_part else count}
            for sandbox, count in Counter(each.sandbox for each in files).items() if count > 1]


@route("GET", "/queue", "What waits for a decision.", LISTED, page=True)
async def queue_page(call: WebCall, category: str, after: int) -> Response:
    values = await common(call, "queue") | await _listed(call, category, after)
    part = call.request.query_params.get("part")
    if part == "list":
        return draw("list.html", values | {"request": None})
    first = values["rows"][0].request if values["rows"] else None
    shown = await _shown(call, first) if first else {}
    return draw("queue.html", values | {"request": first, "alone": False} | shown)


@route("GET", "/queue/{id:int}", "One request.", LISTED, page=True)
async def request_page(call: WebCall, category: str, after: int) -> Response:
    found = await in_thread(call.service.queue.get, call.id) if call.id < 2**63 else None
    if found is None:
        raise missing("there is no such request; what was decided long ago is in the record")
    values = await common(call, "queue") | await _shown(call, found) | {"request": found, "alone": True}
    part = call.request.query_params.get("part")
    if part in ("detail", "changes"):
        return draw(f"{part}.html", values)
    return draw("queue.html", values | await _listed(call, category, after))


async def or_why(found: Awaitable[Value], otherwise: Value) -> tuple[Value, str]:
    """What *found* gives and "", or *otherwise* and why it fails."""
    try:
        return await found, ""
    except LeewardError as error:
        return otherwise, str(error)


async def _shown(call: WebCall, request: ApprovalRequest) -> dict[str, Any]:
    """The values that a page shows of one request."""
    query = call.request.query_params
    is_full, commit = "full" in query, query.get("commit", "")[:64]
    detail, why = dict[str, Any](), ""
    if request.status == "pending" or request.stage in ("due", "applying"):
        detail, why = await or_why(in_slow_thread("", functools.partial(
            call.service.detail, whole=is_full), request.id), {})
    run = None
    if request.category in ("exec", "packages") and request.stage:
        run = await in_slow_thread("", call.service.run, request.id)
    pushed = None
    if detail.get("kind") == "push":
        pushed, why = await or_why(in_slow_thread("", call.service.pushed, request.id, commit), None)
    changes = await in_slow_thread("", _views, request, detail, pushed, commit, is_full)
    return {"title": subject_title(request.subject), "title_of": subject_title, "detail": detail, "why": why,
            "changes": changes, "hunks": len(detail.get("hunks", ())), "run": run, "rule": _rule_of(request),
            "most": MOST_FULL if is_full else MOST_SHOWN, "is_full": is_full, "metadata": _flat(request.metadata),
            "commits": commit_rows(pushed) if pushed else [], "commit": commit, "more_files": pushed.more if pushed else 0,
            "description": "" if _is_plain(request, pushed) else request.description,
            "shell_line": detail.get("line") or shlex.join(detail.get("argv", ())), "remarks": remarks_of(request)}


def _views(request: ApprovalRequest, detail: Mapping[str, Any], pushed: PushedChanges | None, commit: str,
           whole: bool) -> list[ChangeView]:
    if pushed is not None:
        return push_views(request.id, pushed, commit)
    return [file_view(request, detail, whole)] if detail.get("kind") == "file" else []


def _is_plain(request: ApprovalRequest, pushed: PushedChanges | None) -> bool:
    """Whether the description of a request, made by this program, says no more than the view of its change."""
    words = request.description.split(" ")
    return pushed is not None or (request.category == "filesystem" and len(words) == 2 and (
        words[0] in ("created", "modified", "deleted", "mode") or words[0] == "sync:"))


def _rule_of(request: ApprovalRequest) -> dict[str, str]:
    """What "always" would store, and in which project; "" where nothing could be, and why."""
    if request.status != "pending":
        return {"text": "", "why": "", "project": ""}
    try:
        return {"text": generate_rule(request.subject, "allow").text, "why": "", "project": request.project}
    except LeewardError as error:
        return {"text": "", "why": str(error), "project": ""}


def _flat(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The metadata of a request as texts, without `remarks`, which the page shows elsewhere."""
    return [(str(name), mode_text(value) if name == "mode" and type(value) is int else
             value if isinstance(value, str) else str(value))
            for name, value in list(metadata.items())[:50] if name != "remarks" and value not in ("", None)]


def _back(said: str, about: object = "") -> Response:
    return RedirectResponse(f"/queue?{urlencode({'said': said, 'about': str(about)})}", 303)


@route("POST", "/queue/{id:int}/decide", "Approve or deny.", {
    "answer": WebField(one_of(ANSWERS, f"{', '.join(ANSWERS[:-1])} or {ANSWERS[-1]}"), "of the person"),
    "digest": WebField(text(64), "of the request that was shown", None),
    "profile": WebField(text(64), "of the answer `profile`", only=lambda given: given.get("answer") == "profile")}, page=True)
async def decide_form(call: WebCall, answer: str, digest: str | None, profile: str | None = None) -> Response:
    approved = answer not in ("deny", "always-deny")
    hunks = None
    if call.fields.get("hunks") == "all" and approved:
        shown = await in_slow_thread("", call.service.detail, call.id)
        hunks = list(range(len(shown.get("hunks", []))))
    elif "hunks" in call.fields and approved:
        hunks = [int(name[5:]) for name in call.fields if name.startswith("hunk-") and name[5:].isascii()
                 and name[5:].isdigit() and len(name) < 12]
        if not hunks:
            raise bad("no change was chosen")
    await decide_one(call.parts, call.id, approved, call.operator.by, always=answer.startswith("always"),
                     everywhere="everywhere" in call.fields, profile=profile, hunks=hunks, digest=digest,
                     in_browser=call.in_browser)
    return _back("approved" if approved else "denied", call.id)


@route("POST", "/bulk", "Decide a category up to the last request that was seen; it can be taken back for five seconds.", {
    "category": WebField(CATEGORY, "of requests"), "answer": WebField(one_of(("approve", "deny")), "of the person"),
    "upto": WebField(whole(), "the last one that was seen")}, page=True)
async def bulk_form(call: WebCall, category: str, answer: str, upto: int) -> Response:
    found = await in_thread(call.service.queue.numbers_of, category, upto)
    return _hold(call, [number for number in found if number not in _held(call)], answer == "approve", "/queue")


def _hold(call: WebCall, numbers: Sequence[int], approved: bool, then: str) -> Response:
    if not numbers:
        raise bad("nothing was chosen")
    call.parts.held.hold(numbers, approved, call.operator.by)
    return RedirectResponse(then, 303)


@route("POST", "/undo", "Takes back a decision about several requests.", {
    "key": WebField(text(64), "of the decision")}, page=True)
async def undo_form(call: WebCall, key: str) -> Response:
    return _back("undone" if call.parts.held.undo(key) else "too-late")


#: Files of one page on which they are decided together.
MOST_TOGETHER = 500

_OF_RUN = {"sandbox": WebField(text(100), "its id; empty for the operator's own", "")}


@route("GET", "/together", "The files of one run, by folder.", {
    **_OF_RUN, "after": WebField(whole(), "the id of the last one of the page before", 0)}, page=True)
async def together_page(call: WebCall, sandbox: str, after: int) -> Response:
    pending = call.service.queue.pending
    found = await in_thread(pending, MOST_TOGETHER, after, "filesystem", sandbox)
    more = found[-1].id if len(found) == MOST_TOGETHER else None
    if more is not None and not await in_thread(pending, 1, more, "filesystem", sandbox):
        more = None
    held, folders = _held(call), dict[str, list[ApprovalRequest]]()
    shown = [each for each in found if each.id not in held]
    for each in shown:
        folders.setdefault(posixpath.dirname(subject_title(each.subject)), []).append(each)
    values = await common(call, "queue")
    return draw("together.html", values | {
        "sandbox": sandbox, "folders": sorted(folders.items()), "count": len(shown), "title_of": subject_title,
        "project": shown[0].project if shown else "", "asker": shown[0].asker if shown else "",
        "more": more})


@route("POST", "/together", "Decide the files that are ticked, all or those of one folder.", {
    **_OF_RUN, "approve": WebField(text(), "the folder of those to approve, `*` for all", None),
    "deny": WebField(text(), "the folder of those to deny, `*` for all", None)}, page=True)
async def together_form(call: WebCall, sandbox: str, approve: str | None, deny: str | None) -> Response:
    folder = approve if approve is not None else deny
    ticked = [int(name[2:]) for name in call.fields if name.startswith("r-") and name[2:].isascii() and name[2:].isdigit()
              and len(name) < 20]
    wanted = await in_thread(_files_in, call.service.queue, ticked, sandbox, folder)
    return _hold(call, wanted, approve is not None, f"/together?{urlencode({'sandbox': sandbox})}")


def _files_in(queue: ApprovalQueue, ticked: Sequence[int], sandbox: str, folder: str | None) -> list[int]:
    """Those of the requests *ticked* that are pending and about a file of *sandbox* in *folder* (`*`: anywhere)."""
    rows = filter(None, map(queue.get, ticked))
    return [row.id for row in rows if (row.status, row.category, row.sandbox) == ("pending", "filesystem", sandbox)
            and folder in ("*", posixpath.dirname(subject_title(row.subject)))]


@route("GET", "/queue/{id:int}/content/{side}", "A picture before or after its change.", {
    "commit": WebField(text(64), "of a push", ""), "place": WebField(whole(), "of the file in the push", 0)}, page=True)
async def picture(call: WebCall, commit: str, place: int) -> Response:
    side = call.request.path_params["side"]
    if side not in ("before", "after"):
        raise missing("there is no picture")
    content = await in_slow_thread("", call.service.content, call.id, side, commit, place)
    kind = content_kind(content)
    if not kind.startswith("image/"):
        raise missing("there is no picture")
    # Nothing in it is run, whatever a browser takes it for.
    return Response(content, media_type=kind, headers={"Content-Disposition": "inline; filename=picture"})


@route("GET", "/rules", "Rules and modes.", page=True)
async def rules_page(call: WebCall) -> Response:
    return draw("rules.html", await common(call, "rules") | {"rules": rules_row(call.service.queue.rules())})


def _adds(given: Mapping[str, Any]) -> bool:
    return given.get("answer") != "remove"


@route("POST", "/rules", "Add or remove a rule.", {
    "rule": WebField(text(10000), "its text"), "effect": WebField(EFFECT, "of a rule to add", only=_adds),
    "project": WebField(PROJECT, "its path, if not everywhere", None)},
    page=True)
async def rule_form(call: WebCall, rule: str, project: str | None, effect: Effect = "deny") -> Response:
    if _adds(call.fields):
        await add_rule(call, rule, effect, project)
    else:
        await remove_rule(call, rule, project)
    return RedirectResponse("/rules", 303)


@route("POST", "/modes", "Set a mode.", {
    "category": WebField(text(20), "of rules"), "mode": WebField(text(20), "for it")}, page=True)
async def mode_form(call: WebCall, category: str, mode: str) -> Response:
    await set_mode(call, category, mode)
    return RedirectResponse("/rules", 303)


@route("GET", "/config", "The configuration.", page=True)
async def config_page(call: WebCall) -> Response:
    found, why = await or_why(in_thread(call.service.config), {})
    proposals = await in_thread(call.service.queue.pending, MOST_LISTED, 0, "sandbox")
    return draw("config.html", await common(call, "config") | {
        "config": [(name, f"{value:g}" if isinstance(value, float) else str(value)) for name, value in found.items()],
        "why": why, "proposals": proposals, "title_of": subject_title})


@route("POST", "/config", "Set a key.", {
    "key": WebField(text(200), "of the configuration"), "value": WebField(text(200), "for it")}, page=True)
async def config_form(call: WebCall, key: str, value: str) -> Response:
    try:
        new: float | str = float(value)
    except ValueError:
        new = value
    await set_config(call, key, new)
    return RedirectResponse("/config", 303)


@route("GET", "/sandboxes", "The sandboxes that can ask.", page=True)
async def sandboxes_page(call: WebCall) -> Response:
    found, why = await or_why(in_slow_thread("", call.service.sandboxes), [])
    runs = await in_thread(call.service.runs)
    return draw("sandboxes.html", await common(call, "sandboxes") | {"sandboxes": found, "runs": runs[:50], "why": why})


@route("GET", "/history", "What was decided, and the record.", page=True)
async def history_page(call: WebCall) -> Response:
    recent = [each for each in await in_thread(call.service.queue.recent, 200) if each.status != "pending"]
    lines, why = await or_why(in_slow_thread("", call.service.audit, 100), [])
    return draw("history.html", await common(call, "history") | {
        "recent": recent, "lines": lines, "why": why, "title_of": subject_title})


@route("GET", "/login", "Uses a login link up, or says where there is one.", who="anyone", page=True)
async def login_page(call: WebCall) -> Response:
    token = call.request.query_params.get("token", "")
    # HEAD, by which a program may look ahead, doesn't use the link up.
    frame, access = call.shared.frame, call.shared.access
    cookie = access.log_in(token) if token and call.request.method == "GET" else None
    if cookie is None:
        return draw("login.html", {"frame": frame, "tab": "", "session": None, "is_used": bool(token), "is_in": False},
                    403 if token else 200)
    made = draw("login.html", {"frame": frame, "tab": "", "session": None, "is_used": False, "is_in": True})
    # Without Max-Age the cookie ends with the browser. Not Secure, since there is no TLS on loopback.
    made.set_cookie(cookie_name(call.request.scope["server"][1]), cookie, httponly=True, samesite="strict", path="/")
    return made


@route("POST", "/logout", "Ends the session.", page=True)
async def logout_form(call: WebCall) -> Response:
    if call.session is not None:
        call.parts.access.log_out(call.session)
    made = RedirectResponse("/login", 303)
    made.delete_cookie(cookie_name(call.request.scope["server"][1]), path="/", httponly=True, samesite="strict")
    return made


@route("GET", "/static/{name}", "A style, a script, an icon.", who="anyone", page=True)
async def static_file(call: WebCall) -> Response:
    name = call.request.path_params["name"]
    if name not in _STATIC:
        raise WebProblem(404, "not_found", "there is no such file")
    content = resources.files("leeward.apps.approvals.web").joinpath("static", name).read_bytes()
    return Response(content, media_type=_STATIC[name], headers={"Cache-Control": "no-cache"})
