"""The printed configuration: it loads back, and says of each key what it means."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from kit.configured import loaded, written
from leeward.daemon.config import EGRESS, Config
from leeward.daemon.config_keys import ENVIRONMENTS, KEYS, LIMIT_KEYS, PROFILES, TABLES, USERS
from leeward.daemon.config_sources import print_config

GIB = 1 << 30


def test_printed_configuration_loads_back(home: Path, tmp_path: Path) -> None:
    """Defaults and changed values alike, every key with a comment before it."""
    config = loaded(home, None, {
        "socket": '/tmp/q"\\uo\x7fte', "pool_size": 7, "allow_degraded": ("landlock",), "preload": ("json", "xml.dom"),
        "log_json": True, "queue_timeout": 0.25, "queue_delay": 0, "limits": {"memory": "1G", "time": 3},
        "ceilings": {"output": GIB},
        "metrics": "[::1]:9464", "security_log": "/var/log/x", "group": "0", "quota": {"jobs": 3, "rate": 2.5},
        "users": {"root": {"jobs": 7}, "1234": {"memory": "2G", "connections": 1}},
        "environments": {"data": {"path": "/srv/data", "preload": ["numpy"], "max": 8}, "bare": {}},
        "profiles": {"build": {"show": ["/opt/tools"], "variables": {"K": "a\"b"}, "limits": {"memory": "1G"},
                               "loopback": True}, "plain": {}},
        "egress": {"build": {"allow": ["GET https://example.org/v1/*", "[::1]:80"], "deny": ["*.example.net"],
                             "ports": [22], "addresses": ["10.0.0.0/8"], "limits": {"request": "1M", "connect": "1s"}},
                   "v1.2": {"ask": ["*"], "methods": ["GET"], "schemes": ["https"]}},
    })
    text = print_config(config)

    assert config == loaded(home, written(tmp_path / "printed.toml", text))
    values = tomllib.loads(text)
    assert [*KEYS, *TABLES, USERS, ENVIRONMENTS, PROFILES, EGRESS] == list(values)
    assert all(list(values[table]) == list(keys) for table, keys in TABLES.items())
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if " = " in line and not line.startswith("#"):
            assert lines[number - 1].startswith("# ")
    assert "(default: 4)" in text


def test_the_page_lists_the_keys_that_need_a_restart() -> None:
    """--print-config marks it, docs/operating.md lists it."""
    text = print_config(Config())
    lines = text.splitlines()
    keys = {**KEYS, **LIMIT_KEYS}
    marked = {lines[number + 1].split(" = ")[0] for number, line in enumerate(lines)
              if " [restart]" in line and " = " in lines[number + 1]}
    page = (Path(__file__).parents[3] / "docs/operating.md").read_text()
    listed = page.partition("<!-- restart -->")[2].partition("<!-- end -->")[0]

    assert {name for name, key in keys.items() if not key.live} == marked
    assert marked == set(re.findall(r"`(?:limits\.)?(\w+)`", listed))
