"""
Searches a project for files to hide, in parallel with the other work of a start.

Runs in:   the user's program; for a project with many files in a copy of the process (`forked`).
Stands if: the copy gives no answer: then this process searches, and reports the error.
"""

from __future__ import annotations

from typing import Any

from leeward.agents.errors import SettingsError
from leeward.agents.forked import ForkedAnswer
from leeward.agents.hiding import FileRules
from leeward.agents.project_tree import HiddenPath, HidingPlan, hiding_plan

#: Files of a project that is searched without a child: a fork takes as long as this search.
_FEW = 2000


class ProjectLook:
    """
    A search that begins at once. The arguments are those of `hiding_plan`; the caller keeps the descriptor open until
    `close`.
    """

    def __init__(self, project: int, rules: FileRules, shown: str) -> None:
        self._project, self._rules, self._shown = project, rules, shown
        self._found: HidingPlan | None = None
        self._copy: ForkedAnswer | None = None
        try:
            self._found = hiding_plan(project, rules, shown, most=_FEW)
        except SettingsError:  # probably since there are more than _FEW files
            self._copy = ForkedAnswer(self._look)

    def plan(self) -> HidingPlan:
        """
        The result; waits for it.

        Raises:
            SettingsError: as for `hiding_plan`.
        """
        if self._found is None:
            found = None if self._copy is None else self._copy.take()
            if found is None:
                self._found = hiding_plan(self._project, self._rules, self._shown)
            else:
                hidden, *others = found
                self._found = HidingPlan(tuple(HiddenPath(*each) for each in hidden), *others)
        return self._found

    def close(self) -> None:
        """End the child, if it still runs."""
        if self._copy is not None:
            self._copy.close()

    def _look(self) -> tuple[Any, ...]:
        found = hiding_plan(self._project, self._rules, self._shown)
        hidden = tuple((each.path, each.folder) for each in found.hidden)
        return hidden, found.absent, found.warnings, found.repositories, found.pinned
