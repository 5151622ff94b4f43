"""Saves what a sandbox has changed in its copy of a folder when it ends and nobody has decided. Doesn't import click."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from leeward.apps.agents.settings_paths import kept_changes
from leeward.apps.agents.state_files import own_folder
from leeward.client.overlay import Overlay
from leeward.errors import LeewardError, reason_of
from leeward_cli.agent_ends import ending_by_signals
from leeward_cli.messages import complain

if TYPE_CHECKING:
    from leeward.client.changes import FolderChange
    from leeward.client.sandbox import Sandbox

#: The greatest number of changes that can't be saved, in one message.
_SHOWN = 50


def save_changes(overlay: Overlay, found: list[FolderChange], name: str, goal: str, hint: str = "") -> None:
    """Save *found*, of `overlay.diff`, to a new folder for *name* in the user's state, and say how it gets to *goal*."""
    folder = kept_changes(os.environ, name)
    own_folder(os.path.dirname(folder))
    left = overlay.save(found, folder)
    for error in left[:_SHOWN]:
        complain(f"not saved: {str(error).removesuffix(': leave it out')}")
    shown = ascii(shlex.quote(folder))[1:-1]
    gone = any(change.kind == "deleted" for change in found)
    complain(f"{len(found) - len(left)} changes are not applied, but kept in {ascii(folder)[1:-1]}: copy what is in `files`"
             f" to {goal} (`cp -a {shown}/files/. .`)" + (
                 f", and remove what `deleted` names (`xargs -0r rm -rd -- <{shown}/deleted`)" if gone else "") + hint)


def has_copies(given: Mapping[str, Any]) -> bool:
    """Whether a sandbox with these options works on copies of folders."""
    return bool(given.get("overlay")) or any(mount.overlay for mount in given.get("mounts", ()))


@contextmanager
def keeping(box: Sandbox) -> Iterator[None]:
    """
    A context at whose end the sandbox *box* ends. What was changed in its copies of folders would be lost: it is saved,
    also if a signal ends this command; or else the sandbox stays, and its id is printed.
    """
    with ending_by_signals() as ignore_them:
        try:
            yield
        finally:
            ignore_them()
            close_keeping(box)


def close_keeping(box: Sandbox) -> None:
    """End the sandbox *box*, and save what was changed in its copies of folders; see `keeping`."""
    try:
        targets = [(row["target"], row["path"]) for row in box.info().get("mounts", ()) if row["overlay"]]
        if targets:
            for row in box.processes():
                box.process(row["process"]).kill()
        for number, (target, path) in enumerate(targets):
            overlay = Overlay(box, target)
            found = overlay.diff()
            if found:
                save_changes(overlay, found, f"{box.id[:8]}-{number}", ascii(path)[1:-1])
    except OSError as error:
        complain(f"the changes can't be saved: {reason_of(error)}; they are in the sandbox {box.id}:"
                 f" `leeward diff {box.id}`, `leeward apply {box.id}`, `leeward sandbox kill {box.id}`")
        box.detach()
        return
    except LeewardError as error:
        complain(f"the sandbox's changes can't be saved: {error}")
    box.close()
