"""
A search over the states of a running program: each node is a snapshot, each edge a line of code.

    python examples/tree_search.py

The program is a lock whose dials depend on each other, with a random generator inside, which no search outside could copy.
The search knows nothing of that: it goes back to a promising state, runs another line there, and looks how it went.
"""

from __future__ import annotations

import itertools

import leeward

PROGRAM = """
import random
dice, dials, moves = random.Random(7), [3, 1, 4, 1], []
def turn(dial):
    dials[dial] = (dials[dial] + dice.choice([1, 2, 3])) % 6
    dials[(dial + 1) % 4] = (dials[(dial + 1) % 4] + 5) % 6
    moves.append(dial)
"""
LINES = [f"turn({dial})" for dial in range(4)]
LEFT = "sum(dials)"  # the lock is open at 0

#: States that are kept for later; the best of them.
BEAM = 24


def main() -> None:
    with leeward.Sandbox() as box:
        kernel, count = box.kernel(), itertools.count()
        kernel.execute(PROGRAM)
        states = [(99, next(count), kernel.snapshot())]
        for tried in itertools.count(1):
            _, _, state = states.pop(0)
            for line in LINES:
                kernel.rollback(state)
                left = int(kernel.execute(f"{line}\n{LEFT}").value or 0)
                states.append((left, next(count), kernel.snapshot()))
            state.remove()
            states.sort()
            left, _, best = states[0]
            for _, _, worse in states[BEAM if left else 1:]:
                worse.remove()
            del states[BEAM:]
            if not left:
                with best:
                    kernel.rollback(best)
                    print(f"open after looking at {tried} states:", kernel.execute("dials, moves").value)
                return


if __name__ == "__main__":
    main()
