"""`leeward profiles`: lists the profiles, or one's fields, by the configuration, as a daemon reads it at its start."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from leeward.base.dataclass import names
from leeward.daemon.config_sources import load
from leeward.daemon.early import settings as first
from leeward.daemon.plans import Plans
from leeward.daemon.pool.begin import spec_of
from leeward.errors import LeewardError
from leeward.isolation import interpreter
from leeward.spec.limits import limit_text
from leeward.spec.pool_key import PoolKey
from leeward.spec.profiles import OURS
from leeward_cli.click_options import JSON
from leeward_cli.terminal_rows import fields

#: What in an image isn't the host's, nor the profile's.
_HOSTS = ("shows", "devices", "writes to", "user", "variables")


@click.command()
@click.argument("name", default="")
@click.option("--config", "config_file", metavar="FILE", help="Read this configuration as well.")
@JSON
def profiles(name: str, config_file: str | None, as_json: bool) -> None:
    """List the kinds of sandbox, or show what NAME is."""
    try:
        config = load(config_file)
        found = _one(config, name) if name else _all(config)
    except LeewardError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo("\n".join(fields(found, max(map(len, found)))))


def _all(config: Any) -> dict[str, Any]:
    return {**{name: profile.about for name, profile in OURS.items()},
            **{name: f"{name if name in OURS else profile.base}, as the configuration changes it"
               for name, profile in config.profiles.items()}}


def _one(config: Any, name: str) -> dict[str, Any]:
    settings = Plans(lambda: config, first(config))(PoolKey(name))
    # As if a cgroup counted memory. Without one, jobs can't write to /dev/zero.
    spec = spec_of(settings, interpreter.find(settings.python_env), memory_counted=True, fixed=False)
    view, own = spec.view, config.profiles.get(name)
    found = {
        "profile": name,
        "base": (own or OURS[name]).base,
        "image": "" if own is None else own.image,
        "shows": [bind.target for bind in view.binds if not bind.device and os.path.exists(bind.source)],
        "devices": [bind.target for bind in view.binds if bind.device],
        "writes to": list(view.scratch.targets),
        "network": "127.0.0.1 and ::1, of its own" if spec.loopback else "",
        "terminals": view.terminals,
        "user": spec.uid,
        "variables": [f"{key}={value}" for key, value in spec.environment],
        "limits": [f"{key}={limit_text(key, getattr(spec.limits, key))}" for key in names(type(spec.limits))],
        "workers": f"{settings.pool_size} to {settings.pool_size + settings.room}",
    }
    # `leeward image show` has an image's.
    return {key: value for key, value in found.items() if not (found["image"] and key in _HOSTS)}
