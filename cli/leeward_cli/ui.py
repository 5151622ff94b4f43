"""`leeward ui`: a page about the daemon, in a browser on this machine."""

from __future__ import annotations

import html
import os
import tempfile
import threading
import webbrowser

import click

from leeward_cli.click_options import SOCKET
from leeward_cli.messages import complain

_PAGE = ('<!doctype html><meta charset="utf-8"><title>leeward</title><meta http-equiv="refresh" content="0;url={0}">'
         '<a href="{0}">leeward</a>\n')


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="PORT",
              help="Serve on this port of 127.0.0.1.  [default: a free one]")
@click.option("--open/--no-open", "opens", default=None, help="Open the page in a browser.  [default: on a desktop]")
@SOCKET
def ui(socket: str | None, port: int, opens: bool | None) -> int:
    """
    Show sandboxes, jobs, how the last ones ended, decisions about connections, and charts on a page, until Ctrl-C.

    The page changes nothing. The link to it works once, and for five minutes.
    """
    try:
        from leeward.apps.approvals.viewing import view  # of the extra `web`
    except ImportError as error:
        complain(f"{error.name} is missing: pip install 'leeward[web]'")
        return 1
    if opens is None:
        opens = os.isatty(2) and any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    with tempfile.TemporaryDirectory(prefix="leeward-ui-", dir=os.environ.get("XDG_RUNTIME_DIR") or None) as folder:

        def ready(link: str) -> None:
            click.echo(f"leeward ui: by a link that works once within five minutes: {link}", err=True)
            if opens:
                _open(link, os.path.join(folder, "page.html"))

        return view(socket, port, ready)


def _open(link: str, path: str) -> None:
    """Open *link* in a browser by the file *path*: arguments of a program can be seen by other users of the host."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w", encoding="utf-8") as file:
        file.write(_PAGE.format(html.escape(link)))
    # A browser in a terminal ends when its user is done, and needs the page until then.
    threading.Thread(target=webbrowser.open, args=(f"file://{path}",), name="leeward browser", daemon=True).start()
