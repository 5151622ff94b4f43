"""smolagents' E2BExecutor as it is, against `leeward serve e2b`. Run by test_serve_e2b.py."""

import os

from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import E2BExecutor
from smolagents.utils import AgentError

executor = E2BExecutor([], AgentLogger(LogLevel.OFF), timeout=100)
executor.send_variables({"given": [1, 2]})
executor("kept = sum(given)")
ran = executor("print('said'); kept * 14")
assert ("42", "said\n", False) == (ran.output, ran.logs, ran.is_final_answer), ran
try:
    executor("1 / 0")
except AgentError as error:
    said = str(error)
assert "ZeroDivisionError" in said
executor.cleanup()
# Now and then a thread of the client's HTTP library aborts at the interpreter's end.
os._exit(0)
