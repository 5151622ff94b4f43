"""A profile as data: the kind of a sandbox, and how an operator's differs from the built-in one that it is based on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from leeward.base.dataclass import dataclass, field, replace
from leeward.spec.sandbox import Bind, SandboxSpec, Symlink

#: What becomes of a live sandbox that nobody uses.
IDLE = (END, SLEEP) = ("end", "sleep")


@dataclass(frozen=True, slots=True)
class Profile:
    base: str = ""  # the built-in profile that it is based on; "" for `python`
    about: str = ""  # a one-sentence description
    show: tuple[str, ...] = ()  # files and folders of the host beside those of its base, read-only, at the same paths
    variables: Mapping[str, str] = field(default_factory=dict)  # environment variables beside those of its base
    limits: Mapping[str, Any] = field(default_factory=dict)  # the limits that differ from the daemon's
    loopback: bool | None = None  # as the configuration's keys of these names; None is the value of the configuration
    terminal: bool | None = None  # as the configuration's keys of these names; None is the value of the configuration
    home: str = ""  # the path that leads to /workspace and is HOME; "" for the base's
    idle: str = ""  # what becomes of a sandbox that was idle for too long, of `IDLE`; "" is the configuration's
    image: str = ""  # an image, whose root file system its sandboxes have; "" for the host's files
    owners: bool = False  # root in an image is told whom it gave a file to; each look at a file asks the supervisor
    min: int = 1  # workers that are kept while the profile is in use
    max: int = 4  # the most workers


def extended(spec: SandboxSpec, name: str, binds: Iterable[Bind], variables: Mapping[str, str]) -> SandboxSpec:
    """Return *spec* as the profile *name*, with the files and variables that this profile adds."""
    return replace(spec, profile=name, view=replace(spec.view, binds=(*spec.view.binds, *binds)),
                   environment=tuple({**dict(spec.environment), **variables}.items()))


def at_home(spec: SandboxSpec, home: str) -> SandboxSpec:
    """Return *spec* with *home* as the path of the home folder, which is /workspace."""
    return replace(spec, view=replace(spec.view, links=(*spec.view.links, Symlink(home, "/workspace"))),
                   environment=tuple({**dict(spec.environment), "HOME": home}.items()))
