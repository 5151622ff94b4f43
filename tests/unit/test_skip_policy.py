"""The check that counts skips, on tables and on small runs of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit import features, skip_policy


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A machine with a sun, a Landlock of ABI 3 and no moon."""
    monkeypatch.setattr(features, "TABLE", {"sun": lambda: (1,), "moon": lambda: (), "landlock": lambda: (3,),
                                            "kernel": lambda: (6, 2)})
    features.have.cache_clear()
    yield
    features.have.cache_clear()


@pytest.mark.parametrize(("requirement", "met"), [
    ("sun", True), ("moon", False), ("landlock", True), ("landlock>=3", True), ("landlock>=4", False),
    ("kernel>=5.13", True), ("kernel>=6.2", True), ("kernel>=6.12", False), ("moon>=1", False),
])
def test_a_requirement_is_met_by_the_version_that_is_there(requirement, met):
    assert met is features.is_met(requirement)


@pytest.mark.parametrize(("requirements", "reason"), [
    (("sun", "landlock>=3"), None),
    (("sun", "moon"), "needs moon: this machine has none"),
    (("landlock>=4", "moon"), "needs landlock>=4, moon: this machine has 3, none"),
])
def test_the_reason_names_the_missing_feature(requirements, reason):
    assert reason == skip_policy.reason_for(requirements)


@pytest.mark.parametrize(("reason", "fault"), [
    ("Skipped: needs moon: this machine has none", None),
    ("needs landlock>=4, sun: a plain skipif", None),
    ("Skipped: needs sun: this machine has none", "but this machine has sun"),
    ("Skipped: needs landlock>=2, sun: old", "but this machine has landlock>=2, sun"),
    ("Skipped: not today", "names no feature of tests/kit/features.py"),
    ("unconditional skip", "names no feature of tests/kit/features.py"),
    ("Skipped: could not import 'prctl': No module", "names no feature of tests/kit/features.py"),
    ("Skipped: needs comet: rare", "names 'comet', which tests/kit/features.py doesn't know"),
    ("Skipped: needs landlock>=many: odd", "names 'landlock>=many', which tests/kit/features.py doesn't know"),
])
def test_a_skip_is_judged_by_its_reason(reason, fault):
    assert fault == skip_policy.fault_of(reason)


@pytest.fixture
def run(pytester, monkeypatch):
    """Run a test file under the policy, in this process and so on this fixture's machine."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # a second for each run otherwise

    def run(text: str) -> pytest.RunResult:
        pytester.makeconftest('pytest_plugins = ["kit.skip_policy"]')
        pytester.makepyfile(text)
        return pytester.runpytest_inprocess("--strict-markers", "-p", "no:cacheprovider")
    return run


def test_a_skip_for_an_absent_feature_passes(run):
    result = run("""
        import pytest
        from kit import skip_policy

        @pytest.mark.needs("sun", "moon")
        def test_marked(never_made): assert False

        def test_asks(): skip_policy.require("landlock>=4")

        @pytest.mark.skipif(True, reason="needs moon: it is day")
        def test_plain(): assert False

        @pytest.mark.needs("sun")
        def test_runs(): pass
    """)

    result.assert_outcomes(passed=1, skipped=3)
    assert pytest.ExitCode.OK == result.ret
    result.stdout.no_fnmatch_line("*skips that are failures*")


@pytest.mark.parametrize("text", [
    "import pytest\n@pytest.mark.skip\ndef test_one(): pass",
    "import pytest\n@pytest.mark.skipif(True, reason='needs sun: no')\ndef test_one(): pass",
    "import pytest\ndef test_one(): pytest.skip('not today')",
    "import pytest\n@pytest.fixture\ndef fixture(): pytest.skip('not today')\ndef test_one(fixture): pass",
    "import pytest\npytest.skip('whole module', allow_module_level=True)\ndef test_one(): pass",
    "import pytest\npytest.importorskip('nobody_has_this')\ndef test_one(): pass",
    "import unittest\nclass TestOne(unittest.TestCase):\n    def test_one(self): self.skipTest('not today')",
])
def test_any_other_skip_fails_the_run(run, text):
    result = run(text)

    assert pytest.ExitCode.TESTS_FAILED == result.ret
    assert 0 == result.parseoutcomes().get("failed", 0)  # it is the skip that fails it
    result.stdout.fnmatch_lines(["*skips that are failures*", "*test_any_other_skip*"])


def test_an_expected_failure_is_not_a_skip(run):
    result = run("import pytest\n@pytest.mark.xfail(reason='known')\ndef test_one(): assert False")

    result.assert_outcomes(xfailed=1)
    assert pytest.ExitCode.OK == result.ret


def test_an_unknown_feature_is_an_error_of_the_test(run):
    result = run("import pytest\n@pytest.mark.needs('comet')\ndef test_one(): pass")

    assert pytest.ExitCode.TESTS_FAILED == result.ret
    result.stdout.fnmatch_lines(["*what tests/kit/features.py doesn't know*comet*"])


HYBRID = """\
31 23 0:27 / /sys/fs/cgroup ro shared:9 - tmpfs tmpfs ro,mode=755
32 31 0:28 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw
33 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
34 31 0:32 /docker/4f /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
"""


def test_the_own_group_is_found_on_each_hierarchy():
    groups = "8:memory:/docker/4f/inner\n4:cpu,cpuacct:/work\n0::/\n"

    assert {
        "": Path("/sys/fs/cgroup/unified"),
        "cpu": Path("/sys/fs/cgroup/cpu,cpuacct/work"),
        "cpuacct": Path("/sys/fs/cgroup/cpu,cpuacct/work"),
        "memory": Path("/sys/fs/cgroup/memory/inner"),
    } == features.own_cgroups(HYBRID, groups)
