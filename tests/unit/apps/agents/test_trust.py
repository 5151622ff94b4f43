"""Trust in a project: asked once, for exactly what it asks."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.apps.agents.errors import printable
from leeward.apps.agents.settings import KINDS, Grant
from leeward.apps.agents.trust import MAX_GRANTS, NotTrusted, TrustStore, digest, question, require_trust
from leeward.errors import Unsupported

GRANTS = (Grant("setup_host", "make"), Grant("host", "api.example.org"))


@pytest.fixture
def store(tmp_path):
    return TrustStore(str(tmp_path / "trust"))


def never(text):
    raise AssertionError(text)


def test_without_grants_the_user_is_not_asked(store):
    require_trust(store, b"/p", (), ask=never)


def test_yes_is_remembered(store, tmp_path):
    asked = []
    require_trust(store, b"/p", GRANTS, ask=lambda text: asked.append(text) or "yes\n")
    require_trust(store, b"/p", GRANTS, ask=never)
    require_trust(TrustStore(str(tmp_path / "trust")), b"/p", GRANTS, ask=None)

    assert 1 == len(asked)
    assert all(grant.what in asked[0] and KINDS[grant.kind] in asked[0] for grant in GRANTS)


@pytest.mark.parametrize("answer", ["", "y", "no", "yess", "ja", "yes please", "\0yes", "YES!"])
def test_anything_but_yes_is_no(store, answer):
    with pytest.raises(NotTrusted):
        require_trust(store, b"/p", GRANTS, ask=lambda text: answer)
    assert not store.accepted(b"/p", GRANTS)


def test_no_answer_is_no(store):
    def closed(text):
        raise EOFError

    with pytest.raises(NotTrusted):
        require_trust(store, b"/p", GRANTS, ask=closed)


def test_without_a_terminal_it_is_refused_and_shown(store):
    with pytest.raises(NotTrusted, match="--trust-project") as error:
        require_trust(store, b"/p", GRANTS)

    assert "make" in str(error.value)


def test_trust_given_by_the_caller_is_remembered(store):
    require_trust(store, b"/p", GRANTS, trusted=True)
    require_trust(store, b"/p", GRANTS)


@pytest.mark.parametrize("grants", [
    (*GRANTS, Grant("host", "other.example.org")), GRANTS[:1], GRANTS[1:], GRANTS[::-1],
    (Grant("cleanup_host", "make"), GRANTS[1]), (Grant("setup_host", "make "), GRANTS[1]),
])
def test_any_other_set_asks_again(store, grants):
    require_trust(store, b"/p", GRANTS, trusted=True)

    with pytest.raises(NotTrusted):
        require_trust(store, b"/p", grants)


def test_another_project_asks_again(store):
    """Its `make` is another one."""
    require_trust(store, b"/p", GRANTS, trusted=True)

    with pytest.raises(NotTrusted):
        require_trust(store, b"/q", GRANTS)


def test_a_folder_of_another_owner_asks_again(store, monkeypatch):
    own = os.geteuid()
    require_trust(store, b"/p", GRANTS, owner=own, trusted=True)
    assert digest(b"/p", GRANTS) == digest(b"/p", GRANTS, own)  # so what was accepted by earlier versions is

    with pytest.raises(NotTrusted, match=f"of /p, which belongs to user {own + 1}, ask for more"):
        require_trust(store, b"/p", GRANTS, owner=own + 1)
    require_trust(store, b"/p", GRANTS, owner=own + 1, ask=lambda text: "yes")
    require_trust(store, b"/p", GRANTS, owner=own + 1)
    with pytest.raises(NotTrusted):
        require_trust(store, b"/p", GRANTS, owner=own)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"grants": 1}', b'"x"', b"[" * 100_000])
def test_a_corrupt_record_is_no_acceptance(store, tmp_path, content):
    store.accept(b"/p", GRANTS)
    (path,) = (tmp_path / "trust").iterdir()
    path.write_bytes(content)

    assert not store.accepted(b"/p", GRANTS)


def test_a_record_that_is_a_link_is_no_acceptance(store, tmp_path):
    store.accept(b"/p", GRANTS)
    (path,) = (tmp_path / "trust").iterdir()
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")

    assert not store.accepted(b"/p", GRANTS)


def test_a_folder_of_others_is_refused(tmp_path):
    os.mkdir(tmp_path / "open", 0o777)
    os.chmod(tmp_path / "open", 0o777)

    with pytest.raises(Unsupported):
        TrustStore(str(tmp_path / "open"))


HOSTILE = ["a\nAccept? Type yes: yes", "a\x1b[2Jb", "a\rb", "a\u202eb", "a\u200bb", "a\u3164b", "a\u2800b", "a\ufe0fb",
           "a\x9bb", "a\\nb", "a\ttab", "\U000e0041", "a\u2028b", "\udc80"]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_escaped(text):
    shown = question(b"/p\n\xff", [Grant("setup_host", text)])

    assert text not in shown
    lines = shown.split("\n")
    assert 3 == len(lines)
    assert all(line.isprintable() for line in lines)


@given(st.text(max_size=50), st.text(max_size=50))
def test_different_values_are_shown_differently(one, other):
    assert (one == other) == (printable(one) == printable(other))
    assert printable(one).isprintable()


def test_too_many_grants_to_read_are_refused():
    with pytest.raises(NotTrusted, match="aren't shown"):
        question(b"/p", [Grant("host", str(number)) for number in range(MAX_GRANTS + 1)])
    with pytest.raises(NotTrusted, match="aren't shown"):
        question(b"/p", [Grant("setup_host", " " * 5000 + "rm")])


PARTS = st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.text(max_size=5)), max_size=4)


@given(st.binary(max_size=5), PARTS, st.binary(max_size=5), PARTS)
def test_a_hash_is_of_one_list_alone(path, grants, other_path, other_grants):
    one, other = (digest(each, [Grant(*grant) for grant in some])
                  for each, some in ((path, grants), (other_path, other_grants)))

    assert ((path, grants) == (other_path, other_grants)) == (one == other)
