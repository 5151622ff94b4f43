"""
No bytes do harm: 150,000 inputs for each decoder of the daemon that jobs, clients and hosts reach first, and 30,000
for each other one that is Python, by another seed in each run; and requests to `leeward serve`, and spoiled states of
kernels. tests/fuzz says what must hold of them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"

LONG = bool(os.environ.get("LEEWARD_LONG"))

#: Some 60 us of processor time for one input to all of them.
FIRST_RUNS = 10_000_000 if LONG else 150_000
FIRST = {"request", "stream", "job reply", "control", "conversation", "http"}

#: Some 230 us for one input to all of them and of the broker's.
RUNS = 10_000_000 if LONG else 30_000
FURTHER = {"sandbox answers", "calls"}

#: What the broker of egress decodes.
EGRESS = {"client hello", "first lines", "masked streams", "request heads", "queries", "policies", "egress control",
          "fetches"}

#: What the page of approvals and the bridges of sandboxes decode.
WEB_RUNS = 10_000_000 if LONG else 20_000
WEB = {"web bodies", "web forms", "web heads", "bridge frames"}

#: What `leeward image` decodes; each input is unpacked.
IMAGE_RUNS = 1_000_000 if LONG else 5_000
IMAGES = {"image layers", "image documents"}

#: States that are spoiled and loaded; some 30 ms of the processor for each.
STATE_RUNS = 100_000 if LONG else 100


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("side", "runs", "targets"), [
    ("--python", FIRST_RUNS, FIRST), ("--python", RUNS, FURTHER), ("--egress", RUNS, EGRESS),
    ("--images", IMAGE_RUNS, IMAGES),
    pytest.param("--web", WEB_RUNS, WEB, marks=pytest.mark.needs("extra-web"))],
    ids=["first", "further", "egress", "images", "web"])
def test_every_decoder_gives_a_value_or_its_error(side: str, runs: int, targets: set[str]) -> None:
    """What is found is printed with its seed."""
    done = subprocess.run([sys.executable, FUZZ, side, str(runs), f"--only={','.join(targets)}"], capture_output=True,
                          text=True, check=False)

    assert 0 == done.returncode, done.stdout[-8000:] + done.stderr[-4000:]
    fed = re.findall(r"^Fed (\d+) to ([a-z ]+): (\d+) taken", done.stderr, re.MULTILINE)
    assert dict.fromkeys(targets, runs) == {name: int(count) for count, name, _ in fed}
    assert all(int(taken) > runs // 200 for _, _, taken in fed), done.stderr  # control: some of them are no nonsense


@pytest.mark.timeout(7200)
@pytest.mark.needs("user-namespaces", "extra-serve", "extra-mcp")
def test_the_faces_of_serve_stand_hostile_requests() -> None:
    runs = 2_000_000 if LONG else 2_000
    done = subprocess.run([sys.executable, FUZZ, "--serve", str(5 * runs)], capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stdout[-8000:] + done.stderr[-4000:]
    (counts,) = re.findall(r"^Sent \d+, .* in \d+ s: \{.*\b200: (\d+), .*400: (\d+)", done.stderr, re.MULTILINE)
    assert all(int(count) > runs // 50 for count in counts), done.stderr  # control: some are good, some aren't


@pytest.mark.timeout(6 * 3600)
@pytest.mark.needs("x86-64", "user-namespaces")
def test_a_spoiled_state_costs_its_kernel_alone() -> None:
    done = subprocess.run([sys.executable, FUZZ, "--states", str(STATE_RUNS)], capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stdout[-8000:] + done.stderr[-4000:]
    told = re.search(r"^Loaded (\d+) spoiled states, seed \d+: (.*)$", done.stderr, re.MULTILINE)
    assert told is not None
    assert STATE_RUNS == int(told[1]) == sum(map(int, re.findall(r"\d+", told[2])))
    assert {"go on", "can't be loaded"} <= set(re.findall(r"\d+ ([^,]+)", told[2])), told[2]  # control: of both kinds
