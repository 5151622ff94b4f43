"""
Measures how fast the broker searches responses for values of secrets, beside a search for the value as it is and
URL-encoded alone.

    .venv/bin/python bench/egress_masks.py
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from urllib.parse import quote

from leeward.egress.injection import Swap
from leeward.egress.masks import MaskedStream, Masks
from leeward.egress.pipes import SEARCHED

VALUE = b"sk-live-0123456789abcdefghij+/"

TEXTS = {
    "JSON": json.dumps([{"id": at, "name": f"some {at} text", "ok": True} for at in range(900)]).encode(),
    "HTML": b'<p class="some">Words &amp; <a href="/x?y=1&amp;z=2">a link</a>, and more words after it.</p>\n' * 500,
    "base64": base64.b64encode(bytes(at * at % 251 for at in range(40_000))),
    "every byte in turn": bytes(range(256)) * 200,
    "the value's beginning in turn": VALUE[:8] * 1000,
}


def rate(feed: Callable[[bytes], bytes], text: bytes) -> float:
    """Return the MB that *feed* takes in a second, in pieces as the broker receives them."""
    begun, taken = time.perf_counter(), 0
    while time.perf_counter() < begun + 0.5:
        for at in range(0, len(text), SEARCHED):
            feed(text[at:at + SEARCHED])
        taken += len(text)
    return taken / (time.perf_counter() - begun) / 1e6


def main() -> None:
    """Print a table."""
    begun = time.perf_counter()
    masks = Masks([VALUE])
    print(f"made in {(time.perf_counter() - begun) * 1000:.1f} ms")
    for name, text in TEXTS.items():
        literal = rate(Swap([(VALUE, b"p"), (quote(VALUE, safe="").encode(), b"p")]).feed, text)
        masked = rate(MaskedStream(masks, masks.instead([b"p"])).feed, text)
        print(f"{name:30}  as it is {literal:7.1f} MB/s   every spelling {masked:7.1f} MB/s")


if __name__ == "__main__":
    main()
