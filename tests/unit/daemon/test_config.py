"""The configuration's values: each has a key, whose quota is which, and what a reload takes."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from kit.configured import loaded, written
from leeward.daemon.config import EGRESS, Config, caps, jobs_beyond, live, quotas
from leeward.daemon.config_keys import ENVIRONMENTS, KEYS, LIMIT_KEYS, PROFILES, TABLES, USERS
from leeward.errors import BadRequest
from leeward.spec.limits import Limits


def test_every_field_has_a_key_and_every_key_a_field() -> None:
    """The table is the documentation; nothing is outside it."""
    assert {item.name for item in dataclasses.fields(Config)} == {*KEYS, *TABLES, USERS, ENVIRONMENTS, PROFILES, EGRESS}
    assert {item.name for item in dataclasses.fields(Limits)} - {"cuts_output", "cpu_time", "wall"} == set(LIMIT_KEYS)


def test_quotas_are_resolved_by_user(home: Path, tmp_path: Path) -> None:
    """A user's table holds the differences from [quota]; later files win key by key."""
    system = written(tmp_path / "etc.toml", "[quota]\njobs = 2\nrate = 5\n[users.1234]\njobs = 1\nrate = 1\n", 0o644)
    config = loaded(home, written(tmp_path / "x.toml", "[quota]\nrate = 7\n[users.1234]\njobs = 9\n[users.root]\n"
                                                       "jobs = 3\n"), system=system)
    held = quotas(config, 1000)

    assert (2, 7.0, 256) == (held.of(4711).jobs, held.of(4711).rate, held.of(4711).connections)
    assert (9, 1.0, 256) == (held.of(1234).jobs, held.of(1234).rate, held.of(1234).connections)
    assert (0, 0.0, 0) == (held.of(1000).jobs, held.of(1000).rate, held.of(1000).connections)
    assert (3, 7.0) == (held.of(0).jobs, held.of(0).rate)  # named, so held to it


def test_a_reload_takes_reloadable_keys_and_names_the_others(home: Path) -> None:
    """Key by key, as the table says; the others stay as they were."""
    old = loaded(home)
    new = loaded(home, None, {
        "pool_size": 9, "queue_size": 3, "queue_delay": 2, "log_level": "debug", "limits": {"time": 5, "files": "1M"},
        "ceilings": {"time": 7}, "quota": {"jobs": 1}, "users": {"1234": {"rate": 2}}, "metrics": "127.0.0.1:1",
        "egress": {"build": {}},
    })
    taken, left = live(old, new)

    assert {"pool_size", "metrics", "limits.files", "egress"} == set(left)
    assert (4, 3, 2.0, "debug", "") == (
        taken.pool_size, taken.queue_size, taken.queue_delay, taken.log_level, taken.metrics)
    assert (5.0, old.limits.files, 7.0) == (taken.limits.time, taken.limits.files, taken.ceilings.time)
    assert (1, {1234: {"rate": 2.0}}) == (taken.quota.jobs, taken.users)
    assert (taken, left) == live(taken, new)
    assert (old, []) == live(old, old)


@pytest.mark.parametrize(("text", "said"), [
    ("[environments]\ndata = 1", "environments.data: must be a table"),
    ("environments = 1", "must hold tables, [environments.NAME]"),
    ('[environments."a/b"]', "environments.a/b: is no name"),
    ("[environments.data]\nname = 1", "environments.data.name: unknown; these are known: path, preload, min, max"),
    ("[environments.data]\nmin = 5", "environments.data: min=5 is above max=4"),
    ('[environments.data]\npath = "relative"', "environments.data.path: must be an absolute path"),
    ("[profiles.python]", "profiles.python: is what the daemon's own keys configure"),
    ('[profiles.x]\nbase = "shop"', "profiles.x.base: must be one of python, workdir, approved"),
    ('[profiles.x]\nshow = ["/proc/1"]', "profiles.x.show: must hold absolute paths"),
    ('[profiles.x]\nshow = ["/"]', "profiles.x.show: must hold absolute paths"),
    ('[profiles.x]\nshow = ["/etc/shadow"]', "profiles.x.show: must hold absolute paths"),
    ('[profiles.x]\nshow = ["/srv/../etc"]', "profiles.x.show: must hold absolute paths"),
    ("[profiles.x]\nshow = [7]", "profiles.x.show: must hold paths"),
    ("[profiles.x]\nvariables = { A = 1 }", "profiles.x.variables: must be a table of text"),
    ('[profiles.x]\nvariables = { "A=B" = "1" }', "profiles.x.variables: must be a table of text"),
    ("[profiles.x]\nlimits = { speed = 1 }", "profiles.x.limits: must have no speed"),
    ("[profiles.x]\nlimits = { memory = 1 }", "profiles.x.limits: must be bytes"),
    ("pinned = true\n[limits]\ncpu = 101", "limits.cpu=101 is more than one processor, and `pinned` gives a job one"),
    ("pinned = true\n[profiles.x]\nlimits = { cpu = 200 }", "profiles.x.limits.cpu=200 is more than one processor"),
    ('[profiles.x]\nlimits = { memory = "5G" }', "profiles.x.limits.memory=5GiB is above ceilings.memory=4GiB"),
    ('socket = "/srv/run/s"\n[profiles.x]\nshow = ["/srv"]', "profiles.x.show: '/srv' has the daemon's socket in it"),
])
def test_malformed_environments_and_profiles_are_refused(home: Path, tmp_path: Path, text: str, said: str) -> None:
    """Refused at the start, by file and key."""
    with pytest.raises(BadRequest, match=re.escape(said)):
        loaded(home, written(tmp_path / "c.toml", text + "\n"))


def test_tables_of_later_files_win_key_by_key(home: Path, tmp_path: Path) -> None:
    system = written(tmp_path / "etc.toml", '[environments.data]\npath = "/a"\nmax = 9\n[profiles.x]\nmax = 7\n', 0o644)
    config = loaded(home, written(tmp_path / "c.toml", '[environments.data]\npath = "/b"\n'), system=system)

    assert ("/b", 9) == (config.environments["data"].path, config.environments["data"].max)
    assert ("python", 7) == (config.profiles["x"].base, config.profiles["x"].max)
    assert ["environments", "profiles"] == live(Config(), config)[1][-2:]


@pytest.mark.parametrize(("config", "memory", "most"), [
    (Config(), 24 << 30, 256), (Config(), 1 << 30, 28), (Config(), 64 << 20, 0), (Config(max_jobs=0), 24 << 30, 0),
    (Config(max_jobs=4), 24 << 30, 0), (Config(max_jobs=500), 1 << 30, 496),
])
def test_workers_for_jobs_are_as_many_as_memory_carries_or_as_asked_for(config: Config, memory: int, most: int) -> None:
    assert most == jobs_beyond(config, memory)


def test_clients_are_told_how_many_jobs_run_at_once() -> None:
    assert (4, 260) == (caps(Config(), 260)["workers"], caps(Config(), 260)["jobs"])
