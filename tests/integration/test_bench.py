"""`leeward bench` against a daemon: that it measures at all, never how fast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

from bench import figures


def bench(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-P", "-m", "leeward_cli", "bench", *arguments], capture_output=True,
                          text=True, timeout=100, check=False, env={**os.environ, **variables})


def measured(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-P", "-m", "bench.figures", *arguments], capture_output=True, text=True,
                          timeout=100, check=False)


#: Measured wherever the bench runs; the others if they are installed.
ALWAYS = {"leeward", "leeward, called from C", "four hops", "two hops", "exec in a warm interpreter", "fork on request",
          "/bin/echo", "python3 -I -S -c", "python3 -c", "multiprocessing.Pool.apply"}


def test_a_round_gives_every_figure_and_leaves_no_process_or_file(tmp_path):
    with tempfile.TemporaryDirectory(prefix="lw-") as folder:  # a socket's path has 107 bytes
        ended = bench("--rounds", "1", "--json", "--plot", str(tmp_path / "plot.svg"), HOME=str(tmp_path), TMPDIR=folder)
        assert [] == os.listdir(folder)

    assert (0, "") == (ended.returncode, ended.stderr)
    found = json.loads(ended.stdout)
    subjects = {row["subject"] for row in found["latency"]}
    assert ALWAYS <= subjects
    assert len(subjects - ALWAYS) + len(found["missing"]) == 4
    for row in [*found["latency"], *found["legs"].values()]:
        assert 0 < row["least"] <= row["p50"] <= row["p90"] <= row["p99"]
        assert row["n"] > 0
        assert row["gap_ms"] in (0.0, 5.0)
    assert {(row["subject"], row["gap_ms"]) for row in found["latency"]} == {
        (subject, gap) for subject in subjects for gap in (0.0, 5.0)}
    assert all(each["ratio"] > 0 for each in found["ratios"])
    assert {("leeward", 8), ("fork on request", 8)} == {(row["subject"], row["callers"]) for row in found["rates"]}
    for row in found["rates"]:
        assert 0 < row["p99"] <= row["p90"] <= row["p50"]
        assert row["n"] > 0
    assert {"daemon", "zygote"} <= set(found["processor_us_per_job"])
    assert {"low", "high", "spread", "noisy", "load", "steal", "others"} == set(found["noise"])
    assert {"kernel", "arch", "processors", "python", "root", "floors"} == set(found["machine"])
    assert "hello world" in (tmp_path / "plot.svg").read_text()


#: The groups that are done within seconds; the others start daemons with hundreds of workers.
GROUPS = list(figures.GROUPS) if os.environ.get("LEEWARD_LONG") else ["denied", "memory"]


def test_the_table_of_figures():
    ended = measured("--rounds", "1", "--json", *GROUPS)

    assert (0, "") == (ended.returncode, ended.stderr)
    found = json.loads(ended.stdout)["figures"]
    assert set(GROUPS) == {row["group"] for row in found}
    for row in found:
        if row["value"] is None:
            assert "not measured" in row["note"]
        else:
            assert row["value"] >= 0
        for each in row["measured"]:
            assert {"p50", "p90", "p99", "n", "unit", "subject"} <= set(each)


def test_a_missing_group_is_reported():
    ended = measured("denied", "everything")

    assert 2 == ended.returncode
    assert "no such group: 'everything'" in ended.stderr


def test_a_picture_that_cannot_be_written_is_reported_before_the_measurement(tmp_path):
    ended = bench("--plot", str(tmp_path / "nowhere" / "plot.svg"))

    assert 1 == ended.returncode
    assert "No such file or directory" in ended.stderr


def test_a_missing_daemon_is_reported_and_no_figure_is_printed(tmp_path):
    ended = bench("--socket", str(tmp_path / "nobody.sock"))

    assert 1 == ended.returncode
    assert "no daemon answers" in ended.stderr
    assert not ended.stdout
