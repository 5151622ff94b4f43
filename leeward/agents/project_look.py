"""
A look at a project for what is hidden in it, beside what else a start has to do.

Runs in:   the user's program; of a project with many files in a copy of it, made by fork(2), which reads, answers by a
           pipe and ends. It has no thread yet.
Stands if: the copy ends, however it does, without a whole answer: then the look is taken here, and says what is wrong.
"""

from __future__ import annotations

import marshal
import os
import signal
from contextlib import suppress
from typing import NoReturn

from leeward.agents.errors import SettingsError
from leeward.agents.hiding import FileRules
from leeward.agents.project_tree import HiddenPath, HidingPlan, hiding_plan

#: Files of a project that is looked at at once: a copy of the process takes as long.
_FEW = 2000
#: Bytes that are read at once.
_READ = 1 << 16


class ProjectLook:
    """
    Begins to look. The arguments are those of `hiding_plan`, and the descriptor stays open until `close`.
    """

    def __init__(self, project: int, rules: FileRules, shown: str) -> None:
        self._project, self._rules, self._shown = project, rules, shown
        self._found: HidingPlan | None = None
        self._child, self._pipe = 0, -1
        try:
            self._found = hiding_plan(project, rules, shown, most=_FEW)
        except SettingsError:  # most likely that there are more
            self._begin()

    def plan(self) -> HidingPlan:
        """
        What was found.

        Raises:
            SettingsError: as `hiding_plan`.
        """
        if self._found is None:
            self._found = self._answer() or hiding_plan(self._project, self._rules, self._shown)
        return self._found

    def close(self) -> None:
        """
        End the look, if it goes on.
        """
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)  # not reaped yet, so it is this one
            self._reap()

    def _begin(self) -> None:
        try:
            pipe, end = os.pipe()
        except OSError:
            return  # it is looked at here
        try:
            self._child = os.fork()
        except OSError:
            os.close(pipe)
        else:
            self._pipe = pipe
            if not self._child:
                self._look(end)
        os.close(end)

    def _look(self, end: int) -> NoReturn:
        try:
            os.close(self._pipe)
            found = hiding_plan(self._project, self._rules, self._shown)
            data = memoryview(marshal.dumps((tuple((each.path, each.folder) for each in found.hidden), found.absent,
                                             found.warnings, found.repositories)))
            while data:
                data = data[os.write(end, data):]
            os._exit(0)
        finally:
            os._exit(1)

    def _answer(self) -> HidingPlan | None:
        if not self._child:
            return None
        data = b""
        while piece := os.read(self._pipe, _READ):
            data += piece
        if self._reap():
            return None
        hidden, *others = marshal.loads(data)
        return HidingPlan(tuple(HiddenPath(*each) for each in hidden), *others)

    def _reap(self) -> int:
        """
        The copy's status.
        """
        child, self._child = self._child, 0
        os.close(self._pipe)
        return os.waitpid(child, 0)[1]
