"""
Hosts that lack something for the limits: what is used instead, and who is told. Catalogue case 64.

What then still holds: docs/kernel.md, row by row in test_memory.py and test_processes.py.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from kit.box import Box, control
from kit.features import ROOT
from kit.promises import table
from leeward.apps import host
from leeward.apps.host.findings import Feature, Support
from leeward.errors import Unsupported
from leeward.isolation.cgroup import hierarchy
from leeward.isolation.cgroup.hierarchy import Hierarchy
from leeward.spec.outcome import Outcome

Hosts = tuple[Hierarchy, ...]

V2 = Hierarchy(2, frozenset(), "/sys/fs/cgroup", "/sys/fs/cgroup")


def v1(*names: str, writable: bool = True) -> Hosts:
    return tuple(Hierarchy(1, frozenset({name}), f"/sys/fs/cgroup/{name}", f"/sys/fs/cgroup/{name}", writable)
                 for name in names)


#: What a host may have, and a word of the reason for which each driver is passed over there.
HOSTS: dict[str, tuple[Hosts, dict[str, str]]] = {
    "no cgroups at all": ((), {"v2": "no mount", "v1": "memory, pids, cpu"}),
    "version 2, read-only": ((dataclasses.replace(V2, writable=False),),
                             {"v2": "read-only", "v1": "memory, pids, cpu"}),
    "version 2, its group out of reach": ((dataclasses.replace(V2, own="/sys/fs/cgroup/nobody's"),),
                                          {"v2": "nobody's", "v1": "memory, pids, cpu"}),
    "version 2, not delegated": ((dataclasses.replace(V2, own="FOLDER"),),
                                 {"v2": "controllers cpuset hugetlb", "v1": "memory, pids, cpu"}),
    "version 1, read-only": (v1("memory", "pids", "cpu", "cpuacct", writable=False),
                             {"v2": "no mount", "v1": "memory, pids, cpu"}),
    "version 1 without memory": (v1("pids", "cpu", "cpuacct"), {"v2": "no mount", "v1": "memory"}),
    "hybrid without pids": ((*v1("memory", "cpu"), dataclasses.replace(V2, writable=False)),
                            {"v2": "read-only", "v1": "pids"}),
}


def judged() -> Feature:
    return next(feature for feature in host.features() if "cgroup" == feature.name)


#: Twice what it may have.
BOMB = "kept = []\nfor _ in range(128): kept.append(bytearray(b'x') * (1 << 20))"
MEMORY = 64 << 20


@pytest.mark.no_single_lock("it is about what the daemon finds on its host, and whom it tells")
@pytest.mark.parametrize("lacks", HOSTS)
def test_c064_a_missing_feature_of_the_host_is_reported_everywhere(unlimited: Box, lacks: str,
                                                                   monkeypatch: pytest.MonkeyPatch,
                                                                   tmp_path: Path) -> None:
    """In doctor, in status and in every result; and the limits hold in another way."""
    hierarchies, reasons = HOSTS[lacks]
    (tmp_path / "cgroup.controllers").write_text("cpuset hugetlb\n")
    here = tuple(dataclasses.replace(each, own=each.own.replace("FOLDER", str(tmp_path))) for each in hierarchies)
    monkeypatch.setattr(hierarchy, "here", lambda: here)

    told = judged()
    with Box() as box:
        layer = box.engine.status()["layers"]["cgroup"]  # type: ignore[index]  # a mapping of mappings
        got = box.run("print(1)")
        bomb = box.run(BOMB, limits={"memory": MEMORY})
    with control():
        assert Outcome.FINISHED is unlimited.run(BOMB, limits={"memory": MEMORY}).outcome

    assert Support.LIMITED is told.state
    assert "holds limits itself" in told.without
    assert told.cure
    assert ("degraded", "none") == (layer["state"], layer["driver"])
    for name, reason in reasons.items():
        assert reason in layer["passed_over"][name], layer
        assert reason in told.have
    assert (("cgroup",), b"1\n") == (got.degraded, got.stdout)
    assert (Outcome.OUT_OF_MEMORY, ("cgroup",)) == (bomb.outcome, bomb.degraded)


@pytest.mark.smoke
@pytest.mark.no_attack("what is told of a host as it is")
def test_c064_a_complete_host_reports_no_missing_feature(box: Box) -> None:
    """The reports of the test above come from the host alone."""
    driver, told = box.engine.driver, judged()

    assert driver.degraded is (Support.OK is not told.state)
    assert (("cgroup",) if driver.degraded else ()) == box.run("print(1)").degraded


@pytest.mark.no_attack("there is no daemon that could run a job")
def test_c064_a_driver_that_is_asked_for_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who names a driver gets that one or no daemon."""
    monkeypatch.setattr(hierarchy, "here", lambda: ())

    for name in ("v2", "v1"):
        with pytest.raises(Unsupported, match="cgroup"), Box(cgroup=name):
            pass


@pytest.mark.no_attack("what the tests' own source says")
def test_c064_every_row_of_the_table_is_tested() -> None:
    """A row that no test asks for could say anything."""
    tests = "".join((ROOT / "tests" / name).read_text()
                    for name in ("escapes/test_memory.py", "escapes/test_processes.py", "kit/memory_attacks.py"))
    asked = set(re.findall(r'^ {4}"([^"\n]+)":', tests, re.MULTILINE)) | set(re.findall(r'promised\("([^"]+)"', tests))

    assert set(table()) <= asked
    assert all({"v2", "v1", "none"} == set(row) for row in table().values())
