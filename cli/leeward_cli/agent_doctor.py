"""
`leeward agent doctor`: checks the things that an agent needs, and says which are missing.

It opens one sandbox, in which the agent's program prints its version; it connects to no host.
"""

from __future__ import annotations

import os
import tempfile

import click

from leeward.agents.definition import AgentDefinition, load_definition
from leeward.agents.entries import parse_entry
from leeward.agents.places import config_home
from leeward.agents.programs import AgentProgram
from leeward.agents.request import AgentOptions, request_of
from leeward.agents.settings import AgentSettings
from leeward.client.sandbox import Sandbox
from leeward.daemon.config_sources import load
from leeward.errors import LeewardError
from leeward.outcome import Outcome
from leeward.spec.egress import AGENT
from leeward_cli import agent_start
from leeward_cli.egress import verdict

#: Seconds that a program may take to print its version.
_VERSION_S = 30.0


def doctor(name: str, socket: str | None) -> int:
    """Print a line for each thing that the agent *name* needs. Returns 1 if one is missing, else 0."""
    definition = load_definition(name, config_home(os.environ))
    found = [_program(definition), _account(definition), *_hosts(definition), _sandbox(definition, socket)]
    for good, what, said in found:
        click.echo(f"{'ok' if good else 'missing':8} {what:9} {said}")
    return 0 if all(good for good, _, _ in found) else 1


Row = tuple[bool, str, str]


def _program(definition: AgentDefinition) -> Row:
    try:
        program = agent_start.program_of(definition)
    except LeewardError as error:
        return False, "program", str(error)
    return True, "program", "a shell of the host's" if program is None else ascii(" ".join(program.argv))[1:-1]


def _account(definition: AgentDefinition) -> Row:
    """Whether the agent has an account, as a file or a variable shows."""
    for sign in definition.signed_in:
        if sign.startswith("$"):
            if os.environ.get(sign[1:]):
                return True, "account", sign
        elif os.path.exists(os.path.expanduser(sign)):
            return True, "account", sign
    if not definition.signed_in:
        return True, "account", "not needed"
    return False, "account", f"none of {', '.join(definition.signed_in)} exists: sign in outside of the sandbox first"


def _hosts(definition: AgentDefinition) -> list[Row]:
    """For each host of *definition*, the decision of the policy that bounds agents."""
    policy = load(None).egress.get(AGENT.name, AGENT)
    rows = []
    for number, entry in enumerate(definition.hosts):
        for rule in parse_entry(entry, definition.file, f"hosts[{number}]"):
            name = rule.name if rule.name and not rule.text.startswith("*.") else f"any.{rule.name}" if rule.name \
                else rule.text.partition("/")[0].partition(":")[0]
            said = verdict(policy, f"tcp://{name}:{rule.port}" if rule.port else f"https://{name}/", "GET", None, False)
            rows.append((said["verdict"] == "allow", "host", rule.text if said["verdict"] == "allow" else
                         f"{rule.text}: {said['reason']}"))
    return rows


def _sandbox(definition: AgentDefinition, socket: str | None) -> Row:
    try:
        program: AgentProgram | None = agent_start.program_of(definition)
        with tempfile.TemporaryDirectory(prefix="leeward-doctor-") as folder:
            request = request_of(definition, AgentSettings(), AgentOptions(), os.path.realpath(folder), program, (),
                                 os.environ)
            options = {**request.options, "mounts": [mount for mount in request.options["mounts"]
                                                     if not mount.writable or mount.source == folder]}
            with Sandbox(socket=socket, held=True, **options) as box:
                argv = [*program.argv, "--version"] if program is not None else ["/bin/sh", "-c", "echo a shell"]
                got = box.run(argv, cwd=request.cwd, timeout=_VERSION_S)
    except (LeewardError, OSError) as error:
        return False, "sandbox", str(error)
    said = (got.stdout_text or got.stderr_text).strip().splitlines()
    text = ascii(said[0] if said else "it runs")[1:-1]
    if got.ok:
        return True, "sandbox", text
    # If the program has exited by itself, it runs, and only lacks the option. It doesn't run if a limit or a signal
    # ended it, or it couldn't be executed.
    if Outcome.FINISHED is got.outcome and got.exit_code < 126:
        return True, "sandbox", f"it runs; --version ends with status {got.exit_code}: {text}"
    return False, "sandbox", f"{text}: {got!r:.200}"
