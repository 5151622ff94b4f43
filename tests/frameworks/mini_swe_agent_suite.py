"""An environment of mini-SWE-agent, as its own are tested, and its agent with a scripted model. Run by test_frameworks.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import page
import pytest
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel, make_output

import leeward
from leeward.apps.integrations.mini_swe_agent import LeewardEnvironment

DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[LeewardEnvironment]:
    monkeypatch.setenv("LEEWARD_TEST_SECRET", "of the host")
    made = get_environment({"environment_class": "leeward.apps.integrations.mini_swe_agent.LeewardEnvironment",
                            "env": {"GIVEN": "42"}, "timeout": 10})
    assert isinstance(made, LeewardEnvironment)
    yield made
    made.cleanup()


def test_commands(environment: LeewardEnvironment) -> None:
    got = environment.execute({"command": "echo $GIVEN$LEEWARD_TEST_SECRET; echo err >&2; pwd; exit 3"})
    assert {"output": "42\nerr\n/workspace\n", "returncode": 3, "exception_info": ""} == got

    environment.execute({"command": "echo kept > file"})
    assert "kept\n" == environment.execute({"command": "cat /workspace/file"}, cwd="/tmp")["output"]


def test_a_command_that_takes_too_long(environment: LeewardEnvironment) -> None:
    got = environment.execute({"command": "echo begun; sleep 60"}, timeout=1)

    assert ("begun\n", -1, "timeout") == (got["output"], got["returncode"], got["extra"]["exception_type"])
    assert "timed out after 1 s" in got["exception_info"]


def test_a_task_that_is_done(environment: LeewardEnvironment) -> None:
    with pytest.raises(Submitted) as done:
        environment.execute({"command": f"{DONE}; echo the answer"})
    assert "the answer\n" == done.value.messages[0]["extra"]["submission"]
    assert 1 == environment.execute({"command": f"{DONE}; exit 1"})["returncode"]


def test_a_sandbox_that_has_ended(environment: LeewardEnvironment) -> None:
    for wrong in ("\0", "\ud800", "x" * 1_000_000):  # as a model may write it
        assert -1 == environment.execute({"command": wrong})["returncode"]
    assert 0 == environment.execute({"command": "true"})["returncode"]
    leeward.Sandbox.attach(leeward.Sandbox.list()[-1]["sandbox"]).close()

    got = environment.execute({"command": "true"})
    assert (-1, "SandboxOver") == (got["returncode"], got["extra"]["exception_type"])


def test_what_prompts_may_name_is_nothing_of_the_host(environment: LeewardEnvironment) -> None:
    assert "of the host" not in str(environment.get_template_vars(more=1))
    assert "LeewardEnvironment" in environment.serialize()["info"]["config"]["environment_type"]


def test_an_agent(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("41\n")
    tmp_path.chmod(0o777)
    environment = LeewardEnvironment(sandbox={"workdir": str(tmp_path)})
    model = DeterministicModel(outputs=[
        make_output("", [{"command": "echo $(($(cat file) + 1)) > file"}]),
        make_output("", [{"command": f"{DONE} && cat file"}])])
    agent = DefaultAgent(model, environment, system_template="work", instance_template="{{task}}")

    assert "42\n" == agent.run("add one")["submission"]
    environment.cleanup()
    assert "42\n" == (tmp_path / "file").read_text()


def test_the_page(tmp_path: Path) -> None:
    model = DeterministicModel(outputs=[make_output("", [{"command": f"{DONE} && echo 42 | tee answer"}])])
    found = page.run("mini-SWE-agent", model=model, project=str(tmp_path))
    assert "42\n" == found["done"]["submission"]
    assert not (tmp_path / "answer").exists()
    found["environment"].cleanup()  # else it stays: its copy has changes
