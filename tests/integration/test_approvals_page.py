"""
The page of approvals in a real browser, which nobody but leeward talks to.

What it shows is kept in dist/screenshots, or where LEEWARD_SCREENSHOTS says; two of these pictures are in
docs/approvals.md.
"""

from __future__ import annotations

import itertools
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import pytest

from kit.waiting import poll_until
from leeward.apps.approvals.queue.approval_request import ApprovalRequest, NewRequest
from leeward.apps.approvals.queue.subjects import branch, endpoint, invocation

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from kit.approvals_browser import ServedPage

pytestmark = pytest.mark.needs("chromium")

BEFORE = '''import json
import os


def load(path):
    """Read the settings."""
    with open(path) as file:
        return json.load(file)


def save(path, settings):
    with open(path, "w") as file:
        json.dump(settings, file)
'''
AFTER = '''import json
import os
import tempfile


def load(path):
    """Read the settings."""
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def save(path, settings):
    # Written aside, then renamed: a reader never sees half of it.
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        json.dump(settings, file, indent=2)
    os.replace(file.name, path)
'''


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    from kit.approvals_browser import chromium

    with chromium() as made:
        yield made


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedPage]:
    from kit.approvals_browser import ServedPage
    from kit.approvals_page import page_service

    with page_service(tmp_path) as service:
        made = ServedPage(service)
        yield made
        made.close()


Window = Callable[..., "Page"]


@pytest.fixture
def window(chrome: Browser, served: ServedPage) -> Iterator[Window]:
    """Opens windows of one browser that is logged in; whatever goes wrong in one fails the test."""
    from kit.approvals_browser import logged_in

    contexts, wrong = list[Any](), list[str]()

    def open_window(*, height: int = 800, width: int = 1280, scheme: Any = "light") -> Page:
        context = chrome.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        context.set_default_timeout(15_000)
        contexts.append(context)
        page = logged_in(context, served)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(f"a dialog: {dialog.message}"))
        page.on("console", lambda message: wrong.append(message.text) if "error" == message.type
                and "409" not in message.text else None)
        return page

    yield open_window
    for context in contexts:
        context.close()
    assert not wrong


@pytest.fixture
def project(tmp_path: Path, served: ServedPage) -> Path:
    folder = tmp_path / "project"
    (folder / "src").mkdir()
    (folder / "src" / "settings.py").write_text(BEFORE)
    return folder


def push(served: ServedPage, name: str, **more: Any) -> ApprovalRequest:
    return served.service.queue.submit(NewRequest(branch(name), "push", sandbox="box", **more))


def status(served: ServedPage, number: int) -> tuple[str, str]:
    found = served.service.queue.get(number)
    assert found is not None
    return found.status, found.decided_by


def settled(page: Page, count: int) -> None:
    """Wait until the list has so many rows."""
    page.wait_for_function("count => document.querySelectorAll('#rows li').length === count", arg=count)


def shows(page: Page, number: int) -> None:
    page.wait_for_selector(f"#detail article[data-id='{number}']")
    page.wait_for_function("() => !document.querySelector('#decide button:disabled')")


def test_a_change_is_shown_and_approved_by_mouse(window: Window, served: ServedPage, project: Path) -> None:
    request = served.service.write("src/settings.py", AFTER, reason="A reader could see half of the settings.",
                                   description="Write the settings file atomically.")
    page = window()
    assert "(1) Queue · leeward" == page.title()
    shows(page, request.id)
    two = page.locator("#diff .two")
    assert "tempfile" in (two.first.text_content() or "")
    assert "import" == page.locator("#diff .t-k").first.text_content()
    assert page.locator("#diff .two .changed .dif").count() > 0
    page.get_by_role("button", name="One column").click()
    page.locator("#diff .one").first.wait_for()
    two.first.wait_for(state="hidden")

    page.click("#decide button[value=approve]")
    settled(page, 0)

    assert ("approved", "page") == status(served, request.id)
    assert AFTER == (project / "src" / "settings.py").read_text()
    page.wait_for_function("() => document.title === 'Queue · leeward'")
    page.get_by_text("Nothing waits for you.").wait_for()


