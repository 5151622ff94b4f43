"""Which files of a project are hidden: patterns, and what they come to in a tree."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.apps.agents.errors import SettingsError
from leeward.apps.agents.hiding import FileRules, parse_pattern, rules_of
from leeward.apps.agents.project_tree import MAX_LEVELS, HiddenPath, hiding_plan

FITS = [
    ("a", "a", True), ("a", "x/a", True), ("a", "a/b", False), ("a", "ab", False),
    ("/a", "a", True), ("/a", "x/a", False), ("./a", "a", True), ("x/a", "x/a", True), ("x/a", "y/x/a", False),
    ("*", "a", True), ("*", "x/a", True), ("*", ".a", True), ("*.env", "prod.env", True), ("*.env", ".env", True),
    ("*.env", "prod.env.txt", False), ("/*", "a", True), ("/*", "x/a", False), ("x/*", "x/a", True),
    ("x/*", "x/a/b", False), ("x/*/b", "x/a/b", True), ("x/*/b", "x/b", False),
    ("x/**/b", "x/b", True), ("x/**/b", "x/a/b", True), ("x/**/b", "x/a/c/b", True), ("x/**/b", "b", False),
    ("**/b", "b", True), ("**/b", "a/b", True), ("**/x/b", "a/x/b", True), ("**/x/b", "x/b", True),
    ("?", "a", True), ("?", "ab", False), ("?", "ä", True), ("a?c", "a/c", False),
    ("[ab]", "a", True), ("[ab]", "c", False), ("[!ab]", "c", True), ("[!ab]", "a", False), ("[a-c]x", "bx", True),
    ("[", "[", True), ("[]]", "]", True), ("[*]", "*", True), ("[*]", "a", False),
    ("A", "a", False), ("a\nb", "a\nb", True), ("ä", "ä", True), (".env.*", ".env.local", True),
    ("x/**", "x", True),
]


@pytest.mark.parametrize(("pattern", "path", "fits"), FITS)
def test_a_pattern_matches_paths(pattern, path, fits):
    assert fits == parse_pattern(pattern).fits(path.split("/"), True)


def test_a_slash_at_the_end_is_a_folder_alone():
    assert parse_pattern("a/").fits(["a"], True)
    assert not parse_pattern("a/").fits(["a"], False)


@pytest.mark.parametrize(("pattern", "said"), [
    ("", "1 to"), ("/", "names no file"), (".", "names no file"), ("a//b", "two slashes"), ("../a", "leads out"),
    ("a/..", "leads out"), ("**", "matches everything"), ("**/**", "matches everything"), ("a**", "whole names"),
    ("a/b**/c", "whole names"), ("x" * 1025, "1 to"), ("a\0", "character 0"), ("/".join("a" * 33), "more than 32"),
])
def test_a_malformed_pattern_is_refused(pattern, said):
    with pytest.raises(ValueError, match=said):
        parse_pattern(pattern)


@pytest.mark.parametrize("pattern", ["a", "/a", "a/b", "a/", "**/a/b", "a/**/b", "*.x", "./a", "x/**"])
def test_a_pattern_is_read_as_it_is_shown(pattern):
    once = parse_pattern(pattern)

    assert once == parse_pattern(once.text)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("pattern", ["*a" * 120 + "b", "a*" * 120 + "b", "[a]*" * 60 + "b",
                                     "/".join(["**", "a*"] * 15) + "/b"])
def test_no_name_takes_long(pattern):
    parsed = parse_pattern(pattern)
    before = time.process_time()
    parsed.fits(["a" * 255] * 30, False)

    assert time.process_time() - before < 5  # a matcher that tries in all ways needs years


@pytest.mark.parametrize(("path", "hidden"), [
    (".env", True), ("x/.env", True), (".env.local", True), (".env.example", False), ("secrets/a", True),
    ("secrets/public/a", False), ("secrets", True), ("other", False), ("x/prod.env", True), (".envrc", True),
])
def test_an_included_path_is_shown_even_if_it_is_excluded(path, hidden):
    rules = rules_of([parse_pattern("/secrets")], [parse_pattern(".env.example"), parse_pattern("secrets/public")])

    assert hidden == rules.hides(path)


@pytest.mark.parametrize("name", [".ENV", ".Env", ".env~", "x.env.bak", ".env-prod", ".env_local", "prod.ENV", "x.env~",
                                  ".envrc", "..env.swp", ".env.example.bak", ".env.example~"])
def test_copies_and_other_spellings_are_hidden_as_well(name):
    assert rules_of((), ()).hides(name)
    assert rules_of((), ()).hides(f"x/{name}")


@pytest.mark.parametrize("name", ["web.env.example", "environment", ".envoy.yaml", "env.py", ".environment", "my.envelope"])
def test_other_names_that_begin_so_are_shown(name):
    assert not rules_of((), ()).hides(name)


@pytest.mark.parametrize("name", [".env.example", ".env.sample", ".env.template", ".env.dist"])
def test_an_example_is_shown_unless_the_settings_exclude_it(name):
    for path in (name, f"x/{name}"):
        assert not rules_of((), ()).hides(path)
        assert rules_of((), ()).hides(path, folder=True)
        assert rules_of((), ()).hides(f"{path}/below")
        assert rules_of([parse_pattern(".env.*")], ()).hides(path)
    assert rules_of((), ()).hides(f"{name}.local")
    assert rules_of((), ()).hides(f".env/{name}")


@pytest.mark.parametrize(("path", "by_name"), [
    (".env", True), ("x/.env", True), ("a", False), (".env/x.env", False), ("mine.env", False), ("mine/.env", False)])
def test_what_leeward_alone_hides_by_its_name(path, by_name):
    rules = rules_of([parse_pattern("mine.env"), parse_pattern("/mine")], ())
    assert by_name is rules.hides_by_name(path)


NAMES = st.sampled_from(["a", "b", "ab", "x"])
PATHS = st.lists(NAMES, min_size=1, max_size=4)
PATTERNS = st.lists(st.sampled_from(["a", "b", "*", "**", "?", "a*", "[ab]"]), min_size=1, max_size=4).map("/".join)


@given(PATTERNS, PATHS)
def test_a_folder_that_may_hold_a_match_is_walked(pattern, names):
    """A folder in which a pattern could match is never left out of the walk."""
    try:
        parsed = parse_pattern(pattern)
    except ValueError:
        return
    if parsed.fits(names, False):
        for end in range(len(names)):
            assert parsed.may_fit_below(names[:end])
        assert FileRules((parsed,)).last_names.match(names[-1])


def plan(folder, exclude=(), include=()):
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        return hiding_plan(descriptor, rules_of(list(map(parse_pattern, exclude)), list(map(parse_pattern, include))),
                           str(folder))
    finally:
        os.close(descriptor)


def hidden(folder, exclude=(), include=()):
    return {path.path + "/" * path.folder for path in plan(folder, exclude, include).hidden}


@pytest.fixture
def tree(tmp_path):
    for path in ("a/b/c/deep.key", "a/b/other", ".env", "x/.env.local", "secrets/one", "secrets/two", "secrets/pub/k",
                 "node_modules/p/index.js", "top.key"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    return tmp_path


def committed(tree):
    for argv in (["init", "-q"], ["add", "-f", "-A"]):
        subprocess.run(["git", *argv], cwd=tree, check=True)


def test_tracked_unchanged_files_are_shown(tree):
    """What a person's settings exclude stays hidden, and so does a link, and a tracked file that was changed."""
    (tree / "link.env").symlink_to("top.key")
    (tree / "changed.env").write_text("as it was")
    committed(tree)
    assert {"link.env", "top.key"} == hidden(tree) - {"changed.env"}
    assert "changed.env" not in hidden(tree)
    (tree / "changed.env").write_text("with a secret")
    (tree / "new.env").write_text("untracked")
    assert {"changed.env", "new.env", "link.env", "top.key"} == hidden(tree)
    assert {"changed.env", "new.env", "link.env", "top.key", ".env"} == hidden(tree, ["/.env"])
    assert {"changed.env", "new.env", "link.env", "top.key", "x/"} == hidden(tree, ["x"])


