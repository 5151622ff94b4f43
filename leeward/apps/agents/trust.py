"""
Trust in a project: a person is shown the grants that its settings ask for, and accepts them once.

Trust:     none in the texts: a command, a path or a host may be hostile. Each is shown as one line of visible
           characters, and a text that is too long to be shown whole is refused.
Rule:      a hash over the project's path, the owner of its folder if that is another user, and exactly these grants is
           stored. For any other set the person is asked again, and only "yes" accepts it.
Leaves:    a hook that runs a file of the project runs whatever content the file has then.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence

from leeward.apps.agents.errors import printable
from leeward.apps.agents.settings import KINDS, Grant
from leeward.apps.agents.state_files import own_folder, read_state, write_at_once
from leeward.errors import BadRequest

#: Grants of one project, and characters of a grant as it is shown: at most.
MAX_GRANTS, MAX_SHOWN = 200, 2000


class NotTrusted(BadRequest):
    """A project's settings ask for grants that the user hasn't accepted."""


class TrustStore:
    """The grants that a user has accepted, in *folder*, which is made; Unsupported if other users can enter or own it."""

    def __init__(self, folder: str) -> None:
        self._folder = own_folder(folder)

    def accepted(self, project: bytes, grants: Sequence[Grant], owner: int | None = None) -> bool:
        """Whether exactly these grants were accepted for *project*, whose folder belongs to *owner*; None for this user."""
        content = read_state(self._folder, _file(project))
        try:
            return content is not None and json.loads(content)["grants"] == digest(project, grants, owner)
        except (ValueError, TypeError, KeyError, RecursionError):
            return False

    def accept(self, project: bytes, grants: Sequence[Grant], owner: int | None = None) -> None:
        """Record that *grants* were accepted for *project* of *owner*, in place of those before."""
        record = {"project": os.fsdecode(project), "grants": digest(project, grants, owner)}
        write_at_once(self._folder, _file(project), json.dumps(record).encode())


def digest(project: bytes, grants: Sequence[Grant], owner: int | None = None) -> str:
    """A hash over these grants, in order, the path, and the owner unless it is this user: others make folders in /tmp."""
    whole = hashlib.sha256(b"leeward project trust 1\0")
    # A path begins with a slash, so an owner isn't taken for one.
    owners = () if owner is None or os.geteuid() == owner else (b"%d" % owner,)
    for part in (*owners, project, *(text.encode("utf-8", "surrogateescape") for grant in grants
                            for text in (grant.kind, grant.what))):
        # With its length, so that different lists of parts are different bytes.
        whole.update(b"%d:" % len(part) + part)
    return whole.hexdigest()


def question(project: bytes, grants: Sequence[Grant], owner: int | None = None) -> str:
    """The lines that a person is shown before the question; NotTrusted if they are too many or too long."""
    if len(grants) > MAX_GRANTS:
        raise NotTrusted(f"{_named(project)} asks for {len(grants)} things; more than {MAX_GRANTS} aren't shown")
    theirs = "" if owner is None or os.geteuid() == owner else f", which belongs to user {owner},"
    lines = [f"The settings of {_named(project)}{theirs} ask for more than yours:"]
    for grant in grants:
        shown = printable(grant.what)
        if len(shown) > MAX_SHOWN:
            raise NotTrusted(f"{_named(project)} asks for something of {len(shown)} characters; more than {MAX_SHOWN}"
                             " aren't shown")
        lines.append(f"  {shown}\n      {KINDS[grant.kind]}")
    return "\n".join(lines)


def require_trust(store: TrustStore, project: bytes, grants: Sequence[Grant], *, owner: int | None = None,
                  trusted: bool = False, ask: Callable[[str], str] | None = None) -> None:
    """
    Return if *grants* were accepted before, or are now: *trusted* (`--trust-project`), or by a person; else NotTrusted.

    *ask* shows a text and returns the line that the person typed; EOFError counts as no. None without a terminal.
    """
    if not grants or store.accepted(project, grants, owner):
        return
    if not trusted:
        text = question(project, grants, owner)
        if ask is None:
            raise NotTrusted(f"{text}\nThere is no terminal to ask on; --trust-project accepts this")
        try:
            answer = ask(f"{text}\nAccept? Type yes: ")
        except EOFError:
            answer = ""
        if answer.strip().lower() != "yes":
            raise NotTrusted(f"not accepted; {_named(project)} wasn't started")
    store.accept(project, grants, owner)


def _named(project: bytes) -> str:
    return printable(os.fsdecode(project))


def _file(project: bytes) -> str:
    return hashlib.sha256(project).hexdigest() + ".json"
