"""
`leeward doctor`: the host's features, as text and as JSON.

Runs in:   the CLI; pure. What is found out, and how, is leeward.isolation.host.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from leeward.isolation.host import Feature, State
from leeward_cli.job import escape


def keeps_from_starting(feature: Feature) -> bool:
    """
    Whether leeward doesn't start because of this one.
    """
    return feature.state is State.MISSING and feature.without.startswith("does not start")


def as_object(features: Iterable[Feature]) -> dict[str, Any]:
    """
    What `--json` prints: for each feature name, state, have, without and cure.
    """
    return {"features": [{key: str(value) for key, value in dataclasses.asdict(feature).items()}
                         for feature in features]}


def as_text(features: Iterable[Feature]) -> str:
    """
    A line for each feature, and below it what its absence means and what to type.
    """
    lines = []
    for feature in features:
        lines.append(f"{feature.state!s:<8} {feature.name:<21} {feature.have}")
        if feature.without:
            lines.append(f"{'':<8} without it: {feature.without}")
        if feature.cure:
            lines.append(f"{'':<8} to get it:  {feature.cure}")
    # Facts of the host are shown as they were read: versions, mounts, names of containers.
    return escape("\n".join(lines).encode("utf-8", "backslashreplace")).decode() + "\n"
