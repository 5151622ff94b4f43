"""
The settings of each pool of a daemon, made from the configuration and the pool's key.

Runs in:   the daemon, on the reactor's thread.

Only this module interprets a pool's key. A further kind of pool needs a field of PoolKey, the fields of the wire that
fill it in, and a step here that turns it into Settings. `pool/begin.py` makes the view from these settings, and
`pool/confinement.py` the locks.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable

from leeward.daemon import owner
from leeward.daemon.config import Config, Environment, quotas
from leeward.daemon.stored import Stored
from leeward.dataclass import replace
from leeward.errors import BadRequest, LeewardError, PoolFailed, Unsupported
from leeward.isolation import interpreter
from leeward.pool.begin import Settings
from leeward.pool.tried import is_routed
from leeward.spec.limits import ADJUSTABLE
from leeward.spec.pool_key import DEFAULT_PROFILE, PoolKey
from leeward.spec.profiles import AGENT, OURS, SHELL, HostPython, Profile, may_have_home, unknown_profile, with_base
from leeward.spec.stored import Named, default_folder

# Imported in functions: what not every start needs; 18 ms of processor time for all of it.

#: The policy that `allow_network` stands for.
NETWORK_NAME = "network"


class Plans:
    """
    Makes the settings of pools.

    Args:
        config: returns the configuration in force.
        settings: the settings of the daemon's first pool.
    """

    def __init__(self, config: Callable[[], Config], settings: Settings) -> None:
        self._config, self._settings = config, settings
        owner.home()
        # At the start, because an environment's interpreter is started to ask its version, which would delay requests.
        self._found = {name: _find(environment) for name, environment in config().environments.items()}
        self._stored = Stored(_folder(config()))
        if config().egress:  # likewise: importing pyroute2 takes most of a second on a busy host
            with contextlib.suppress(Unsupported):  # requests with a policy are refused with the reason
                is_routed()
                self._warm_up_tls(config())

    @staticmethod
    def _warm_up_tls(config: Config) -> None:
        from leeward.pool.seals import cryptography
        from leeward.spec.egress_tls import needs_seal

        if any(map(needs_seal, config.egress.values())):
            cryptography()

    def __call__(self, key: PoolKey) -> Settings:
        """
        Return the settings of the pool of *key*.

        Raises:
            BadRequest: there is no profile, environment or policy of a name in the key.
            PoolFailed: the environment can't be used on this host.
        """
        config = self._config()
        settings = replace(self._settings, limits=config.limits, quotas=quotas(config, os.geteuid()),
                           queue_size=config.queue_size, queue_delay=config.queue_delay)
        if key.profile != DEFAULT_PROFILE:
            settings = self._with_profile(settings, key.profile, config)
        if key.environment:
            settings = self._with_environment(settings, key.environment, config)
        return self._with_egress(settings, key, config) if key.egress else settings

    @staticmethod
    def _with_profile(settings: Settings, name: str, config: Config) -> Settings:
        profile = OURS[name] if name == SHELL else config.profiles.get(name) or OURS.get(name)
        if profile is None:
            raise BadRequest(unknown_profile(name, config.profiles))
        profile = with_base(profile)
        if name == SHELL:  # sockets of any kind would lead to the host's
            settings = replace(settings, loopback=False)
        # Values from the configuration were checked when it was read. Values of a built-in profile, and those that a
        # profile has from its base, may be above the ceilings.
        profile = replace(profile, limits={
            limit: min(value, getattr(config.ceilings, limit)) if limit in ADJUSTABLE else value
            for limit, value in profile.limits.items()})
        if config.group and name not in config.profiles:
            profile = _for_guests(profile, config)
        return replace(
            settings, profile=name, with_home=may_have_home(name, config.profiles), show=profile.show,
            variables=profile.variables,
            limits=replace(settings.limits, **profile.limits), pool_size=profile.min, room=profile.max - profile.min,
            max_sessions=profile.max,
            loopback=settings.loopback if profile.loopback is None else profile.loopback,
            terminal=settings.terminal if profile.terminal is None else profile.terminal)

    def _with_environment(self, settings: Settings, name: str, config: Config) -> Settings:
        asked: Environment | Named | None = config.environments.get(name)
        found = self._found.get(name)
        if asked is None or found is None:
            asked, found = self._stored.find(name) or (None, None)
        if asked is None or found is None:
            known = ", ".join(dict.fromkeys((*config.environments, *self._stored.names()))) or "none"
            raise BadRequest(f"environment {name!r} is unknown; this daemon has: {known};"
                             " `leeward env create` makes others")
        if isinstance(found, LeewardError):
            raise PoolFailed(f"environment {name!r}: {found}")
        return replace(settings, host=found, python_env=found.env, preload=asked.preload, pool_size=asked.min,
                       room=asked.max - asked.min, max_sessions=asked.max)

    @staticmethod
    def _with_egress(settings: Settings, key: PoolKey, config: Config) -> Settings:
        policy = config.egress.get(key.egress)
        if policy is None and key.egress == AGENT and may_have_home(key.profile, config.profiles):
            from leeward.spec.egress import AGENT as policy
        if policy is None:
            known = ", ".join(config.egress) or "none"
            if key.egress == NETWORK_NAME:
                known += "; `allow_network = true` in its configuration lets requests have all public names"
            raise BadRequest(f"egress {key.egress!r} is unknown; this daemon has: {known}")
        if not key.environment and key.profile == DEFAULT_PROFILE:
            few = Environment()
            settings = replace(settings, pool_size=few.min, room=few.max - few.min, max_sessions=few.max)
        return replace(settings, egress=policy)


def _for_guests(profile: Profile, config: Config) -> Profile:
    """
    A built-in profile without a table in the configuration, reduced for daemons that serve guests: no limit without a
    ceiling is above [limits], and it has a terminal only if the configuration allows one (docs/decisions/0005).
    """
    return replace(profile, terminal=profile.terminal and config.terminal, limits={
        limit: value if limit in ADJUSTABLE else min(value, getattr(config.limits, limit))
        for limit, value in profile.limits.items()})


def _folder(config: Config) -> str:
    return config.environments_folder or _default_folder()


@functools.cache
def _default_folder() -> str:
    return default_folder(os.environ, os.geteuid())


def environments(config: Config) -> dict[str, object]:
    """
    Return the fields for clients that ask for packages: the folder of environments, the interpreter, and pip's policy
    and index.
    """
    return {"folder": _folder(config), "size": config.environments_size, "egress": config.environments_egress,
            "index": config.environments_index, "python": interpreter.base_executable(),
            "version": list(sys.version_info[:2])}


def _find(environment: Environment) -> HostPython | LeewardError:
    try:
        return interpreter.find(environment.path)
    except LeewardError as error:
        return error
