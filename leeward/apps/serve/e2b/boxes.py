"""
Sandboxes and whose they are.

Holds:     a sandbox's metadata has its tenant's id. Each look-up compares it, and what isn't the caller's is answered as
           what doesn't exist. Nothing else is kept here but connections, which are made anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import posixpath
import re
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leeward.apps.serve.calls import Use, tell
from leeward.apps.serve.e2b.processes import ProcessTable
from leeward.apps.serve.nodes import ID, LETTERS
from leeward.apps.serve.problems import CLOSED, ServeProblem, bad, busy, gone, no_sandbox
from leeward.apps.serve.tokens import ServeTenant
from leeward.apps.serve.volumes import mounts_of
from leeward.client.aio_ports import connected
from leeward.client.aio_process import AsyncKernel
from leeward.client.aio_sandbox import AsyncSandbox
from leeward.errors import Busy, DaemonError, RequestRejected, SandboxOver

if TYPE_CHECKING:
    from leeward.apps.serve.door import Door

#: Connections to sandboxes that are kept, at most.
MOST_KEPT = 512
#: Connections to servers in a sandbox that are being made at once: half of what the daemon makes.
DIALS = 8
#: Ports of E2B's own services, for files and processes, and for code, which aren't a sandbox's.
OWN_PORTS = (49983, 49999)
#: Seconds for which a list of all sandboxes is used again, by callers who have shown no token.
_LIST_S = 1.0
#: Seconds for which it is believed of a profile where its home is: an operator may change it.
_HOME_S = 60.0

#: Where E2B's programs expect a home, if the profile has one there, and where they begin otherwise.
HOME, WORKSPACE = "/home/user", "/workspace"

#: Keys of the metadata; those of the caller have _OWN before them.
_TENANT, _TEMPLATE, _KEY, _PRIVATE, _OWN = "serve.tenant", "serve.template", "serve.key", "serve.private", "own."
#: Of one that sleeps when its time is over. Of a copy that is a snapshot: its name, the id of its source, and what another
#: server has to know to copy it. OpenSandbox's rules of the network, while they are all that its policy is made from.
SLEEPS, SNAPSHOT, SOURCE, _KEPT = "serve.sleeps", "serve.snapshot", "serve.source", "serve.kept"
NETWORK = "serve.network"
#: Characters of that, variables among them.
_MOST_KEPT_TEXT = 8192
#: The name of a snapshot that has none; E2B's own templates.
UNNAMED, OWN_TEMPLATES = "-", ("base", "code-interpreter-v1")
_ID = re.compile(ID, re.ASCII)
#: Seconds that a paused sandbox may take to wake, and between two looks whether it has.
WAKE_S, _SOON_S = 10.0, 0.02


@dataclass(slots=True)
class Context:
    """
    A kernel in which code is run.

    Attributes:
        count: how often it was.
        used: when it was last, in seconds since 1970.
        running, sockets: requests whose code waits or runs, and clients that are connected, where they are counted.
        turn: of one request's code after the other, else an interrupt could hit another's.
        runs: the task that has it.
        losses: how often the state was lost while code ran.
    """

    kernel: AsyncKernel
    cwd: str
    count: int = 0
    used: float = 0.0
    # What a copy of the context doesn't have.
    running: int = field(default=0, init=False)
    sockets: int = field(default=0, init=False)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    runs: asyncio.Task[None] | None = field(default=None, init=False)
    losses: int = field(default=0, init=False)


@dataclass(slots=True)
class OpenBox:
    """
    A sandbox that this process has a connection to.

    Attributes:
        id: its id.
        tenant: whose it is.
        template: by which it was made.
        metadata: the caller's.
        is_private: whether its ports are for those with a token.
        is_attached: whether another server, or this one before, has opened it.
        contexts: by id.
        making: makes the first context once, and copies one at a time.
        options: AsyncSandbox's, as it was opened with them here; none if it was attached.
        marks: what its metadata have of its own beside.
    """

    id: str
    tenant: str
    template: str
    metadata: dict[str, str]
    box: AsyncSandbox
    processes: ProcessTable
    is_attached: bool = False
    contexts: dict[str, Context] = field(default_factory=dict)
    watchers: dict[str, Any] = field(default_factory=dict)
    making: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_private: bool = False
    dials: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(DIALS))
    options: dict[str, Any] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)
    home: str = ""  # where relative paths begin; "" until it is known

    async def path(self, path: str) -> str:
        """An absolute path in the sandbox; ServeProblem for none. It leads nowhere else: a process inside uses it."""
        if not path or "\0" in path or len(path.encode("utf-8", "replace")) > 4000:
            raise bad("a path is missing, or isn't one")
        if path.startswith("/"):
            return posixpath.normpath(path)
        self.home = self.home or await home_in(self.box)
        return posixpath.normpath(posixpath.join(self.home, path[2:] if path.startswith("~/") else path))


class Boxes:
    """The sandboxes of all tenants."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._kept: OrderedDict[str, OpenBox] = OrderedDict()
        self._opening: dict[tuple[str, str], asyncio.Future[OpenBox]] = {}  # by tenant and key
        self._listed: list[dict[str, Any]] | None = None
        self._listed_at = self._asked_at = self._doubted_at = float("-inf")
        self._listing, self._telling = asyncio.Lock(), asyncio.Lock()
        self._next: asyncio.Future[list[dict[str, Any]]] | None = None
        self._since: dict[str, str] = {}  # the tenants of sandboxes opened since that list was asked for, by id
        self._followed: dict[str, tuple[str, str]] = {}  # tenants and templates of those without a connection here, by id
        self._homes: dict[tuple[str, str], tuple[str, float]] = {}  # by node and profile, and until when that is believed
        door.regularly.append(self._all)

    async def open(self, tenant: ServeTenant, use: Use, template: str, metadata: Mapping[str, str], key: str,
                   marks: Mapping[str, str] = {}, **options: Any) -> OpenBox:
        """
        A new sandbox; the one that was made before by a request with the same *key*, if there is one ("": no key). Its
        ports are for those with a token if *is_private*, it shows the *volumes*, and its metadata have further *marks*; the
        other *options* are AsyncSandbox's. The server says which environment it has, the tenant's quota how much memory.
        """
        given = {"environment": self._door.options.environment or None, "memory": tenant.quota.memory or None, **options}
        return await self._once(tenant, key, lambda hashed: self._open(tenant, use, template, metadata, hashed, given, marks))

    async def _once(self, tenant: ServeTenant, key: str, make: Callable[[str], Awaitable[OpenBox]]) -> OpenBox:
        hashed = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32] if key else ""
        if not hashed:
            return await make("")
        known = self._opening.get((tenant.id, hashed))
        if known is None:
            known = asyncio.ensure_future(self._found_or_made(tenant, hashed, make))
            self._opening[tenant.id, hashed] = known
            known.add_done_callback(lambda _: self._opening.pop((tenant.id, hashed), None))
        return await asyncio.shield(known)

    async def open_as_told(self, tenant: ServeTenant, use: Use, template: str, key: str = "", **options: Any) -> OpenBox:
        """As `open`, in the server's profile, with the tenant's policy of egress, for as long as its quota allows."""
        if tenant.egress:
            options["egress"] = tenant.egress[0]
        box = await self.open(tenant, use, template, {}, key, profile=self._door.options.box_profile, **options)
        if (await self.info(box))["left"] > tenant.quota.lifetime:
            await box.box.extend(lifetime=float(tenant.quota.lifetime))
        return box

    async def _found_or_made(self, tenant: ServeTenant, hashed: str, make: Callable[[str], Awaitable[OpenBox]]) -> OpenBox:
        for row in await self.rows(tenant):
            if row["metadata"].get(_KEY) == hashed:
                return await self.find(tenant, row["sandbox"])
        return await make(hashed)

    async def copy(self, tenant: ServeTenant, use: Use, source: OpenBox, metadata: Mapping[str, str], lasts: float | None,
                   name: str = "", key: str = "", options: Mapping[str, Any] | None = None) -> OpenBox:
        """
        A new sandbox with the options, the files and the contexts of *source*, which is this tenant's; with a *name* it is
        kept as a snapshot, asleep. Programs aren't copied. *key* and what it raises as for `open`; *source* has its options,
        in whose place others may be given.
        """
        return await self._once(tenant, key, lambda hashed: self._copy(
            tenant, use, source, metadata, lasts, name, hashed, source.options if options is None else options))

    async def _copy(self, tenant: ServeTenant, use: Use, source: OpenBox, metadata: Mapping[str, str], lasts: float | None,
                    name: str, hashed: str, wanted: Mapping[str, Any]) -> OpenBox:
        if source.options.get("volumes"):
            raise bad("a sandbox with volumes isn't copied")
        async with source.making:
            options = {**wanted, "lifetime": None if wanted.get("sleeps") else lasts, "idle": lasts}
            marks, contexts = {}, list(source.contexts.items())  # others may be made or closed meanwhile
            if name:
                kept = json.dumps([source.options, [[identity, each.cwd] for identity, each in contexts]])
                if len(kept) > _MOST_KEPT_TEXT:
                    raise bad("a sandbox with so many variables can't be kept as a snapshot")
                marks = {SNAPSHOT: name, SOURCE: source.id, _KEPT: kept}
            if SNAPSHOT in source.marks:
                await woken(source)
            try:
                made = await self._open(tenant, use, source.template, metadata, hashed, options, marks, source)
                try:
                    await made.box.copy_files(source.box)
                    for identity, context in contexts:
                        async with await context.kernel.snapshot() as snapshot:
                            kernel = await made.box.kernel(snapshot=snapshot)
                            made.contexts[identity] = Context(kernel, context.cwd, context.count, context.used)
                    if name:
                        await made.box.pause()
                except BaseException:
                    await self.kill(made)
                    raise
            finally:
                if SNAPSHOT in source.marks:
                    with contextlib.suppress(DaemonError):  # then it is awake, and the next copy is made all the same
                        await source.box.pause()
        return made

    async def _open(self, tenant: ServeTenant, use: Use, template: str, metadata: Mapping[str, str], hashed: str,
                    options: dict[str, Any], marks: Mapping[str, str] = {}, beside: OpenBox | None = None) -> OpenBox:
        await self.seat(tenant, use)
        try:
            given = dict(options)
            is_private, sleeps = options.pop("is_private", False), options.get("sleeps", False)
            volumes = options.pop("volumes", ())
            marks = {_TEMPLATE: template, **({_KEY: hashed} if hashed else {}), **({_PRIVATE: "1"} if is_private else {}),
                     **({SLEEPS: "1"} if sleeps else {}), **marks}
            with mounts_of(volumes) as mounts:
                box, identity = await self._door.nodes.open(
                    (beside.box, beside.id) if beside is not None else None, metadata=marked(tenant, metadata) | marks,
                    **({"mounts": mounts} if mounts else {}), **options)
            try:
                found = OpenBox(identity, tenant.id, template, dict(metadata), box, ProcessTable(box),
                                is_private=is_private, home=await self._home(identity, options["profile"], box),
                                options=given, marks=marks)
            except BaseException:
                await box.close()
                raise
        finally:
            use.opening -= 1
        self.opened(tenant, found.id)
        self._keep(found)
        await self.check_count(tenant, found)
        return found

    async def check_count(self, tenant: ServeTenant, opened: OpenBox | str) -> None:
        """ServeProblem, and the sandbox's end, if other servers have opened so many meanwhile that it is one too many."""
        if self._door.tokens.servers == 1 or not self._is_near(tenant, self._count(tenant)):
            return
        await self._all()
        if self._count(tenant) > tenant.quota.sandboxes:
            with contextlib.suppress(ServeProblem):  # it has ended by itself
                await self.kill(opened if isinstance(opened, OpenBox) else await self.find(tenant, opened))
            raise _too_many(tenant)

    def _is_near(self, tenant: ServeTenant, count: int) -> bool:
        """Whether *count* may be too many: below it what the other servers have opened meanwhile is no more than the rest."""
        return (1 + self._door.tokens.servers) * count > tenant.quota.sandboxes

    async def seat(self, tenant: ServeTenant, use: Use) -> None:
        """Count a sandbox or session as being opened; ServeProblem if the tenant has as many as it may."""
        use.opening += 1
        try:
            if self._listed is None or self._asked_at <= self._doubted_at or self._is_near(
                    tenant, self._count(tenant) + use.opening):
                await self._all()
            if self._count(tenant) + use.opening > tenant.quota.sandboxes:
                raise _too_many(tenant)
        except BaseException:
            use.opening -= 1
            raise

    def opened(self, tenant: ServeTenant, identity: str) -> None:
        """There is another sandbox, which the last list doesn't have."""
        self._since[identity] = tenant.id
        self._listed_at = float("-inf")

    def follow(self, tenant: str, identity: str, template: str) -> None:
        """The log tells the end of a sandbox that no connection here is open to. *tenant* is an id."""
        self._followed[identity] = tenant, template

    def doubt(self) -> None:
        """There may be more sandboxes than those that were told of: ask before another one is opened."""
        self._doubted_at = time.monotonic()

    def _count(self, tenant: ServeTenant) -> int:
        """How many sandboxes of a tenant may be open, and not fewer than are: by the last list, and what was opened since."""
        listed = {row["sandbox"] for row in self._listed or () if row["metadata"].get(_TENANT) == tenant.id}
        return len(listed | {identity for identity, owner in self._since.items() if owner == tenant.id})

    async def _home(self, identity: str, profile: str, box: AsyncSandbox) -> str:
        """Where relative paths begin in a sandbox that nobody has used yet, else its tenant could choose it for others."""
        key = identity[LETTERS:], profile
        home, until = self._homes.get(key, ("", 0.0))
        if time.monotonic() >= until:
            home = await home_in(box)
            self._homes[key] = home, time.monotonic() + _HOME_S
        return home

    async def find(self, tenant: ServeTenant | None, identity: str, *, snapshot: bool = False) -> OpenBox:
        """
        The sandbox of *tenant* (None: of whomever, for a caller who has shown a token of the sandbox's) with this id; with
        *snapshot* one that is kept as such. ServeProblem 404 if there is none.
        """
        if not is_id(identity):
            raise no_sandbox()
        found = self._kept.get(identity)
        if found is None:
            found = await self._attached(identity)
        if (tenant is not None and found.tenant != tenant.id) or snapshot != (SNAPSHOT in found.marks):
            raise no_sandbox()
        if identity in self._kept:
            self._kept.move_to_end(identity)
        return found

    async def _attached(self, identity: str) -> OpenBox:
        try:
            box = await self._door.nodes.attach(identity)
            try:
                metadata = (await box.info())["metadata"]
            except BaseException:
                await box.detach()
                raise
        except RequestRejected:
            raise no_sandbox() from None
        except SandboxOver as error:
            raise gone(error) from None
        if _TENANT not in metadata:  # a sandbox of this user's that no caller of this server has opened
            await box.detach()
            raise no_sandbox()
        options, contexts = json.loads(metadata.get(_KEPT, "[{}, []]"))  # this server's own words
        found = OpenBox(identity, metadata[_TENANT], metadata.get(_TEMPLATE, "base"), own_metadata(metadata), box,
                        ProcessTable(box), is_private=_PRIVATE in metadata, is_attached=True, options=options,
                        contexts={name: Context(AsyncKernel(box, number), cwd)
                                  for number, (name, cwd) in enumerate(contexts, 1)},
                        marks={name: metadata[name] for name in (SLEEPS, SNAPSHOT) if name in metadata})
        if identity in self._kept:  # another call has attached meanwhile
            await box.detach()
            return self._kept[identity]
        self._keep(found)
        return found

    def _keep(self, box: OpenBox) -> None:
        self._kept[box.id] = box
        for other in list(self._kept.values())[:max(0, len(self._kept) - MOST_KEPT)]:
            if not other.processes.is_busy and not other.watchers and not other.contexts:
                self.forget(other)
                self.follow(other.tenant, other.id, other.template)

    def has(self, box: OpenBox) -> bool:
        """Whether its connection is open, and used for calls."""
        return self._kept.get(box.id) is box

    def context(self, identity: str) -> Context | None:
        """The first context of a sandbox, if this process has used one."""
        box = self._kept.get(identity)
        return None if box is None else next(iter(box.contexts.values()), None)

    def forget(self, box: OpenBox) -> None:
        """Close the connection to a sandbox, which may live on."""
        if self._kept.pop(box.id, None) is not None:
            box.processes.close()
            for watcher in box.watchers.values():
                watcher.close()
            task = asyncio.ensure_future(box.box.detach())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # the sandbox may have ended

    async def kill(self, box: OpenBox) -> None:
        try:
            await box.box.kill()
        except SandboxOver as error:
            self.over(box, error.reason)
            raise gone(error) from None
        except DaemonError:
            if self.has(box):
                raise
        self.over(box, "killed")  # else another call has seen its end, and closed the connection

    async def info(self, box: OpenBox) -> dict[str, Any]:
        """The daemon's row of a sandbox; ServeProblem 404 if it has ended."""
        try:
            return await box.box.info()
        except SandboxOver as error:
            self.over(box, error.reason)
            raise gone(error) from None
        except DaemonError:
            if self.has(box):
                raise
            raise no_sandbox() from None

    async def dial(self, box: OpenBox, port: int) -> socket.socket:
        """A connection to a server in a sandbox; ServeProblem 502 if nobody listens. SandboxOver."""
        try:
            async with box.dials:
                made = await connected(box.box, port)
        except SandboxOver as error:
            self.over(box, error.reason)
            raise
        if made is None:
            raise ServeProblem(502, CLOSED)
        made.setblocking(False)
        return made

    async def change(self, box: OpenBox, changed: Callable[[Mapping[str, str]], tuple[
            Mapping[str, str], dict[str, Any] | None]]) -> dict[str, Any]:
        """
        Give a sandbox the metadata and the policy that *changed* makes of its metadata; returns its row. ServeProblem 404
        if it has ended, RequestRejected while it sleeps.
        """
        async with box.making:
            metadata, policy = changed((await self.info(box))["metadata"])
            row = await box.box.extend(metadata=metadata, policy=policy)
            box.metadata = own_metadata(metadata)
            if policy is not None and box.options:
                box.options["policy"] = policy  # of its copies, too
        return row

    def over(self, box: OpenBox, reason: str) -> None:
        """The sandbox has ended: forget it, and tell the log."""
        if self.has(box):
            self._tell_end(box.id, box.tenant, box.template, reason)
        self._since.pop(box.id, None)
        self.forget(box)

    def _tell_end(self, identity: str, owner: str, template: str, reason: str) -> None:
        self._followed.pop(identity, None)
        tenant = self._door.tenant(owner)
        tell(tenant=tenant.name if tenant else "", end=reason, sandbox=identity, template=template)

    async def rows(self, tenant: ServeTenant, *, snapshots: bool = False) -> list[dict[str, Any]]:
        """The daemon's rows of a tenant's sandboxes, the oldest first; or of those that are kept as *snapshots*."""
        return [row for row in await self._all() if row["metadata"].get(_TENANT) == tenant.id
                and snapshots == (SNAPSHOT in row["metadata"])]

    async def ids(self) -> list[str]:
        """The ids of all tenants' sandboxes, perhaps as they were _LIST_S seconds ago."""
        async with self._listing:  # anybody may ask
            if time.monotonic() - self._listed_at > _LIST_S:
                await self._all()
        return [row["sandbox"] for row in self._listed or () if _TENANT in row["metadata"]]

    async def _all(self) -> list[dict[str, Any]]:
        """
        The daemon's rows of all sandboxes of this user, as they are from now on; those that have ended are forgotten. Who
        comes while they are being asked for waits for the next ones, together with all others: many cost what one does.
        """
        if self._next is None:
            self._next = asyncio.ensure_future(self._told())
            self._next.add_done_callback(lambda done: done.cancelled() or done.exception())  # who asked may have gone
        return await asyncio.shield(self._next)

    async def _told(self) -> list[dict[str, Any]]:
        async with self._telling:
            self._next = None
            return await self._all_rows()

    async def _all_rows(self) -> list[dict[str, Any]]:
        kept, followed = list(self._kept.values()), list(self._followed.items())
        before, asked_at = set(self._since), time.monotonic()
        listed = await self._door.nodes.rows()
        self._listed, self._listed_at, self._asked_at = listed, time.monotonic(), asked_at
        self._since = {identity: owner for identity, owner in self._since.items() if identity not in before}
        self._door.count_sandboxes(Counter(row["metadata"].get(_TENANT, "") for row in listed))
        lives = {row["sandbox"] for row in listed}
        for box in kept:
            if box.id not in lives:
                with contextlib.suppress(ServeProblem, DaemonError):  # that it has ended, and why
                    await self.info(box)
                self.forget(box)
        for identity, (owner, template) in followed:
            if identity not in lives and identity in self._followed:
                with contextlib.suppress(DaemonError):
                    self._tell_end(identity, owner, template, await self._reason(identity))
                self._followed.pop(identity, None)
        return listed

    async def _reason(self, identity: str) -> str:
        """Why a sandbox has ended; DaemonError if nobody knows any more."""
        try:
            await (await self._door.nodes.attach(identity)).detach()
        except SandboxOver as error:
            return error.reason
        raise SandboxOver("it lives")

    def tenant_of(self, box: OpenBox) -> ServeTenant:
        """The tenant of a sandbox; ServeProblem 401 if the token was revoked."""
        tenant = self._door.tenant(box.tenant)
        if tenant is None:
            raise ServeProblem(401, "the token by which this sandbox was made was revoked")
        return tenant


