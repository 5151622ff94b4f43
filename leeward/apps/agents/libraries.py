"""
Names that are hidden in the libraries of an agent: as in a project, by leeward's own patterns, the user's, and those of
the library's own settings, which nothing else is taken from.

Leaves:    names that appear while the agent runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from leeward.apps.agents import checks
from leeward.apps.agents.errors import SettingsError
from leeward.apps.agents.hiding import FilePattern, parse_pattern, rules_of
from leeward.apps.agents.hole_settings import read_hole_settings
from leeward.apps.agents.project_tree import check_text, hiding_plan
from leeward.apps.agents.reading import HOLE_FILE, PROJECT_FILE, read_project_file
from leeward.apps.agents.settings import AgentSettings, LibraryFolder
from leeward.errors import reason_of


def hidden_in_libraries(libraries: Iterable[LibraryFolder], settings: AgentSettings) -> tuple[list[str], list[str]]:
    """
    The paths in the sandbox that are hidden in *libraries*, and the folders there that can't be renamed because of them.

    Raises SettingsError if a library's own settings can't be used, or it can't be searched.
    """
    hide, pin = list[str](), list[str]()
    # What a project asks to show was accepted for the project.
    asked = {grant.what for grant in settings.widening if grant.kind == "include"}
    include = [each for each in settings.include if each.text not in asked]
    for one in libraries:
        try:
            folder = os.open(one.source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # a file, or what isn't there: the mount says so
        try:
            rules = rules_of((*settings.exclude, *_own_patterns(folder, one.source)), include)
            plan = hiding_plan(folder, rules, one.source, running=True)
        except OSError as error:
            raise SettingsError(one.source, "", f"can't be searched for files to hide: {reason_of(error)}") from None
        finally:
            os.close(folder)
        names = [each.path for each in plan.hidden]
        check_text(names)
        hide += [os.path.join(one.target, name) for name in names]
        pin += [os.path.join(one.target, name) for name in plan.pinned] if one.writable else []
    return hide, pin


def _own_patterns(folder: int, path: str) -> Sequence[FilePattern]:
    file = os.path.join(path, PROJECT_FILE)
    table = (read_project_file(folder, file) or {}).get("files", {})
    hole = read_hole_settings(folder, os.path.join(path, HOLE_FILE))
    try:
        own = checks.array(checks.filled)(table.get("exclude", []) if isinstance(table, dict) else None)
        return [parse_pattern(each) for each in (*own, *hole.exclude)]
    except ValueError as error:
        raise SettingsError(file, "files.exclude", str(error)) from None
