"""crewai-tools' three tools for E2B as they are, against `leeward serve e2b`. Run by test_serve_e2b.py."""

import os

from crewai_tools import E2BExecTool, E2BFileTool, E2BPythonTool

shell = E2BExecTool(persistent=True)
done = shell.run(command="echo $V; pwd", envs={"V": "v"}, cwd="/tmp")
assert (0, "v\n/tmp\n") == (done["exit_code"], done["stdout"]), done
shell.close()

files = E2BFileTool(persistent=True)
files.run(action="write", path="/home/user/a/b.txt", content="one")
assert "one" == files.run(action="read", path="/home/user/a/b.txt")["content"]
assert ["b.txt"] == [each["name"] for each in files.run(action="list", path="/home/user/a")["entries"]]
files.close()

python = E2BPythonTool(persistent=True)
python.run(code="x = 6 * 7")
ran = python.run(code="print('said')\nx")
assert ("42", ["said\n"]) == (ran["text"], ran["stdout"]), ran
assert "ZeroDivisionError" in str(python.run(code="1 / 0")["error"])
python.close()
# Now and then a thread of the client's HTTP library aborts at the interpreter's end.
os._exit(0)