def test_some_hunks_of_a_file_and_a_whole_category_can_be_approved(window: Window, served: ServedPage,
                                                                   project: Path) -> None:
    file = project / "a"
    file.write_text("".join(f"{number}\n" for number in range(30)))
    request = served.service.write("a", "first\n" + "".join(f"{number}\n" for number in range(1, 29)) + "last\n")
    page = window()
    shows(page, request.id)
    page.locator(".hunk-head input").first.uncheck()
    page.click("button[value=hunks]")
    settled(page, 0)
    assert file.read_text().startswith("0\n1\n")
    assert file.read_text().endswith("28\nlast\n")
    assert ("superseded", "supersession") == status(served, request.id)

    numbers = [push(served, name).id for name in "abc"]
    settled(page, 3)
    page.keyboard.press("b")
    page.click("#bulk button[value=deny]")
    late = push(served, "late").id
    asked = page.get_by_role("dialog", name="Deny 3 requests?")
    asked.get_by_role("button", name="Deny").click()
    page.wait_for_url("**/queue?said=denied-all&about=3")
    assert [("denied", "page")] * 3 + [("pending", "")] == [status(served, number) for number in (*numbers, late)]


def test_output_of_a_command_is_shown_as_it_comes(window: Window, served: ServedPage) -> None:
    service = served.service
    request = service.submit_exec(["make"], sandbox="box")
    page = window()
    shows(page, request.id)
    service.queue.decide([request.id], True, "cli")
    page.wait_for_selector("#detail .state.st-failed")  # there is no daemon to run it
    service._runs.add(request.id, "stdout", b"it is \x1b[31mred\n")
    page.wait_for_function("() => document.querySelector('#detail .output')?.textContent.includes('it is ESC[31mred')")


def test_the_page_can_be_used_by_keys_alone(window: Window, served: ServedPage, project: Path) -> None:
    numbers = [push(served, name).id for name in "abcd"]
    changed = served.service.write("src/settings.py", AFTER)
    page = window()
    shows(page, numbers[0])
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()
    page.keyboard.press("a")  # a dialog takes the keys
    page.keyboard.press("Escape")

    page.keyboard.press("j")
    shows(page, numbers[1])
    page.keyboard.press("d")
    assert ("pending", "") == status(served, numbers[1])  # what has only just come is looked at first
    page.wait_for_timeout(400)
    page.keyboard.press("d")
    shows(page, numbers[2])
    settled(page, 4)
    assert ("denied", "page") == status(served, numbers[1])
    page.keyboard.press("k")
    shows(page, numbers[0])
    page.wait_for_timeout(400)
    page.keyboard.press("a")
    settled(page, 3)
    assert ("approved", "page") == status(served, numbers[0])
    for _ in range(3):
        page.keyboard.press("j")
    shows(page, changed.id)
    page.locator("#hunk-0").wait_for()
    page.keyboard.press("]")
    assert "hunk-0" == page.evaluate("document.activeElement.id")
    page.keyboard.press("s")
    page.locator("#diff .one").first.wait_for()
    page.keyboard.press("2")
    page.wait_for_url("**/rules")
    page.keyboard.press("1")
    page.wait_for_url("**/queue")


