"""The arithmetic of `leeward bench`, and what it makes of samples."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from xml.etree import ElementTree as ET

import pytest

from leeward.errors import LeewardError
from leeward_cli.bench import alternatives, figures, floors, report, scaling
from leeward_cli.bench.figures import Stir, Ticks, percentile, ratio
from leeward_cli.bench.ours import Legs
from leeward_cli.bench.rounds import GAP_S, Samples
from leeward_cli.bench.spent import Spent, clock, group_of, spent, unified

QUIET = Stir(0.0, 0.01)

HUNDRED = [float(value) for value in range(100, 0, -1)]


@pytest.mark.parametrize(("samples", "p", "expected"), [
    ([7.0], 1, 7.0),
    ([7.0], 99, 7.0),
    ([2.0, 1.0], 50, 1.0),       # half of the samples don't exceed it, and none smaller does
    ([3.0, 1.0, 2.0], 50, 2.0),
    (HUNDRED, 50, 50.0),
    (HUNDRED, 90, 90.0),
    (HUNDRED, 99, 99.0),
    (HUNDRED, 100, 100.0),
    ([*HUNDRED, 1000.0], 99, 100.0),
])
def test_a_percentile_is_the_nearest_rank(samples, p, expected):
    assert expected == percentile(samples, p)


def test_a_percentile_is_always_a_sample():
    samples = [0.1, 0.7, 0.2, 9.0]

    assert all(percentile(samples, p) in samples for p in range(1, 101))


def test_a_figure_is_in_microseconds():
    row = figures.figure("us", 0.005, [0.001, 0.003, 0.002])

    assert figures.Figure("us", 5.0, 3, 1000.0, 2000.0, 3000.0, 3000.0) == row


def test_a_ratio_is_of_rounds_not_of_everything():
    """A round in which the machine was ten times slower for both changes nothing."""
    ours = [[2.0, 2.0, 2.0], [20.0, 20.0, 20.0], [20.0, 20.0, 20.0]]
    floor = [[1.0, 1.0, 1.0], [10.0, 10.0, 10.0], [10.0, 10.0, 10.0]]

    assert 2.0 == ratio(ours, floor)


@pytest.mark.parametrize(("medians", "noisy"), [
    ([100e-6] * 10, False),
    ([100e-6, 100e-6, 130e-6, 130e-6], False),
    ([100e-6] * 5 + [150e-6] * 5, True),
    ([100e-6] * 19 + [900e-6], False),  # one bad round of twenty
])
def test_a_machine_is_noisy_when_the_floor_moves(medians, noisy):
    assert noisy == figures.noise([[median] for median in medians], QUIET).noisy


@pytest.mark.parametrize("stir", [Stir(0.05, 0.0), Stir(0.0, 0.3)])
def test_a_machine_is_noisy_when_others_take_it(stir):
    assert figures.noise([[100e-6]] * 10, stir).noisy


def test_processor_time_of_other_programs_is_seen_while_the_bench_is_idle():
    before = figures.read("cpu  100 0 50 800 20 5 5 20 0 0\ncpu0 1 2 3\n")
    after = figures.read("cpu  150 0 50 940 20 5 5 30 0 0\n")

    assert Ticks(1000, 820, 20) == before
    assert Ticks(200, 140, 10) == after - before
    assert Stir(0.05, 0.25) == figures.judged(after - before, Ticks(40, 30, 0))
    assert Stir(0.0, 0.0) == figures.judged(Ticks(), Ticks())
    assert figures.now().total > 0


def test_a_rate_s_percentiles_go_from_good_to_bad():
    row = figures.rate("us", 8, 200, [100.0, 400.0, 200.0, 300.0])

    assert (8, 800, 4) == (row.callers, row.n, row.bursts)
    assert (300, 100, 100) == (row.p50, row.p90, row.p99)
    assert (100, 400) == (row.least, row.most)


def samples(rounds: int) -> Samples:
    made = Samples(burst=10, rounds=rounds, load=0.25, stir=QUIET, missing={"docker": "no docker on the PATH"})
    for name, seconds in (("leeward", 300e-6), ("four hops", 100e-6), ("fork on request", 900e-6),
                          ("/bin/echo", 1e-3), ("python3 -I -S -c", 7e-3)):
        for gap in (GAP_S, 0.0):
            made.calls[name, gap] = [[seconds, seconds] for _ in range(rounds)]
    made.legs = [Legs(120e-6, 180e-6, 200e-6)]
    made.rates = {"leeward": [500.0], "fork on request": [1000.0]}
    return made


def test_findings_compare_leeward_with_everything_else():
    found = report.findings(samples(4))

    assert {("four hops", 5.0): 3.0, ("four hops", 0.0): 3.0} == {
        (each["under"], each["gap_ms"]): each["ratio"] for each in found["ratios"] if "four hops" == each["under"]}
    assert 8 == len(found["ratios"])
    assert {8} == {row["n"] for row in found["latency"]}
    assert [("leeward", 500, 10), ("fork on request", 1000, 10)] == [
        (row["subject"], row["p50"], row["n"]) for row in found["rates"]]
    assert not found["noise"]["noisy"]


def test_findings_of_one_round_have_their_noise_too():
    assert 1.0 == report.findings(samples(1))["noise"]["spread"]


def test_processor_time_is_per_job_and_left_out_where_it_is_not_to_be_had():
    without, counted = samples(1), samples(1)
    counted.spent = [Spent(0.01, 0.0, 0.03), Spent(0.01, 0.0, 0.05)]

    assert {} == report.findings(without)["processor_us_per_job"]
    found = report.findings(counted)["processor_us_per_job"]
    assert {"daemon": 1000, "zygote": 0, "workers": 4000} == {name: each["mean"] for name, each in found.items()}
    assert (20, 3000, 5000, 5000) == tuple(found["workers"][key] for key in ("n", "p50", "p90", "p99"))
    assert spent(0) is None


def test_without_a_cgroup_the_workers_time_is_left_out():
    of_some = samples(1)
    of_some.spent = [Spent(0.03, 0.0, None).since(Spent(0.02, 0.0, None))]

    assert {"daemon", "zygote"} == set(report.findings(of_some)["processor_us_per_job"])


def test_the_kernels_accounts_are_found_by_cgroup():
    assert "/leeward-1/w0/keeper" == group_of("4:memory:/else\n0::/leeward-1/w0/keeper\n")
    assert "/" == group_of("4:memory:/else\n")
    assert "/sys/fs/cgroup/unified" == unified(
        "30 20 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n"
        "31 30 0:27 /part /elsewhere rw - cgroup2 cgroup2 rw\n"
        "32 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw\n")
    assert unified("30 20 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n") is None
    before = time.process_time()
    assert before <= clock(os.getpid()) <= time.process_time()


def test_the_text_has_every_figure_and_says_when_the_machine_was_noisy():
    quiet = report.findings(samples(2))
    noisy = {**quiet, "noise": {**quiet["noise"], "noisy": True}}

    assert "3.00 x" in report.text(quiet)
    assert "The machine was quiet" in report.text(quiet)
    assert "The machine was noisy" in report.text(noisy)
    assert "not measured: docker (no docker on the PATH)" in report.text(quiet)
    for row in quiet["latency"]:
        assert row["subject"] in report.text(quiet)


def test_the_picture_has_its_captions():
    found = report.findings(samples(2))
    root = ET.fromstring(report.svg({**found, "noise": {**found["noise"], "noisy": True}}))
    words = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]

    assert {row["subject"] for row in found["latency"]} <= set(words)
    assert 'How long until print("hello world") has been answered' in words
    assert any("5 ms between" in each for each in words)
    assert any("The machine was noisy" in each for each in words)
    assert "300 µs  (p99 300 µs, n 4)" in words
    # Bars of longer times are longer, and all lie inside.
    bars = [float(each.attrib["width"]) for each in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert sorted(bars) == bars
    assert len(bars) == 5
    assert max(bars) < float(root.attrib["width"])


@pytest.mark.parametrize(("us", "said"), [(0.5, "0.5 µs"), (104.0, "104 µs"), (999.4, "999 µs"), (1000.0, "1 ms"),
                                          (14_500.0, "14.5 ms"), (2_000_000.0, "2 s")])
def test_a_duration_is_printed_in_readable_units(us, said):
    assert said == report.duration(us)


def test_a_missing_program_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    monkeypatch.setitem(sys.modules, "sandlock", None)
    missing: dict[str, str] = {}
    names = ("bwrap", "docker", "sandlock", "pydantic-monty")
    with contextlib.ExitStack() as stack:
        opened = [alternatives.opened(stack, name, missing) for name in names]

    assert [None] * 4 == opened
    assert set(names) == set(missing)
    assert "no bwrap on the PATH" == missing["bwrap"]
    assert missing["sandlock"].startswith("not installed")


def test_a_program_that_does_not_work_is_named(monkeypatch, tmp_path):
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    missing: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        assert alternatives.opened(stack, "bwrap", missing) is None

    assert "it doesn't work here" in missing["bwrap"]


def test_without_a_compiler_the_hops_are_python_s(monkeypatch):
    monkeypatch.setenv("CC", "/nowhere/cc")

    with floors.compiled() as program, floors.hops("two", program) as hops:
        assert program is None
        hops.call()


def test_a_wrong_answer_is_no_figure():
    with pytest.raises(LeewardError, match="printed b'something else'"):
        floors.check("x", b"something else")


def test_the_floors_answer():
    """Each peer is there, says the right thing, and goes with its socket."""
    with floors.compiled() as program, floors.hops("four", program) as hops, floors.fork() as fork:
        hops.call()
        fork.call()
        fork.rate(3, 7)
        floors.echo().call()
        floors.echo().rate(3, 7)
        floors.python().call()
        floors.warm().call()


@pytest.mark.needs("compiler", "user-namespaces")
def test_the_floors_with_more_behind_them_answer():
    with floors.compiled() as program:
        assert program is not None
        with (floors.through(program) as warm, floors.pour(program, 3 << 20) as pour, floors.command(program) as command,
              floors.bare_job(program) as job):
            for _ in range(2):
                warm.call()
                pour.call()
                command.call()
                job.rate(9, 12)


@pytest.mark.needs("compiler")
def test_the_floors_in_c_compile_without_a_warning(tmp_path):
    for name, source in (("library", floors.LIBRARY), ("floors", floors.SOURCE)):
        subprocess.run(["gcc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Wconversion", "-Wpedantic", "-Werror", "-o",
                        tmp_path / name, source], check=True)

    assert 2 == subprocess.run([tmp_path / "floors"], stderr=subprocess.DEVNULL, check=False).returncode


@pytest.mark.parametrize(("processors", "daemons", "client", "bound"), [
    (2, 1, 0.1, 500.0),    # four milliseconds of two processors' time
    (16, 1, 0.1, 1000.0),  # one thread of a daemon
    (16, 4, 0.1, 4000.0),  # as many processors as jobs need
    (16, 4, 1.0, 1000.0),  # the only client
])
def test_the_model_of_a_machine_comes_near_the_bound_and_not_above(processors: int, daemons: int, client: float,
                                                                   bound: float) -> None:
    rate, share = scaling.simulated(processors, daemons, 1, client=client, thread=1.0, rest=3.0 - client)

    assert 0.85 * bound < rate < 1.05 * bound
    assert abs(share - rate / (1000 * daemons)) < 1e-6
