"""Rules: what each pattern matches, in which order they decide, and what holds of all of them."""

from __future__ import annotations

import time
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leeward.apps.approvals.queue.patterns import READERS, starred
from leeward.apps.approvals.queue.rules import (
    CATEGORIES,
    DEFAULT_DENY,
    LOCKED,
    MODES,
    ApprovalRule,
    Effect,
    RuleSet,
    decide_subject,
    generate_rule,
    parse_rule,
)
from leeward.apps.approvals.queue.subjects import (
    MANAGERS,
    BranchName,
    Invocation,
    ProjectPath,
    RuleSubject,
    SandboxAction,
    branch,
    endpoint,
    invocation,
    package,
    project_path,
    sandbox_action,
)
from leeward.errors import BadRequest
from leeward.spec.hosts import parse_host


def allow(*texts: str) -> tuple[ApprovalRule, ...]:
    return tuple(parse_rule(text, "allow") for text in texts)


def deny(*texts: str) -> tuple[ApprovalRule, ...]:
    return tuple(parse_rule(text, "deny") for text in texts)


#: A rule, subjects that it matches both as an allowance and as a denial, and subjects that it never matches.
MATCHES: tuple[tuple[str, tuple[RuleSubject, ...], tuple[RuleSubject, ...]], ...] = (
    ("network", (endpoint("example.org"), endpoint("::1", 1)), (project_path("example.org"),)),
    ("network(example.org)", (endpoint("Example.ORG."), endpoint("example.org", 80)),
     (endpoint("a.example.org"), endpoint("example.org.evil.net"), endpoint("badexample.org"))),
    ("network(*.Example.org.)", (endpoint("example.org"), endpoint("a.b.example.org", 443)),
     (endpoint("badexample.org"), endpoint("example.org.evil"), endpoint("org"))),
    ("network(example.org:443)", (endpoint("example.org", 443),), (endpoint("example.org", 80),)),
    ("network(*:443)", (endpoint("example.org", 443), endpoint("10.0.0.1", 443)), (endpoint("example.org", 80),)),
    ("network(127.1)", (endpoint("2130706433"), endpoint("::ffff:127.0.0.1")), (endpoint("127.0.0.2"),)),
    ("network([2001:db8::1]:443)", (endpoint("2001:DB8:0::1", 443),), (endpoint("2001:db8::2", 443),)),
    ("network(b\u00fccher.example)", (endpoint("xn--bcher-kva.example"),), (endpoint("bucher.example"),)),
    ("filesystem(/src/*)", (project_path("src/a.py"), project_path("./x/../src/a")),
     (project_path("src"), project_path("a/src/b"), project_path("srcs/a"))),
    ("filesystem(src/**)", (project_path("src/a"), project_path("src/a/b/c")), (project_path("src"),)),
    ("filesystem(**/*.py)", (project_path("a.py"), project_path("x/y/a.py")), (project_path("a.pyc"),)),
    ("filesystem(a/**/z)", (project_path("a/z"), project_path("a/b/c/z")), (project_path("z"),)),
    ("filesystem(.env*)", (project_path(".env"), project_path(".env.local")), (project_path("env"),)),
    ("filesystem([a].py)", (project_path("[a].py"),), (project_path("a.py"),)),
    ("exec(bun test *)", (invocation("bun test a.ts"), invocation(["bun", "test", "a b"])),
     (invocation("bun test"), invocation("bun test a b"), invocation("bun testing x"), invocation("buns test x"))),
    ("exec(bun test **)", (invocation("bun test"), invocation("bun test a b")), (invocation("bun run a"),)),
    ("exec(git commit -m 'a  b*')", (invocation(["git", "commit", "-m", "a  b*"]),),
     (invocation(["git", "commit", "-m", "a  bc"]), invocation(["git", "commit", "-m", "a", "b*"]))),
    ("exec('**' x)", (invocation(["**", "x"]),), (invocation(["a", "x"]),)),
    ("exec(ls '')", (invocation(["ls", ""]),), (invocation("ls"),)),
    ("exec(cwd=a/b make)", (invocation("make", "a/b"), invocation("make", "/workspace/x/../a/b/")),
     (invocation("make"), invocation("make", "a"), invocation("make", "/a/b"))),
    ("exec(cwd=/tmp/* make)", (invocation("make", "/tmp/x"),), (invocation("make", "tmp/x"), invocation("make"))),
    ("exec(cwd=** make)", (invocation("make"), invocation("make", "a"), invocation("make", "/tmp")), ()),
    ("exec(cwd=a\\ b make)", (invocation("make", "a b"),), (invocation("make", "a"),)),
    ("exec('cwd=a' make)", (invocation(["cwd=a", "make"]),), (invocation("make", "a"),)),
    ("packages(npm:react)", (package("npm", "react"), package("npm", "react", "18.2.0")),
     (package("npm", "react-dom"), package("npm", "@x/react"))),
    ("packages(npm:@types/*@1.*)", (package("npm", "@types/node", "1.2"),),
     (package("npm", "@types/node", "2.0"), package("npm", "@other/node", "1.2"))),
    ("packages(npm:*)", (package("npm", "react"),), (package("pip", "react"),)),
    ("packages(pip:Foo_Bar)", (package("pip", "foo-bar"), package("pip", "FOO.bar")), (package("pip", "foobar"),)),
    ("packages(cargo:serde_json)", (package("cargo", "serde-json"),), (package("cargo", "serde"),)),
    ("packages(*:left-pad)", (package("bun", "left-pad"), package("pip", "left_pad")), (package("npm", "left"),)),
    ("git(feature/*)", (branch("feature/a"), branch("refs/heads/feature/a")), (branch("feature"), branch("a"))),
    ("git(refs/heads/main)", (branch("main"),), (branch("main2"),)),
    ("sandbox(open *)", (sandbox_action("open data"),), (sandbox_action("reopen data"),)),
)


