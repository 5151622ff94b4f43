"""
The page of approvals in a real browser, which nobody but leeward talks to.

What it shows is kept in dist/screenshots, or where LEEWARD_SCREENSHOTS says; two of these pictures are in
docs/approvals.md.
"""

from __future__ import annotations

import itertools
import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import pytest

from kit.approvals_pictures import AFTER, BEFORE, populated
from kit.waiting import poll_until
from leeward.apps.approvals.queue.approval_request import ApprovalRequest, NewRequest
from leeward.apps.approvals.queue.subjects import branch, endpoint, invocation

if TYPE_CHECKING:
    from playwright.sync_api import APIResponse, Browser, Locator, Page, Route

    from kit.approvals_browser import ServedPage

pytestmark = pytest.mark.needs("chromium")

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


Window = Callable[[], "Page"]


@pytest.fixture
def window(chrome: Browser, served: ServedPage) -> Iterator[Window]:
    """Opens windows of one browser that is logged in; whatever goes wrong in one fails the test."""
    from kit.approvals_browser import logged_in

    contexts, wrong = list[Any](), list[str]()

    def open_window() -> Page:
        context = chrome.new_context(viewport={"width": 1280, "height": 800})
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


FIVE = "".join(f"{number}\n" for number in range(50))


def five_changes(served: ServedPage, project: Path) -> tuple[ApprovalRequest, str]:
    """A request for a change of five hunks, and what the host has when the second and fourth are left out."""
    (project / "a").write_text(FIVE)
    places = range(2, 50, 10)
    changed = [f"new {number}" if number in places else str(number) for number in range(50)]
    chosen = [f"new {number}" if number in places[::2] else str(number) for number in range(50)]
    return served.service.write("a", "\n".join(changed) + "\n"), "\n".join(chosen) + "\n"


@pytest.mark.parametrize("way", ["key", "click"])
def test_c510_what_was_unticked_is_not_written(window: Window, served: ServedPage, project: Path, way: str) -> None:
    """By the key while a tick box has the focus, and by a click; the button says what it does."""
    request, chosen = five_changes(served, project)
    page = window()
    shows(page, request.id)
    approve = page.locator("#decide .approve")
    boxes = page.locator(".hunk-head input")
    assert "Approve 5 of 5" in (approve.text_content() or "")
    boxes.nth(1).uncheck()
    boxes.nth(3).uncheck()
    assert "Approve 3 of 5" in (approve.text_content() or "")
    page.wait_for_timeout(400)  # a key decides about what was looked at
    if way == "key":
        boxes.nth(3).focus()
        page.keyboard.press("a")
    else:
        approve.click()
    settled(page, 0)
    assert chosen == (project / "a").read_text()
    assert ("superseded", "supersession") == status(served, request.id)


def test_no_hunk_and_a_rule_for_some_hunks_cannot_be_approved(window: Window, served: ServedPage, project: Path) -> None:
    request, _ = five_changes(served, project)
    page = window()
    shows(page, request.id)
    page.locator(".hunk-head input").first.uncheck()
    page.wait_for_timeout(400)
    page.keyboard.press("Shift+A")
    page.get_by_text("tick all changes first").wait_for(state="attached")
    for box in page.locator(".hunk-head input").all():
        box.uncheck()
    assert page.locator("#decide .approve").is_disabled()
    page.keyboard.press("a")
    page.get_by_text("No change is ticked").wait_for(state="attached")
    assert ("pending", "") == status(served, request.id)


def test_a_whole_category_is_decided_unless_it_is_taken_back(window: Window, served: ServedPage) -> None:
    numbers = [push(served, name).id for name in "abc"]
    served.app.state.parts.held.seconds = 60.0
    page = window()
    settled(page, 3)
    page.keyboard.press("b")
    page.click("#bulk button[value=deny]")
    late = push(served, "late").id
    page.get_by_role("dialog", name="Deny 3 requests?").get_by_role("button", name="Deny").click()
    page.locator(".held").get_by_text("3 requests will be denied").wait_for()
    page.wait_for_selector("#link-state[data-state=on]")  # keys are known from then on
    page.keyboard.press("u")
    page.get_by_text("it was taken back").wait_for()
    page.wait_for_selector("#link-state[data-state=on]")
    settled(page, 4)
    assert [("pending", "")] * 4 == [status(served, number) for number in (*numbers, late)]

    served.app.state.parts.held.seconds = 0.2
    page.keyboard.press("b")
    page.click("#bulk button[value=deny]")
    page.get_by_role("dialog", name="Deny 4 requests?").get_by_role("button", name="Deny").click()
    poll_until(lambda: [("denied", "page")] * 4 == [status(served, each) for each in (*numbers, late)], "the time is over")


