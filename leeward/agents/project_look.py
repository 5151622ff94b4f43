"""
A look at a project for what is hidden in it, beside what else a start has to do.

Runs in:   the user's program; of a project with many files in a copy of it (`forked`).
Stands if: the copy gives no answer: then the look is taken here, and says what is wrong.
"""

from __future__ import annotations

from typing import Any

from leeward.agents.errors import SettingsError
from leeward.agents.forked import ForkedAnswer
from leeward.agents.hiding import FileRules
from leeward.agents.project_tree import HiddenPath, HidingPlan, hiding_plan

#: Files of a project that is looked at at once: a copy of the process takes as long.
_FEW = 2000


class ProjectLook:
    """
    Begins to look. The arguments are those of `hiding_plan`, and the descriptor stays open until `close`.
    """

    def __init__(self, project: int, rules: FileRules, shown: str) -> None:
        self._project, self._rules, self._shown = project, rules, shown
        self._found: HidingPlan | None = None
        self._copy: ForkedAnswer | None = None
        try:
            self._found = hiding_plan(project, rules, shown, most=_FEW)
        except SettingsError:  # most likely that there are more
            self._copy = ForkedAnswer(self._look)

    def plan(self) -> HidingPlan:
        """
        What was found.

        Raises:
            SettingsError: as `hiding_plan`.
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
        """
        End the look, if it goes on.
        """
        if self._copy is not None:
            self._copy.close()

    def _look(self) -> tuple[Any, ...]:
        found = hiding_plan(self._project, self._rules, self._shown)
        hidden = tuple((each.path, each.folder) for each in found.hidden)
        return hidden, found.absent, found.warnings, found.repositories