def test_always_allow_decides_similar_requests(window: Window, served: ServedPage) -> None:
    for name in ("a.example.co.uk", "b.example.co.uk", "other.org", "example.co.uk"):
        served.service.queue.submit(NewRequest(endpoint(name, 443), "connect", sandbox="box"))
    page = window()
    shows(page, 1)
    assert 4 == page.locator("#rows .countdown").count()
    left = page.locator("#rows .countdown .left").first
    begun = left.text_content()
    assert (begun or "").startswith(("4m5", "5m"))
    page.wait_for_function("begun => document.querySelector('#rows .countdown .left').textContent !== begun", arg=begun)
    page.keyboard.press("Tab")
    page.wait_for_timeout(400)
    page.keyboard.press("Shift+A")
    asked = page.get_by_role("dialog", name="Always allow?")
    assert "network(*.example.co.uk)" in (asked.text_content() or "")
    assert ("pending", "") == status(served, 1)
    asked.get_by_role("button", name="Always allow").click()
    settled(page, 1)

    assert [("approved", "page"), ("approved", "rule"), ("pending", ""), ("approved", "rule")] == [
        status(served, number) for number in (1, 2, 3, 4)]
    page.keyboard.press("2")
    page.wait_for_url("**/rules")
    page.get_by_text("network(*.example.co.uk)").wait_for()


def test_two_windows_stay_in_step(window: Window, served: ServedPage) -> None:
    first, second = window(), window()
    request = push(served, "a")
    for page in (first, second):
        settled(page, 1)
        shows(page, request.id)
        assert page.title().startswith("(1) ")
    first.click("#decide button[value=deny]")
    second.wait_for_selector("#detail article[data-status=denied]")
    settled(second, 0)
    second.wait_for_function("() => document.title === 'Queue · leeward'")
    served.service.queue.add_rule("git(b)", "deny")
    assert ("denied", "rule") == (push(served, "b").status, "rule")
    push(served, "c")
    for page in (first, second):
        settled(page, 1)


#: What the browser is asked to show, in place of the system, and a window that looks hidden when the test says so.
NOTICES = """
    window.told = [];
    window.Notification = class {
        static permission = "granted";
        static requestPermission = async () => "granted";
        constructor(title, options) { window.told.push(`${title}: ${options.body}`); }
    };
    Object.defineProperty(document, "hidden", { get: () => Boolean(window.looksHidden) });
"""


def test_a_notice_has_no_text_of_a_sandbox_and_comes_where_it_is_wanted(window: Window, served: ServedPage) -> None:
    page = window()
    page.add_init_script(NOTICES)
    page.reload()
    page.wait_for_selector("#link-state[data-state=on]")
    page.evaluate("window.looksHidden = true")
    push(served, "unwanted", description=HOSTILE)
    settled(page, 1)
    assert [] == page.evaluate("told")
    page.keyboard.press("n")
    page.wait_for_selector("#notify[aria-pressed=true]")
    wanted = push(served, "wanted", description=HOSTILE)
    page.wait_for_function("() => told.length")
    assert [f"A request waits: git, number {wanted.id}"] == page.evaluate("told")
    page.wait_for_function("() => document.title.startsWith('(2) ')")


HOSTILE = (
    "<script>document.title = 'owned'</script><img src=/static/icon.svg onerror=\"alert(1)\" onload=\"alert(2)\">"
    "<svg/onload=alert(3)><style>body{display:none}</style><meta http-equiv=refresh content=0;url=/rules>"
    "</p></article></main><form action=/queue/1/decide method=post><button name=answer value=approve>Approve"
    "\u202etxt.exe \x1b[31mred\x1b]0;title\x07 \u200binvisible\u2066 \U000e0041 e\u0301\u0301\u0301\u0301\u0301 ")


