"""`leeward doctor`: the host's features, which leeward.apps.host examines, as text and JSON; and causes of a failed start."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import click

from leeward.apps.host import features
from leeward.apps.host.facts import Record
from leeward.apps.host.findings import Feature
from leeward.apps.host.probe import look
from leeward.apps.host.profiles import NAMES
from leeward.apps.host.profiles import text as profile_text
from leeward.errors import BadRequest, DaemonError, LeewardError
from leeward_cli.install import executable
from leeward_cli.messages import complain, escape

#: The fields of a finding that are printed, in one line and in JSON.
_TOLD = ("name", "state", "have", "without", "cure")


def causes(features: Iterable[Feature], allowed: Iterable[str]) -> list[str]:
    """A line, with the cure, for each feature whose absence prevents a start; layers that are *allowed* may be missing."""
    gone_without = set(allowed)
    return [f"{feature.name}: {feature.have}; to get it: {feature.cure}" for feature in features
            if feature.stops and feature.layer not in gone_without and not feature.cure.startswith("see ")]


def complain_of_host(error: LeewardError, allowed: Iterable[str]) -> None:
    """Print *error*, which prevented a start, and what of this host explains it."""
    complain(str(error))
    if isinstance(error, (BadRequest, DaemonError)):
        return  # the error's cause isn't the host
    try:
        # A cure that *error* has itself isn't said twice.
        found = [feature for feature in features() if not feature.cure or feature.cure not in str(error)]
    except (LeewardError, OSError):
        return
    for cause in causes(found, allowed):
        complain(f"cause: {cause}")


def as_object(features: Iterable[Feature], record: Record) -> dict[str, Any]:
    """The object that `--json` prints: the features, and the record of the host from which they are derived."""
    return {"features": [{key: str(getattr(feature, key)) for key in _TOLD} for feature in features],
            "record": dataclasses.asdict(record)}


def as_text(features: Iterable[Feature]) -> str:
    lines = []
    for feature in features:
        lines.append(f"{feature.state!s:<8} {feature.name:<21} {feature.have}")
        if feature.without:
            lines.append(f"{'':<8} without it: {feature.without}")
        if feature.cure:
            lines.append(f"{'':<8} to get it:  {feature.cure}")
    # Facts of the host are shown as they were read: versions, mounts, names of containers.
    return escape("\n".join(lines).encode("utf-8", "backslashreplace")).decode() + "\n"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with what was read and tried.")
@click.option("--profile", type=click.Choice(NAMES), help="Print this profile, for the host or for an engine.")
def doctor(as_json: bool, profile: str | None) -> int:
    """
    Check this host: what it offers, what leeward does without the rest, and what to type to get it.

    The exit status is 1 if leeward can't start on this host.
    """
    if profile is not None:
        click.echo(profile_text(profile, executable()), nl=False)
        return 0
    record = look()
    found = features(record)
    if as_json:
        click.echo(json.dumps(as_object(found, record)))
    else:
        click.echo(as_text(found), nl=False)
    return int(any(feature.stops for feature in found))
