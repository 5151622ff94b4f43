"""
The first steps of an engine: they choose the cgroup driver and what jobs see, and start a zygote that warms up.

Imports little: a daemon takes these steps before it imports the rest of itself, so that both are done at the same time.
"""

from __future__ import annotations

import functools
import os
import re
import resource
import socket
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from leeward._native import privileges
from leeward.base.dataclass import dataclass, field, replace
from leeward.daemon.pool.quotas import Quotas
from leeward.daemon.worker import bare
from leeward.daemon.worker.zygote_start import StartedZygote, import_path, modules
from leeward.errors import BadRequest
from leeward.isolation import interpreter, landlock, watching
from leeward.isolation.cgroup.choose import choose
from leeward.isolation.cgroup.entry import Driver
from leeward.isolation.egress_route import PROXY_VARIABLES, RESOLV_CONF, route
from leeward.isolation.plan import ZygotePlan
from leeward.spec import folders, libraries, profiles
from leeward.spec.folders import Folder
from leeward.spec.limits import CEILINGS, Limits
from leeward.spec.pool_key import DEFAULT_PROFILE
from leeward.spec.profiles import HostPython
from leeward.spec.sandbox import Bind, SandboxSpec, View

if TYPE_CHECKING:
    from leeward.spec.egress_policy import Policy
    from leeward.spec.profiles.image import ImagePlan


# Imported in functions: what not every start needs; 17 ms of processor time for all of it.


#: Workers beyond the pool's size, for as long as some are renewed.
SURPLUS = 1


#: The user in a sandbox of root's daemon that shows the host.
NOBODY = 65534


@dataclass(slots=True)
class Patience:
    """Seconds until the daemon considers its own processes dead. No keys of the configuration; tests change them."""

    start: float = 30.0  # seconds for a zygote's imports, and for the first worker after the engine's start
    zygote: float = 10.0  # until a zygote with an order sends a message, which takes milliseconds
    keeper: float = 10.0  # to arm a runner, or to report the end of one that was killed; both take milliseconds


@dataclass(frozen=True, slots=True)
class SeatBounds:
    """The bounds that the limit on descriptors sets: daemon/descriptors.py."""

    awake: int = 0  # live sandboxes with all descriptors, and workers left over when sandboxes end; 0 for no bound
    seats: int = 1 << 30  # the number of sandboxes, if there is no session
    price: int = 1  # the number of sandboxes that take the room of one session


NO_BOUNDS = SeatBounds()