def test_a_list_that_is_drawn_anew_loses_neither_the_focus_nor_a_click(window: Window, served: ServedPage) -> None:
    """The focus of `b`, by which Enter would open a request instead; and a click that has begun."""
    push(served, "a")
    page = window()
    settled(page, 1)
    page.keyboard.press("b")
    push(served, "b")
    settled(page, 2)
    assert "approve" == page.evaluate("document.activeElement.value")
    page.keyboard.press("Enter")
    page.get_by_role("dialog", name="Approve 2 requests?").get_by_role("button", name="Cancel").click()

    page.hover("#bulk button[value=deny]")
    with page.expect_response("**/queue?*part=list"):
        page.mouse.down()
        push(served, "c")
    page.mouse.up()
    page.get_by_role("dialog", name="Deny 2 requests?").wait_for()
    settled(page, 3)


def test_the_files_of_a_run_are_decided_together(window: Window, served: ServedPage, project: Path) -> None:
    """By folder, each can be looked at, and one with a warning isn't ticked at first."""
    for name in ("src/a.py", "src/b.py", "top.txt", "Makefile"):
        served.service.write(name, f"{name}\n")
    served.app.state.parts.held.seconds = 0.2
    page = window()
    page.get_by_role("link", name="Review 4 files").click()
    page.wait_for_url("**/together?sandbox=box")
    assert "Approve 3 of 4" in (page.locator("#together .decide .approve").text_content() or "")
    page.get_by_role("link", name="a.py").click()
    page.locator("#together .files .diff").get_by_text("src/a.py").first.wait_for()
    page.get_by_role("checkbox", name="src/b.py").uncheck()
    source = page.locator(".folder[data-folder=src]")
    with page.expect_navigation():
        source.get_by_role("button", name="Approve").click()
    poll_until(lambda: (project / "src/a.py").exists(), "the time is over")
    page.goto(f"http://127.0.0.1:{served.port}/together?sandbox=box")  # b.py is ticked again
    page.locator("#together .decide .deny").click()
    poll_until(lambda: ["approved", "denied", "denied", "pending"] == [status(served, number)[0] for number in (1, 2, 3, 4)],
               "the time is over")


def test_500_files_of_a_run_take_few_clicks(window: Window, served: ServedPage, project: Path) -> None:
    """Two, and two for each of ten with a warning, which is looked at and ticked."""
    for number in range(500):
        name = "Makefile" if number % 50 == 0 else f"f{number}.py"
        served.service.write(f"src/d{number // 25}/{name}", f"{number}\n")
    served.app.state.parts.held.seconds = 0.2
    page, clicks = window(), 0

    def click(what: Locator) -> None:
        nonlocal clicks
        clicks += 1
        what.click()

    click(page.get_by_role("link", name="Review 500 files"))
    page.wait_for_url("**/together?sandbox=box")
    for row in page.locator("#together li:has(.warning)").all():
        click(row.locator(".view"))
        row.locator(".diff").wait_for()
        click(row.get_by_role("checkbox"))
    assert 0 == page.get_by_role("link", name="Later files").count()
    approve = page.locator("#together .decide .approve")
    assert "Approve 500 of 500" in (approve.text_content() or "")
    click(approve)
    poll_until(lambda: 500 == len([*project.glob("src/d*/*")]), "all are on the host", 60)
    assert 22 == clicks


def test_output_of_a_command_is_shown_as_it_comes(window: Window, served: ServedPage) -> None:
    service = served.service
    request = service.submit_exec(["make"], sandbox="box")
    page = window()
    shows(page, request.id)
    service.queue.decide([request.id], True, "cli")
    page.wait_for_selector("#detail .state.st-failed")  # there is no daemon to run it
    service._runs.add(request.id, "stdout", b"it is \x1b[31mred\n")
    page.wait_for_function(
        "() => document.querySelector('#detail .output')?.textContent.includes('it is red')")
    assert "red\n" == page.locator("#detail .output .o-red").text_content()


