"""
The programs of agents themselves, each against a model of the tests' own: they read, edit and run something in a
project, reach nobody else, and leave the host's files as they were; on a terminal they answer, follow its size, and end
by Ctrl-C. No account is used, and no host of theirs is asked for anything. With LEEWARD_RECORD=1 docs/runs has what
worked, by which `./dev generate` makes the table of docs/agent-command.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kit import agent_programs, model_api, runs
from kit.agents import AgentHome, agents_daemon
from kit.live_daemon import LiveDaemon
from kit.model_api import Call

DAEMON_BY = agents_daemon

pytestmark = [pytest.mark.needs("user-namespaces", "usr-curl"), pytest.mark.timeout(300)]

TEST = "import calculation\nassert calculation.double(21) == 42\nprint('the test has passed')\n"
LINE = ("python3 check.py; cat .env; env | grep HIDDEN; ls -A ~; curl -sS -m 5 http://evil.example.org/"
        " || echo not reached")
STARTS = 120  # seconds that a program of hundreds of megabytes may take to its first screen, or to answer, on a busy machine
FILE = "{project}/calculation.py"
OLD, NEW = "x + 2", "2 * x"

#: A model's answer by which aider changes a file.
AIDERS_EDIT = """calculation.py
```
<<<<<<< SEARCH
    return x + 2
=======
    return 2 * x
>>>>>>> REPLACE
```
"""
#: The only way by which aider runs something.
AIDERS_TEST = f"{LINE}\ntest -e again || {{ touch again; exit 1; }}\n"


@dataclass(frozen=True)
class Agent:
    """Texts have {url} for the model's address, {project} and {home}."""

    script: Sequence[Call | str]
    arguments: Sequence[str]  # to do it without a terminal
    environment: Mapping[str, str]  # of which it has its key
    key: str  # that the model gets
    state: str  # a folder of the host that it has
    files: Mapping[str, str] = field(default_factory=dict)  # below home
    on_terminal: Sequence[str] = ()  # arguments
    prompt: str = "\u276f"  # a pattern for what it shows when it waits
    wide: str = "\u2500{100}|\u2500.{,40}\x1b\\[\\d+;1\\d\\dH"  # and for what it shows on a terminal of 110 columns
    answers: Mapping[str, str] = field(default_factory=dict)  # of the terminal, to its questions
    asked: str = ""  # a pattern for a dialogue before its prompt, which Enter answers
    ready: str = ""  # and for what it shows when it has answered
    again: str = "again"  # and for what the first Ctrl-C shows; "" if that ends it
    last: Sequence[Call | str] = ("\u03a9",)  # the script on a terminal: one letter, since some show an answer bit by bit


