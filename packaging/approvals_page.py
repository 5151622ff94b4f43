"""The table of routes in docs/approvals.md, from their declarations in leeward/apps/approvals/web."""

from __future__ import annotations

from pathlib import Path

from leeward.apps.approvals.web.application import ROUTES
from leeward.apps.approvals.web.routes import WebField, WebRoute

PAGE = Path(__file__).resolve().parent.parent / "docs" / "approvals.md"

BEGIN, END = "<!-- routes: made by ./dev generate -->\n", "<!-- end -->"


def made() -> str:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    rows = "".join(map(row, (each for each in ROUTES if not each.page)))
    return f"{before}{BEGIN}| route | for sandboxes | | fields |\n|---|---|---|---|\n{rows}{END}{rest.partition(END)[2]}"


def row(route: WebRoute) -> str:
    method, path = route.method.replace("WEBSOCKET", "GET"), route.path.replace(":int", "")
    fields = "; ".join(said(name, field) for name, field in route.fields.items())
    return f"| `{method} {path}` | {'yes' if route.who == 'asks' else ''} | {route.about} | {fields} |\n"


def said(name: str, field: WebField) -> str:
    """What the table says of a field; a star is one that has to be given."""
    return f"`{name}`{'*' if field.is_needed else ''} {field.about}{', from the operator alone' if field.operator else ''}"
