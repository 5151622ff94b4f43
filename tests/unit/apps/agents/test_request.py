"""What a start asks of the daemon."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leeward.apps.agents.definition import AgentDefinition, AgentSecret
from leeward.apps.agents.entries import parse_entry
from leeward.apps.agents.errors import SettingsError
from leeward.apps.agents.programs import AgentProgram
from leeward.apps.agents.request import AgentOptions, AgentRequest, request_of
from leeward.apps.agents.settings import AgentSettings, LibraryFolder
from leeward.errors import RequestRejected
from leeward.spec.egress_policy import AGENT, narrow, parse_policy

PROGRAM = AgentProgram(("/opt/a/bin/agent",), ("/opt/a",), ("/opt/a/bin",))


def asked(definition: AgentDefinition | None = None, settings: AgentSettings | None = None,
          options: AgentOptions | None = None, project: str = "/home/a/p", program: AgentProgram | None = PROGRAM,
          environ: dict[str, str] | None = None, **more: Any) -> AgentRequest:
    return request_of(definition or AgentDefinition("agent", command=("agent",)), settings or AgentSettings(),
                      options or AgentOptions(), project, program, (), {"HOME": "/home/a", **(environ or {})}, **more)


def mounts(request: AgentRequest) -> list[tuple[str, str, bool, bool]]:
    return [(str(one.source), one.target, one.writable, one.overlay) for one in request.options["mounts"]]


def test_project_state_programs_and_libraries() -> None:
    request = asked(AgentDefinition("agent", command=("agent", "--one"), arguments=("--two",), state=("~/.state",),
                                    staged=("~/.staged",)),
                    AgentSettings(libraries=(LibraryFolder("/srv/l", "/l"),),
                                  arguments={"agent": ("--of-settings",), "other": ("--other",)}),
                    AgentOptions(("three",), libraries=(LibraryFolder("/srv/m", "/srv/m", True),)))
    assert [("/home/a/p", "/home/a/p", True, False), ("/home/a/.state", "/home/a/.state", True, False),
            ("/srv/l", "/l", False, False), ("/srv/m", "/srv/m", True, False),
            ("/opt/a", "/opt/a", False, False)] == mounts(request)
    assert ("/opt/a/bin/agent", "--one", "--two", "--of-settings", "three") == request.argv
    assert (("/home/a/.staged", "/home/a/.staged"),) == request.staged
    assert ("/home/a/.state",) == request.folders
    assert "/opt/a/bin:/usr/local/bin:/usr/bin:/bin" == request.options["env"]["PATH"]


def test_a_library_of_the_settings_and_the_command_line_is_shown_once() -> None:
    library = LibraryFolder("/srv/l", "/l")
    request = asked(None, AgentSettings(libraries=(library,)), AgentOptions(libraries=(library, library)))
    assert 1 == [target for _, target, _, _ in mounts(request)].count("/l")


def test_a_program_in_the_project_is_shown_with_it() -> None:
    inside = AgentProgram(("/home/a/p/node_modules/x",), ("/home/a/p/node_modules",), ())
    assert 1 == len(mounts(asked(program=inside)))


def test_the_home_stays_for_a_project(tmp_path: Path) -> None:
    """In leeward's own cache, by project and agent; what is shown in it lies in it."""
    for name in ("p", "q"):
        (tmp_path / name).mkdir()
    definition = AgentDefinition("agent", command=("agent",), state=("~/.cache/agent",))

    def kept(project: str, **options: Any) -> str:
        request = asked(definition, None, AgentOptions(persist=True, **options), str(tmp_path / project),
                        environ={"HOME": str(tmp_path)})
        source, *rest = mounts(request)[0]
        assert [str(tmp_path), True, False] == rest
        assert {str(tmp_path / project), f"{tmp_path}/.cache/agent"} < {each[1] for each in mounts(request)}
        assert source in {*request.folders} & {*request.written}
        assert request.options["env"]["PATH"].endswith(f":{tmp_path}/.local/bin")
        return source

    assert kept("p") == kept("p", overlay=True) != kept("q")
    theirs = asked(replace(definition, name="other"), None, AgentOptions(persist=True), str(tmp_path / "p"),
                   environ={"HOME": str(tmp_path)})
    assert kept("p") != mounts(theirs)[0][0]
    assert kept("p").startswith(f"{tmp_path}/.cache/leeward/agents/homes/")
    assert 0o700 == (tmp_path / ".cache/leeward/agents/homes").stat().st_mode & 0o777


def test_an_overlay_and_another_place() -> None:
    request = asked(settings=AgentSettings(project_at="/workspace/p"), options=AgentOptions(overlay=True),
                    absent=("later",))
    assert ("/home/a/p", "/workspace/p", False, True) == mounts(request)[0]
    assert "/workspace/p" == request.cwd
    assert ("later",) == request.hidden


@pytest.mark.parametrize("project", ["/home/a", "/home", "/"])
def test_the_home_is_no_project(project: str) -> None:
    with pytest.raises(RequestRejected, match="home folder"):
        asked(project=project)


def test_variables_that_go_in() -> None:
    request = asked(AgentDefinition("agent", pass_environment=("MODEL_*",), environment={"A": "1", "B": "1"},
                                    secrets=(AgentSecret("KEY", ("api.example.org",)), AgentSecret("NONE", ()))),
                    AgentSettings(environment={"B": "2"}),
                    environ={"MODEL_X": "x", "OTHER": "o", "LC_ALL": "C", "KEY": "value", "NO_COLOR": "a\nb",
                             "SSH_AUTH_SOCK": "/x"})
    env = request.options["env"]
    assert {"A": "1", "B": "2", "MODEL_X": "x", "LC_ALL": "C"} == {
        name: value for name, value in env.items() if name not in ("PATH", "PWD")}
    assert {"KEY": ("value", ("api.example.org",))} == dict(request.secrets)


def test_hosts_become_a_policy_within_the_operators() -> None:
    request = asked(AgentDefinition("agent", hosts=("api.example.org",)),
                    AgentSettings(allow=(*parse_entry("10.0.0.5:22"), *parse_entry("api.example.org"))))
    assert ("api.example.org", "10.0.0.5:22") == request.hosts
    policy = narrow(AGENT, parse_policy(request.options["policy"]))
    assert ["api.example.org", "10.0.0.5:22"] == [rule.text for rule in policy.allow]
    assert (80, 443) == policy.ports
    everything = asked(AgentDefinition("agent", hosts=("api.example.org",)),
                       AgentSettings(allow=parse_entry("10.0.0.0/8")), AgentOptions(unrestricted_network=True))
    assert ("*", "10.0.0.0/8") == everything.hosts


def test_a_port_that_agents_do_not_have() -> None:
    settings = AgentSettings(allow=parse_entry("db.example.org:9999"))
    with pytest.raises(SettingsError, match="agents reach the ports 22, 80"):
        asked(settings=settings)
    assert ("db.example.org:9999",) == asked(settings=settings, options=AgentOptions(egress="agent")).hosts
