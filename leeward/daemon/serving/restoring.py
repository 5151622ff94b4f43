"""The sandboxes that an earlier daemon on this socket has put to sleep: there again, and awake at the next request."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward.base.dataclass import names, replace
from leeward.daemon.sandboxes import importing
from leeward.daemon.sandboxes.sandbox import LiveSandbox
from leeward.daemon.sandboxes.sleep_folder import SleepFolder, check_form
from leeward.daemon.sandboxes.terms import SandboxFacts, terms_of
from leeward.daemon.serving.profiles import narrowed_again
from leeward.daemon.telling.log import log
from leeward.errors import Busy, LeewardError, SnapshotFailed, told
from leeward.spec.limits import OF_SANDBOXES, Limits, adjusted
from leeward.spec.pool_key import MAIN_POOL, PoolKey
from leeward.wire import fields, sandbox_fields

if TYPE_CHECKING:
    from leeward.daemon.pool.pool import Pool
    from leeward.daemon.serving.server import Server


def _check_policies(value: object, what: str) -> None:
    """Only the types: what they mean is checked where it wakes, by what the operator has then."""
    if value is not None:
        check_form(value, ({}, {}), what)


def _check_metadata(value: object, what: str) -> None:
    found = sandbox_fields.metadata(value, what)
    "".join((*found, *found.values())).encode()  # half of a pair of surrogates can't be told


#: What a sandbox's record has to be: what is wrong in one would keep its user from all by `list`.
_FORM = {"user": int, "idle": float, "sleeps": bool, "until": float, "opened": float,
         "made_on": {str: str}, "key": {str: str}, "limits": {}, "env": fields.env,
         "metadata": _check_metadata, "cwd": sandbox_fields.path, "egress": _check_policies, "kernels": [(int, str)],
         "last": (int, int), "denied": {str: int}, "used": {str: float}}


def restore(server: Server, folder: str, socket: str) -> None:
    """
    Have *server* keep sleeping sandboxes below *folder*, apart for each *socket*, and those that are there. Without it, which
    is logged, sandboxes sleep in memory.
    """
    place = os.path.join(folder, hashlib.sha256(os.path.abspath(socket).encode()).hexdigest()[:16])
    try:
        sleepers = SleepFolder(
            server.reactor, server.desk.last_uses, place, lambda: server.config.sleep_size,
            lambda user, own, left: server.quotas.leaves(user, own, left, server.quotas.of(user).sleep_size))
    except (LeewardError, OSError) as error:
        log.warning("sandboxes sleep in memory: their folder can't be used", folder=place, error=told(error))
        return
    server.desk.sleepers, server.desk.warns, server.desk.tells = sleepers, log.warning, log.info
    count = 0
    for name, record in sleepers.sleepers():
        try:
            if isinstance(record, SnapshotFailed):
                raise record
            _restore(server, name, record)
            count += 1
        except (LeewardError, TypeError, ValueError, RecursionError) as error:
            log.warning("a sandbox of an earlier daemon can't be used", sandbox=name, error=told(error))
            sleepers.remove(name)
    if count:
        log.info("sandboxes of an earlier daemon sleep", sandboxes=count)


def _restore(server: Server, name: str, record: Mapping[str, Any]) -> None:
    check_form(record, _FORM)
    importing.check(record["made_on"])
    key = PoolKey(**record["key"])
    limits = Limits(**{field: value for field, value in record["limits"].items() if field in names(Limits)})
    for each in names(Limits):
        value, default = getattr(limits, each), getattr(Limits(), each)
        if value is not None or default is not None:
            check_form(value, float if default is None else type(default), each)
    egress = record["egress"] and tuple(record["egress"])
    facts = SandboxFacts(limits, record["env"], record["metadata"], key, record["cwd"], egress)
    config = server.config
    times = {"idle": min(record["idle"], config.sandbox_idle),
             "until": min(record["until"], time.time() + config.sandbox_lifetime)}
    server.desk.restore(name, {**record, **times}, facts, partial(place_again, server, record["user"]), config.queue_timeout)


def place_again(server: Server, user: int, sandbox: LiveSandbox) -> Pool:
    """
    The pool in which a sandbox of *user* wakes. It has then what it could be opened with now: its terms and the limits that
    nobody asks for are of now, and its policy is within the operator's of now. LeewardError if it couldn't: it sleeps on.
    """
    facts, config, most = sandbox.facts, server.config, server.quotas.of(user).sandboxes
    awake = sum(each.sandbox.seat is not None for each in server.desk.of(user)) if most else 0
    if 0 < most <= awake:
        raise Busy(f"{awake} sandboxes of yours are awake, as many as you may have by now: close one, or let it sleep")
    policy = narrowed_again(facts.key, facts.egress, user, config)
    branch = None if facts.key == MAIN_POOL else server.place(facts.key)
    base = config.limits if branch is None else branch.settings.limits
    asked = {name: getattr(facts.limits, name) for name in OF_SANDBOXES if getattr(facts.limits, name) != getattr(base, name)}
    limits = adjusted(replace(base, cuts_output=True), config.ceilings, asked, OF_SANDBOXES)
    facts.limits, facts.egress = limits, policy
    if branch is None:
        return server.jobs
    sandbox.terms = terms_of(branch.spec, branch.confinement.degraded)
    return branch.pool