@pytest.mark.parametrize("pattern", [".git", "/.git", ".git/objects", "/.git/**", ".g*"])
def test_a_tracked_file_is_hidden_where_its_repository_is(tree, pattern):
    committed(tree)
    assert ".env" not in hidden(tree)
    assert ".env" in hidden(tree, [pattern])


def test_another_name_of_a_hidden_file_is_hidden_though_it_is_an_example(tree):
    os.link(tree / ".env", tree / ".env.example")
    assert {".env", ".env.example", "x/.env.local"} == hidden(tree)


def test_repositories_are_told(tree):
    """At any depth, as folders, files and links, and submodules' own; without those in hidden folders."""
    for path in (".git/modules/m/config", ".git/modules/m/modules/n/config", ".git/worktrees/w/gitdir", ".git/config",
                 ".git/objects/config", "a/.git", "secrets/.git", "node_modules/q/.git/HEAD", "b/.gitignore"):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).touch()
    (tree / "b/.git").symlink_to("../a")
    assert (".git", ".git/modules/m", ".git/modules/m/modules/n", ".git/worktrees/w", "a/.git", "b/.git",
            "node_modules/q/.git") == plan(tree, ["secrets"]).obeyed.repositories


def test_a_folder_that_is_not_looked_at_is_told_as_one(tree):
    at = os.open(tree, os.O_PATH)
    for _ in range(MAX_LEVELS + 2):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_PATH, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    descriptor = os.open(tree, os.O_PATH)
    try:
        found = hiding_plan(descriptor, rules_of([], []), running=True)
    finally:
        os.close(descriptor)
    assert ("/".join("d" * (MAX_LEVELS + 1)),) == found.obeyed.unseen


