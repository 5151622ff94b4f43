"""The first steps of an engine, without what they are taken with: their order, what a zygote is told, and the way back."""

from __future__ import annotations

import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leeward.daemon.pool import begin as module
from leeward.daemon.pool.begin import Settings, begin
from leeward.daemon.worker.zygote_start import StartedZygote
from leeward.errors import BadRequest
from leeward.isolation import interpreter
from leeward.isolation.plan import ZygotePlan
from leeward.spec.egress_policy import parse_policy


class FakeDriver:
    memory_counted = True
    affinity_fixed = False

    def __init__(self, steps: list[str]) -> None:
        self._steps = steps

    def sweep(self) -> None:
        self._steps.append("sweep")

    def close(self) -> None:
        self._steps.append("close driver")


class FakeHatched:
    def __init__(self, plan: ZygotePlan, steps: list[str]) -> None:
        self.plan, self._steps = plan, steps
        steps.append("hatch")

    def end(self) -> None:
        self._steps.append("end zygote")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done, in order."""
    done: list[str] = []

    def choose(_name: str | None, *, pinned: bool) -> Any:
        assert not pinned
        done.append("choose")
        return FakeDriver(done)

    monkeypatch.setattr(module, "privileges", SimpleNamespace(be_subreaper=lambda: done.append("subreaper")))
    monkeypatch.setattr(module, "_limits_to_inherit", lambda: done.append("limits"))
    monkeypatch.setattr(module, "choose", choose)
    monkeypatch.setattr(module, "landlock", SimpleNamespace(probe=lambda: 1))
    monkeypatch.setattr(module, "StartedZygote", lambda plan: FakeHatched(plan, done))
    return done


def plan_of(hatched: StartedZygote) -> ZygotePlan:
    assert isinstance(hatched, FakeHatched)
    return hatched.plan


def test_the_start_takes_its_steps_in_order_and_undoes_them_in_reverse(steps: list[str]) -> None:
    """
    The daemon is a subreaper, limits are set to be inherited and the driver has moved the daemon before there is a
    zygote.
    """
    bootstrap = begin(Settings())
    assert ["subreaper", "limits", "choose", "sweep", "hatch"] == steps
    bootstrap.close()
    bootstrap.close()

    assert ["end zygote", "close driver"] == steps[5:]


def test_a_taken_zygote_is_not_closed_by_its_maker(steps: list[str]) -> None:
    """Closing leaves zygote and driver alone."""
    bootstrap = begin(Settings())
    bootstrap.take()
    bootstrap.close()

    assert "hatch" == steps[-1]


@pytest.mark.parametrize("wrong", ["interpreter", "zygote"])
def test_a_step_that_fails_takes_back_those_before(steps: list[str], wrong: str,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's groups don't stay."""
    def fail(*_: object) -> Any:
        raise BadRequest("it can't be")

    if "interpreter" == wrong:
        monkeypatch.setattr(module, "interpreter", SimpleNamespace(**vars(module.interpreter) | {"find": fail}))
    else:
        monkeypatch.setattr(module, "StartedZygote", fail)
    with pytest.raises(BadRequest, match="it can't be"):
        begin(Settings())

    assert ["choose", "sweep", "close driver"] == steps[2:]


def test_the_zygote_is_told_its_settings(steps: list[str]) -> None:
    """What of the settings concerns it."""
    some = plan_of(begin(Settings(preload=("json",))).take())
    other = plan_of(begin(Settings(rehearse=False, warm=False)).take())

    assert some.bare  # no environment was given
    assert "json" in some.preload
    assert "json" not in other.preload
    assert (True, True) == (some.rehearse, some.warm)
    assert (False, False) == (other.rehearse, other.warm)


@pytest.mark.parametrize("refused", [None, ValueError, OSError])
def test_limits_to_inherit(refused: type[Exception] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many descriptors as we may have, and no core: of 1 byte, which starts no program that takes cores, or of none."""
    limits: list[object] = []

    def setrlimit(which: int, limit: tuple[int, int]) -> None:
        if refused is not None and (resource.RLIMIT_CORE, (1, 1)) == (which, limit):
            raise refused
        limits.append((which, limit))

    monkeypatch.setattr(module, "resource", SimpleNamespace(**vars(resource) | {
        "getrlimit": lambda _: (256, 4096), "setrlimit": setrlimit}))
    module._limits_to_inherit()

    core = (1, 1) if refused is None else (0, 0)
    assert [(resource.RLIMIT_NOFILE, (4096, 4096)), (resource.RLIMIT_CORE, core)] == limits


def test_an_unsuitable_path_of_a_profile_is_refused(tmp_path: Path) -> None:
    """
    A link to a path that no sandbox is shown; and a path below a writable folder's own mount, where it would be
    covered.
    """
    view: Any = SimpleNamespace(binds=(), texts=(), links=(), scratch=SimpleNamespace(targets=("/workspace", "/tmp")))
    (tmp_path / "link").symlink_to("/sys")
    with pytest.raises(BadRequest, match=r"leads to '/sys'"):
        module._binds([str(tmp_path / "link")], view)
    view.scratch.targets = ("/workspace", str(tmp_path))
    (tmp_path / "tools").mkdir()
    with pytest.raises(BadRequest, match="each sandbox has its own"):
        module._binds([str(tmp_path / "tools")], view)
    view.scratch.targets = ("/workspace",)
    (bind,) = module._binds([str(tmp_path / "tools")], view)
    assert str(tmp_path / "tools") == bind.target


@pytest.mark.parametrize(("routed", "proxy", "told"), [
    (True, False, False), (True, True, True), (False, False, True), (False, True, True),
])
def test_programs_are_told_of_the_proxy_where_it_is_all_there_is(routed: bool, proxy: bool, told: bool,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Or where the policy says so. By the environment of the pool, so that no program of it lacks the variables."""
    monkeypatch.setattr("leeward.daemon.pool.begin.is_routed", lambda: routed)
    policy = parse_policy({"allow": ["example.org"], "proxy": proxy})
    made = module.spec_of(Settings(egress=policy), interpreter.find(), memory_counted=True, fixed=False)

    environment = dict(made.environment)
    assert (routed, told) == (made.routed, "https_proxy" in environment)
    assert told == (environment.get("NO_PROXY") is not None)