OPENAI = {"OPENAI_API_KEY": "sk-none"}
AGENTS = {
    "aider": Agent(
        [AIDERS_EDIT, "all is done"],
        ["--model", "openai/m", "--edit-format", "diff", "--no-git", "--no-show-model-warnings", "--yes-always",
         "--auto-test", "--test-cmd", "sh look.sh", "--message", "do it", "calculation.py"],
        {**OPENAI, "OPENAI_API_BASE": "{url}/v1"}, "Bearer sk-none", ".aider", {"project/look.sh": AIDERS_TEST},
        on_terminal=["--model", "openai/m", "--no-git", "--no-show-model-warnings"], prompt="> ", wide="",
        ready="\u2500{100}.*> "),
    "claude": Agent(
        [Call("Read", {"file_path": FILE}), Call("Edit", {"file_path": FILE, "old_string": OLD, "new_string": NEW}),
         Call("Bash", {"command": LINE}), "all is done"],
        ["-p", "do it", "--dangerously-skip-permissions"],
        {"ANTHROPIC_API_KEY": "sk-ant-none", "ANTHROPIC_BASE_URL": "{url}"}, "sk-ant-none", ".claude",
        {".claude.json": json.dumps({
            "hasCompletedOnboarding": True, "theme": "dark", "projects": {"{project}": {"hasTrustDialogAccepted": True}},
            "customApiKeyResponses": {"approved": ["sk-ant-none"], "rejected": []}})}),
    "codex": Agent(
        [Call("exec_command", {"cmd": f"cat calculation.py; sed -i 's/{OLD}/{NEW}/' calculation.py"}),
         Call("exec_command", {"cmd": LINE}), "all is done"],
        ["exec", "--skip-git-repo-check", "do it"], OPENAI, "Bearer sk-none", ".codex", {
            ".codex/config.toml": 'model = "m"\nmodel_provider = "here"\n[model_providers.here]\nname = "here"\n'
                                  'wire_api = "responses"\nbase_url = "{url}/v1"\nenv_key = "OPENAI_API_KEY"\n'
                                  '[projects."{project}"]\ntrust_level = "trusted"\n'},
        prompt="Ask Codex", wide="\x1b\\[40;1\\d\\dH", answers={"\x1b[6n": "\x1b[1;1R"}, ready="Worked for", again=""),
    "copilot": Agent(
        [Call("view", {"path": FILE}), Call("edit", {"path": FILE, "old_str": OLD, "new_str": NEW}),
         Call("bash", {"command": LINE, "description": "test"}), "all is done"],
        ["--allow-all-tools", "-p", "do it"],
        {"COPILOT_PROVIDER_BASE_URL": "{url}/v1", "COPILOT_PROVIDER_API_KEY": "sk-none", "COPILOT_MODEL": "gpt-4.1"},
        "Bearer sk-none", ".copilot", asked="trust", ready="open sidebar"),
    "gemini": Agent(
        [Call("read_file", {"file_path": FILE}),
         Call("replace", {"file_path": FILE, "instruction": "double", "old_string": OLD, "new_string": NEW}),
         Call("run_shell_command", {"command": LINE}), "all is done"],
        ["--yolo", "--skip-trust", "-m", "gemini-2.5-flash", "-p", "do it"],
        {"GEMINI_API_KEY": "AIza-none", "GOOGLE_GEMINI_BASE_URL": "{url}"}, "AIza-none", ".gemini",
        {".gemini/settings.json": json.dumps({"security": {"auth": {"selectedType": "gemini-api-key"}},
                                              "privacy": {"usageStatisticsEnabled": False}})},
        on_terminal=["--skip-trust", "-m", "gemini-2.5-flash"], prompt="Type your message"),
    "goose": Agent(
        [Call("shell", {"command": f"cat {FILE}"}), Call("edit", {"path": FILE, "before": OLD, "after": NEW}),
         Call("shell", {"command": LINE}), "all is done"],
        ["run", "-t", "do it"], {**OPENAI, "OPENAI_HOST": "{url}", "GOOSE_PROVIDER": "openai", "GOOSE_MODEL": "gpt-4o"},
        "Bearer sk-none", ".local/share/goose",
        # It writes line by line: what it runs sees the size.
        on_terminal=["session"], prompt="Enter to send", wide="", ready="Enter to send",
        last=[Call("shell", {"command": "for each in /dev/tty /dev/pts/*; do stty size <$each; done"}), "\u03a9"]),
    "opencode": Agent(
        [Call("read", {"filePath": FILE}), Call("edit", {"filePath": FILE, "oldString": OLD, "newString": NEW}),
         Call("bash", {"command": LINE, "description": "test"}), "all is done"],
        ["run", "do it"],
        {"ANTHROPIC_API_KEY": "sk-none", "OPENCODE_DISABLE_MODELS_FETCH": "1",
         "OPENCODE_CONFIG_CONTENT": json.dumps({
            "provider": {"anthropic": {"options": {"baseURL": "{url}/v1"}}}, "model": "anthropic/claude-sonnet-4-5",
            "small_model": "anthropic/claude-sonnet-4-5", "permission": {"*": "allow"}})},
        "sk-none", ".local/share/opencode", prompt="Ask anything", wide="\x1b\\[\\d+;10\\dH", again=""),
    "qwen": Agent(
        [Call("read_file", {"file_path": FILE}), Call("edit", {"file_path": FILE, "old_string": OLD, "new_string": NEW}),
         Call("run_shell_command", {"command": LINE, "is_background": False}), "all is done"],
        ["--auth-type", "openai", "-y", "-p", "do it"],
        {**OPENAI, "OPENAI_BASE_URL": "{url}/v1", "OPENAI_MODEL": "m"}, "Bearer sk-none", ".qwen",
        on_terminal=["--auth-type", "openai"], prompt="Type your message"),
}


@pytest.fixture
def home(daemon: LiveDaemon, tmp_path: Path) -> Iterator[AgentHome]:
    made = AgentHome(tmp_path / "home", daemon)
    (made.project / "calculation.py").write_text("def double(x):\n    return x + 2\n")
    (made.project / "check.py").write_text(TEST)
    (made.project / ".env").write_text("HIDDEN_TOKEN=1\n")
    (made.path / "private").write_text("private")
    yield made
    made.gone()


def filled(value: Any, home: AgentHome, url: str) -> Any:
    """*value* with its places filled in."""
    if isinstance(value, Call):
        return Call(value.name, filled(value.arguments, home, url))
    if isinstance(value, dict):
        return {filled(key, home, url): filled(each, home, url) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [filled(each, home, url) for each in value]
    return value.replace("{url}", url).replace("{project}", str(home.project)) if isinstance(value, str) else value


def prepared(name: str, home: AgentHome, api: model_api.ModelApi) -> tuple[Agent, dict[str, str]]:
    """The agent *name* with its program, its files and its model; and its environment."""
    url = f"http://127.0.0.1:{api.port}"
    agent = AGENTS[name]
    home.settings(f'[network]\nallow = ["model.example.org:{api.port}", "127.0.0.1:{api.port}"]\n')
    for path, text in agent.files.items():
        (home.path / path).parent.mkdir(parents=True, exist_ok=True)
        (home.path / path).write_text(filled(text, home, url))
    folder = home.path / "bin"
    folder.mkdir()
    (folder / name).symlink_to(getattr(agent_programs, name)())
    api.script = filled(api.script, home, url)
    return agent, {"PATH": f"{folder}:/usr/local/bin:/usr/bin:/bin", "HIDDEN_VARIABLE": "1",
                   **filled(agent.environment, home, url)}


#: The terminals of the others are the long form, too.
QUICK = AGENTS if os.environ.get("LEEWARD_LONG") else ("claude", "goose")


def each(names: Iterable[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.needs(f"agent-{name}")) for name in names])


