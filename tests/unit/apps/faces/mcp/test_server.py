"""The lines that `leeward mcp` reads."""

from __future__ import annotations

import io

import pytest

pytestmark = pytest.mark.needs("extra-mcp")


class Tools:
    closed = False

    def close(self):
        self.closed = True


def read(text):
    """The lines of *text*, and whether the tools were closed after them."""
    import anyio

    from leeward.apps.faces.mcp.server import BoundedLines

    tools = Tools()

    async def run():
        found = []
        async for line in BoundedLines(io.StringIO(text), tools):
            assert not tools.closed
            found.append(line)
        return found, tools.closed

    return anyio.run(run)


def test_the_end_of_the_lines_closes_the_sandbox():
    assert ([], True) == read("")
    assert (["a\n", "\n", "b"], True) == read("a\n\nb")


def test_a_line_is_cut_and_the_next_one_is_read():
    from leeward.apps.faces.mcp.server import MAX_MESSAGE

    whole = "x" * (MAX_MESSAGE - 1) + "\n"
    lines, _ = read(whole + "y" * (3 * MAX_MESSAGE) + "\nnext\n" + "z" * (MAX_MESSAGE + 1))

    assert [whole, "y" * MAX_MESSAGE, "next\n", "z" * MAX_MESSAGE] == lines


@pytest.mark.parametrize(("uri", "place"), [
    ("sandbox:///workspace/a%20b", ("", "/workspace/a b")), ("sandbox://n/x", ("n", "/x")), ("sandbox://n", None),
    ("file:///etc/passwd", None), ("sandbox:///a?x", None), ("sandbox:///a#x", None), ("sandbox:///%00", None),
    ("sandbox:///%ff", None), ("sandbox://[/x", None), ("", None), ("sandbox:///\ud800", ("", "/\ud800")),
])
def test_a_resource_has_a_place(uri, place):
    from mcp.shared.exceptions import MCPError

    from leeward.apps.faces.mcp.server import place_of

    if place is None:
        with pytest.raises(MCPError):
            place_of(uri)
    else:
        assert place == place_of(uri)
