"""
An agent whose work a person approves, without a network: it writes in a copy of a project, asks for what leaves it,
and the operator decides file by file.

    leeward approvals serve &
    python examples/approved.py [PROJECT]

Here the agent is a script (AGENT below), so that the example shows the same each time; yours is a program of your own
in its place. The operator's side decides at the terminal, or by `leeward approvals watch` and the page at the same
time.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import leeward
from leeward.apps.approvals.operator_connection import OperatorConnection

#: Runs in the sandbox. It can ask, and nothing in it can decide.
AGENT = """
from leeward.approvals import Agent, AskError

agent = Agent()
text = open("total.py").read()
open("total.py", "w").write(text.replace("sum(numbers) + 1", "sum(numbers)"))
open("notes.txt", "w").write("total() added one too many\\n")

done = agent.request_exec("python3 total.py", reason="to see whether it is right now")
print("the command:", done["status"], done["output"].strip())

try:
    agent.call("POST", "/api/bulk", {"approved": True, "category": "filesystem", "upto": 1000})
except AskError as error:
    print("deciding by itself:", error.status)

print("asked for:", [request["title"] for request in agent.sync_files()])
"""


def example(project: Path) -> None:
    """A project with a mistake in it."""
    (project / "total.py").write_text("def total(numbers):\n    return sum(numbers) + 1\n\n\nprint(total([1, 2, 3]))\n")


def main(project: Path, agrees: Callable[[str], bool], connection: OperatorConnection | None = None) -> None:
    """
    Let the agent work, and decide about its requests.

    Args:
        project: the folder whose files change when *agrees* agrees.
        agrees: decides about each request.
        connection: the connection to the service; by default to the service of this user.
    """
    connection = connection or OperatorConnection()
    made = connection.open_sandbox(str(project))
    box = leeward.Sandbox.attach(made["sandbox"])
    try:
        agent = box.start(["python3", "-c", AGENT], timeout=120)
        while agent.wait(0.1) is None:
            _decide(connection, agrees)
        _decide(connection, agrees)  # what it has asked for at its end
        print(agent.result().stdout_text, end="")
    finally:
        connection.close_sandbox(box.detach())


def _decide(connection: OperatorConnection, agrees: Callable[[str], bool]) -> None:
    """Ask about each request that waits."""
    for row in connection.call("GET", "/api/requests")["requests"]:
        word = "approve" if agrees(f"{row['category']} {row['title']} {row['reason']}".strip()) else "deny"
        connection.call("POST", f"/api/requests/{row['id']}/{word}", {})
        print(f"{word}: {row['category']} {row['title']}")


def ask(question: str) -> bool:
    return input(f"{question}? [y/N] ").strip().lower() == "y"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]), ask)
    else:
        with tempfile.TemporaryDirectory() as folder:
            example(Path(folder))
            main(Path(folder), ask)
            print((Path(folder) / "total.py").read_text())
