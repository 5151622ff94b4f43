"""Which code a Node that waits is given; what both clients say of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from leeward.spec.stand_ins import TEXTS, WARM
from leeward.spec.warm_node import DECLINED, DECLINES, NEEDS_NODE, PROBE, TEXT

CLIENT = Path(__file__).parents[3] / "leeward/clients/node/lib/workdir.js"


@pytest.mark.parametrize(("code", "needs"), [
    ("import('./own.mjs')", True), ("import fs from 'fs'", True), ("eval('1')", True), ("new Function('')", True),
    ("crypto.createHash('md5')", True), ("require('worker_threads')", True), ("console.log(1)", False),
    ("important(evaluate, functional)", False), ("function f() {}", False), ("", False),
])
def test_code_that_only_node_itself_runs_as_it_is(code: str, needs: bool) -> None:
    assert needs is bool(NEEDS_NODE.search(code))


def test_views_show_the_file_with_the_words_that_clients_look_for() -> None:
    assert [TEXT.encode()] == [text.content for text in TEXTS if WARM == text.target]
    assert DECLINES.decode() in TEXT
    assert f"reallyExit({DECLINED})" in TEXT
    assert PROBE.partition("(")[0] in TEXT


def test_the_npm_package_says_the_same() -> None:
    text = CLIENT.read_text()
    for line in (f"const WARM = '{WARM}';", f"const PROBE = '{PROBE}';", f"const NEEDS_NODE = /{NEEDS_NODE.pattern}/;",
                 f"const DECLINED = {DECLINED};", f'const DECLINES = "{DECLINES.decode()}";'):
        assert line in text
