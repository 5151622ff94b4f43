"""docs/c-api.md says what leeward.h does, and both what the library exports."""

from __future__ import annotations

import re

from kit.c_client import CLIENT
from kit.features import ROOT

PAGE = ROOT / "docs" / "c-api.md"


def test_every_function_has_its_errors_ownership_and_threads() -> None:
    """In the header, on the page, and in the list of symbols."""
    header, page = (CLIENT / "leeward.h").read_text(), PAGE.read_text()
    declared = re.findall(r"^LEEWARD_API .*?\b(leeward_\w+)\(", header, re.MULTILINE)
    exported = re.findall(r"^\t(leeward_\w+);", (CLIENT / "leeward.map").read_text(), re.MULTILINE)

    assert sorted(declared) == sorted(exported)
    for name in declared:
        text = " ".join(page.split(f"### `{name}`\n")[1].split("\n##")[0].split())
        assert "```c " in text
        if name not in ("leeward_version", "leeward_last_error", "leeward_last_error_code",
                        "leeward_last_error_may_have_run", "leeward_last_error_retry_after",
                        "leeward_last_error_errno", "leeward_sandbox_id", "leeward_result_free"):
            assert "**Threads:**" in text, name
            assert "**Errors:**" in text or "NULL is allowed" in text, name
        if name in ("leeward_result_free", "leeward_sandbox_id"):
            continue
        assert "**Returns:**" in text or "NULL is allowed" in text, name


def test_every_field_and_value_is_on_the_page() -> None:
    """With a line of its own."""
    header, page = (CLIENT / "leeward.h").read_text(), PAGE.read_text()
    for name in re.findall(r"^\t(\w+ = -?\d+)", header, re.MULTILINE):
        assert f"| `{name}` |" in page
    for field in re.findall(r"^\t((?:const |unsigned )*\w+ [^;(*=\n]*(?:\*[^;(=\n]*)?);", header, re.MULTILINE):
        assert f"| `{field}` |" in page, field
