"""
A harness for a model that works by Python code: a loop, a tool, and what the model reads after each call.

    python examples/harness.py                # a scripted model, so that it runs anywhere

Put your model's call in place of `scripted`. Everything else is what such a loop needs: state that lasts, files in and
out, bounds on time, memory and text, and answers that tell a model what to do next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import leeward

#: Characters of output that the model reads; the rest is cut in the middle.
MOST_TEXT = 4000
#: Calls after which the loop ends, whatever the model says.
MOST_TURNS = 20


@dataclass(frozen=True)
class Call:
    """A call of the model: code to run, and files to bring back."""

    code: str
    collect: tuple[str, ...] = ()


#: Takes what the model has read so far, gives its next call, or its answer as text.
Model = Callable[[list[str]], Call | str]


class Workspace:
    """A session that is made again when it is lost, and says so to the model."""

    def __init__(self, client: leeward.Client, label: str) -> None:
        self._session = client.session(memory="512M", timeout=20)
        self._label = label
        self.files: dict[str, bytes] = {}

    def run(self, call: Call) -> str:
        """Run *call*, and return the text for the model."""
        try:
            result = self._session.execute(call.code, collect=call.collect, label=self._label)
        except leeward.SessionOver:
            self._session.reset()
            return "The process had ended: variables and imports are lost. Run your set-up again, then this."
        except leeward.RequestRejected as error:
            return f"That was not run: {error}"
        except leeward.Busy as error:
            return f"The machine is busy: {error} Try again."
        self.files.update({name: bytes(content) for name, content in result.files.items()})
        return told(result)


    def close(self) -> None:
        self._session.close()


def told(result: leeward.Result) -> str:
    """Return a result as text for a model: the output, how the job ended, and why."""
    parts = [cut(result.stdout_text), cut(result.stderr_text)]
    if result.outcome is leeward.Outcome.TIMED_OUT:
        parts.append(f"[ended after {result.duration:.0f} s, its time limit; do less at once]")
    elif result.outcome is leeward.Outcome.OUT_OF_MEMORY:
        parts.append("[ended by its memory limit; read the data in parts]")
    elif result.outcome is not leeward.Outcome.FINISHED and result.outcome is not leeward.Outcome.RAISED:
        parts.append(f"[ended: {result.outcome}]")
    if result.limit is not None and result.outcome is leeward.Outcome.RAISED:
        parts.append(f"[it reached its limit on {result.limit}]")
    if result.denied:
        parts.append(f"[the sandbox refused: {', '.join(result.denied)}]")
    if result.files:
        files = ", ".join(f"{name} ({len(content)} bytes)" for name, content in result.files.items())
        parts.append(f"[files: {files}]")
    return "\n".join(part for part in parts if part) or "[no output]"


def cut(text: str) -> str:
    half, left = MOST_TEXT // 2, len(text) - MOST_TEXT
    return text if left <= 0 else f"{text[:half]}\n[... {left} characters ...]\n{text[-half:]}"


def work(model: Model, client: leeward.Client, label: str = "harness") -> tuple[str, dict[str, bytes]]:
    """Run the loop, and return the model's answer and the files that it has brought back."""
    read: list[str] = []
    with closing(Workspace(client, label)) as place:
        for _ in range(MOST_TURNS):
            said = model(read)
            if isinstance(said, str):
                return said, place.files
            read.append(place.run(said))
        return f"no answer in {MOST_TURNS} calls", place.files


def scripted() -> Model:
    """A model that makes the usual mistakes."""
    calls: Iterator[Call] = iter((
        Call("import json\nrows = [{'n': n, 'square': n * n} for n in range(5)]"),
        Call("print(row)"),
        Call("print(sum(row['square'] for row in rows))"),
        Call("open('rows.json', 'w').write(json.dumps(rows))", ("*.json",)),
        Call("import socket; socket.create_connection(('example.org', 80))"),
        Call("while True: rows.append(bytearray(1 << 24))"),
        Call("print(rows)"),
        Call("print('again', 6 * 7)"),
    ))
    return lambda read: next(calls, f"done after {len(read)} calls; the last one printed {read[-1]!r}" if read else "")


if __name__ == "__main__":
    with leeward.Client() as connected:
        answer, files = work(scripted(), connected)
    print(answer)
    print({name: len(content) for name, content in files.items()})
