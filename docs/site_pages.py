"""
Pages of the site that aren't in docs/: a hook of mkdocs, named in mkdocs.yml.

Runs in:   mkdocs, which `./dev docs` runs.

README.md and its like are in other folders of a checkout. This hook makes pages of them, and rewrites the links to
them, from them and between them. A link to another file of the checkout becomes its text, since the site has no such
page. A link to a file that doesn't exist stays, so that mkdocs warns of it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

#: Pages of the site by their files in the checkout.
PAGES = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "SKILL.md": "skill.md",
    "tests/escapes/CATALOGUE.md": "attacks.md",
}
#: Files of the checkout by their pages.
_SOURCES = {page: source for source, page in PAGES.items()}

_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s:#]+)(#[^)\s]*)?\)")
#: Code isn't text: a block in fences, or a span.
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]*`)", re.MULTILINE | re.DOTALL)


def relinked(text: str, page: str) -> str:
    """
    *text* of *page*, its links as the site has them.

    Args:
        page: the page's path in the site, e.g. "wire.md".
    """
    folder = posixpath.dirname(_SOURCES.get(page, f"docs/{page}"))

    def written(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        meant = posixpath.normpath(posixpath.join(folder, target))
        there = PAGES.get(meant) or (meant.removeprefix("docs/") if meant.startswith("docs/") else None)
        if there is None:
            return label if (ROOT / meant).exists() else match[0]
        if (ROOT / meant / "index.md").is_file():
            there += "/index.md"
        return f"[{label}]({posixpath.relpath(there, posixpath.dirname(page) or '.')}{anchor})"

    # Split by code: what is at odd places is code. A label may hold a span, so that links are found around it first.
    spans: list[str] = []

    def kept(match: re.Match[str]) -> str:
        spans.append(match[0])
        return f"\0{len(spans) - 1}\0"

    return re.sub("\0(\\d+)\0", lambda match: spans[int(match[1])], _LINK.sub(written, _CODE.sub(kept, text)))


def on_config(config: Any) -> Any:
    """List the decisions, in the order of their index."""
    index = (ROOT / "docs/decisions/index.md").read_text()
    (listed,) = (part["Decisions"] for tab in config["nav"] for part in tab.get("Contribute", ()) if "Decisions" in part)
    listed += (f"decisions/{name}" for name in re.findall(r"^\| \[[0-9]+\]\(([^)]+)\)", index, re.MULTILINE))
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        if (ROOT / source).is_file():
            files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Write the links anew."""
    return relinked(markdown, page.file.src_uri)


def on_post_build(config: Any) -> None:
    """The list of pages for models, and the text of each page that it names, beside the pages."""
    site = Path(config["site_dir"])
    text = relinked((ROOT / "docs/llms.txt").read_text(), "llms.txt")
    (site / "llms.txt").write_text(text)
    for page in re.findall(r"\]\(([^)]+\.md)\)", text):
        source = (ROOT / _SOURCES.get(page, f"docs/{page}")).read_text()
        (site / page).write_text(relinked(source, page))
