"""
Trust in a project: the grants that its settings ask for are shown, and accepted once.

Runs in:   the user's program, with its terminal.
Trust:     none in the texts: a command, a path or a host may be hostile. Each is shown as one line of visible
           characters, and a text that can't be shown whole is refused rather than cut.
Rule:      a hash over the project's path and exactly these grants is stored. Any other set is asked about again, and
           only "yes" accepts it.
Leaves:    a hook that runs a file of the project runs that file's content of the moment.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence

from leeward.agents.errors import printable
from leeward.agents.grants import KINDS, Grant
from leeward.agents.state_files import own_folder, read_state, write_at_once
from leeward.errors import BadRequest

#: Grants of one project, and characters of one of them as it is shown, at most: nobody reads more.
MAX_GRANTS, MAX_SHOWN = 200, 2000


class NotTrusted(BadRequest):
    """
    A project's settings ask for what nobody has accepted.
    """


class TrustStore:
    """
    What a user has accepted.

    Args:
        folder: below the user's state folder; made where it isn't there.

    Raises:
        Unsupported: others may enter or own the folder.
    """

    def __init__(self, folder: str) -> None:
        self._folder = own_folder(folder)

    def accepted(self, project: bytes, grants: Sequence[Grant]) -> bool:
        """
        Whether exactly these grants were accepted for the project with the path *project*.
        """
        content = read_state(self._folder, _file(project))
        try:
            return content is not None and json.loads(content)["grants"] == digest(project, grants)
        except (ValueError, TypeError, KeyError, RecursionError):
            return False

    def accept(self, project: bytes, grants: Sequence[Grant]) -> None:
        """
        Remember that they were accepted, in the place of what was before.
        """
        record = {"project": os.fsdecode(project), "grants": digest(project, grants)}
        write_at_once(self._folder, _file(project), json.dumps(record).encode())

    def forget(self, project: bytes) -> None:
        """
        Ask again the next time.
        """
        try:
            os.unlink(os.path.join(self._folder, _file(project)))
        except FileNotFoundError:
            pass


def digest(project: bytes, grants: Sequence[Grant]) -> str:
    """
    A hash over exactly these grants, in their order, and the path.
    """
    whole = hashlib.sha256(b"leeward project trust 1\0")
    for part in (project, *(text.encode("utf-8", "surrogateescape") for grant in grants
                            for text in (grant.kind, grant.what))):
        # With its length, so that no two lists of parts are one row of bytes.
        whole.update(b"%d:" % len(part) + part)
    return whole.hexdigest()


def question(project: bytes, grants: Sequence[Grant]) -> str:
    """
    What a person is shown: lines for a terminal, without the question itself.

    Raises:
        NotTrusted: there is more than a person can look at.
    """
    if len(grants) > MAX_GRANTS:
        raise NotTrusted(f"{_named(project)} asks for {len(grants)} things, more than anybody looks at")
    lines = [f"The settings of {_named(project)} ask for more than yours:"]
    for grant in grants:
        shown = printable(grant.what)
        if len(shown) > MAX_SHOWN:
            raise NotTrusted(f"{_named(project)} asks for something of {len(shown)} characters, more than anybody looks"
                             " at")
        lines.append(f"  {shown}\n      {KINDS[grant.kind]}")
    return "\n".join(lines)


def require_trust(store: TrustStore, project: bytes, grants: Sequence[Grant], *, trusted: bool = False,
                  ask: Callable[[str], str] | None = None) -> None:
    """
    Go on if *grants* were accepted, or are now.

    Args:
        store: what was accepted before.
        project: the path.
        grants: `AgentSettings.widening` of the settings that are going to be used.
        trusted: the caller's own word for it (`--trust-project`).
        ask: shows a text and returns what a person typed; None without a terminal. EOFError is no.

    Raises:
        NotTrusted: nobody has accepted them.
    """
    if not grants or store.accepted(project, grants):
        return
    if not trusted:
        text = question(project, grants)
        if ask is None:
            raise NotTrusted(f"{text}\nNobody was asked, since this is no terminal; --trust-project accepts it")
        try:
            answer = ask(f"{text}\nAccept? Type yes: ")
        except EOFError:
            answer = ""
        if "yes" != answer.strip().lower():
            raise NotTrusted(f"not accepted; {_named(project)} wasn't started")
    store.accept(project, grants)


def _named(project: bytes) -> str:
    return printable(os.fsdecode(project))


def _file(project: bytes) -> str:
    return hashlib.sha256(project).hexdigest() + ".json"