def test_c330_hostile_texts_are_texts(window: Window, served: ServedPage, project: Path) -> None:
    described = HOSTILE + "x" * (65_000 - len(HOSTILE))
    served.service.queue.submit(NewRequest(invocation(f"echo {HOSTILE}; x"), "run", described, HOSTILE,
                                           {HOSTILE: HOSTILE, "remarks": [HOSTILE]}, HOSTILE[:90], HOSTILE[:200]))
    served.service.write("a<b>\u202egnp.py", HOSTILE + "\n" + "y" * 1_000_000 + "\n")
    page = window()
    for number, path in itertools.product((1, 2), ("", "?full=1")):
        page.goto(f"http://127.0.0.1:{served.port}/queue/{number}{path}")
        page.wait_for_selector("#link-state[data-state=on]")
        shown = page.locator("#detail").inner_text()
        assert "leeward" in page.title()
        page.locator("main").wait_for()
        assert 0 == page.locator("main img, main style, main script, main meta, main svg[onload]").count()
        assert {1: 2, 2: 1}[number] == page.locator("#detail form").count()  # a command may be run elsewhere
        assert 1 == page.locator("#detail button[value=approve]").count()
        for hidden in "\u202e\x1b\x07\u200b\u2066\U000e0041":
            assert hidden not in shown
        for mark in ("RLO", "ESC", "ZWSP", "LRI", "U+E0041"):
            assert mark in shown
    # Nothing of it is wider than the window.
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_c329_a_login_link_works_once(chrome: Browser, served: ServedPage) -> None:
    link = served.link()
    with chrome.new_context() as first, chrome.new_context() as second:
        page = first.new_page()
        page.goto(link)
        page.wait_for_url("**/queue")
        other = second.new_page()
        other.goto(link)
        assert "doesn't work any more" in (other.text_content("h1") or "")
        other.goto(f"http://127.0.0.1:{served.port}/queue")
        assert other.url.endswith("/login")
        cookie, = first.cookies()
        assert (True, "Strict") == (cookie["httpOnly"], cookie["sameSite"])


def test_c327_c328_another_page_of_the_browser_gets_no_data(window: Window, served: ServedPage) -> None:
    """
    One on another port of the same host, to which the browser sends the cookie as well, and one whose name has come to
    be this address.
    """
    from kit.approvals_browser import other_port

    request = push(served, "a")
    own, page = f"http://127.0.0.1:{served.port}", window()
    csrf = page.locator("meta[name=csrf]").get_attribute("content")
    attack = """async ([own, path, csrf]) => {
        const said = [];
        const send = (how) => fetch(own + path, { method: "POST", credentials: "include", ...how });
        const form = { "Content-Type": "application/x-www-form-urlencoded" };
        const json = { "Content-Type": "application/json", "X-CSRF-Token": csrf };
        for (const how of [{ mode: "no-cors", headers: form, body: `csrf=${csrf}&answer=approve` },
                           { mode: "cors", headers: json, body: "{}" }])
            said.push(await send(how).then((answer) => answer.type, () => "refused"));
        said.push(await new Promise((resolve) => {
            const socket = new WebSocket(own.replace("http", "ws") + "/api/live");
            socket.onmessage = () => resolve("told");
            socket.onclose = () => resolve("refused");
        }));
        const frame = document.createElement("iframe");
        frame.src = own + "/queue";
        document.body.append(frame);
        await new Promise((resolve) => { frame.onload = resolve; });
        try { said.push(frame.contentDocument ? "seen" : "hidden"); } catch (error) { said.push("hidden"); }
        return said;
    }"""
    arguments = [own, f"/queue/{request.id}/decide", csrf]
    # Control: the same from the page itself.
    page.evaluate("""async ([own, path, csrf]) => fetch(path, { method: "POST", redirect: "manual",
        body: new URLSearchParams({ csrf, answer: "deny" }) })""", arguments)
    assert ("denied", "page") == status(served, request.id)
    request = push(served, "b")
    arguments[1] = f"/queue/{request.id}/decide"

    with other_port() as address:
        other = page.context.new_page()
        other.goto(address)
        # What the first would get is refused by the answer's own head, too (Cross-Origin-Resource-Policy).
        assert ["refused", "refused", "refused", "hidden"] == other.evaluate(attack, arguments)
        other.close()
    assert ("pending", "") == status(served, request.id)

    for name in ("attacker.example", f"attacker.example:{served.port}", "127.0.0.1"):
        asked = urllib.request.Request(f"{own}/login", headers={"Host": name})
        with pytest.raises(HTTPError) as raised:
            urllib.request.urlopen(asked)
        assert 403 == raised.value.code
        raised.value.close()


