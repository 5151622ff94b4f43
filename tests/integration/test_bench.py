"""
`leeward bench` against a daemon: that it measures at all, never how fast.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def bench(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-P", "-m", "leeward_cli", "bench", *arguments], capture_output=True,
                          text=True, timeout=100, check=False, env={**os.environ, **variables})


def test_two_rounds_give_every_figure_and_leave_nothing_behind(tmp_path):
    before = set(Path("/tmp").glob("leeward-bench.*"))
    ended = bench("--rounds", "2", "--json", HOME=str(tmp_path))

    assert (0, "") == (ended.returncode, ended.stderr)
    found = json.loads(ended.stdout)
    assert {"leeward", "leeward, called from C", "four hops", "fork on request", "/bin/echo", "python3 -I -S -c"} == {
        row["subject"] for row in found["latency"]}
    for row in [*found["latency"], *found["legs"].values()]:
        assert 0 < row["least"] <= row["p50"] <= row["p90"] <= row["p99"]
        assert row["n"] > 0
        assert row["gap_ms"] in (0.0, 5.0)
    assert {(row["subject"], row["gap_ms"]) for row in found["latency"]} == {
        (row["subject"], gap) for row in found["latency"] for gap in (0.0, 5.0)}
    assert all(each["ratio"] > 0 for each in found["ratios"])
    assert {("leeward", 8), ("fork on request", 8)} == {(row["subject"], row["callers"]) for row in found["rates"]}
    assert {"daemon", "zygote", "workers"} == set(found["processor_us_per_job"])
    assert {"low", "high", "spread", "noisy", "load"} == set(found["noise"])
    assert {"kernel", "arch", "processors", "python"} == set(found["machine"])
    assert set(Path("/tmp").glob("leeward-bench.*")) <= before


def test_a_daemon_that_is_away_is_told_and_nothing_is_measured(tmp_path):
    ended = bench("--socket", str(tmp_path / "nobody.sock"))

    assert 1 == ended.returncode
    assert "no daemon answers" in ended.stderr
    assert not ended.stdout