def test_matching_paths_of_a_tree_are_hidden(tree):
    assert {".env", "x/.env.local"} == hidden(tree)
    assert {".env", "x/.env.local", "a/b/c/deep.key", "top.key"} == hidden(tree, ["*.key"])
    assert {".env", "x/.env.local", "secrets/"} == hidden(tree, ["secrets"])
    assert {".env", "x/.env.local", "a/b/c/"} == hidden(tree, ["a/**/c", "a/b/c/deep.key"])
    assert {"x/.env.local"} == hidden(tree, include=["/.env"])
    assert set() == hidden(tree, include=[".env", ".env.*"])


def test_a_folder_with_something_included_is_hidden_in_parts(tree):
    assert {".env", "x/.env.local", "secrets/one", "secrets/two"} == hidden(tree, ["secrets"], ["secrets/pub"])
    assert {".env", "x/.env.local"} == hidden(tree, ["secrets"], ["secrets"])
    (tree / "secrets/sub/deep").mkdir(parents=True)
    assert {".env", "x/.env.local", "secrets/one", "secrets/two", "secrets/sub/"} == hidden(tree, ["secrets"], ["pub"])
    (tree / "secrets/sub/deep/pub").touch()
    (tree / "secrets/sub/deep/a").touch()
    assert {".env", "x/.env.local", "secrets/one", "secrets/two", "secrets/sub/deep/a"} == hidden(
        tree, ["secrets"], ["pub"])


def test_a_folder_is_hidden_as_a_whole_if_an_include_fits_nothing_in_it(tree):
    (tree / "secrets/.git").mkdir()
    (tree / "secrets/link").symlink_to("../top.key")
    os.link(tree / "secrets/one", tree / "other-name")
    for include in ("secrets/none", ".env.example", "**/none", "one/"):
        assert {".env", "x/.env.local", "secrets/"} == hidden(tree, ["secrets"], [include])
        assert () == plan(tree, ["secrets"], [include]).obeyed.repositories


