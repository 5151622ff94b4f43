"""Less of what fails: operations are left out while it still does."""

from __future__ import annotations

from leeward.base.dataclass import replace

from .operations import Operation, Setting
from .world import World, failure

#: Lines of a trace that are told.
LINES = 200


def told(seed: int, what: Setting, plan: tuple[Operation, ...], why: str, world: World) -> str:
    """A failure, for who has to understand it."""
    lines = [f"seed {seed}: {why}", f"with {what}", f"faults {world.faults}", f"{len(plan)} operations:"]
    lines += [f"  {operation}" for operation in plan]
    return "\n".join([*lines, "trace:", *world.kernel.trace[-LINES:], f"seed {seed}: {why}"])


def _last(why: str) -> str:
    """What two failures have in common that are the same one, numbers left aside."""
    return "".join(letter for letter in why.strip().splitlines()[-1] if not letter.isdigit())[:80]


def shrunk(seed: int, what: Setting, plan: tuple[Operation, ...]) -> str:
    """The shortest run that was found to fail in the same way."""
    wrong = failure(seed, what, plan)
    assert wrong is not None
    same = _last(wrong[0])

    def fails(candidate: tuple[Operation, ...]) -> bool:
        found = failure(seed, what, candidate)
        return found is not None and _last(found[0]) == same

    step = max(1, len(plan) // 2)
    while step:
        at = 0
        while at < len(plan):
            shorter = plan[:at] + plan[at + step:]
            if fails(shorter):
                plan = shorter
            else:
                at += step
        step //= 2
    for at, operation in enumerate(plan):
        for number in reversed(range(len(operation.requests))):
            requests = plan[at].requests[:number] + plan[at].requests[number + 1:]
            shorter = (*plan[:at], replace(plan[at], requests=requests), *plan[at + 1:])
            if requests and fails(shorter):
                plan = shorter
    wrong = failure(seed, what, plan)
    assert wrong is not None
    return told(seed, what, plan, *wrong)
