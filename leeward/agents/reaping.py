"""
Undoing what a killed start of an agent has left.

Runs in:   a later command of the same user's: `start`, `list` or `stop`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from leeward.agents.instances import Instance, InstanceRegistry, UndoStep, identity_of
from leeward.agents.running import CLEANUP_S
from leeward.client.sandbox import Sandbox
from leeward.errors import DaemonAway, DaemonError, SandboxOver
from leeward.spec.paths import client_socket

# Imported in functions: what not every start needs; 4 ms of processor time for all of it.


def reap(registry: InstanceRegistry, tell: Callable[[str], None]) -> list[str]:
    """
    Undo the steps of instances whose process was killed.

    Args:
        registry: of the instances.
        tell: shows a person a line about a step that failed.

    Returns:
        The names of these instances.
    """
    done = []
    for held in registry.reap():
        from leeward.agents.host_hooks import HookFailed  # most starts have nothing to undo

        instance = held.instance
        whole = True
        for step in reversed(instance.undo):
            try:
                _undo(step, instance)
            except (DaemonError, OSError, HookFailed) as error:
                whole = step.kind == "hook" and whole  # a failed hook isn't tried again
                tell(f"clean-up of {instance.name}: {error}")
        done.append(instance.name)
        if whole:
            held.remove()
        else:
            held.close()
    return done


def _undo(step: UndoStep, instance: Instance) -> None:
    if step.kind == "sandbox":
        with contextlib.suppress(SandboxOver, DaemonAway):  # the sandbox has ended, by itself or with its daemon
            # With an explicit socket the client starts no daemon.
            Sandbox.attach(step.what, socket=str(client_socket(None))).close()
    elif step.kind == "hook":
        from leeward.agents.host_hooks import run_hook

        # The project may be gone, and another user may have made a folder with its path.
        same = instance.folder and instance.folder == identity_of(instance.project)
        run_hook(step.what, instance.project if same else "/", {
            **os.environ, "LEEWARD_AGENT": instance.agent, "LEEWARD_INSTANCE": instance.name}, CLEANUP_S)
