"""
The programs of agents themselves, each against a model of the tests' own: they read, edit and run something in a
project, reach nobody else, and leave the host's files as they were. No account is used, and no host of theirs is asked
for anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import agent_programs, model_api
from kit.agents import AgentHome, agents_daemon
from kit.live_daemon import LiveDaemon
from kit.model_api import Call

pytestmark = [pytest.mark.needs("user-namespaces", "usr-curl"), pytest.mark.timeout(300)]

TEST = "import calculation\nassert calculation.double(21) == 42\nprint('the test has passed')\n"
LINE = ("python3 check.py; cat .env; env | grep HIDDEN; ls -A ~; curl -sS -m 5 http://evil.example.org/"
        " || echo not reached")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with agents_daemon(tmp_path_factory.mktemp("daemon")) as made:
        yield made


@pytest.fixture
def home(daemon: LiveDaemon, tmp_path: Path) -> Iterator[AgentHome]:
    made = AgentHome(tmp_path / "home", daemon)
    (made.project / "calculation.py").write_text("def double(x):\n    return x + 2\n")
    (made.project / "check.py").write_text(TEST)
    (made.project / ".env").write_text("HIDDEN_TOKEN=1\n")
    (made.path / "private").write_text("private")
    yield made
    made.gone()


def policy(home: AgentHome, port: int) -> None:
    home.settings(f'[network]\nallow = ["model.example.org:{port}", "127.0.0.1:{port}"]\n')


def bin_folder(home: AgentHome, name: str, program: Path) -> str:
    """A folder for PATH that has *program*, as an installer puts it there."""
    folder = home.path / "bin"
    folder.mkdir()
    (folder / name).symlink_to(program)
    return f"{folder}:/usr/local/bin:/usr/bin:/bin"


def check_project(home: AgentHome, api: model_api.ModelApi, dump: Path) -> None:
    """What holds for each of them."""
    assert "def double(x):\n    return 2 * x\n" == (home.project / "calculation.py").read_text()
    said = api.results[-1]
    assert "the test has passed" in said
    assert "HIDDEN" not in said
    assert "private" not in said
    assert "not reached" in said
    names = dump.read_text().splitlines()
    assert names == sorted(names)
    assert "denied evil.example.org" in names
    assert [] == [name for name in names if name.startswith("allowed") and "example" not in name
                  and name != "allowed 127.0.0.1"]
    assert [] == home.left()


@pytest.mark.needs("agent-claude")
def test_claude_works_in_a_sandbox(home: AgentHome, tmp_path: Path) -> None:
    program = agent_programs.claude()
    assert program is not None
    file = str(home.project / "calculation.py")
    script = [Call("Read", {"file_path": file}),
              Call("Edit", {"file_path": file, "old_string": "x + 2", "new_string": "2 * x"}),
              Call("Bash", {"command": LINE}), "all is done"]
    state = json.dumps({"hasCompletedOnboarding": True})
    (home.path / ".claude.json").write_text(state)
    path = bin_folder(home, "claude", program)
    with model_api.serving_for_agents(script) as api:
        policy(home, api.port)
        env = {"PATH": path, "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{api.port}", "ANTHROPIC_API_KEY": "sk-ant-none",
               "HIDDEN_VARIABLE": "1"}
        home.define("claude-here", (home_definition("claude")).replace(
            "pass_environment = [", 'pass_environment = ["IS_SANDBOX", '))
        got = home.run("start", "claude-here", ".", "--dump-network-access", str(tmp_path / "dump"), "--", "-p",
                       "do it", "--dangerously-skip-permissions", **env, IS_SANDBOX="1")
        assert (0, "all is done\n") == (got.returncode, got.stdout), got.stderr
        check_project(home, api, tmp_path / "dump")
        assert {"sk-ant-none"} == set(filter(None, api.keys))
    assert state == (home.path / ".claude.json").read_text()
    assert (home.path / ".claude").is_dir()
    wrong = home.run("start", "claude", ".", "--", "--no-such-option", **env)
    assert 0 != wrong.returncode
    assert "no-such-option" in wrong.stderr


@pytest.mark.needs("agent-codex")
def test_codex_works_in_a_sandbox(home: AgentHome, tmp_path: Path) -> None:
    program = agent_programs.codex()
    assert program is not None
    script = [Call("exec_command", {"cmd": "cat calculation.py; sed -i 's/x + 2/2 * x/' calculation.py"}),
              Call("exec_command", {"cmd": LINE}), "all is done"]
    path = bin_folder(home, "codex", program)
    with model_api.serving_for_agents(script) as api:
        policy(home, api.port)
        (home.path / ".codex").mkdir()
        (home.path / ".codex/config.toml").write_text(
            f'model = "m"\nmodel_provider = "here"\n[model_providers.here]\nname = "here"\nwire_api = "responses"\n'
            f'base_url = "http://127.0.0.1:{api.port}/v1"\nenv_key = "OPENAI_API_KEY"\n')
        got = home.run("start", "codex", ".", "--dump-network-access", str(tmp_path / "dump"), "--", "exec",
                       "--skip-git-repo-check", "do it", PATH=path, OPENAI_API_KEY="sk-none", HIDDEN_VARIABLE="1")
        assert (0, "all is done\n") == (got.returncode, got.stdout), got.stderr
        check_project(home, api, tmp_path / "dump")
        assert {"Bearer sk-none"} == set(filter(None, api.keys))
    wrong = home.run("start", "codex", ".", "--", "--no-such-option", PATH=path)
    assert 2 == wrong.returncode


@pytest.mark.needs("agent-opencode")
def test_opencode_works_in_a_sandbox(home: AgentHome, tmp_path: Path) -> None:
    program = agent_programs.opencode()
    assert program is not None
    file = str(home.project / "calculation.py")
    script = [Call("read", {"filePath": file}),
              Call("edit", {"filePath": file, "oldString": "x + 2", "newString": "2 * x"}),
              Call("bash", {"command": LINE, "description": "test"}), "all is done"]
    path = bin_folder(home, "opencode", program)
    with model_api.serving_for_agents(script) as api:
        policy(home, api.port)
        configuration = {
            "provider": {"anthropic": {"options": {"baseURL": f"http://127.0.0.1:{api.port}/v1"}}},
            "model": "anthropic/claude-sonnet-4-5", "small_model": "anthropic/claude-sonnet-4-5",
            "permission": {"*": "allow"}}
        got = home.run("start", "opencode", ".", "--dump-network-access", str(tmp_path / "dump"), "--", "run", "do it",
                       PATH=path, ANTHROPIC_API_KEY="sk-none", HIDDEN_VARIABLE="1",
                       OPENCODE_CONFIG_CONTENT=json.dumps(configuration))
        assert 0 == got.returncode, got.stderr
        assert "all is done" in got.stdout
        check_project(home, api, tmp_path / "dump")
        assert {"sk-none"} == set(filter(None, api.keys))
    assert (home.path / ".local/share/opencode").is_dir()


#: A model's answer by which aider changes a file.
EDIT = """calculation.py
```
<<<<<<< SEARCH
    return x + 2
=======
    return 2 * x
>>>>>>> REPLACE
```
"""


@pytest.mark.needs("agent-aider")
def test_aider(home: AgentHome, tmp_path: Path) -> None:
    """
    It has no tools: it edits by what the model says, and runs the test that it was told of, whose output the model gets
    if it fails.
    """
    program = agent_programs.aider()
    assert program is not None
    path = bin_folder(home, "aider", program)
    (home.project / "look.sh").write_text(f"{LINE}\ntest -e again || {{ touch again; exit 1; }}\n")
    with model_api.serving_for_agents([EDIT, "all is done"]) as api:
        policy(home, api.port)
        got = home.run("start", "aider", ".", "--dump-network-access", str(tmp_path / "dump"), "--", "--model",
                       "openai/m", "--edit-format", "diff", "--no-git", "--no-show-model-warnings", "--yes-always",
                       "--auto-test", "--test-cmd", "sh look.sh", "--message", "do it", "calculation.py", PATH=path,
                       OPENAI_API_KEY="sk-none", OPENAI_API_BASE=f"http://127.0.0.1:{api.port}/v1", HIDDEN_VARIABLE="1")
        assert 0 == got.returncode, got.stderr
        assert "all is done" in got.stdout, got.stdout
        check_project(home, api, tmp_path / "dump")
        assert {"Bearer sk-none"} == set(filter(None, api.keys))
    assert (home.path / ".aider").is_dir()
    wrong = home.run("start", "aider", ".", "--", "--no-such-option", PATH=path)
    assert 2 == wrong.returncode


@pytest.mark.needs("agent-gemini")
def test_gemini_works_in_a_sandbox(home: AgentHome, tmp_path: Path) -> None:
    program = agent_programs.gemini()
    assert program is not None
    file = str(home.project / "calculation.py")
    script = [Call("read_file", {"file_path": file}),
              Call("replace", {"file_path": file, "instruction": "double", "old_string": "x + 2",
                               "new_string": "2 * x"}),
              Call("run_shell_command", {"command": LINE}), "all is done"]
    path = bin_folder(home, "gemini", program)
    with model_api.serving_for_agents(script) as api:
        policy(home, api.port)
        (home.path / ".gemini").mkdir()
        (home.path / ".gemini/settings.json").write_text(json.dumps(
            {"security": {"auth": {"selectedType": "gemini-api-key"}}, "privacy": {"usageStatisticsEnabled": False}}))
        got = home.run("start", "gemini", ".", "--dump-network-access", str(tmp_path / "dump"), "--", "--yolo",
                       "--skip-trust", "-m", "gemini-2.5-flash", "-p", "do it", PATH=path, GEMINI_API_KEY="AIza-none",
                       HIDDEN_VARIABLE="1", GOOGLE_GEMINI_BASE_URL=f"http://127.0.0.1:{api.port}")
        assert 0 == got.returncode, got.stderr
        assert "all is done" in got.stdout
        check_project(home, api, tmp_path / "dump")
        assert {"AIza-none"} == set(filter(None, api.keys))
    wrong = home.run("start", "gemini", ".", "--", "--no-such-option", PATH=path)
    assert 0 != wrong.returncode


def home_definition(name: str) -> str:
    """Our own definition, as it is."""
    from leeward.apps.agents import definition

    return (Path(definition.__file__).parent / "definitions" / name / "agent.toml").read_text()


@pytest.mark.needs("agent-claude")
def test_claude_on_a_terminal(home: AgentHome) -> None:
    """Its screen, a question and the answer, and two Ctrl-C; the terminal is as it was."""
    program = agent_programs.claude()
    assert program is not None
    path = bin_folder(home, "claude", program)
    (home.path / ".claude.json").write_text(json.dumps({
        "hasCompletedOnboarding": True, "theme": "dark",
        "projects": {str(home.project): {"hasTrustDialogAccepted": True}},
        "customApiKeyResponses": {"approved": ["sk-ant-none"], "rejected": []}}))
    with model_api.serving_for_agents(["the-answer-is-here"]) as api:
        policy(home, api.port)
        with home.on_terminal("start", "claude", str(home.project), PATH=path, ANTHROPIC_API_KEY="sk-ant-none",
                              ANTHROPIC_BASE_URL=f"http://127.0.0.1:{api.port}") as screen:
            screen.until("Claude")
            screen.until("\u276f")  # its prompt
            screen.types("what is it")
            screen.until("what")
            screen.types("\r")
            screen.until("the-answer-is-here")
            screen.types("\x03")
            screen.until("again")
            screen.types("\x03")
            assert 0 == screen.end()
            assert screen.usual == screen.modes()
