"""The one view of all changes, as the page has it."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from starlette.applications import Starlette

from kit.approvals_page import PageService, browser
from kit.approvals_pictures import populated
from leeward.apps.approvals.web.change_view import size_text


def words(text: str) -> str:
    """The text of the view of a change in a page."""
    start = text.index('<div class="diff" id="diff">')
    text = text[start:text.index('<details class="more-about">', start)]
    return re.sub(r"\s+", " ", html.unescape(re.sub("<[^>]*>", " ", text)))


def test_every_change_has_the_same_view(app: Starlette, service: PageService, tmp_path: Path) -> None:
    views, (client, _) = populated(service, tmp_path), browser(app)
    shown = {name: client.get(path).text for name, path in views.items()
             if name not in ("asked", "command") and "/queue/" in path}
    said = {name: words(text) for name, text in shown.items()}

    for name, parts in {
            "change": ("change src/settings.py", "399 bytes, before 225 bytes", "Change 1 of 3"),
            "deleted": ("delete src/old.py", "a file of 225 bytes", "import json"),
            "binary": ("change logo.png", "a picture (PNG)", "The picture", "before"),
            "mode": ("change tool", "rwxr-xr-x, before rw-r--r--", "only the mode changes"),
            "empty": ("add src/__init__.py", "an empty file"),
            "link": ("add latest", "a link to src/settings.py"),
            "large": ("add data.csv", "0;0", "20999;440958001", "between these two parts", "Show all of it"),
            "push": ("5 files", "rename old name.txt \u2192 \u00fcberblick.txt", "rwxr-xr-x", "an empty file",
                     "import")}.items():
        for part in parts:
            assert part in said[name] or part in shown[name], (name, part)
    assert "10000;100000000" not in shown["large"]
    assert "10000;100000000" in client.get(f"{views['large']}?full=1").text
    assert "letters of another alphabet" in shown["deceiving"]
    assert "goes on behind 60 blanks" in shown["deceiving"]
    found = re.search(r'commit=([0-9a-f]{40})"><code>[0-9a-f]{10}</code> Write the settings', shown["push"])
    assert found is not None
    one = words(client.get(f"{views['push']}?commit={found[1]}").text)
    assert "settings.py" in one
    assert "run.sh" not in one


def test_a_picture_is_the_only_content_that_is_served(app: Starlette, service: PageService, tmp_path: Path) -> None:
    """With its own type, which the browser doesn't guess."""
    client, _ = browser(app)
    file = tmp_path / "project" / "a"
    file.write_bytes(b"\x89PNG\r\n\x1a\n\0before")
    number = service.write("a", b"GIF89a\0after").id
    for side, kind, content in (("before", "image/png", file.read_bytes()), ("after", "image/gif", b"GIF89a\0after")):
        found = client.get(f"/queue/{number}/content/{side}")
        assert (kind, content, "nosniff") == (found.headers["content-type"], found.content,
                                              found.headers["x-content-type-options"])
        assert "default-src 'none'" in found.headers["content-security-policy"]
    assert 404 == client.get(f"/queue/{number}/content/other").status_code
    for content in (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", b"<html>", b"%PDF-1\0", b""):
        assert 404 == client.get(f"/queue/{service.write('b', content).id}/content/after").status_code
    file.write_bytes(b"\x89PNG\r\n\x1a\n\0other")
    assert 200 != client.get(f"/queue/{number}/content/before").status_code  # it isn't what was shown


@pytest.mark.parametrize(("size", "text"), [(0, "0 bytes"), (1, "1 byte"), (1023, "1023 bytes"), (1024, "1.0 KiB"),
                                            (3 << 20, "3.0 MiB"), (3 << 30, "3072.0 MiB")])
def test_sizes_are_for_people(size: int, text: str) -> None:
    assert text == size_text(size)
