"""
A live sandbox as an environment of mini-SWE-agent.

Runs in:   anybody's program; needs the extra `mini-swe-agent`.

    from minisweagent.agents.default import DefaultAgent
    from leeward.apps.integrations.mini_swe_agent import LeewardEnvironment

    DefaultAgent(model, LeewardEnvironment(sandbox={"workdir": "project", "overlay": True}), ...).run(task)

In a file of its settings it is `environment_class: leeward.apps.integrations.mini_swe_agent.LeewardEnvironment`.
"""

from __future__ import annotations

import platform
from typing import Any

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel, ConfigDict, Field

from leeward.client.sandbox import Sandbox
from leeward.errors import DaemonError
from leeward.spec.outcome import Outcome

#: The line by which an agent says that it is done, as mini-SWE-agent's own environments know it.
_DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class LeewardEnvironmentConfig(BaseModel):
    """
    The configuration of an environment.

    Attributes:
        cwd: the folder in which commands start.
        env: environment variables of commands.
        timeout: seconds for each command.
        sandbox: options of leeward.Sandbox.
    """

    model_config = ConfigDict(extra="forbid")

    cwd: str = "/workspace"
    env: dict[str, str] = Field(default_factory=dict)
    timeout: float = 30.0
    sandbox: dict[str, Any] = Field(default_factory=dict)


class LeewardEnvironment:
    """An environment with a live sandbox of its own, until `cleanup` or this program's end."""

    def __init__(self, *, config_class: type = LeewardEnvironmentConfig, **settings: Any) -> None:
        self.config = config_class(**settings)
        self._box = Sandbox(**{"held": True, "profile": "workdir", **self.config.sandbox})

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: float | None = None) -> dict[str, Any]:
        """
        Run a line by bash. What went wrong beside the command, such as the sandbox's end, is in `exception_info`.

        Raises:
            Submitted: the output says that the task is done.
        """
        limit = timeout or self.config.timeout
        try:
            result = self._box.run(["bash", "-c", "exec 2>&1\n" + action.get("command", "")], cwd=cwd or self.config.cwd,
                                   env=self.config.env, timeout=limit)
        except (DaemonError, UnicodeError) as error:  # a model may write half of a character
            return _failed("", str(error), type(error).__name__)
        if result.outcome is Outcome.TIMED_OUT:
            return _failed(result.stdout_text, f"the command timed out after {limit:g} s", "timeout")
        answer = {"output": result.stdout_text, "returncode": result.exit_code, "exception_info": ""}
        _check_finished(answer)
        return answer

    def cleanup(self) -> None:
        """End the sandbox."""
        self._box.close()

    def get_template_vars(self, **more: Any) -> dict[str, Any]:
        """What templates of prompts may name; nothing of this program's environment."""
        return recursive_merge(self.config.model_dump(), platform.uname()._asdict(), more)

    def serialize(self) -> dict[str, Any]:
        """What a trajectory says of this environment."""
        kind = type(self)
        return {"info": {"config": {"environment": self.config.model_dump(mode="json"),
                                    "environment_type": f"{kind.__module__}.{kind.__name__}"}}}


def _failed(output: str, text: str, kind: str) -> dict[str, Any]:
    return {"output": output, "returncode": -1, "exception_info": text,
            "extra": {"exception_type": kind, "exception": text}}


def _check_finished(answer: dict[str, Any]) -> None:
    first, _, rest = answer["output"].lstrip().partition("\n")
    if first.strip() == _DONE and answer["returncode"] == 0:
        raise Submitted({"role": "exit", "content": rest, "extra": {"exit_status": "Submitted", "submission": rest}})
