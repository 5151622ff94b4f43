from __future__ import annotations

import threading

from leeward.apps.approvals.carrying.carrying import KEPT_OUTPUT, MOST_RUNS, RunBook


def test_the_output_of_a_command_is_reported_while_it_runs() -> None:
    book, told = RunBook(), list[tuple[int, str, bytes]]()
    end = book.subscribe(lambda *piece: told.append(piece))
    assert book.get(1) is None
    book.begin(1)
    book.add(1, "stdout", b"a")
    book.add(1, "stderr", b"b\xff")
    assert "running" == (book.get(1) or {})["status"]
    threading.Timer(0.05, book.end, (1, 3)).start()

    found = book.get(1, 20.0) or {}
    assert ("completed", 3, "ab\ufffd") == (found["status"], found["exit_code"], found["output"])
    assert [(1, "stdout", b"a"), (1, "stderr", b"b\xff")] == told
    end()
    book.add(1, "stdout", b"c")
    assert 2 == len(told)


def test_only_so_much_is_kept() -> None:
    book = RunBook()
    for number in range(MOST_RUNS + 5):
        book.begin(number)
    assert book.get(0) is None
    assert MOST_RUNS == len(book.rows())
    for _ in range(5):
        book.add(MOST_RUNS, "stdout", b"x" * (KEPT_OUTPUT // 4))
    book.add(MOST_RUNS, "stdout", b"end")
    found = book.get(MOST_RUNS) or {}
    assert (KEPT_OUTPUT, True, "end") == (len(found["output"]), found["truncated"], found["output"][-3:])


def test_a_subscriber_that_fails_costs_itself() -> None:
    book, told = RunBook(), list[bytes]()
    book.subscribe(lambda *piece: 1 / 0)
    book.subscribe(lambda number, stream, data: told.append(data))
    book.begin(1)
    book.add(1, "stdout", b"a")

    assert [b"a"] == told


def test_a_note_is_a_failure() -> None:
    book = RunBook()
    book.begin(1)
    book.end(1, 124, "too long")

    assert ("failed", 124, "too long") == tuple((book.get(1) or {})[name] for name in ("status", "exit_code", "note"))
