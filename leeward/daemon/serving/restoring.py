"""The sandboxes that an earlier daemon on this socket has put to sleep: there again, and awake at the next request."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward.base.dataclass import names
from leeward.daemon.sandboxes import importing
from leeward.daemon.sandboxes.sandbox import LiveSandbox
from leeward.daemon.sandboxes.sleep_folder import SleepFolder
from leeward.daemon.sandboxes.terms import SandboxFacts, terms_of
from leeward.daemon.telling.log import log
from leeward.errors import LeewardError, SnapshotFailed, told
from leeward.spec.limits import Limits
from leeward.spec.pool_key import MAIN_POOL, PoolKey

if TYPE_CHECKING:
    from leeward.daemon.pool.pool import Pool
    from leeward.daemon.serving.server import Server


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
        except (LeewardError, AttributeError, KeyError, TypeError, ValueError) as error:
            log.warning("a sandbox of an earlier daemon can't be used", sandbox=name, error=told(error))
            sleepers.remove(name)
    if count:
        log.info("sandboxes of an earlier daemon sleep", sandboxes=count)


def _restore(server: Server, name: str, record: Mapping[str, Any]) -> None:
    importing.check(record["made_on"])
    key = PoolKey(**record["key"])
    limits = Limits(**{field: value for field, value in record["limits"].items() if field in names(Limits)})
    egress = record["egress"] and tuple(record["egress"])
    facts = SandboxFacts(limits, record["env"], record["metadata"], key, record["cwd"], egress)
    server.desk.restore(name, record, facts, partial(_place, server, key))


def _place(server: Server, key: PoolKey, sandbox: LiveSandbox) -> Pool:
    """The pool in which the sandbox wakes; its terms are those of this daemon. LeewardError if there is none of its kind."""
    if key == MAIN_POOL:
        return server.jobs
    branch = server.place(key)
    sandbox.terms = terms_of(branch.spec, branch.confinement.degraded)
    return branch.pool