@each(AGENTS)
def test_it_edits_runs_and_is_denied_a_host(home: AgentHome, tmp_path: Path, name: str) -> None:
    dump = tmp_path / "dump"
    with model_api.serving_for_agents(AGENTS[name].script) as api:
        agent, env = prepared(name, home, api)
        before = {path: (home.path / path).read_text() for path in agent.files if "/" not in path}
        got = home.run("start", name, ".", "--dump-network-access", str(dump), "--", *agent.arguments, **env)
        assert 0 == got.returncode, got.stdout + got.stderr
        assert "all is done" in got.stdout, got.stdout
        said = api.results[-1]
        assert {agent.key} == set(filter(None, api.keys))
    assert "def double(x):\n    return 2 * x\n" == (home.project / "calculation.py").read_text()
    assert "the test has passed" in said
    assert "HIDDEN_" not in said
    assert "private" not in said
    assert "not reached" in said
    names = dump.read_text().splitlines()
    assert names == sorted(names)
    assert "denied evil.example.org" in names
    assert [] == [line for line in names if line.startswith("allowed") and "example" not in line
                  and line != "allowed 127.0.0.1"]
    assert [] == home.left()
    assert before == {path: (home.path / path).read_text() for path in before}
    assert (home.path / agent.state).is_dir()
    wrong = home.run("start", name, ".", "--", "--no-such-option", **env)
    assert 0 != wrong.returncode
    runs.record("agents", name, agent_programs.version(name), edit=True, command=True, denied=True)


@each(QUICK)
def test_on_a_terminal(home: AgentHome, name: str) -> None:
    """Its screen, a new size, a question and the answer, and Ctrl-C; the terminal is as it was."""
    with model_api.serving_for_agents(AGENTS[name].last) as api:
        agent, env = prepared(name, home, api)
        with home.on_terminal("start", name, str(home.project), "--", *agent.on_terminal, **env) as screen:
            screen.answers |= agent.answers
            if agent.asked:
                screen.until(agent.asked, STARTS)
                screen.types("\r")
            screen.until(agent.prompt, STARTS)
            screen.resize(40, 110)
            screen.until(agent.wide)
            screen.types("what is it")
            screen.until("hat")  # some write its first letter apart, or its words
            screen.types("\r")
            screen.until("\u03a9", STARTS)
            screen.until(agent.ready)
            screen.types("\x03")
            if agent.again:
                screen.until(agent.again)
                screen.types("\x03")
            assert 0 == screen.end()
            assert screen.usual == screen.modes()
        assert len(agent.last) == 1 or "40 110" in api.results[0]
    runs.record("agents", name, agent_programs.version(name), screen=True, size=True, interrupt=True)


#: What each asks before it works, and the keys that choose the answer.
DIALOGUES = {"claude": (("Esc", "\x1b[B"), ("recommended", "\x1b[A")), "gemini": (("Don't trust", ""),)}


@each(DIALOGUES)
def test_its_own_dialogues_are_asked_once(home: AgentHome, name: str) -> None:
    """Whether the folder is trusted, and a variable's key may be used; the host's own file stays as it is."""
    ready, host = "for.{1,6}(shortcuts|agents)", '{"hasCompletedOnboarding": true}'
    with model_api.serving_for_agents(["\u03a9"]) as api:
        agent, env = prepared(name, home, api)
        (home.path / ".claude.json").write_text(host)
        use = ("start", name, str(home.project), "--", *(each for each in agent.on_terminal if each != "--skip-trust"))
        with home.on_terminal(*use, **env) as screen:
            for shown, keys in DIALOGUES[name]:
                screen.until(shown, STARTS)
                assert not screen.shows("no such text", 3)  # it draws its question more than once
                if keys:
                    screen.types(keys)
                    screen.until("\u276f.{0,20}Yes")
                screen.types("\r")
            for _ in range(5):  # Gemini CLI takes no key while it draws
                if screen.shows(ready, 10):
                    break
                screen.types("\r")
            screen.until(ready)
        with home.on_terminal(*use, **env) as screen:
            screen.until(ready, STARTS)
            assert not [shown for shown, _ in DIALOGUES[name] if shown in screen.all]
    assert host == (home.path / ".claude.json").read_text()