def _too_many(tenant: ServeTenant) -> ServeProblem:
    return busy(f"{tenant.quota.sandboxes} sandboxes and sessions are open, as many as are allowed at once")


async def home_in(box: AsyncSandbox) -> str:
    """Where relative paths begin in a sandbox. This begins a process in it, if it is the first question about its files."""
    return HOME if await box.files.exists(HOME) else WORKSPACE


async def woken(box: OpenBox) -> None:
    """Any request wakes it, and is refused until it is awake. ServeProblem 429 if that takes too long."""
    until = time.monotonic() + WAKE_S
    while True:
        try:
            await box.box.processes()
            return
        except Busy as error:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(error.retry_after or _SOON_S)


def is_id(text: str) -> bool:
    """Whether *text* looks like a sandbox's id."""
    return _ID.fullmatch(text) is not None


def marked(tenant: ServeTenant, metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata of a tenant's sandbox for the daemon, with the caller's in it."""
    return with_own({_TENANT: tenant.id}, metadata)


def with_own(metadata: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """A sandbox's *metadata* with other ones of its caller's."""
    return {**{f"{_OWN}{name}": value for name, value in own.items()},
            **{name: value for name, value in metadata.items() if not name.startswith(_OWN)}}


def own_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """The caller's part of a sandbox's metadata."""
    return {name.removeprefix(_OWN): value for name, value in metadata.items() if name.startswith(_OWN)}


def template_of(metadata: Mapping[str, str]) -> str:
    return metadata.get(_TEMPLATE, "base")


def profile_of(name: str, tenant: ServeTenant, default: str, what: str = "template",
               own: tuple[str, ...] = OWN_TEMPLATES) -> str:
    """The profile of a template, or *what* else has a name: *default* for its clients' *own*, else one of the tenant's."""
    if name in own:
        return default
    if name not in tenant.profiles:
        raise bad(f"there is no such {what} for this token: {what}s here are {', '.join(own)} and the profiles that `leeward "
                  "serve token create --profile` has named")
    return name
