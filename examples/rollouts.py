"""
Rollouts: a policy writes programs, their reward is what they do in a sandbox, and the next step learns from it.

    python examples/rollouts.py [STEPS]

Runs on the nodes of LEEWARD_FLEET, fleet.toml or a cluster of Ray's: docs/fleet.md. Here the "policy" draws a number of
terms for Leibniz's series, and its reward is how near to pi the program comes in its time.
"""

from __future__ import annotations

import math
import random
import sys

import leeward.fleet

BATCH = 64
PROGRAM = "print(4 * sum((-1) ** k / (2 * k + 1) for k in range({terms})))"


def reward(answer: leeward.Result | leeward.DaemonError) -> float | None:
    """None is no verdict: what a machine did wrong isn't the program's fault, and nothing is learned from it."""
    if isinstance(answer, leeward.DaemonError) or answer.outcome == leeward.Outcome.INTERNAL:
        return None
    return -math.log10(abs(float(answer.text) - math.pi)) if answer.ok else -1.0


def main(steps: int) -> None:
    mean = 2.0  # of the logarithm of the number of terms
    with leeward.fleet.connect() as fleet:
        for step in range(steps):
            tried = [random.gauss(mean, 0.7) for _ in range(BATCH)]
            jobs = [PROGRAM.format(terms=max(1, int(10 ** each))) for each in tried]
            scored = []
            for number, answer in fleet.execute_many(jobs, timeout=2.0, idempotent=True):
                scored.append((reward(answer), tried[number]))
                print(f"step {step}: {len(scored)} of {BATCH}", end="\r", file=sys.stderr)
            verdicts = sorted((score, each) for score, each in scored if score is not None)
            mean = sum(each for _, each in verdicts[-BATCH // 4:]) / (BATCH // 4)
            print(f"step {step}: best reward {verdicts[-1][0]:.2f}, {BATCH - len(verdicts)} without a verdict")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