@pytest.mark.parametrize(("text", "these", "others"), MATCHES, ids=[row[0] for row in MATCHES])
@pytest.mark.parametrize("effect", ["allow", "deny"])
def test_a_rule_matches_its_subjects(text: str, these: tuple[RuleSubject, ...], others: tuple[RuleSubject, ...],
                                     effect: Effect) -> None:
    rule = parse_rule(text, effect)

    assert [] == [subject for subject in these if not rule.matches(subject)]
    assert [] == [subject for subject in others if rule.matches(subject)]
    assert rule == parse_rule(rule.text, effect)


#: What a denial matches and an allowance doesn't.
WIDE: tuple[tuple[str, RuleSubject], ...] = (
    ("filesystem(.env*)", project_path("deep/er/.env.local")),
    ("filesystem(secrets)", project_path("secrets/a/key")),
    ("filesystem(/a/b)", project_path("a/b/c")),
    ("network(example.org:22)", endpoint("example.org")),
    ("packages(npm:event-stream@3.3.6)", package("npm", "event-stream")),
    ("packages(npm:event-stream)", package("bun", "event-stream")),
    ("packages(npm:*left-pad*)", package("npm", "@x/left-pad")),
    ("git(release/*)", branch("release/1/fix")),
    ("exec(rm **)", invocation(["rm", "$(x)"])),
    ("exec(bun test *)", invocation(["bun", "test", "x\n"])),
    ("exec(* x)", invocation(["a", "x"])),
    ("exec", invocation("a; b")),
    ("exec(make)", invocation("make", "sub")),
    ("exec(cwd=a make)", invocation("make", "a/b")),
)


@pytest.mark.parametrize(("text", "subject"), WIDE, ids=[row[0] for row in WIDE])
def test_a_denial_is_read_widely_and_an_allowance_narrowly(text: str, subject: RuleSubject) -> None:
    assert parse_rule(text, "deny").matches(subject)
    assert not parse_rule(text, "allow").matches(subject)


@pytest.mark.parametrize("folder", ["sub", "/workspace/sub", "sub/../sub/.", "/tmp", "/", "//tmp", "../tmp"])
def test_c363_cannot_use_a_rule_of_another_folder(folder: str) -> None:
    """An allowed command that starts elsewhere. The control: in the project itself it is allowed, however that is written."""
    rule = parse_rule("exec(make **)", "allow")
    for same in ("", ".", "/workspace", "sub/.."):
        assert rule.matches(invocation("make all", same))

    assert not rule.matches(invocation("make all", folder))
    stored = generate_rule(invocation("make all", folder), "allow")
    assert stored.matches(invocation("make all", folder))
    assert not stored.matches(invocation("make all"))


@pytest.mark.parametrize("letter", [
    *"\u202e\u2066\u200b\u200d\u200f\ufeff\u00ad\u061c\u2028\u3164\u2800\ufe0f\u00a0", "\U000e0041", "\udcff"])
