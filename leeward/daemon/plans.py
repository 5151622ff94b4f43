"""
The settings of each pool of a daemon, made from the configuration and the pool's key, and environments by their names.

Only this module interprets a pool's key. A further kind of pool needs a field of PoolKey, the fields of the wire that
fill it in, and a step here that turns it into Settings. `pool/begin.py` makes the view from them, and
`pool/confinement.py` the locks.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable

from leeward.base.dataclass import replace
from leeward.base.whole_files import followed, read_whole
from leeward.daemon.config import Config, Environment, quotas
from leeward.daemon.held_locks import HeldLocks
from leeward.daemon.pool.begin import Settings, WarmCode, is_routed
from leeward.daemon.serving.profiles import owners_home, unknown_egress
from leeward.errors import BadRequest, LeewardError, PoolFailed, Unsupported
from leeward.isolation import interpreter, ownership
from leeward.spec import stored
from leeward.spec.limits import ADJUSTABLE, OF_SANDBOXES
from leeward.spec.pool_key import DEFAULT_PROFILE, PoolKey, is_name
from leeward.spec.profiles import AGENT, OURS, SHELL, HostPython, Profile, may_have_home, unknown_profile, with_base

# Imported in functions: what not every start needs; 18 ms of processor time for all of it.


class Plans:
    """Makes the settings of pools. *settings* are those of the daemon's first pool."""

    def __init__(self, config: Callable[[], Config], settings: Settings) -> None:
        self._config, self._settings = config, settings
        owners_home()
        # At the start, because an environment's interpreter is started to ask its version, which would delay requests.
        self._found = {name: _find(environment) for name, environment in config().environments.items()}
        self._stored = Stored(_folder(config()))
        self._images = HeldLocks(_MOST_LAYERS)  # of layers' records, against their removal
        if config().egress:  # likewise: importing pyroute2 takes most of a second on a busy host
            with contextlib.suppress(Unsupported):  # requests with a policy are refused with the reason
                is_routed()
                self._warm_up_tls(config())

    @staticmethod
    def _warm_up_tls(config: Config) -> None:
        from leeward.daemon.pool.seals import cryptography
        from leeward.spec.egress_tls import needs_seal

        if any(map(needs_seal, config.egress.values())):
            cryptography()

    def __call__(self, key: PoolKey) -> Settings:
        """Return the settings of *key*'s pool; BadRequest for an unknown name, PoolFailed for an unusable environment."""
        config = self._config()
        settings = replace(self._settings, limits=config.limits, quotas=quotas(config, os.geteuid()),
                           queue_size=config.queue_size, queue_delay=config.queue_delay)
        if key.profile != DEFAULT_PROFILE:
            settings = self._with_profile(settings, key.profile, config)
        if key.environment:
            settings = self._with_environment(settings, key.environment, config)
        if key.egress:
            settings = self._with_egress(settings, key, config)
        return self._with_image(settings, key, config) if key.image else settings

    def _with_image(self, settings: Settings, key: PoolKey, config: Config) -> Settings:
        """
        *settings* with the image of *key*; BadRequest for an unknown image or user, and for what an image can't have;
        PoolFailed, Unsupported where images can't be used.
        """
        from leeward.daemon.images import find
        from leeward.spec.egress_tls import needs_seal

        if settings.egress is not None and needs_seal(settings.egress):
            raise BadRequest("a policy whose TLS the broker ends goes with no image, whose programs don't trust it")
        few = Environment()
        if key.profile == DEFAULT_PROFILE:
            settings = replace(settings, pool_size=few.min, room=few.max - few.min, max_sessions=few.max,
                               bound=f"{few.max} for each image")
        folder = config.images_folder or stored.default_folder(os.environ, os.geteuid(), "images")
        own = config.profiles.get(key.profile)
        return replace(settings, rehearse=False, image=find(folder, key.image, key.user, self._images,
                                                            owners=own is not None and own.owners))

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
            limit: min(value, getattr(config.ceilings, limit)) if limit in OF_SANDBOXES else value
            for limit, value in profile.limits.items()})
        if config.group and name not in config.profiles:
            profile = _for_guests(profile, config)
        return replace(
            settings, profile=name, with_home=may_have_home(name, config.profiles), show=profile.show,
            variables=profile.variables, home=profile.home,
            limits=replace(settings.limits, **profile.limits), pool_size=profile.min, room=profile.max - profile.min,
            max_sessions=profile.max,
            bound=f"`max` of the profile {name!r}" if name == SHELL else f"`max` of [profiles.{name}]",
            loopback=settings.loopback if profile.loopback is None else profile.loopback,
            terminal=settings.terminal if profile.terminal is None else profile.terminal)

    def _with_environment(self, settings: Settings, name: str, config: Config) -> Settings:
        asked: Environment | stored.Named | None = config.environments.get(name)
        found = self._found.get(name)
        bound = f"[environments.{name}]"
        if asked is None or found is None:
            bound = f"the environment {name!r}"
            asked, found = self._stored.find(name) or (None, None)
        if asked is None or found is None:
            known = ", ".join(dict.fromkeys((*config.environments, *self._stored.names()))) or "none"
            raise BadRequest(f"environment {name!r} is unknown; this daemon has: {known};"
                             " `leeward env create` makes others")
        if isinstance(found, LeewardError):
            raise PoolFailed(f"environment {name!r}: {found}")
        if isinstance(asked, Environment) and asked.warm:
            settings = replace(settings, warming=_warm_code(name, asked.warm, settings))
        return replace(settings, host=found, python_env=found.env, preload=asked.preload, pool_size=asked.min,
                       room=asked.max - asked.min, max_sessions=asked.max, bound=f"`max` of {bound}")

    @staticmethod
    def _with_egress(settings: Settings, key: PoolKey, config: Config) -> Settings:
        policy = config.egress.get(key.egress)
        if policy is None and key.egress == AGENT and may_have_home(key.profile, config.profiles):
            from leeward.spec.egress_policy import AGENT as policy
        if policy is None:
            raise unknown_egress(key.egress, config.egress)
        if not key.environment and key.profile == DEFAULT_PROFILE:
            few = Environment()
            settings = replace(settings, pool_size=few.min, room=few.max - few.min, max_sessions=few.max,
                               bound=f"{few.max} for each policy of egress")
        return replace(settings, egress=policy)