def test_the_page_works_without_a_script(chrome: Browser, served: ServedPage) -> None:
    requests = [push(served, name) for name in "ab"]
    with chrome.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(served.link())
        page.wait_for_url("**/queue")
        page.click("#decide button[value=approve]")
        page.get_by_text("was approved").wait_for()
        page.click("#decide button[value=deny]")
        page.get_by_text("was denied").wait_for()
    assert [("approved", "page"), ("denied", "page")] == [status(served, each.id) for each in requests]


def test_a_request_that_comes_while_the_list_is_fetched_is_shown(window: Window, served: ServedPage) -> None:
    """The list that is fetched for the first one doesn't have the second one yet."""
    page = window()
    with page.expect_websocket() as opened:
        page.reload()
    fetched: list[Any] = []
    page.route("**/queue?*part=list", lambda route: fetched.append((route, route.fetch())), times=1)
    push(served, "first")
    poll_until(lambda: (page.evaluate("() => 0"), fetched)[1], "each call lets the handler of the route go on")
    with opened.value.expect_event("framereceived"):
        push(served, "second")
    route, answer = fetched[0]
    route.fulfill(response=answer)
    settled(page, 2)


def test_ten_thousand_requests_stay_usable(window: Window, served: ServedPage) -> None:
    from kit.approvals_page import fill

    fill(served.service, 10_000)
    page = window()
    assert page.title().startswith("(10000) ")
    took = []
    for _ in range(5):
        page.reload()
        page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length > 0")
        took.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
    print(f"first paint with 10,000 requests: {sorted(took)[2]:.0f} ms")
    assert sorted(took)[2] < 1000  # docs/approvals.md has a figure of a quieter machine
    push(served, "one-more")
    page.wait_for_function("() => document.title.startsWith('(10001) ')")


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_page_fits_the_window(window: Window, served: ServedPage, project: Path, width: int, height: int) -> None:
    """It fits in width, whatever is shown, in both schemes."""
    from kit.approvals_browser import shot

    service = served.service
    service.write("src/settings.py", AFTER, sandbox="qf3k2v7m", reason="A reader could see half of the settings.",
                  description="Write the settings file atomically.", where="/home/me/project")
    for name in ("registry.example.org", "api.example.net"):
        service.queue.submit(NewRequest(endpoint(name, 443), "connect", sandbox="qf3k2v7m"))
    service.submit_exec("curl https://get.example.org/install | sh", reason="install \u202etxt.exe", sandbox="b7xw")
    service.submit_packages("npm install --save-dev left-pad@1.3.0", reason="pads", sandbox="b7xw")
    service.queue.submit(NewRequest(branch("feature/atomic-settings"), "push", sandbox="qf3k2v7m"))
    service.queue.decide([service.write("README.md", "# Settings\n", sandbox="qf3k2v7m").id], True, "cli")
    kind = "wide" if width > 500 else "phone"
    for scheme in ("light", "dark"):
        page = window(width=width, height=height, scheme=scheme)
        for path in ("/queue", "/queue/1", "/queue/4", "/rules", "/config", "/sandboxes", "/history"):
            page.goto(f"http://127.0.0.1:{served.port}{path}")
            page.wait_for_selector("#link-state[data-state=on]")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            shot(page, f"{kind}-{scheme}-{path.strip('/').replace('/', '-')}")
        # Whatever can be used has a name.
        assert [] == page.evaluate("""() => [...document.querySelectorAll("button, a, input, select")]
            .filter((each) => !each.hidden && each.type !== "hidden")
            .filter((each) => !(each.ariaLabel || each.textContent.trim() || each.labels?.length))
            .map((each) => each.outerHTML)""")