def test_c437_cannot_hide_characters_behind_a_star(letter: str) -> None:
    """Of any category, with one star or two, or by everything that a category has."""
    texts = ("filesystem(src/*)", "filesystem(**/*.py)", "filesystem(src/**)", "filesystem", "git(feature/*)", "git",
             "sandbox(open *)", "sandbox", "exec(bun test *)", "exec(bun **)", "exec(cwd=** bun test **)")
    subjects = [ProjectPath("src/a{}b.py"), BranchName("feature/a{}b"), SandboxAction("open a{}b"),
                Invocation(("bun", "test", "a{}b")), Invocation(("bun", "test", "ab"), "", "x{}y")]
    for text in texts:
        assert any(parse_rule(text, "allow").matches(_filled(each, "")) for each in subjects)  # control
        assert not any(parse_rule(text, "allow").matches(_filled(each, letter)) for each in subjects)
        assert any(parse_rule(text, "deny").matches(_filled(each, letter)) for each in subjects)


def _filled(subject: Any, letter: str) -> Any:
    def form(value: Any) -> Any:
        return tuple(map(form, value)) if isinstance(value, tuple) else value.replace("{}", letter) if value else value
    return type(subject)(*(form(getattr(subject, each.name)) for each in fields(subject)))


@pytest.mark.parametrize("extra", ["; rm -rf /", " && rm x", "$(rm x)", "`rm x`", "\nrm x", " | sh", " > /x", "\r\nx",
                                   "&", " \\\n x", "${IFS}x", "\u2028x", " *", "\0", "\u202ex"])
def test_c301_cannot_go_on_behind_an_allowed_beginning(extra: str) -> None:
    """By a line or by arguments, whatever stands for a star."""
    rules = allow("exec(bun test *)", "exec(bun test **)", "exec(bun **)", "exec(bun test x*)")
    assert "allow" == decide_subject(RuleSet(allow=rules), invocation("bun test x")).answer  # control

    for command in (f"bun test x{extra}", ["bun", "test", f"x{extra}"], f"bun test{extra}"):
        try:
            subject = invocation(command)
        except BadRequest:
            continue
        found = decide_subject(RuleSet(allow=rules), subject)
        assert "ask" == found.answer, command


@pytest.mark.parametrize("text", ["", "  ", "network()", "network( )", "nothing", "nothing(*)", "network(*", "(x)",
                                  "Network(x)", "network(a b)", "network(-a.b)", "network(x:0)", "network(x:99999)",
                                  "network(*.1.2.3.4)", "network(a*.org)", "network(::1)", "filesystem(../a)",
                                  "filesystem(a/../b)", "filesystem(/)", "filesystem(a//b)", "exec('a)", "exec(a\\)",
                                  "exec('' a)", "exec(** a)", "exec(a ** b)", "exec(a\nb)", "packages(react)",
                                  "packages(apt:x)", "packages(npm:)", "packages(npm:x@)", "packages(n*:x)",
                                  "sandbox(a\u202eb)", "git(" + "*a" * 17 + ")", "exec(" + "a" * 5000 + ")"])
def test_a_malformed_rule_is_refused_with_the_reason(text: str) -> None:
    for effect in ("allow", "deny"):
        with pytest.raises(BadRequest, match=r"."):
            parse_rule(text, effect)


#: Commands and packages of every kind, none like the other.
COMMANDS: list[RuleSubject] = [invocation(each) for each in (
    "ls", "git status", "/bin/x -a b c", ["a", ""], ["Z9_", "b c"], ["\u00e9", "x"], "x" * 300, ["1"], ["a b", "c"],
    ["=x", "y"], ["-", "-"], ["%", "@", "+", ",", ":", "^"])]
PACKAGES: list[RuleSubject] = [package("npm", "react", "9")]
PACKAGES += [package(manager, name, version) for manager in MANAGERS for name in ("a", "zed-1", "requests")
             for version in ("", "1.0", "2")]
SAMPLES: dict[str, list[RuleSubject]] = {"exec": COMMANDS, "packages": PACKAGES}


def test_an_allowance_of_everything_is_kept_and_never_matches() -> None:
    for text in ("exec", "exec(*)", "exec(**)", "exec( ** )", "exec(***)", "exec(* *)", "exec(* **)", "exec(*'' **)",
                 "exec(''* **)", "packages", "packages(*)", "packages(**)", "packages(*:*)", "packages(**:**)",
                 "packages(*:*@*)", "packages(*:**@**)"):
        rule = parse_rule(text, "allow")
        assert rule.never_matches, text
        assert not any(rule.matches(subject) for subject in SAMPLES[rule.category]), text
        assert not parse_rule(text, "deny").never_matches
        assert any(parse_rule(text, "deny").matches(subject) for subject in SAMPLES[rule.category]), text
    for category in set(CATEGORIES) - set(LOCKED):
        assert not parse_rule(category, "allow").never_matches