def test_a_folder_with_many_files_can_be_hidden_as_a_whole(tree, monkeypatch):
    """Its files aren't counted, unless one of them is included, so that each of the others has to be hidden."""
    monkeypatch.setattr("leeward.apps.agents.project_tree.MAX_HIDDEN", 5)
    (tree / "secrets/none").mkdir()
    for number in range(20):
        (tree / f"secrets/pub/{number}").touch()
        (tree / f"secrets/none/{number}").touch()
    assert {".env", "x/.env.local", "secrets/"} == hidden(tree, ["secrets"], [".env.example"])
    assert {".env", "x/.env.local", "secrets/one", "secrets/two", "secrets/none/"} == hidden(
        tree, ["secrets"], ["secrets/pub"])
    with pytest.raises(SettingsError, match="more than 5 files"):
        plan(tree, ["secrets"], ["secrets/pub/7"])
    with pytest.raises(SettingsError, match="more than 5 files"):
        plan(tree, ["secrets/*/*"])


@pytest.mark.parametrize(("exclude", "include", "pinned"), [
    ([], [], ()), (["*.key", "secrets"], [], ()), (["/top.key"], [], ()),
    (["a/b/c/*.key"], [], ("a/b/c",)), (["a/*/c"], [], ("a/b",)), (["a/**/deep.key"], [], ("a/b/c",)),
    (["later/x/*"], [], ("later/x",)), (["secrets/one", "x/*"], [], ("secrets", "x")),
    # Everything: a folder may get a name that is included.
    (["*.key"], ["none"], ("a/b/c", "x")), (["secrets"], ["pub"], ("secrets", "x")),
])
def test_folders_by_whose_names_something_is_hidden_are_pinned(tree, exclude, include, pinned):
    assert pinned == plan(tree, exclude, include).pinned


def test_a_link_that_hides_its_target_stays_where_it_is(tree):
    """As do links that it leads to; what they are called decides what the next start hides."""
    (tree / "a/link").symlink_to("b/second")
    (tree / "a/b/second").symlink_to("../../secrets/./two")
    (tree / "outside").symlink_to("/etc/passwd")
    found = plan(tree, ["link", "outside"])

    assert {".env", "x/.env.local", "a/link", "a/b/second", "secrets/two", "outside"} == {
        each.path for each in found.hidden}
    assert ("a/b", "secrets") == found.pinned


def test_an_absent_path_is_listed_and_warned_of(tree):
    found = plan(tree, ["later.txt", "sub/later", "*.none", ".envrc"])

    assert (".envrc", "later.txt", "sub/later") == tuple(sorted(found.absent))
    assert 3 == sum("matches nothing yet" in line for line in found.warnings)  # .envrc is built in


def test_a_hidden_link_hides_its_target(tree):
    (tree / "link").symlink_to("secrets/one")
    (tree / "chain").symlink_to("a/../link")
    (tree / "whole").symlink_to(tree / "secrets")
    (tree / "outside").symlink_to("/etc/passwd")
    (tree / "up").symlink_to("../../../etc")
    (tree / "loop").symlink_to("loop")
    (tree / "root").symlink_to(".")

    assert {".env", "x/.env.local", "link", "secrets/one"} == hidden(tree, ["link"])
    assert {".env", "x/.env.local", "chain", "link", "secrets/one"} == hidden(tree, ["chain"])
    assert {".env", "x/.env.local", "whole", "secrets/"} == hidden(tree, ["whole"])
    assert {".env", "x/.env.local", "whole", "secrets/"} == hidden(tree, ["whole/"])
    assert {".env", "x/.env.local", "outside", "up", "loop"} == hidden(tree, ["outside", "up", "loop"])
    found = plan(tree, ["root"])
    assert {".env", "x/.env.local", "root"} == {path.path for path in found.hidden}
    assert any("is a link to a folder that it lies in" in line for line in found.warnings)


def test_the_walk_follows_no_link(tree, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / ".env").write_text("x")
    (tree / "linked").symlink_to(other)

    assert {".env", "x/.env.local"} == hidden(tree)


def test_other_names_of_a_hidden_file_are_hidden(tree):
    os.link(tree / ".env", tree / "a" / "innocent")

    found = plan(tree)

    assert HiddenPath("a/innocent", False) in found.hidden
    assert any("another name of a hidden file" in line for line in found.warnings)