#: Bytes of an environment's code that runs once, at most.
_MOST_WARM = 1 << 20


def _warm_code(name: str, path: str, settings: Settings) -> WarmCode:
    """The code of the file *path* of the environment *name*; PoolFailed if it can't be had, or others can write it."""
    try:
        if settings.fresh_layout:
            raise BadRequest("warm: copies of a state have its address layout, and fresh_layout allows no two jobs the same")
        ownership.check(path, "warm")
        with open(path, "rb") as file:
            code = file.read(_MOST_WARM + 1)
        if len(code) > _MOST_WARM:
            raise BadRequest(f"warm {path!r}: it has more than {_MOST_WARM} bytes")
    except (LeewardError, OSError) as error:
        raise PoolFailed(f"environment {name!r}: {error}") from None
    return WarmCode(path, code)


def _for_guests(profile: Profile, config: Config) -> Profile:
    """
    A built-in profile that no table configures, for daemons with guests: no limit without a ceiling is above [limits],
    and a terminal only if the configuration allows one (docs/decisions/0005).
    """
    return replace(profile, terminal=profile.terminal and config.terminal, limits={
        limit: value if limit in ADJUSTABLE else min(value, getattr(config.limits, limit))
        for limit, value in profile.limits.items()})


def _folder(config: Config) -> str:
    return config.environments_folder or _default_folder()


@functools.cache
def _default_folder() -> str:
    return stored.default_folder(os.environ, os.geteuid())


def environments(config: Config) -> dict[str, object]:
    """Return what clients that ask for packages need: the folder of environments, the interpreter, pip's policy and index."""
    return {"folder": _folder(config), "size": config.environments_size, "egress": config.environments_egress,
            "index": config.environments_index, "python": interpreter.base_executable(),
            "version": list(sys.version_info[:2])}


def _find(environment: Environment) -> HostPython | LeewardError:
    try:
        return interpreter.find(environment.path)
    except LeewardError as error:
        return error


#: Environments that are locked against removal, at most: as many as there may be branches. And layers of images.
_MOST_HELD, _MOST_LAYERS = 16, 512
#: Names in a message, at most.
_MOST_NAMED = 32


class Stored:
    """
    The environments that `leeward env` has made in *folder*, "" for none. A search reads two small files and starts no
    interpreter: the manifest has what that would report. Folder and content belong to the daemon's user or root, and
    nobody else may write there.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._held = HeldLocks(_MOST_HELD)

    def find(self, name: str) -> tuple[stored.Named, HostPython] | None:
        """Return the environment *name* and its interpreter; None if there is none; PoolFailed if it can't be used."""
        return followed(functools.partial(self._find, name), (PoolFailed,))

    def _find(self, name: str) -> tuple[stored.Named, HostPython] | None:
        try:
            data = self._read(stored.name_path(self._folder, name)) if self._folder else None
            if data is None:
                return None
            named = stored.read_named(data)
            written = self._read(stored.manifest_path(self._folder, named.built))
            if written is None:
                raise BadRequest("what it stands for was removed; `leeward env create` makes it again")
            return named, self._python(named, stored.read_manifest(written))
        except BlockingIOError:
            raise PoolFailed(f"environment {name!r}: it is just being removed") from None
        except (BadRequest, OSError) as error:
            raise PoolFailed(f"environment {name!r}: {error}") from None

    def names(self) -> list[str]:
        """Return the names of the first environments, sorted, for a message."""
        try:
            found = os.listdir(os.path.join(self._folder, "names")) if self._folder else []
        except OSError:
            found = []
        names = (name.removesuffix(".json") for name in found if name.endswith(".json"))
        return sorted(name for name in names if is_name(name))[:_MOST_NAMED]

    def _python(self, named: stored.Named, manifest: stored.Manifest) -> HostPython:
        own = interpreter.find()
        if not manifest.prefix and (manifest.python, manifest.version) != (own.executable, own.version):
            raise BadRequest(f"it was made for {manifest.python}, and the daemon runs on {own.executable};"
                             " `leeward env create` makes it again")
        env = os.path.realpath(stored.built_path(self._folder, named.built))
        interpreter.check_place(env)
        for part in ("", "bin"):
            ownership.check(os.path.join(env, part), "environment")
        executable = os.path.join(env, "bin", "python")
        if os.path.realpath(executable) != manifest.python:
            raise BadRequest(f"{executable!r} leads to another interpreter than {manifest.python}")
        other = interpreter.other(executable, env, manifest.version, manifest.prefix) if manifest.prefix else None
        self._held.hold(env)  # against `leeward env prune`
        return other or replace(own, executable=executable, env=env)

    @staticmethod
    def _read(path: str) -> bytes | None:
        return read_whole(path, stored.MOST_WRITTEN + 1)