@pytest.mark.thorough
@settings(max_examples=1500, deadline=None)
@given(st.sampled_from(LOCKED), st.lists(st.sampled_from(["*", "**", " ", "''", '""', "\\*", "'", "a", "@", ":", "/",
                                                          "npm", "-", "\\", "\t", "1"]), max_size=8).map("".join))
def test_no_pattern_equals_everything_and_allows(category: str, pattern: str) -> None:
    """
    A pattern that matches as a denial whatever there is allows nothing, however it is written; and one that never
    matches names no program and no package.
    """
    try:
        narrow, wide = parse_rule(f"{category}({pattern})", "allow"), parse_rule(f"{category}({pattern})", "deny")
    except BadRequest:
        return
    samples = SAMPLES[category]
    found = [subject for subject in samples if narrow.matches(subject)]

    assert len(found) < len(samples)
    if all(wide.matches(subject) for subject in samples):
        assert narrow.never_matches
    if narrow.never_matches:
        assert not found
        assert not wide.text.removeprefix(f"{category}(").split(" ")[0].strip("*:@)")


HOSTS = st.sampled_from(["example.org", "a.example.org", "x.a.example.org", "datadoghq.com", "10.0.0.1", "::1"])
SUBJECTS: st.SearchStrategy[RuleSubject] = st.one_of(
    st.builds(endpoint, HOSTS, st.sampled_from([0, 80, 443])),
    st.builds(project_path, st.sampled_from(["a", "a/b", ".env", "src/x.py"])),
    st.builds(invocation, st.sampled_from(["ls", "git push", "a; b", "bun test x"])),
    st.builds(package, st.sampled_from(MANAGERS), st.sampled_from(["a", "react"]), st.sampled_from(["", "1.0"])),
    st.builds(branch, st.sampled_from(["main", "feature/a"])),
    st.builds(sandbox_action, st.sampled_from(["open data"])),
)
TEXTS = st.lists(st.sampled_from([
    "network", "network(*.example.org)", "network(10.0.0.1)", "network(*:443)", "filesystem(a/**)", "filesystem(.env*)",
    "filesystem", "exec(ls)", "exec(git *)", "exec", "packages(npm:react)", "packages", "git(main)", "git", "sandbox",
    *DEFAULT_DENY]), max_size=4)
MODE_SETS = st.dictionaries(st.sampled_from([each for each in CATEGORIES if each not in LOCKED]),
                            st.sampled_from(MODES))


@pytest.mark.thorough
@settings(max_examples=800, deadline=None)
@given(SUBJECTS, TEXTS, TEXTS, TEXTS, st.lists(st.sampled_from(["example.org", "10.0.0.1"])), MODE_SETS)
def test_the_order_holds_for_every_set_of_rules(subject: RuleSubject, forbidden: list[str], denied: list[str],
                                                allowed: list[str], endpoints: list[str],
                                                modes: dict[str, str]) -> None:
    rules = RuleSet(deny(*forbidden), tuple(map(parse_host, endpoints)), deny(*denied), allow(*allowed), modes)
    found = decide_subject(rules, subject)
    by_rule = [any(rule.matches(subject) for rule in group) for group in (rules.forbidden, rules.deny, rules.allow)]

    if by_rule[0]:
        assert ("deny", "operator") == (found.answer, found.by)
    elif found.by == "endpoint":
        assert "allow" == found.answer
        assert "network" == subject.category
    elif by_rule[1]:
        assert ("deny", "rule") == (found.answer, found.by)
    elif by_rule[2]:
        assert ("allow", "rule") == (found.answer, found.by)
    else:
        assert {"allow-all": "allow", "deny-all": "deny"}.get(rules.mode(subject.category), "ask") == found.answer
    if subject.category in LOCKED and not allowed:
        assert "allow" != found.answer


