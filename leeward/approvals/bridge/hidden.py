"""
The files of a project that its sandbox doesn't show: those that `leeward agent start` hides in it.

Runs in:   the operator's program that decides, with a thread for each sandbox.
Trust:     none in the project. What its own settings ask to show counts only after the user has accepted them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from leeward.agents.hiding import FileRules, rules_of
from leeward.agents.hiding_watch import HidingWatch
from leeward.agents.outside import identities
from leeward.agents.places import config_home, state_home
from leeward.agents.project_tree import hiding_plan
from leeward.agents.settings import load_settings
from leeward.agents.state_files import own_folder
from leeward.agents.trust import TrustStore
from leeward.approvals.carrying.apply import Project
from leeward.client.mounts import WORKDIR
from leeward.client.sandbox import Sandbox


def project_rules(project: Project, environ: Mapping[str, str]) -> FileRules:
    """
    The rules by which files of *project* are hidden, from the settings of agents.

    Raises:
        BadRequest: a file of settings can't be used.
    """
    settings = load_settings(project.fd, project.path, config_home(environ), environ)
    asked = {grant.what for grant in settings.widening if grant.kind == "include"}
    if asked and TrustStore(os.path.join(own_folder(state_home(environ)), "trust")).accepted(
            os.fsencode(project.path), settings.widening, os.fstat(project.fd).st_uid):
        asked = set()
    return rules_of(settings.exclude, [each for each in settings.include if each.text not in asked])


class HiddenFiles:
    """
    The hidden files of one sandbox over *project*.

    Attributes:
        options: of the Sandbox that is to be opened.

    Raises:
        BadRequest: the project can't be searched.
    """

    def __init__(self, project: Project, rules: FileRules) -> None:
        self._project, self._rules = project, rules
        self._plan = hiding_plan(project.fd, rules, project.path)
        self._there = identities(f"/proc/self/fd/{project.fd}", (each.path for each in self._plan.hidden))
        self.options: dict[str, Any] = {
            "own_home": True, "hide": [f"{WORKDIR}/{each.path}" for each in self._plan.hidden],
            "pin": [f"{WORKDIR}/{path}" for path in self._plan.pinned]}

    def watch(self, box: Sandbox, end: Callable[[str], None]) -> HidingWatch:
        """
        Hide what appears in the project from now on; the caller stops that.

        Args:
            box: the sandbox that was opened with `options`.
            end: ends it for a reason: a name can't be hidden.
        """
        made = HidingWatch(box, self._rules, self._project.fd, self._project.path, WORKDIR, self._there,
                           self._plan.absent, lambda line: None, end)
        made.start()
        return made
