"""What a request for a port of a sandbox is for, and what passes of its heads."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.needs("extra-serve")

BOX = "a" * 26


def place(path="/x", host="localhost", query="", **headers):
    from leeward.apps.serve.ports import place_of

    heads = [(name.replace("_", "-").encode(), value.encode()) for name, value in {"host": host, **headers}.items()]
    found = place_of({"type": "http", "raw_path": path.encode(), "query_string": query.encode(), "headers": heads})
    return found and (found.sandbox, found.port, found.target.decode(), found.at_path)


def test_each_form_names_a_port():
    assert (BOX, 3000, "/x?y", False) == place(host=f"3000-{BOX}.lw.example:8080", query="y")
    assert (BOX, 3000, "/x", False) == place(host=f"3000-{BOX.upper()}.LW.example")
    assert (BOX, 3000, "/x", False) == place(e2b_sandbox_id=BOX, e2b_sandbox_port="3000")
    assert (BOX, 3000, "/a%2F/b?y", True) == place(f"/ports/{BOX}/3000/a%2F/b", query="y")
    assert (BOX, 3000, "/", True) == place(f"/ports/{BOX}/3000")


def test_a_page_at_a_name_reaches_nothing_else_by_a_path_or_a_header():
    """Not the server either, which a page of its own origin would ask without saying so: `--open` lets everybody in."""
    other, path = "b" * 26, f"/ports/{'b' * 26}/3000/"
    for heads in ({"e2b_sandbox_id": "x"}, {"e2b_sandbox_id": BOX}, {"e2b_sandbox_id": other, "e2b_sandbox_port": "80"},
                  {"e2b_sandbox_id": other, "e2b_sandbox_port": "49983"}):
        assert (BOX, 3000, "/sandboxes", False) == place("/sandboxes", host=f"3000-{BOX}.localhost", **heads)

    assert (BOX, 3000, path, False) == place(path, host=f"3000-{BOX}.localhost")
    assert (BOX, 80, path, False) == place(path, e2b_sandbox_id=BOX, e2b_sandbox_port="80")
    assert place(path, host=f"49983-{BOX}.localhost") is None
    assert other == place(path)[0]


@pytest.mark.parametrize("given", [
    {}, {"host": f"{BOX}.localhost"}, {"host": f"x-{BOX}.localhost"}, {"host": f"0-{BOX}.localhost"},
    {"host": f"65536-{BOX}.localhost"}, {"host": f"3000-{BOX}x.localhost"}, {"host": "3000-.localhost"},
    {"host": f"49983-{BOX}.localhost"}, {"host": f"49999-{BOX}.localhost"}, {"host": f"\u0663-{BOX}.localhost"},
    {"host": "127.0.0.1:80", "e2b_sandbox_id": BOX}, {"e2b_sandbox_id": BOX, "e2b_sandbox_port": "49983"},
    {"path": f"/ports/{BOX}"}, {"path": f"/ports/{BOX}/x/"},
    {"path": f"/ports/{BOX[1:]}/1/"}, {"path": f"/ports/{BOX}/999999/"}, {"path": f"//ports/{BOX}/3000/"}])
def test_everything_else_is_for_the_server_itself(given):
    assert place(**given) is None


def test_heads_of_one_connection_stay_with_it():
    from leeward.apps.serve.ports import passed_on

    given = [(b"Connection", b"close, X-Mine"), (b"X-Mine", b"1"), (b"Keep-Alive", b"1"), (b"TE", b"x"),
             (b"E2b-Sandbox-Id", b"t"), (b"Upgrade", b"h2c"), (b"Accept", b"a"), (b"Proxy-Authorization", b"t")]
    assert [(b"accept", b"a")] == passed_on(given)


def test_an_answer_says_nothing_of_other_names():
    from leeward.apps.serve.ports import shown

    given = [(b"Set-Cookie", b"a=1"), (b"Set-Cookie", b"b=1;DOMAIN=lw.example"), (b"Clear-Site-Data", b"*"),
             (b"Strict-Transport-Security", b"includeSubDomains"), (b"Alt-Svc", b"x"), (b"ETag", b"e")]
    assert [(b"set-cookie", b"a=1"), (b"etag", b"e")] == shown(given, at_path=False)
    policy = dict(shown(given, at_path=True))
    assert b"allow-same-origin" not in policy[b"content-security-policy"]
    assert b"set-cookie" not in policy


def test_an_answer_has_one_length():
    from leeward.apps.serve.ports import shown

    both = [(b"Content-Length", b"5"), (b"Transfer-Encoding", b"chunked")]
    assert [] == shown(both, at_path=False)
    assert [(b"content-length", b"5")] == shown(both[:1], at_path=False)