def test_names_that_are_no_text_are_hidden(tmp_path):
    with open(os.fsencode(tmp_path) + b"/\xff.key\n", "w"):
        pass

    assert {os.fsdecode(b"\xff.key\n")} == hidden(tmp_path, ["*.key?"])


def test_a_tree_that_is_too_deep_is_refused(tmp_path):
    (tmp_path / "/".join("d" * (MAX_LEVELS + 1))).mkdir(parents=True)

    with pytest.raises(SettingsError, match="within each other"):
        plan(tmp_path)


def test_a_tree_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("leeward.apps.agents.project_tree.MAX_FILES", 3)
    for number in range(10):
        (tmp_path / str(number)).touch()

    with pytest.raises(SettingsError, match="more than 3 files"):
        plan(tmp_path)


def test_an_unreadable_folder_is_refused(tree):
    """Its owner could give itself the right inside. Root reads it, and so looks into it."""
    (tree / "a" / "b").chmod(0)
    try:
        if os.geteuid() == 0:
            assert {".env", "x/.env.local", "a/b/c/deep.key"} == hidden(tree, ["deep.key"])
        else:
            with pytest.raises(SettingsError, match="can't be read"):
                plan(tree)
        assert {".env", "x/.env.local", "a/b/"} == hidden(tree, ["a/b"])
    finally:
        (tree / "a" / "b").chmod(0o700)


def in_a_copy(does: Callable[[], object]) -> str:
    """
    Call *does* in a copy of this process, in which nothing else opens or closes descriptors: no other thread, and no
    collection of earlier tests' garbage. Returns the traceback of what it raised, or "".
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        said = ""
        try:
            gc.disable()
            does()
        except BaseException:
            said = traceback.format_exc()
        finally:
            os.write(writing, said.encode()[:4096])
            os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        said = pipe.read()
    return said if 0 == os.waitpid(child, 0)[1] else f"the copy was killed: {said}"


@contextmanager
def few_descriptors(left: int) -> Iterator[None]:
    """This process can open so many more files, or fewer."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = set(map(int, os.listdir("/proc/self/fd")))
    most = list(islice((fd for fd in count() if fd not in taken), left + 1))[-1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_c383_cannot_be_shown_a_file_too_deep_for_the_remaining_descriptors(tmp_path):
    """Each level of folders takes one while the tree is looked at. The control: with enough of them the file is found."""
    levels = MAX_LEVELS - 1
    bottom = tmp_path / "/".join("d" * levels)
    bottom.mkdir(parents=True)
    (bottom / ".env").touch()
    where = "d/" * levels + ".env"
    assert {where} == hidden(tmp_path)

    descriptor = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)

    def refused_everywhere(left: int) -> None:
        with few_descriptors(left):
            with pytest.raises(SettingsError, match="can't be looked at"):
                plan(tmp_path)
            with pytest.raises(OSError, match="open files"):
                hiding_plan(descriptor, rules_of([], []), running=True)

    for left in (2, 20, levels - 10):
        assert "" == in_a_copy(lambda: refused_everywhere(left))  # noqa: B023
    os.close(descriptor)


LETTERS = "ab.*?[]!-"


@given(st.lists(st.text(LETTERS, min_size=1, max_size=6), min_size=1, max_size=3),
       st.text(LETTERS, min_size=1, max_size=6))
def test_a_name_that_fits_has_one_of_the_literals(globs, name):
    try:
        rules = FileRules(tuple(map(parse_pattern, globs)))
    except ValueError:
        return
    if rules.last_names.match(name) and rules.literals:
        assert any(literal in name for literal in rules.literals)


@pytest.mark.parametrize(("globs", "literals"), [
    ([".env", ".env.*", ".envrc", "*.env"], {".env"}), (["*.pem", "id_*"], {".pem", "id_"}), (["*"], set()),
    (["[ab]c", "x"], {"c", "x"}), (["a[bc]"], {"a"}), (["?"], set()), (["[!]]x]y"], {"y"}), (["[a"], set()),
    (["deep/*.key"], {".key"})])
def test_the_literals_of_patterns(globs, literals):
    found = FileRules(tuple(map(parse_pattern, globs))).literals
    assert literals == set(found)