def test_the_page_can_be_used_by_keys_alone(window: Window, served: ServedPage, project: Path) -> None:
    numbers = [push(served, name).id for name in "abcd"]
    changed = served.service.write("src/settings.py", AFTER)
    page = window()
    shows(page, numbers[0])
    page.evaluate("() => { window.at = performance.now(); performance.now = () => window.at; }")
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()
    page.keyboard.press("a")  # a dialog takes the keys
    page.keyboard.press("Escape")

    page.keyboard.press("j")
    shows(page, numbers[1])
    page.keyboard.press("d")
    assert ("pending", "") == status(served, numbers[1])  # what has only just come is looked at first
    page.evaluate("window.at += 400")
    page.keyboard.press("d")
    shows(page, numbers[2])
    settled(page, 4)
    assert ("denied", "page") == status(served, numbers[1])
    page.keyboard.press("k")
    shows(page, numbers[0])
    page.evaluate("window.at += 400")
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


#: What the page asks for to draw its list anew.
LIST = re.compile(r"/queue\?.*part=list$")


def test_a_list_from_before_a_decision_is_not_drawn_after_it(window: Window, served: ServedPage) -> None:
    decided, other = (push(served, name).id for name in "ab")
    page = window()
    shows(page, decided)
    page.evaluate("() => { const now = performance.now() + 400; performance.now = () => now; }")
    page.evaluate("""() => {
        window.drawn = [];
        const rows = () => window.drawn.push([...document.querySelectorAll("#rows li")].map(row => Number(row.dataset.id)));
        new MutationObserver(rows).observe(document.querySelector("#list"), { childList: true });
    }""")
    held: list[tuple[Route, APIResponse]] = []
    page.route(LIST, lambda route: held.append((route, route.fetch())), times=1)
    new = push(served, "c").id
    while not held:
        page.evaluate("0")  # until then the page's events are served

    page.evaluate("window.drawn = []")  # the first list comes at any time until here
    page.keyboard.press("d")
    shows(page, other)
    for route, answer in held:
        route.fulfill(response=answer)
    page.wait_for_selector(f"#rows li[data-id='{new}']")

    assert [[other, new]] == page.evaluate("window.drawn")


@pytest.mark.parametrize(("moves", "shown"), [("", 2), ("jjj", 3)])
def test_a_decision_whose_answer_is_late_goes_on_from_its_place(window: Window, served: ServedPage, moves: str,
                                                                shown: int) -> None:
    """The list is drawn without it meanwhile; and where another request was chosen, that one stays."""
    numbers = [push(served, name).id for name in "abcd"]
    page = window()
    shows(page, numbers[0])
    page.evaluate("() => { window.more = 400; const now = performance.now.bind(performance); "
                  "performance.now = () => now() + window.more; }")
    page.keyboard.press("j")
    shows(page, numbers[1])
    page.evaluate("window.more += 400")
    held: list[tuple[Route, APIResponse]] = []
    page.route("**/deny", lambda route: held.append((route, route.fetch())), times=1)

    page.keyboard.press("d")
    settled(page, 3)
    assert page.locator("#decide button:disabled").count(), "the answer is not there yet"
    for key in moves:
        page.keyboard.press(key)
    if moves:
        shows(page, numbers[shown])
    ((route, answer),) = held
    with page.expect_response("**/queue?*part=list"):  # which follows each answer
        route.fulfill(response=answer)

    shows(page, numbers[shown])
    assert ("denied", "page") == status(served, numbers[1])


def test_a_key_is_about_the_request_that_is_chosen_and_seen(window: Window, served: ServedPage) -> None:
    """Not about the one before, whose place it takes a moment later; and a late answer doesn't take the focus from it."""
    first, second, third = (push(served, name).id for name in "abc")
    page = window()
    shows(page, first)
    page.evaluate("() => { window.at = performance.now() + 400; performance.now = () => window.at; }")
    held: dict[int, Route] = {}
    for number in (second, third):
        page.route(re.compile(rf"/queue/{number}\?part=detail$"), lambda route, _, at=number: held.update({at: route}),
                   times=1)

    def is_held(number: int) -> None:
        while number not in held:
            page.evaluate("0")  # until then the page's events are served

    page.keyboard.press("j")
    page.keyboard.press("d")
    page.get_by_text("Look at it first").wait_for(state="attached")
    assert ["pending"] * 2 == [status(served, each)[0] for each in (first, second)]
    is_held(second)
    held[second].continue_()
    shows(page, second)

    page.evaluate("window.at += 400")
    page.keyboard.press("d")
    is_held(third)  # which comes next
    page.keyboard.press("k")
    shows(page, first)
    with page.expect_response(LIST):  # which follows each answer
        held[third].continue_()
    assert str(first) == page.evaluate("document.activeElement.closest('#rows li')?.dataset.id")
    assert ["pending", "denied", "pending"] == [status(served, each)[0] for each in (first, second, third)]


