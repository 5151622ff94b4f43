"""
Escapes by what a job shows: by the daemon that reads it, and by the notebook in which its reader looks at it.

A job may lie about itself. It must not end, fill or delay the daemon, or reach another request, or a reader's page.
"""

from __future__ import annotations

import resource
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser

import msgpack
import pytest

from kit import reactors
from kit.box import Box, control
from kit.sessions import Wire
from leeward.spec.notebook import bundle
from leeward.spec.outcome import Outcome, Result
from leeward.wire import bundles

PROTOCOL = pytest.mark.no_single_lock("it is the daemon's reading of a reply, and there is no reading without that")
PAGE = pytest.mark.no_single_lock("it is how a client shows a result, in no process of a sandbox")

GOOD = {"exit": 7, "error": None, "limit": None, "files": {}}
HONEST = {**GOOD, "results": [{"text/plain": "a lie"}], "value": "a lie"}

#: Bytes of a reply that says it holds a great deal, in a few bytes or in as many as it may have.
START = b"\x85" + msgpack.packb(GOOD)[1:] + msgpack.packb("results")

#: By name: the body of a reply.
LIES = {
    **{f"{kind} as {field}": msgpack.packb({**HONEST, field: value})
       for field in ("results", "value") for kind, value in (
           ("a map", {}), ("a list of lists", [[], [[]]]), ("a number", 1), ("bytes", b"x"))},
    "an empty bundle": msgpack.packb({**GOOD, "results": [{}]}),
    "an unknown type": msgpack.packb({**GOOD, "results": [{"application/x-python-pickle": b"x"}]}),
    "bytes as text": msgpack.packb({**GOOD, "results": [{"text/html": b"x"}]}),
    "text as bytes": msgpack.packb({**GOOD, "results": [{"image/png": "x"}]}),
    "nested lists as content": START + b"\x91\x81" + msgpack.packb("text/plain") + b"\x91" * 100_000,
    "an array of four billion": START + b"\xdd\xff\xff\xff\xff",
    "a map of four billion": START + b"\x91\xdf\xff\xff\xff\xff",
    "text of four billion": START + b"\x91\x81" + msgpack.packb("text/plain") + b"\xdb\xff\xff\xff\xff",
    "too many": msgpack.packb({**GOOD, "results": [{"text/plain": ""}] * (bundles.MAX_RESULTS + 1)}),
    "too large": msgpack.packb({**GOOD, "results": [{"image/png": bytes(bundles.MAX_ONE + 1)}]}),
    "too large in all": msgpack.packb({**GOOD, "results": [{"image/png": bytes(bundles.MAX_TOTAL // 3 + 1)}] * 3}),
    "text that grows when it is decoded": START + b"\x91\x81" + msgpack.packb("text/html")
    + b"\xdb\x00\x20\x00\x00" + b"\xff" * 0x200000,
    "a value that is too long": msgpack.packb({**GOOD, "value": "x" * (bundles.MAX_PLAIN + 1)}),
    "cut before the results": START,
}

FORGE = """\
import os, signal, zlib
lie = zlib.decompress(open('lie', 'rb').read())
left = memoryview(len(lie).to_bytes(4, 'big') + lie)
while left:
    left = left[os.write(4, left):]
signal.pause()
"""


def lied(body: bytes) -> dict[str, bytes]:
    """The file that FORGE reads."""
    return {"lie": zlib.compress(body)}


@pytest.fixture(scope="module", params=reactors.ALL)
def two(request: pytest.FixtureRequest) -> Iterator[Box]:
    """The product over each transport, with two workers, one of them for sessions."""
    with Box(reactor=reactors.reactor(request.param), pool_size=2, spares=0, max_sessions=1) as made:
        yield made


@PROTOCOL
@pytest.mark.smoke
def test_c190_cannot_end_the_daemon_by_a_shown_result(wire: Wire) -> None:
    """
    Each lie is answered as `internal`, and the daemon keeps nothing of it; a lie about itself alone is passed on, if
    somebody asked.
    """
    peer = wire.peer()
    with control():  # this is the reply's pipe, and such a frame is read
        got = peer.ask("execute", code=FORGE.encode(), files=lied(msgpack.packb(HONEST)), display=True)
        assert ("finished", 7, [{"text/plain": "a lie"}], "a lie") == (
            got["outcome"], got["exit_code"], got["results"], got["value"])

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    got = {lie: peer.ask("execute", code=FORGE.encode(), files=lied(body), display=True)["outcome"]
           for lie, body in LIES.items()}

    assert dict.fromkeys(LIES, "internal") == got
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 << 10  # KiB
    assert b"2\n" == peer.ask("execute", code=b"print(1 + 1)")["stdout"]


@PROTOCOL
def test_c190_cannot_show_a_result_to_a_client_that_did_not_ask(wire: Wire) -> None:
    """A client that doesn't know of results gets none, nor a reply that is larger than it may be."""
    peer = wire.peer()
    with control():
        got = peer.ask("execute", code=FORGE.encode(), files=lied(msgpack.packb(HONEST)), display=True)
        assert "a lie" == got["value"]

    for lie in (HONEST, {**GOOD, "value": "x"}, {**GOOD, "results": [{"image/png": bytes(2 << 20)}]}):
        got = peer.ask("execute", code=FORGE.encode(), files=lied(msgpack.packb(lie)))
        assert ("internal", False, False) == (got["outcome"], "results" in got, "value" in got)


@PROTOCOL
def test_c190_cannot_show_in_anothers_reply(wire: Wire) -> None:
    """What a session's job writes before the next one came, and after its own end, is nobody's result."""
    peer = wire.peer()
    number = peer.ask("session_open")["session"]
    frame = msgpack.packb(HONEST)
    late = (b"import os, threading\n"
            b"os.mkfifo('over')\n"
            b"def write():\n"
            b"    open('over').read()\n"
            b"    os.write(4, bytes.fromhex('" + (len(frame).to_bytes(4, "big") + frame).hex().encode() + b"'))\n"
            b"threading.Thread(target=write, daemon=True).start()")
    with control():  # a job can speak for itself
        assert "a lie" == peer.ask("execute", code=FORGE.encode(), files=lied(frame), display=True)["value"]

    peer.ask("execute", session=number, code=late)
    got = peer.ask("execute", session=number, code=b"open('over', 'w').close()\nthreading.Event().wait()",
                   display=True)
    other = peer.ask("execute", code=b"6", display=True)

    assert "a lie" == got["value"]  # of its own session, whose jobs share a process
    assert "6" == other["value"]


class Elements(HTMLParser):
    """The elements of a page, as a browser has them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [tag, *(name for name, _ in attrs)]


@PAGE
@pytest.mark.parametrize("kind", ["text/html", "image/svg+xml", "text/markdown", "text/latex", "text/plain"])
def test_c191_cannot_run_a_script_in_the_notebook_of_a_reader(wire: Wire, kind: str) -> None:
    """By what it shows, prints and raises."""
    script = "<svg onload=alert(1)><script>alert(1)</script></svg></pre></iframe><img src=x onerror=alert(1)>"
    code = f"print({script!r})\ndisplay({{{kind!r}: {script!r}}}, raw=True)\nraise ValueError({script!r})"
    got = wire.peer().ask("execute", display=True, code=code.encode())
    shown, = got["results"]
    with control():  # as it came, it is a part of the page
        assert {"script", "onload", "onerror"} <= set(Elements(shown[kind]).found)

    page = bundle(Result(got["stdout"], got["stderr"], 1, Outcome.RAISED, results=(shown,), value=got.get("value")))

    assert not {"script", "onload", "onerror", "svg"} & set(Elements(page["text/html"]).found)
    assert {"pre", "style"} <= set(Elements(page["text/html"]).found)
