"""The records of environments that `leeward env` has made."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.base.dataclass import replace
from leeward.errors import BadRequest
from leeward.spec.stored import (
    MOST_WRITTEN,
    Manifest,
    Named,
    Recipe,
    default_folder,
    name_path,
    read_manifest,
    read_named,
    write_manifest,
    write_named,
)

RECIPE = Recipe(("numpy==2.0", "pandas"), "/usr/bin/python3.11", (3, 11))
MANIFEST = Manifest("/usr/bin/python3.11", (3, 11), ("numpy",), {"numpy": "2.0"}, 7, "00", 1)


def test_the_hash_is_of_the_request() -> None:
    """
    In any order and with any blanks; another interpreter, index, or permission to build from source is another
    environment.
    """
    same = Recipe(("pandas", "numpy == 2.0"), "/usr/bin/python3.11", (3, 11))
    others = [Recipe(("numpy==2.1", "pandas"), RECIPE.python, (3, 11)), Recipe(RECIPE.requirements, "/python", (3, 11)),
              Recipe(RECIPE.requirements, RECIPE.python, (3, 12)),
              Recipe(RECIPE.requirements, RECIPE.python, (3, 11), from_source=True),
              Recipe(RECIPE.requirements, RECIPE.python, (3, 11), index=("https://index.example.org",))]

    assert same.hash == RECIPE.hash
    assert 6 == len({RECIPE.hash, *(other.hash for other in others)})


def test_written_records_are_read_back() -> None:
    named = Named(RECIPE.hash, ("numpy", "pandas.io"), 2, 8)

    assert named == read_named(write_named(named))
    for manifest in (MANIFEST, replace(MANIFEST, prefix="/usr/local")):
        assert manifest == read_manifest(write_manifest(manifest))


@pytest.mark.parametrize("data", [
    b"", b"[]", b"{}", b"null", b'{"built": "..", "preload": [], "min": 1, "max": 1}',
    b'{"built": "%s", "preload": ["a; b"], "min": 1, "max": 1}' % (b"0" * 32),
    b'{"built": "%s", "preload": [], "min": 0, "max": 1}' % (b"0" * 32),
    b'{"built": "%s", "preload": [], "min": true, "max": 1}' % (b"0" * 32),
    b"[" * 100_000, b" " * (MOST_WRITTEN + 1)])
def test_any_other_name_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest, match="not a record of an environment"):
        read_named(data)


@pytest.mark.parametrize("change", [(b'"format": 1', b'"format": 2'), (b'"size": 7', b'"size": -1'),
                                    (b'"numpy": "2.0"', b'"numpy": 2'), (b"11", b"11, 5")])
def test_any_other_manifest_is_refused(change: tuple[bytes, bytes]) -> None:
    data = write_manifest(MANIFEST)
    assert change[0] in data
    with pytest.raises(BadRequest):
        read_manifest(data.replace(*change))


@given(st.binary(max_size=200))
def test_bytes_give_a_record_or_one_error(data: bytes) -> None:
    for read in (read_named, read_manifest):
        with contextlib.suppress(BadRequest):
            read(data)


def test_a_name_is_no_path() -> None:
    assert "/store/names/data.json" == name_path("/store", "data")
    for name in ("", "../x", "a/b", ".hidden", "a" * 65, "a\n"):
        with pytest.raises(BadRequest, match="can't be an environment's name"):
            name_path("/store", name)


def test_the_folder_is_the_users() -> None:
    assert "/var/lib/leeward/environments" == default_folder({"HOME": "/root"}, 0)
    assert "/home/x/.local/share/leeward/environments" == default_folder({"HOME": "/home/x"}, 1000)
    assert "/data/leeward/environments" == default_folder({"HOME": "/home/x", "XDG_DATA_HOME": "/data"}, 1000)
