"""
The table of the service's routes: name, method, path, and whether a sandbox may call it.

Runs in:   the operator's program that decides, and its command line; pure.
Holds:     the application is built from this table, and answers 403 to a sandbox at each route that isn't marked
           `asks`. A new route is the operator's alone unless its row has the mark.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServiceRoute:
    """
    One route.

    Attributes:
        name: of its handler.
        method: of HTTP; "WEBSOCKET" for the one that stays open.
        path: as Starlette writes it.
        about: for people and for OpenAPI, one sentence.
        asks: a sandbox may call it; it gets its own requests alone.
    """

    name: str
    method: str
    path: str
    about: str
    asks: bool = False


ROUTES = (
    ServiceRoute("status", "GET", "/api/status",
                 "When the service was started, how long it has left, what it counts.", True),
    ServiceRoute("requests", "GET", "/api/requests",
                 "Requests: `which` is pending (default) or recent; `after`, `limit`, `category`.", True),
    ServiceRoute("ask", "POST", "/api/requests", "Ask; answers 201 with the request.", True),
    ServiceRoute("request", "GET", "/api/requests/{id:int}",
                 "One request; with `wait`, as soon as it is decided, or after so many seconds.", True),
    ServiceRoute("request_detail", "GET", "/api/requests/{id:int}/detail",
                 "What it would carry out: before and after of a file, with its hunks."),
    ServiceRoute("approve", "POST", "/api/requests/{id:int}/approve",
                 "Approve; `always` stores a rule, `everywhere` for all projects; `hunks` takes a part; `profile` says "
                 "where a command is run."),
    ServiceRoute("deny", "POST", "/api/requests/{id:int}/deny",
                 "Deny; `always` stores a rule, `everywhere` for all projects."),
    ServiceRoute("bulk", "POST", "/api/bulk",
                 "Decide several: `approved`, and `ids`, or `category` with `upto`, the last id that was seen."),
    ServiceRoute("rules", "GET", "/api/rules", "Rules and modes."),
    ServiceRoute("add_rule", "POST", "/api/rules", "Store a rule: `rule`, `effect`, `project` if not everywhere."),
    ServiceRoute("remove_rule", "DELETE", "/api/rules", "Remove a rule: `rule`, `project` if in one alone."),
    ServiceRoute("config", "GET", "/api/config", "The configuration.", True),
    ServiceRoute("set_config", "PUT", "/api/config", "Set one key: `key`, `value`."),
    ServiceRoute("propose", "POST", "/api/propose",
                 "Ask for a key to be set: `key`, `value`, `reason`.", True),
    ServiceRoute("exec", "POST", "/api/exec",
                 "Ask for a command: `command`, `cwd`, `reason`, `timeout`, `profile`; answers 201 with it.", True),
    ServiceRoute("runs", "GET", "/api/exec", "The commands that were run, the newest first."),
    ServiceRoute("run", "GET", "/api/exec/{id:int}",
                 "One command: how far it is, and its output; `wait` as of a request.", True),
    ServiceRoute("packages", "POST", "/api/packages",
                 "Ask for packages: `command`, `reason`; answers 201 with a request for each.", True),
    ServiceRoute("sync_files", "POST", "/api/sync/files",
                 "Make requests of what a sandbox has changed in its copy of the project: `sandbox`. "
                 "From the operator, `over`: its work is over; take all there is room for, and with `again` go on.",
                 True),
    ServiceRoute("sync_git", "POST", "/api/sync/git",
                 "Make requests of the branches that were pushed inside: `sandbox`.", True),
    ServiceRoute("sandboxes", "GET", "/api/sandboxes", "The sandboxes that can ask."),
    ServiceRoute("open_sandbox", "POST", "/api/sandboxes",
                 "Open one: `path` of a project; answers 201 with its id."),
    ServiceRoute("close_sandbox", "DELETE", "/api/sandboxes/{sandbox}",
                 "End one; with `left`, when all its changes are decided."),
    ServiceRoute("audit", "GET", "/api/audit", "Lines of the record, the newest first: `limit`, `sandbox`."),
    ServiceRoute("live", "WEBSOCKET", "/api/live",
                 "init, request, resolve, rules, output, shutdown, error; takes approve and deny."),
    ServiceRoute("openapi", "GET", "/api/openapi.json", "This description.", True),
    ServiceRoute("set_mode", "PUT", "/api/modes", "Set the mode of a category: `category`, `mode`."),
    ServiceRoute("login_link", "POST", "/api/login-links",
                 "A path for a browser on this machine that logs in once, within five minutes."),
    ServiceRoute("program_token", "POST", "/api/tokens",
                 "A token for a program that comes by TCP (`Authorization: Bearer`), until the service ends."),
)
