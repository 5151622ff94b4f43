"""What confines a pool's jobs, decided from what the settings ask for and what this kernel has. Makes no process."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from leeward.base.dataclass import dataclass
from leeward.daemon.pool.begin import SURPLUS, Settings
from leeward.daemon.worker.idmaps import first_worker_id
from leeward.errors import Unsupported
from leeward.isolation import egress_route, landlock, rlimits, watching
from leeward.isolation.cgroup.entry import Driver
from leeward.isolation.plan import WorkerPlan
from leeward.isolation.seccomp import filters
from leeward.spec.sandbox import SandboxSpec

if TYPE_CHECKING:
    from leeward.spec.egress_tls import Seal


@dataclass(frozen=True, slots=True)
class Confinement:
    plan: WorkerPlan
    first_id: int  # the host's uid of the first worker's processes where the daemon is root, else -1
    room: int  # workers that there may be for sessions: as asked for, or none if there are too few uids for them
    further: int  # workers that other pools may have: as asked for, or none if there are too few uids for them
    jobs: int  # the same for jobs of the first pool
    layers: dict[str, dict[str, object]]  # the text that `leeward status` shows for each layer
    degraded: tuple[str, ...]  # the layers that are missing, as the settings allow
    seal: Seal | None = None  # the seal of the spec
    watches: int = 0  # epoll watches that all jobs together may have; 0 if the filter doesn't ask for each watch


def decide(settings: Settings, spec: SandboxSpec, driver: Driver, room: int = 0, further: int = 0,
           jobs: int = 0, number: int = 0) -> Confinement:
    """
    Decide the confinement of a daemon's first pool, with *room* workers wanted for sessions or *jobs* for jobs, and
    *further* for other pools, of daemon *number* of root's; Unsupported, with its cure, if a layer can't be set.
    """
    first_id = -1
    if os.geteuid() == 0:
        with open("/proc/self/uid_map") as users, open("/proc/self/gid_map") as groups:
            maps = [users.read(), groups.read()]
        least = settings.pool_size + SURPLUS
        for asked in ((room, further, jobs), (room, further, min(jobs, room)), (room, 0, min(jobs, room))):
            try:
                first_id = first_worker_id(maps, least + max(asked[0], asked[2]) + asked[1], number)
                room, further, jobs = asked
                break
            except Unsupported:  # a container with few ids
                continue
        else:
            first_id, room, further, jobs = first_worker_id(maps, least, number), 0, 0, 0
    return confine(settings, spec, driver, first_id, room, further, jobs)


def confine(settings: Settings, spec: SandboxSpec, driver: Driver, first_id: int, room: int,
            further: int = 0, jobs: int = 0) -> Confinement:
    """Decide the confinement of any pool, once the uids are decided; raises as `decide`."""
    way_out = egress_route.plan(spec.egress, routed=spec.routed) if spec.egress else None
    sockets = spec.loopback or way_out is not None
    arch, host, shared = os.uname().machine, spec.host, of_one_user()
    rules = landlock.plan(spec.view, landlock.probe(), loopback=spec.loopback,
                          ports=() if way_out is None else way_out.ports,
                          allow_missing="landlock" in settings.allow_degraded)
    chosen = partial(filters.program, memory_counted=driver.memory_counted, affinity_fixed=driver.affinity_fixed,
                     arch=arch, loopback=sockets, host=host, shared=shared, root=spec.plays_root)
    program = chosen(terminal=spec.view.terminals > 0)
    on_terminal = chosen(terminal=True) if settings.sandboxes else None
    if spec.view.root is not None and spec.view.root.owners:
        from leeward.isolation.seccomp.widen_owners import with_owners  # few daemons have such a profile

        program, on_terminal = with_owners(program, arch), on_terminal and with_owners(on_terminal, arch)
    reuse = settings.reuse == "user"
    cannot = _cannot_reuse(settings, spec, driver) if reuse else ""
    plan = WorkerPlan(
        uid=spec.uid, gid=spec.gid, hostname=spec.hostname, view=spec.view, scratch_bytes=settings.limits.files,
        rlimits=rlimits.plan(settings.limits, settings.ceilings), landlock=rules, seccomp=program.insns,
        init_seccomp=filters.init_program(arch), watched=not driver.memory_counted, enterable=settings.sandboxes,
        terminal_seccomp=b"" if on_terminal is None else on_terminal.insns, rehearse=settings.rehearse,
        warm=settings.warming is not None, bounds_watches=watching.watchers().most > 0, loopback=sockets,
        reuse=reuse and not cannot, egress=way_out, low_ports=spec.plays_root and spec.loopback and way_out is None,
    )
    layers: dict[str, dict[str, object]] = {
        "namespaces": {"state": "active", "namespaces": ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"],
                       # Resources that the kernel counts by user: counted for each worker, or for all of them together.
                       "reuse": f"off: {cannot}" if cannot else settings.reuse,
                       "ids": "one for all workers" if shared else "one for each worker",
                       # Those that one job can use up for all others: docs/decisions/0118.
                       "not_kept_apart": ["descriptors in flight", "pipes"] if shared else []},
        "mounts": {"state": "active", "root": _root(spec), "binds": len(spec.view.binds)},
        "landlock": {"state": "active" if rules.abi else "missing", "abi": rules.abi, "rules": len(rules.rules)},
        "seccomp": {"state": "active", "rules": program.rules, "instructions": program.instructions},
        "cgroup": {"state": "degraded" if driver.degraded else "active", "driver": driver.name, **driver.detail,
                   "passed_over": dict(driver.passed_over)},
    }
    degraded = (*(("landlock",) if not rules.abi else ()), *(("cgroup",) if driver.degraded else ()))
    return Confinement(plan, first_id, room, further, jobs, layers, degraded, spec.seal,
                       rlimits.granted_watches() if shared or not driver.memory_counted else 0)


def _cannot_reuse(settings: Settings, spec: SandboxSpec, driver: Driver) -> str:
    """Why no job may have the namespaces of one before it; "" if it may."""
    reasons = {"an image's root is each job's own": spec.view.root is not None, "terminals": spec.view.terminals > 0,
               "egress": bool(spec.egress), "a state to begin with": settings.warming is not None,
               "fresh_layout": settings.fresh_layout, "no controller counts memory": not driver.memory_counted}
    return next((reason for reason, holds in reasons.items() if holds), "")


def _root(spec: SandboxSpec) -> str:
    return "tmpfs, read-only" if spec.view.root is None else f"overlay of {len(spec.view.root.layers)} layers"


def of_one_user() -> bool:
    """Whether all workers of a pool have one user id, so that the kernel counts their resources together."""
    return os.geteuid() != 0
