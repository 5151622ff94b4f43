"""
A real browser before the page of approvals, which uvicorn serves on a thread.

Runs in:   the tests.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from starlette.applications import Starlette

from kit.approvals_page import PageService
from kit.loopback import Quiet, serving
from leeward.apps.approvals.web.application import application
from leeward.apps.approvals.web.listening import BoundedConnection, server_of

CHROMIUM = "/usr/bin/chromium"

ROOT = Path(__file__).parent.parent.parent

#: Looks for what people who don't see, or use keys alone, can't use; from npm.
AXE = ROOT / ".venv-axe/node_modules/axe-core/axe.min.js"

#: Options of a browser that shows no questions and no first-run pages.
ALONE = ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--no-first-run", "--disable-default-apps", "--disable-extensions", "--disable-domain-reliability",
         "--disable-dev-shm-usage", "--no-pings", "--mute-audio"]


class ServedApp:
    """
    Attributes:
        port: the page's port on loopback.
    """

    def __init__(self, app: Starlette) -> None:
        self.app = app
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(128)
        self.port = int(self._socket.getsockname()[1])
        self._server = server_of(self.app, BoundedConnection)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def link(self) -> str:
        """Return a link that logs in, once."""
        return f"http://127.0.0.1:{self.port}/login?token={self.app.state.parts.access.login_token()}"


class ServedPage(ServedApp):
    """
    Attributes:
        service: the service that decides.
    """

    def __init__(self, service: PageService) -> None:
        self.service = service
        super().__init__(application(service))


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Debian's Chromium, without a window."""
    root = ["--no-sandbox"] if 0 == os.geteuid() else []
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=[*ALONE, *root])
        try:
            yield found
        finally:
            found.close()


def logged_in(context: BrowserContext, served: ServedPage) -> Page:
    """Open a browser's page that is logged in and shows the queue."""
    page = context.new_page()
    page.goto(served.link())
    page.wait_for_url("**/queue")
    page.wait_for_selector("#link-state[data-state=on]")
    return page


@contextmanager
def other_port() -> Iterator[str]:
    """Return the address of a page that another program serves on this host."""
    class Answer(Quiet):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><link rel=icon href=data:,><body>a page of another port")

    with serving(Answer) as port:
        yield f"http://127.0.0.1:{port}/"


#: What axe finds by colours, and so once more in the dark.
COLOURS = ["color-contrast", "link-in-text-block"]


def serious(page: Page, name: str) -> dict[str, Any]:
    """What axe finds serious in what the page shows, called *name*: all in the light, what is in colours in the dark, too."""
    page.evaluate(AXE.read_text())
    found = dict[str, Any]()
    for scheme, more in (("dark", {"runOnly": COLOURS}), ("light", {})):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # one of these words
        wrong = page.evaluate("more => axe.run(document, { resultTypes: ['violations'], ...more })", more)["violations"]
        found |= {f"{name}, {scheme}: {each['id']}": [node["html"][:200] for node in each["nodes"][:5]] for each in wrong
                  if each["impact"] in ("serious", "critical")}
    return found


def shot(page: Page, name: str) -> None:
    """
    Save a screenshot of *page*: in the folder that LEEWARD_SCREENSHOTS names, else in dist/screenshots of the checkout,
    if the user who runs the tests may write there.
    """
    named = os.environ.get("LEEWARD_SCREENSHOTS")
    if named or os.access(ROOT, os.W_OK):
        folder = Path(named) if named else ROOT / "dist" / "screenshots"
        folder.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(folder / f"{name}.png"))
