"""Commands for packages: what each form becomes, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leeward.apps.approvals.carrying.asking import _MEANINGS, _VERBS, parse_packages
from leeward.apps.approvals.queue.subjects import NamedPackage
from leeward.errors import BadRequest

FORMS = (
    ("bun add react", "add", "bun add react", ""),
    ("bun install -D @types/node@20", "add", "bun add --dev @types/node@20", ""),
    ("bun i -E --save react", "add", "bun add --exact react", "--save"),
    ("bun remove react", "remove", "bun remove react", ""),
    ("bun uninstall -g react", "remove", "bun remove --global react", ""),
    ("npm add react@^18.2.0 left-pad", "add", "npm install react@^18.2.0 left-pad", ""),
    ("npm i --save-dev --dev -D react", "add", "npm install --save-dev react", ""),
    ("npm install --global --silent typescript", "add", "npm install --global typescript", "--silent"),
    ("npm uninstall --save react", "remove", "npm uninstall --save react", ""),
    ("npm remove react", "remove", "npm uninstall react", ""),
    ("pip install Flask==3.0 requests", "add", "pip install flask==3.0 requests", ""),
    ("pip3 install -q --dev zope.interface", "add", "pip install zope-interface", "-q --dev"),
    ("pip uninstall -y flask", "remove", "pip uninstall --yes flask", "-y"),
    ("cargo add serde_json@1 --dev", "add", "cargo add --dev serde_json@1", ""),
    ("cargo install ripgrep -g", "add", "cargo install ripgrep", "-g"),
    ("cargo remove serde", "remove", "cargo remove serde", ""),
    ("cargo uninstall ripgrep", "remove", "cargo uninstall ripgrep", ""),
)


@pytest.mark.parametrize(("line", "action", "argv", "dropped"), FORMS, ids=[row[0] for row in FORMS])
def test_every_form_is_rewritten(line: str, action: str, argv: str, dropped: str) -> None:
    found = parse_packages(line)

    assert (action, tuple(argv.split()), tuple(dropped.split())) == (found.action, found.argv, found.dropped)
    assert found == parse_packages(line.split())


def test_packages_are_subjects_of_rules() -> None:
    found = parse_packages("npm i @a/b@1 c")

    assert (NamedPackage("npm", "@a/b", "1"), NamedPackage("npm", "c")) == found.packages


@pytest.mark.parametrize("line", [
    "npm", "npm install", "npm i -D", "npm ci", "npm run x", "apt install x", "sudo npm i x", "npm exec x",
    "pip add x",
    "pip install", "cargo build", "npm i x; rm y", "npm i $(x)", "npm i x && y", "npm i x\ny", "./npm i x",
    "/bin/npm i x",
    "npm i --registry https://evil.example x", "npm i --registry=https://evil.example x", "npm i --registry evil x",
    "pip install --index-url https://evil.example x", "pip install -i evil x", "pip install --extra-index-url=x y",
    "pip install -r requirements.txt", "pip install -e .", "pip install .", "pip install ./x", "pip install ..",
    "pip install git+https://evil.example/x", "pip install https://evil.example/x.whl", "pip install /tmp/x.whl",
    "pip install x>=1", "pip install x[y]", "pip install x @ https://evil.example/", "pip install x==",
    "pip install ==1",
    "npm i file:../x", "npm i user/repo", "npm i github:user/repo", "npm i x@npm:y", "npm i x@git+ssh://y",
    "npm i x@https://y", "npm i x@", "npm i ./x.tgz", "npm i ../x", "npm i --prefix /etc x", "npm i --unsafe-perm x",
    "npm i -- x", "npm i -Dg x", "npm i --global=true x", "cargo add --git https://evil.example x",
    "cargo add --path . x",
    "cargo install --root / x", "cargo add x@../y", "npm uninstall x@1", "bun add --cwd=/ x", "npm i '' x",
    "npm i x\u0430"])
def test_a_package_from_outside_the_registry_is_refused(line: str) -> None:
    with pytest.raises(BadRequest, match=r"."):
        parse_packages(line)


def test_too_many_packages_are_refused() -> None:
    parse_packages(["npm", "i", *(f"x{number}" for number in range(50))])
    with pytest.raises(BadRequest, match="50"):
        parse_packages(["npm", "i", *(f"x{number}" for number in range(51))])


WORDS = st.one_of(st.sampled_from([*_MEANINGS, "--registry", "-i", "x", "@a/b", "x@1", "x==1", "--", "-", "..", "="]),
                  st.text(max_size=6))


@settings(max_examples=1000, deadline=None)
@given(st.sampled_from(sorted(_VERBS)), st.sampled_from(["add", "install", "i", "remove", "uninstall"]),
       st.lists(WORDS, max_size=5))
def test_no_text_of_the_command_is_passed_on(manager: str, verb: str, words: list[str]) -> None:
    """
    Every argument is a word of leeward's own, or a name in the registry's own form; and the rewritten command is
    parsed as itself.
    """
    try:
        found = parse_packages([manager, verb, *words])
    except BadRequest:
        return
    for word in found.argv[2:]:
        assert word in (*_MEANINGS, "--yes") or word[0] == "@" or word[0].isalnum()
        assert word.isascii()
        assert not set(word) & set(" \n;&|<>$`\\:'\"*?()#")
    again = parse_packages(found.argv)
    assert (found.action, found.packages, found.argv) == (again.action, again.packages, again.argv)
