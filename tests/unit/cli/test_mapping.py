"""The files of `leeward map`: jobs, and results that are there already."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import click
import pytest

from leeward.client.many import MapEnd, MapProgress
from leeward.errors import Busy
from leeward.spec.outcome import JobError, Limit, Outcome, Result
from leeward_cli.mapping import _Bar, _Jobs, _Results, _row

FILE = '"print(1)"\n\n{"id": "a", "code": "2", "timeout": 3}\n{"code": "4"}\n'


def read(text: str | bytes, known: set[tuple[object, str]] | None = None) -> tuple[list[dict[str, object]], list[object]]:
    jobs = _Jobs(io.BytesIO(text if isinstance(text, bytes) else text.encode()), known or set())
    return list(jobs), [name["id"] for _, (_, name) in sorted(jobs.names.items())]


def test_a_line_is_code_or_an_object() -> None:
    assert ([{"code": "print(1)"}, {"code": "2", "timeout": 3}, {"code": "4"}], [1, "a", 4]) == read(FILE)


@pytest.mark.parametrize(("text", "said"), [
    ("{", "line 1 is no JSON"), ("3", "line 1 is neither code nor an object"), ('"1"\n{"id": []}', "line 2 is neither"),
    ('{"id": "a"}\n{"id": "a"}', "line 2: the id 'a' is there twice"), ("[" * 100_000, "line 1 is no JSON"),
    (b'"1"\n"\xff"', "line 2 is no JSON"), ('{"code": "1", "max_output": 5}', "line 1: .* did you mean 'output'")])
def test_a_line_that_is_no_job_is_named(text: str | bytes, said: str) -> None:
    with pytest.raises(click.UsageError, match=said):
        read(text)


def test_what_has_a_result_is_not_run_again(tmp_path: Path) -> None:
    """But what was refused is, and a job that has another content now; half a line is cut off."""
    path = str(tmp_path / "out")
    jobs = _Jobs(io.BytesIO(FILE.encode()), set())
    list(jobs)
    with _Results(path) as results:
        results.add({**jobs.names[0][1], "outcome": "finished"})
        results.add({**jobs.names[1][1], "refused": "busy"})
        results.add({**jobs.names[2][1], "outcome": "raised"})
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"id": ')
    changed = FILE.replace('"4"', '"5"')
    with _Results(path) as results:
        assert ["a"] == read(FILE, results.known)[1]
        assert ["a", 4] == read(changed, results.known)[1]
    assert 3 == len([json.loads(line) for line in Path(path).read_text().splitlines()])


def test_two_at_once_do_not_write_one_file(tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    with _Results(path), pytest.raises(click.UsageError, match="another leeward map writes it"):
        _Results(path)


@pytest.mark.parametrize("content", ["hello\n", "hello", '{"id": 1, "job_hash": ""}\nhello', "{}",
                                     '{"id": 1, "code": "1"}', '{"id": 1}\n', "[" * 100_000])
def test_another_file_is_not_written(content: str, tmp_path: Path) -> None:
    """Also where its last line has no newline, as one that was half written."""
    (tmp_path / "notes").write_text(content)
    with pytest.raises(click.UsageError, match="isn't a file of results"):
        _Results(str(tmp_path / "notes"))
    assert content == (tmp_path / "notes").read_text()


def test_a_result_without_its_newline_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out").write_text('{"id": 1, "job_hash": "a"}')
    with _Results(str(tmp_path / "out")) as results:
        results.add({"id": 2, "job_hash": "b"})
        assert {(1, "a")} == results.known
    assert '{"id": 1, "job_hash": "a"}\n{"id": 2, "job_hash": "b"}\n' == (tmp_path / "out").read_text()


def test_results_are_in_a_file_on_a_disk(tmp_path: Path) -> None:
    """/dev/full is an endless line; a pipe has no beginning."""
    os.mkfifo(tmp_path / "pipe")
    for place in ("/dev/full", str(tmp_path / "pipe")):
        with pytest.raises(click.UsageError, match="isn't a file on a disk"):
            _Results(place)


def test_a_row_says_how_a_job_ended() -> None:
    result = Result(b"\x1b[2J", b"", 124, Outcome.TIMED_OUT, Limit.TIME, error=JobError("E", "m", "t"))
    row = _row(MapEnd(0, "", result))
    assert ("timed_out", "time", "m") == (row["outcome"], row["limit"], row["error"]["message"])
    assert "\x1b" not in json.dumps(row)
    assert {"refused": "full"} == _row(MapEnd(0, "", error=Busy("full")))


def test_the_bar_is_for_terminals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[bytes] = []
    monkeypatch.setattr("os.write", lambda _fd, data: said.append(data))
    monkeypatch.setattr("os.isatty", lambda _: False)
    _Bar(None).show(MapProgress(1, 0, None))
    assert not said
    monkeypatch.setattr("os.isatty", lambda _: True)
    monkeypatch.setenv("TERM", "xterm")
    (tmp_path / "f").write_text("x" * 10)
    with open(tmp_path / "f", encoding="utf-8") as lines:
        bar = _Bar(lines)
        bar.passed, bar._began = 5, bar._began - 60
        bar.show(MapProgress(3, 1, None))
        bar.end()
    assert b"[" + b"#" * 12 + b" " * 12 + b"] 3 jobs, 1 refused, 0/s, 1:00 left" in said[0]
    assert b"\r\x1b[K" == said[1]


def test_a_job_counts_with_the_lines_that_were_left_out_before_it() -> None:
    jobs = _Jobs(io.BytesIO('\n"1"\n\n\n"ä"\n'.encode()), set())
    assert 2 == len(list(jobs))
    assert [5, 7] == [size for size, _ in jobs.names.values()]
