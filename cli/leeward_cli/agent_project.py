"""What of a project concerns an agent: settings, which the user accepts if they widen its rights, and hidden files."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from leeward.apps.agents.definition import AgentDefinition
from leeward.apps.agents.hiding import rules_of
from leeward.apps.agents.project_tree import HidingPlan, hiding_plan
from leeward.apps.agents.settings import AgentSettings, load_settings
from leeward.apps.agents.settings_paths import config_home, state_home
from leeward.base.closing import OwnedFd
from leeward.base.dataclass import replace
from leeward.client.host_paths import open_own
from leeward.errors import BadRequest, reason_of
from leeward_cli.messages import complain

# Imported in functions: what not every start needs; 4 ms of processor time for all of it.


@contextlib.contextmanager
def opened(path: str) -> Iterator[tuple[str, int]]:
    """
    A context with a project's real path, and a descriptor of its folder, which settings, hiding and mounts all use,
    even if another folder gets its name meanwhile. BadRequest if it isn't a folder, or leads through another user's
    link.
    """
    try:
        with OwnedFd(open_own(path)) as named:
            fd = os.open(f"/proc/self/fd/{named}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise BadRequest(f"{path!a:.200} is not a folder: {reason_of(error)}") from None
    with OwnedFd(fd):
        try:
            project = os.readlink(f"/proc/self/fd/{fd}")
            project.encode()
        except OSError as error:  # the path is longer than the kernel reports
            raise BadRequest(f"{path!a:.200} can't be used: {reason_of(error)}") from None
        except UnicodeEncodeError:
            raise BadRequest(f"{path!a:.200} can't be used: its path isn't UTF-8, in which the daemon"
                             " is told paths; rename that folder, or mount it elsewhere") from None
        yield project, fd


def settings_of(fd: int, project: str, trusted: bool, definition: AgentDefinition | None = None) -> AgentSettings:
    """
    The settings for *project*, whose folder is *fd*, with the hosts to which variables lead the agent of *definition*;
    BadRequest if the user doesn't accept them.
    """
    settings = load_settings(fd, project, config_home(os.environ), os.environ)
    if definition is not None and definition.base_urls:
        settings = _with_base_urls(settings, definition)
    if settings.widening:
        from leeward.apps.agents.state_files import own_folder
        from leeward.apps.agents.trust import NotTrusted, TrustStore, require_trust

        # The state folder is made first, with its mode, since this may be the first run of leeward.
        store = TrustStore(os.path.join(own_folder(state_home(os.environ)), "trust"))
        asked = os.isatty(0) and os.isatty(2)
        try:
            require_trust(store, os.fsencode(project), settings.widening, owner=os.fstat(fd).st_uid,
                          trusted=trusted, ask=_ask_user if asked else None)
        except NotTrusted as error:
            *lines, last = str(error).split("\n")
            for line in lines:
                complain(line)  # which makes one line of its text
            raise NotTrusted(last) from None
    return settings


def _with_base_urls(settings: AgentSettings, definition: AgentDefinition) -> AgentSettings:
    from leeward.apps.agents.base_urls import unlisted
    from leeward.apps.agents.settings import Grant

    found = [*unlisted(definition, settings, os.environ)]
    return replace(settings, allow=(*settings.allow, *(rule for _, rule in found)), widening=(
        *settings.widening, *(Grant("base_url", f"{variable}: {rule.text}") for variable, rule in found)))


def hidden_in(fd: int, project: str, settings: AgentSettings) -> HidingPlan:
    return hiding_plan(fd, rules_of(settings.exclude, settings.include), project)


def _ask_user(text: str) -> str:
    sys.stderr.write(text)
    sys.stderr.flush()
    return sys.stdin.readline()
