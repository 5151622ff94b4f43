"""
Draws the rooms in docs/architecture.md.

Runs in:   a developer's shell: `./dev generate`.

A room is a package. What it runs in is the word of its docstring, and what it imports is read from its source, so
neither can go stale. Imports below `if TYPE_CHECKING` don't count: they name types, and no process takes them.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
SOURCES = (ROOT / "leeward", ROOT / "cli" / "leeward_cli")

BEGIN = "<!-- The table is made by ./dev generate. -->\n"
END = "<!-- The end of the table. -->\n"


def rooms() -> dict[str, Path]:
    """Every package by its dotted name, leeward's own first."""
    found = {}
    for source in SOURCES:
        for init in sorted(source.rglob("__init__.py")):
            found[".".join(init.parent.relative_to(source.parent).parts)] = init.parent
    return found


def runs_in(folder: Path) -> str:
    """What the docstring of the package says after "Runs in:", up to the end of its sentence; "" if it doesn't say."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    match = re.search(r"^Runs in:\s+(.*?)(?=\n\S|\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
    return "" if match is None else re.split(r"[.;:](?:\s|$)", " ".join(match[1].split()))[0]


def imports(name: str, folder: Path, known: dict[str, Path]) -> list[str]:
    """The other rooms that modules of this one name in an import."""
    seen = set()
    for module in folder.glob("*.py"):
        tree = ast.parse(module.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = []
        for node in ast.walk(tree):
            named = []
            if isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
                named = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for each in named:
                room = next((each[:end] for end in _ends(each) if each[:end] in known), None)
                if room is not None and room not in (name, "leeward"):
                    seen.add(room)
    return sorted(seen)


def _ends(dotted: str) -> list[int]:
    """Where the name may be cut, the longest first."""
    return [len(dotted), *reversed([match.start() for match in re.finditer(r"\.", dotted)])]


def table() -> str:
    known = rooms()
    rows = ["| room | runs in | imports |", "|---|---|---|"]
    for name, folder in known.items():
        if name == "leeward":
            continue
        short = [each.removeprefix("leeward.") for each in imports(name, folder, known)]
        rows.append(f"| `{name.removeprefix('leeward.')}` | {runs_in(folder)} | {', '.join(short) or '-'} |")
    return "\n".join(rows) + "\n"


def page(written: str) -> str:
    """The page with the table of today."""
    before, _, rest = written.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


def made() -> str:
    return page(PAGE.read_text())
