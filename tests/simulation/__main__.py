"""Run seeds; tell the first that fails, as short as it can be made."""

from __future__ import annotations

import argparse
import sys
import time

from .shrink import shrunk, told
from .world import failure, history


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("seeds", type=int, nargs="?", default=2000)
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="this one alone, with its trace")
    parser.add_argument("--operations", type=int, default=30)
    parser.add_argument("--all", action="store_true", help="go on after a failure, and don't shrink it")
    asked = parser.parse_args()
    seeds = [asked.seed] if asked.seed is not None else range(asked.first, asked.first + asked.seeds)
    started = time.process_time()
    failed = 0
    for seed in seeds:
        what, plan = history(seed, asked.operations)
        wrong = failure(seed, what, plan)
        if wrong is None:
            if asked.seed is not None:
                print("holds")
            continue
        failed += 1
        if asked.all:
            print(seed, wrong[0].strip().splitlines()[-1][:200], flush=True)
            continue
        print(told(seed, what, plan, *wrong) if asked.seed is not None else shrunk(seed, what, plan))
        return 1
    spent = time.process_time() - started
    print(f"{len(seeds)} seeds, {failed} failed, {spent:.1f} s of processor time", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
