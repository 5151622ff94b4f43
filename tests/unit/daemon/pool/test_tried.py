"""What a sandbox sees of /proc where the kernel lets no part of it be covered."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from leeward.base.dataclass import replace
from leeward.daemon.pool import begin
from leeward.daemon.pool.begin import Settings, spec_of
from leeward.daemon.worker import bare
from leeward.isolation import interpreter


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    begin.is_coverable.cache_clear()
    yield
    begin.is_coverable.cache_clear()


def on(monkeypatch: pytest.MonkeyPatch, release: str, status: int | Exception) -> list[bool]:
    """A host with this kernel, whose try ends so; one entry for each try."""
    tries: list[bool] = []

    def run(*_arguments: Any, **_options: Any) -> subprocess.CompletedProcess[bytes]:
        tries.append(True)
        if isinstance(status, Exception):
            raise status
        return subprocess.CompletedProcess([], status)

    monkeypatch.setattr(begin.os, "uname", lambda: replaced(release))
    monkeypatch.setattr(subprocess, "run", run)
    return tries


class replaced:
    def __init__(self, release: str) -> None:
        self.release = release


@pytest.mark.parametrize("release", ["5.10.0-33-amd64", "6.1.0", "6.18.44-fc-v669"])
def test_no_cover_is_tried_on_kernels_known_to_work(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    tries = on(monkeypatch, release, bare.REFUSED)
    assert begin.is_coverable()
    assert not tries


@pytest.mark.parametrize(("status", "answer"), [
    (0, True), (bare.REFUSED, False), (1, True), (-9, True), (OSError(11, "no processes"), True),
    (subprocess.TimeoutExpired("python", 30.0), True)])
def test_a_newer_kernel_is_asked_once(monkeypatch: pytest.MonkeyPatch, status: int | Exception, answer: bool) -> None:
    """A try that says nothing leaves the answer to the first runner, which fails aloud."""
    tries = on(monkeypatch, "7.3.4+deb13-amd64", status)
    assert [answer] * 2 == [begin.is_coverable(), begin.is_coverable()]
    assert [True] == tries


def test_a_release_without_numbers_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = on(monkeypatch, "next", bare.REFUSED)
    assert not begin.is_coverable()
    assert tries


def test_a_sandbox_has_processes_alone_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """And everything else that it would have."""
    on(monkeypatch, "7.3.4+deb13-amd64", bare.REFUSED)
    spec = spec_of(Settings(), interpreter.find(), memory_counted=True, fixed=False)
    without = begin.with_what_can_be_covered(spec)
    assert spec.view.proc
    assert ((), ()) == (without.view.proc, without.view.proc_live)
    assert spec == replace(without, view=replace(without.view, proc=spec.view.proc, proc_live=spec.view.proc_live))
