"""Layers that another program removes meanwhile. None is made here: that needs a sandbox."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from leeward.apps.agents.layers import Layers
from leeward.errors import Unsupported

KEY = "0" * 32


def layer(folder: Path, key: str, number: int, manifest: bool = True) -> Path:
    """A layer of the list *key*, as `Layers` leaves it."""
    path = folder / f"{key}-{number}"
    (path / "root").mkdir(parents=True)
    if manifest:
        (folder / f"{key}.json").write_text(json.dumps({"folder": path.name, "packages": ["jq 1"]}))
    return path


def test_a_layer_that_was_pruned_before_its_lock_is_not_used(tmp_path: Path) -> None:
    path = layer(tmp_path, KEY, 1)
    layers = Layers(str(tmp_path))
    found = layers._found(KEY)
    assert found is not None
    found.close()
    (path / "root").rmdir()

    assert layers._found(KEY) is None


def test_pruning_goes_on_where_another_program_has_removed_a_layer(tmp_path: Path,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    old, older = layer(tmp_path, KEY, 1, manifest=False), layer(tmp_path, KEY, 2, manifest=False)
    layer(tmp_path, KEY, 3)
    layers, listed = Layers(str(tmp_path)), os.listdir

    def listing(path: str) -> list[str]:
        names = listed(path)
        if older.exists() and len(names) > 3:
            (older / "root").rmdir()
            older.rmdir()
        return names

    monkeypatch.setattr("leeward.apps.agents.layers.os.listdir", listing)
    layers._prune(KEY)

    assert not old.exists()
    assert (tmp_path / f"{KEY}-3").exists()


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    """Its programs come first in the agent's PATH."""
    tmp_path.chmod(0o777)
    with pytest.raises(Unsupported, match="chmod 700"):
        Layers(str(tmp_path)).get(["jq"], rebuild=False, said=print)
