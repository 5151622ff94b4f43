"""`leeward ui` beside a real daemon: what it shows, in a browser too, and who sees it."""

from __future__ import annotations

import http.client
import os
import pwd
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import leeward
from kit import egress
from kit.egress import Servers
from kit.features import system_python
from kit.live_daemon import PATIENCE, LiveDaemon, command, environment
from kit.waiting import poll_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.needs("extra-web")

CONFIG = """\
pool_size = 1
allow_network = true
[egress.web]
allow = ["http://web.example.org:80"]
"""

STRANGE = "<script>alert(1)</script><img src=x onerror=alert(1)>"


class Viewer:
    """
    `leeward ui`, from its link to its end.

    Attributes:
        link: what it prints, which logs in once.
        port: of the page.
    """

    def __init__(self, daemon: LiveDaemon, *options: str, **env: str) -> None:
        self.process = subprocess.Popen(command("ui", *options), env=environment(daemon.socket, **env), text=True,
                                        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert "by a link that works once" in line, line + self.process.stderr.read()
        self.link = line.split()[-1]
        self.port = int(self.link.split(":")[2].partition("/")[0])
        self._cookie = ""

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.stderr is not None
        assert (0, "") == (self.process.wait(PATIENCE), self.process.stderr.read())
        self.process.stderr.close()

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        """The status and the body of an answer; a login's session is kept."""
        asked = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        asked.request(method, path, headers={"Cookie": self._cookie} if self._cookie else {})
        answer = asked.getresponse()
        body = answer.read().decode()
        self._cookie = (answer.getheader("set-cookie") or self._cookie).partition(";")[0]
        asked.close()
        return answer.status, body

    def shown(self) -> str:
        """What the page shows, in at most one look of a second ago."""
        status, body = self.get("/daemon?part=now")
        assert 200 == status
        return body


@pytest.fixture(scope="module")
def daemon(host: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with egress.live(tmp_path_factory.mktemp("daemon"), CONFIG) as daemon:
        yield daemon


def test_it_shows_what_the_daemon_does_and_has_done(daemon: LiveDaemon) -> None:
    with Viewer(daemon, "--no-open") as viewer, leeward.Sandbox(
            socket=daemon.socket, egress="web", metadata={"for": STRANGE}) as box:
        assert 303 == viewer.get("/daemon")[0]
        assert [200, 403] == [viewer.get(viewer.link[viewer.link.index("/login"):])[0] for _ in range(2)]
        box.start(["sleep", "1000"])
        box.run(["python", "-c", "import socket; socket.getaddrinfo('evil.example.org', 80)"])
        assert 124 == daemon.run("exec", "--timeout", "0.2", "while True: pass").returncode

        poll_until(lambda: "timed_out" in viewer.shown(), "the job's end is seen", PATIENCE)
        text = viewer.shown()

        for part in (box.id, "limit time", "evil.example.org", "denied", "<polyline", "&lt;script&gt;alert(1)"):
            assert part in text, part
        assert "<script>" not in text
        assert "<img" not in text


def test_nothing_is_changed_by_any_method(daemon: LiveDaemon) -> None:
    with Viewer(daemon, "--no-open") as viewer, leeward.Sandbox(socket=daemon.socket) as box:
        viewer.get(viewer.link[viewer.link.index("/login"):])
        for path in ("/daemon", "/", "/api/sandboxes", f"/api/sandboxes/{box.id}", "/api/login-links", "/api/tokens",
                     "/logout", "/queue", "/api/openapi.json", "/static/page.css"):
            for method in ("POST", "PUT", "DELETE", "PATCH"):
                assert viewer.get(path, method)[0] in (403, 404, 405), (method, path)
        assert 404 == viewer.get("/queue")[0] == viewer.get("/api/status")[0]
        poll_until(lambda: box.id in viewer.shown(), "a look is shared for a second", PATIENCE)


def test_a_daemon_that_ends_is_said_and_the_next_one_shown_from_its_beginning(tmp_path: Path) -> None:
    with LiveDaemon(tmp_path, "--pool-size", "1") as daemon:
        viewer = Viewer(daemon, "--no-open")
        viewer.get(viewer.link[viewer.link.index("/login"):])
        daemon.run("exec", "1")
        poll_until(lambda: "finished" in viewer.shown(), "the end is seen", PATIENCE)
    with viewer:
        poll_until(lambda: 'role="alert"' in viewer.shown(), "the daemon's end is seen", PATIENCE)
        assert "Last ends" not in viewer.shown()
        with LiveDaemon(tmp_path, "--pool-size", "1"):
            poll_until(lambda: "No job and no sandbox" in viewer.shown(), "the next one is seen", PATIENCE)


KNOCK = """
import socket, sys
for host in ("127.0.0.1", "localhost", "0.0.0.0", "127.0.0.2", socket.gethostname()):
    try:
        with socket.create_connection((host, int(sys.argv[1])), 5) as made:
            made.sendall(b"GET /login HTTP/1.0\\r\\nHost: 127.0.0.1:%d\\r\\n\\r\\n" % int(sys.argv[1]))
            print("reached", made.recv(100).decode().split()[1])
    except OSError:
        print("none")
"""


def test_no_job_and_no_sandbox_reaches_it(daemon: LiveDaemon) -> None:
    """Not by a policy of egress either. The same lines reach it on the host."""
    with Viewer(daemon, "--no-open") as viewer, daemon.client() as client:
        port = str(viewer.port)
        control = subprocess.run([sys.executable, "-c", KNOCK, port], capture_output=True, text=True, timeout=60, check=True)
        assert "reached 200" in control.stdout
        assert ["none"] * 5 == client.execute(KNOCK, args=[port]).stdout_text.split("\n")[:5]
        for options in ({}, {"egress": "web"}):
            with leeward.Sandbox(socket=daemon.socket, **options) as box:  # type: ignore[arg-type]
                assert "reached" not in box.run(["python", "-c", KNOCK, port]).stdout_text


@pytest.mark.needs("root", "system-python")
def test_another_user_of_the_host_gets_the_login_alone(daemon: LiveDaemon) -> None:
    """And can't read the link in a process's arguments, or in a file."""
    look = ("import http.client, sys\nfor path in ('/daemon', '/daemon?part=now', '/', '/login?token=x'):\n"
            "    asked = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]))\n    asked.request('GET', path)\n"
            "    print(asked.getresponse().status)\n")
    nobody = pwd.getpwnam("nobody").pw_uid
    with Viewer(daemon, "--no-open") as viewer:
        done = subprocess.run([str(system_python()), "-c", look, str(viewer.port)], user=nobody, group=nobody,
                              extra_groups=[], cwd="/", capture_output=True, text=True, timeout=60, check=True)
        assert ["303", "303", "303", "403"] == done.stdout.split()
        assert 200 == viewer.get(viewer.link[viewer.link.index("/login"):])[0]


def test_a_browser_gets_the_link_by_a_file_of_the_users(daemon: LiveDaemon, tmp_path: Path) -> None:
    """Its arguments, which other users of the host see, have no token."""
    told = tmp_path / "told"
    browser = tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\nfile=${{1#file://}}\nstat -c %a \"$file\" \"$(dirname \"$file\")\" >{told}.new\n"
                       f"cat \"$file\" >>{told}.new\necho \"$*\" >>{told}.new\nmv {told}.new {told}\n")
    browser.chmod(0o755)
    with Viewer(daemon, "--open", BROWSER=f"{browser} %s", XDG_RUNTIME_DIR=str(tmp_path)) as viewer:
        poll_until(told.exists, "the browser was started", PATIENCE)
        modes, page, arguments = (lambda lines: (lines[:2], lines[2], lines[-1]))(told.read_text().splitlines())
        assert ["600", "700"] == modes
        assert viewer.link in page
        assert "token" not in arguments
        path = arguments.removeprefix("file://")
        assert stat.S_ISREG(os.stat(path).st_mode)
    assert not os.path.exists(path)


def test_a_browser_that_lasts_gets_the_page(daemon: LiveDaemon, tmp_path: Path) -> None:
    """As one in a terminal does: whoever opens it waits for its end."""
    told, browser = tmp_path / "told", tmp_path / "browser"
    browser.write_text(f"""#!{sys.executable}
import os, re, sys, urllib.request
link = re.search('href="([^"]+)"', open(sys.argv[1].removeprefix("file://")).read())[1]
with open("{told}.new", "w") as file:
    file.write(str(urllib.request.urlopen(link, timeout={PATIENCE}).status))
os.rename("{told}.new", "{told}")
""")
    browser.chmod(0o755)
    with Viewer(daemon, "--open", BROWSER=f"{browser} %s", XDG_RUNTIME_DIR=str(tmp_path)):
        poll_until(told.exists, "the browser has the page", PATIENCE)
    assert "200" == told.read_text()


def test_it_is_told_where_the_web_extra_is_missing(daemon: LiveDaemon, tmp_path: Path) -> None:
    (tmp_path / "starlette.py").write_text("raise ImportError('gone', name='starlette')\n")
    env = environment(daemon.socket)
    done = subprocess.run(command("ui"), env={**env, "PYTHONPATH": f"{tmp_path}:{env['PYTHONPATH']}"}, capture_output=True,
                          text=True, timeout=60, check=False)
    assert (1, "leeward: starlette is missing: pip install 'leeward[web]'\n") == (done.returncode, done.stderr)


@pytest.fixture
def page(daemon: LiveDaemon) -> Iterator[Page]:
    """A phone's page of the viewer, logged in; whatever goes wrong in it fails the test."""
    from kit.approvals_browser import chromium

    wrong = list[str]()
    with Viewer(daemon, "--no-open") as viewer, chromium() as browser:
        made = browser.new_context(viewport={"width": 360, "height": 740}).new_page()
        for event in ("pageerror", "dialog"):
            made.on(event, lambda told: wrong.append(str(told)))
        made.on("console", lambda message: wrong.append(message.text) if "error" == message.type else None)
        made.goto(viewer.link)
        made.wait_for_url("**/daemon")
        yield made
    assert not wrong


@pytest.mark.needs("chromium")
@pytest.mark.needs("axe")
def test_the_page_is_drawn_anew_fits_a_phone_and_axe_finds_nothing(page: Page, daemon: LiveDaemon) -> None:
    from kit.approvals_browser import serious

    page.wait_for_selector("#now .charts")
    with leeward.Sandbox(socket=daemon.socket, metadata={"for": f"{STRANGE} seen"}) as box:
        box.run(["true"])
        page.get_by_text(f"{STRANGE} seen").first.wait_for()  # without a reload
    daemon.run("exec", "1")
    page.wait_for_function("() => document.querySelectorAll('#now polyline').length >= 2")

    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert 0 == page.locator("form, button, input").count()
    assert {} == serious(page, "ui")