ORDER: tuple[tuple[dict[str, Any], RuleSubject, str, str], ...] = (
    ({}, endpoint("example.org"), "ask", "person"),
    ({"deny": deny(*DEFAULT_DENY), "modes": {"network": "allow-all"}}, endpoint("x.datadoghq.com"), "deny", "rule"),
    ({"deny": deny(*DEFAULT_DENY), "modes": {"network": "allow-all"}}, endpoint("datadoghq.com.org"), "allow", "mode"),
    ({"endpoints": (parse_host("example.org"),), "deny": deny("network")}, endpoint("a.example.org"), "allow",
     "endpoint"),
    ({"endpoints": (parse_host("example.org"),), "forbidden": deny("network(a.example.org)")},
     endpoint("a.example.org"), "deny", "operator"),
    ({"endpoints": (parse_host("1.2.3.4"),)}, endpoint("1.2.3.5"), "ask", "person"),
    ({"deny": deny("git(main)"), "allow": allow("git")}, branch("main"), "deny", "rule"),
    ({"allow": allow("exec", "exec(ls)")}, invocation("ls"), "allow", "rule"),
    ({"allow": allow("exec", "packages")}, invocation("ls"), "ask", "person"),
    ({"modes": {"git": "deny-all"}, "allow": allow("git(a)")}, branch("b"), "deny", "mode"),
    ({"modes": {"filesystem": "approve-bulk"}}, project_path("a"), "ask", "person"),
    # A file of git's own is run or obeyed on the host.
    ({"modes": {"filesystem": "allow-all"}}, project_path("a/.git/config"), "ask", "person"),
    ({"modes": {"filesystem": "allow-all"}}, project_path("a/.gitignore"), "allow", "mode"),
    *(({"modes": {"filesystem": "allow-all"}, "allow": allow("filesystem(**)")}, project_path(path), "ask", "person")
      for path in (".hg/hgrc", "a/.jj/repo/config.toml", ".svn/entries", ".fslckout", "_FOSSIL_", ".pijul/config",
                   "sub/HEAD", "sub/commondir", ".g\u200cit/config", "git~1/config")),
    ({"modes": {"filesystem": "allow-all"}, "allow": allow("filesystem(**)")}, ProjectPath("vendor/x/config", True),
     "ask", "person"),
    ({"modes": {"filesystem": "allow-all"}}, ProjectPath("vendor/x/config"), "allow", "mode"),
    ({"modes": {"filesystem": "deny-all"}}, project_path(".git/config"), "deny", "mode"),
    ({"allow": allow("filesystem", "filesystem(**/config)", "filesystem(/*/hooks/*)")},
     project_path(".GIT/hooks/config"),
     "ask", "person"),
    ({"allow": allow("filesystem(/.git/info/*)")}, project_path(".git/info/exclude"), "allow", "rule"),
    ({"deny": deny("filesystem(**)")}, project_path(".git/config"), "deny", "rule"),
)


@pytest.mark.parametrize(("rules", "subject", "answer", "by"), ORDER)
def test_rules_decide_in_their_order(rules: dict[str, Any], subject: RuleSubject, answer: str, by: str) -> None:
    found = decide_subject(RuleSet(**rules), subject)

    assert (answer, by) == (found.answer, found.by)
    assert ("deny" == answer) is bool(found.reason)


@pytest.mark.parametrize(("category", "mode"), [*((category, mode) for category in LOCKED for mode in MODES[1:]),
                                                ("network", "no-mode"), ("nothing", "allow-all")])
def test_modes_that_arent_allowed(category: str, mode: str) -> None:
    with pytest.raises(BadRequest):
        RuleSet(modes={category: mode})


def test_a_rule_stands_in_its_own_list() -> None:
    with pytest.raises(BadRequest):
        RuleSet(allow=deny("network"))
    with pytest.raises(BadRequest):
        RuleSet(deny=deny("network") * 1001)


def test_every_category_has_a_reader() -> None:
    assert set(READERS) == set(CATEGORIES)


def test_no_text_makes_a_pattern_slow() -> None:
    """
    Sixteen stars and a path of four thousand characters: each is looked at a bounded number of times. An expression
    that tries all divisions would need more than a lifetime, so the limit of the test run is the check.
    """
    before = time.process_time()
    globbed = parse_rule("filesystem(**/a*a/**/a*a/**/a*a/**/a*a/b)", "deny")
    assert not globbed.matches(project_path("a" * 2000 + "/" + "a/" * 900 + "c"))
    assert not parse_rule("exec(x " + "*a" * 15 + "b)", "deny").matches(invocation(["x", "a" * 60000]))
    assert time.process_time() - before < 60
    assert ["", "a", "", ] == starred("**a**")