def test_keys_in_a_narrow_window_decide_nothing_that_is_not_seen(window: Window, served: ServedPage) -> None:
    """There the list is alone, and it keeps its place when it is drawn anew."""
    first, second = (push(served, name).id for name in "ab")
    page = window()
    page.set_viewport_size({"width": 600, "height": 800})
    page.reload()
    page.wait_for_selector("#link-state[data-state=on]")
    page.evaluate("() => { const now = performance.now() + 400; performance.now = () => now; }")
    page.keyboard.press("d")
    page.get_by_text("Look at it first").wait_for(state="attached")
    page.keyboard.press("j")
    push(served, "c")
    settled(page, 3)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/queue/{second}")
    page.evaluate("() => { const now = performance.now() + 400; performance.now = () => now; }")
    page.keyboard.press("j")  # of a list that isn't seen
    page.keyboard.press("d")
    page.wait_for_url("**/queue")
    assert ["pending", "denied"] == [status(served, each)[0] for each in (first, second)]


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


#: Of these a person touches one with a finger, on a phone.
TOUCHED = "button, select, summary, input, .tabs a, .chips a, .button, .others, .back, #rows li > a, .files .view, label.tick"


@pytest.mark.needs("axe")
def test_every_view_fits_the_window_and_can_be_used(window: Window, served: ServedPage, tmp_path: Path) -> None:
    """
    Of a desktop and of a phone: nothing is wider than the window, no text has a letter a line, axe finds nothing serious,
    and on a phone targets have 44 pixels. The pictures of a change are there.
    """
    from kit.approvals_browser import serious, shot

    views, page, found = populated(served.service, tmp_path), window(), dict[str, Any]()
    for name, path in views.items():
        page.set_viewport_size({"width": 1280, "height": 800})
        page.goto(f"http://127.0.0.1:{served.port}{path}")
        page.wait_for_selector("#link-state[data-state=on]")
        found |= serious(page, name)
        for kind, width, height in (("wide", 1280, 800), ("phone", 360, 740)):
            page.set_viewport_size({"width": width, "height": height})
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            narrow = page.evaluate("""() => [...document.querySelectorAll("td, dd, h1, h2, h3, li, p, code")]
                .filter((each) => each.checkVisibility() && each.textContent.trim().length > 8)
                .filter((each) => !each.closest(".diff table") && each.getBoundingClientRect().width < 40)
                .map((each) => each.outerHTML)""")
            assert [] == narrow, path
            shot(page, f"{kind}-{name}")
        small = page.evaluate("""(touched) => [...document.querySelectorAll(touched)]
            .filter((each) => each.checkVisibility() && each.type !== "hidden" && each.type !== "checkbox")
            .filter((each) => each.getBoundingClientRect().height < 44)
            .map((each) => each.outerHTML.slice(0, 200))""", TOUCHED)
        assert [] == small, path
        if name in ("binary", "push"):
            page.wait_for_function("""() => "64 64" === [...document.querySelectorAll(".pictures img")]
                .map((each) => each.naturalWidth).join(" ")""")
    assert {} == found
    page.evaluate("document.querySelector('main').append(new Image())")  # the control
    wrong = page.evaluate("axe.run(document, { runOnly: ['image-alt'] })")["violations"]
    assert ["image-alt"] == [each["id"] for each in wrong]


@pytest.mark.needs("axe")
def test_axe_finds_nothing_serious_in_the_dialogs_the_banner_and_the_login(
        window: Window, served: ServedPage, chrome: Browser) -> None:
    from kit.approvals_browser import serious

    push(served, "a")
    served.app.state.parts.held.seconds = 60.0
    page = window()
    settled(page, 1)
    page.click("#help-button")
    found = serious(page, "help")
    page.get_by_role("button", name="Close").click()
    page.keyboard.press("b")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Approve 1 requests?")
    dialog.wait_for()
    found |= serious(page, "question")
    dialog.get_by_role("button", name="Approve").click()
    page.locator(".held").wait_for()
    found |= serious(page, "banner")
    with chrome.new_context() as context:
        login = context.new_page()
        login.goto(f"http://127.0.0.1:{served.port}/login")
        found |= serious(login, "login")
    assert {} == found