@dataclass(frozen=True, slots=True)
class Beyond:
    """
    The workers that may be made for jobs beside a pool's own, without spares: *jobs* at most. Those for sessions and
    those for jobs together have *descriptors*, of which each takes *session* or *job*.
    """

    jobs: int = 0
    descriptors: int = 0
    session: int = 1
    job: int = 1

    def left(self, sessions: int) -> int:
        """How many there may be while *sessions* were made for sessions and sandboxes."""
        return max(0, min(self.jobs, (self.descriptors - sessions * self.session) // self.job))


NOT_BEYOND = Beyond()


@dataclass(frozen=True, slots=True)
class WarmCode:
    """The code of an environment that runs once, and the name of its file."""

    name: str
    code: bytes


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of an engine. `daemon.config` documents each of them, with its default."""

    pool_size: int = 4
    spares: int = 1
    reuse: str = "off"
    recycle_after: int = 100
    queue_size: int = 64
    queue_delay: float = 0.1
    limits: Limits = field(default_factory=Limits)
    ceilings: Limits = CEILINGS
    python_env: str = ""
    preload: tuple[str, ...] = ()
    allow_degraded: tuple[str, ...] = ()
    cgroup: str | None = None
    quotas: Quotas = field(default_factory=Quotas)
    rehearse: bool = True
    results: str = "auto"
    max_sessions: int = -1
    bound: str = "max_sessions"  # what sets that, in refusals
    loopback: bool = False
    terminal: bool = False
    pinned: bool = False
    egress: Policy | None = None  # the policy of the jobs; None for no network, and no sockets except Unix sockets
    session_grace: float = 2.0
    layout_jobs: int = 0
    layout_time: float = 0.0
    fresh_layout: bool = False
    warm: bool = True  # import what most programs import. For a single job that costs more than it saves
    sandboxes: bool = True  # runners can be kept open and given more processes. `leeward run` doesn't need that
    profile: str = DEFAULT_PROFILE  # another one than "python" is shown *show* as well, and has *variables*
    home: str = ""  # a path that leads to /workspace, and is HOME
    with_home: bool = False  # its sandboxes may have a home folder of their own, and files for an agent's tools
    show: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    host: HostPython | None = None  # the interpreter, if it is known already; otherwise `python_env` says which
    warming: WarmCode | None = None  # code that runs once, whose state the interpreters begin with
    image: ImagePlan | None = None  # the image whose root file system the sandboxes have
    room: int = 0  # workers that may be made for sessions; for a daemon's first pool the engine has its own argument
    patience: Patience = field(default_factory=Patience)


class Bootstrap:
    """A driver, what jobs see, and a zygote that warms up for it."""

    __slots__ = ("_hatched", "driver", "spec", "zygote_plan")

    def __init__(self, driver: Driver, spec: SandboxSpec, plan: ZygotePlan) -> None:
        self.driver, self.spec, self.zygote_plan = driver, spec, plan
        self._hatched: StartedZygote | None = StartedZygote(plan)

    def take(self) -> StartedZygote:
        """Return the zygote. The caller owns it and the driver from now on."""
        assert self._hatched is not None
        hatched, self._hatched = self._hatched, None
        return hatched

    def close(self) -> None:
        """End the zygote and close the driver, unless they were taken."""
        if self._hatched is not None:
            try:
                self.take().end()
            finally:
                self.driver.close()


def begin(settings: Settings) -> Bootstrap:
    """Take the first steps of an engine; BadRequest, Unsupported without an interpreter or a cgroup driver; OSError."""
    privileges.be_subreaper()  # the orphans of a dead zygote or keeper become our children, and are reaped
    _limits_to_inherit()
    driver = choose(settings.cgroup, pinned=settings.pinned)  # before the zygote, which is to live where this moves us
    try:
        driver.sweep()
        return Bootstrap(driver, *prepare(settings, driver))
    except BaseException:
        driver.close()
        raise


def prepare(settings: Settings, driver: Driver) -> tuple[SandboxSpec, ZygotePlan]:
    """What the jobs of one pool see, and what its zygote needs; BadRequest, Unsupported without an interpreter."""
    host = settings.host or interpreter.find(settings.python_env)
    spec = with_what_can_be_covered(
        spec_of(settings, host, memory_counted=driver.memory_counted, fixed=driver.affinity_fixed))
    shown, environment = _backstage_view(spec), spec.environment
    if settings.image is not None:
        from leeward.spec.profiles.image import image

        spec = image(spec, settings.image)  # the zygote itself runs on the host's files
    return spec, ZygotePlan(
        import_path=import_path(host.backing), preload=spec.preload, bare=not host.env,
        executable=spec.executable, environment=environment, rehearse=settings.rehearse, warm=settings.warm,
        view=shown, modules=modules(host.backing), idle_threads=libraries.IDLE,
        alone=libraries.VARIABLES)


def _backstage_view(spec: SandboxSpec) -> View:
    if spec.seal is None:
        return spec.view
    from leeward.daemon.pool import seals

    return seals.backstage(spec.view, spec.seal)


def spec_of(settings: Settings, host: HostPython, *, memory_counted: bool, fixed: bool) -> SandboxSpec:
    """What the jobs of one pool see; BadRequest if a path can't be shown. *fixed* as for `profiles.python`."""
    ways_out, machine = _ways_out(settings), interpreter.machine()
    seal = ways_out.pop("seal", None)
    spec = profiles.python(host, interpreter.root_links(), limits=settings.limits,
                           localtime=interpreter.localtime(), preload=settings.preload, warm=settings.warm,
                           memory_counted=memory_counted, landlocked=landlock.probe() > 0,
                           machine=replace(machine, processors=1) if settings.pinned else machine, fixed=fixed,
                           configured=interpreter.configured(), term=interpreter.term(),
                           polls=not watching.watchers().most,
                           loopback=settings.loopback, terminal=settings.terminal, node=interpreter.node(),
                           **ways_out)
    if settings.profile == profiles.SHELL:
        # Of root's daemon, its processes have a host id that owns nothing, and that is nobody's in the sandbox as well.
        return profiles.shell(spec, *interpreter.roots(), uid=os.geteuid() or NOBODY)
    if seal is not None:
        from leeward.daemon.pool import seals

        spec = seals.trusting(spec, seal)
    if settings.egress is not None:
        spec = _with_proxy(spec, settings.egress)
    if settings.with_home:
        spec = profiles.agent(spec)
    if settings.profile != spec.profile or settings.show or settings.variables:
        spec = profiles.extended(spec, settings.profile, _binds(settings.show, spec.view), settings.variables)
    if settings.home:
        spec = profiles.at_home(spec, _home(settings.home, spec.view))
    return spec


def _home(home: str, view: View) -> str:
    """*home*, if it can be a link in *view*; BadRequest if something is there, or below it."""
    taken = [*(bind.target for bind in view.binds), *(link.target for link in view.links)]
    if home and any(folders.within(each, home) or folders.within(home, each) for each in taken):
        raise BadRequest(f"home = {home!r} is a path that the profile's sandboxes have already, or have something below")
    return home


def _binds(paths: Iterable[str], view: View) -> list[Bind]:
    """The binds that show *paths* of the host beside *view*; BadRequest if one is missing, or *view* has it already."""
    shown = [Folder(path, path) for path in paths]
    folders.fits(shown, view)
    for path in paths:
        if not os.path.isdir(path) and not os.path.isfile(path):
            raise BadRequest(f"{path!r} is to be shown, and is no file or folder here")
        if not folders.shown(os.path.realpath(path)):
            raise BadRequest(f"{path!r} is to be shown, and leads to {os.path.realpath(path)!r}, which no sandbox is")
        for target in view.scratch.targets:
            if folders.within(path, target):  # it would lie below that mount
                raise BadRequest(f"{path!r} is to be shown, and lies in {target!r}, of which each sandbox has its own")
    return [Bind(os.path.realpath(path), path, file=os.path.isfile(path)) for path in paths]


def _ways_out(settings: Settings) -> dict[str, Any]:
    """The egress settings of a profile. Imported only here: most daemons have none."""
    if settings.egress is None:
        return {}
    from leeward.daemon.pool import seals
    from leeward.spec.egress_policy import ports_of

    return {"egress": ports_of(settings.egress), "resolver": RESOLV_CONF, "seal": seals.make(settings.egress)}


def _with_proxy(spec: SandboxSpec, policy: Policy) -> SandboxSpec:
    """*spec* with the proxy variables, if the policy asks for them or there is no route."""
    routed = is_routed()
    if routed and not policy.proxy:
        return spec
    return replace(spec, routed=routed, environment=tuple({**dict(spec.environment), **dict(PROXY_VARIABLES)}.items()))


def _limits_to_inherit() -> None:
    """Set the limits that zygote, keepers and jobs inherit; a job can only lower them."""
    # As many descriptors as possible. The limit also bounds descriptors in flight: if all processes of one user
    # together have more in flight than this limit, none of them can send any. Jobs of an ordinary user's daemon have
    # the daemon's user id, and each may have as many in flight as it has descriptors.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # No core dumps of leeward, which would contain clients' data, and none of jobs: isolation/rlimits.py says why the
    # limit is 1. An ordinary user with a hard limit of 0 can't set that.
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except (ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


#: The last kernel on which it is known to work; up to that one nothing is tried. Linux 7.3 refuses it.
_KNOWN = (6, 18)


def with_what_can_be_covered(spec: SandboxSpec) -> SandboxSpec:
    """*spec* without its files of /proc, if the kernel refuses them; `free` and `uptime` then find none."""
    if is_coverable():
        return spec
    return replace(spec, view=replace(spec.view, proc=(), proc_live=()))


@functools.cache
def is_coverable() -> bool:
    """Whether files of this kernel's /proc can be covered before it is changed to show processes alone."""
    if _version(os.uname().release) <= _KNOWN:
        return True
    return not bare.is_refused("leeward.isolation.mounts", "is_whole_proc_refused()")


def _version(release: str) -> tuple[int, int]:
    """The first two numbers of a kernel's *release*; those of a kernel that nobody knows if it has none."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else (1 << 16, 0)


@functools.cache
def is_routed() -> bool:
    """Whether every address can be made local to a sandbox here, asked if a policy may be; Unsupported (pyroute2)."""
    return not bare.is_refused("leeward.isolation.egress_route", f"is_refused({route(socket.AF_INET)!r})")
