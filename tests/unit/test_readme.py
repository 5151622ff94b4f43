"""What the README and the page on limits say in figures is what the code has."""

from __future__ import annotations

import re
import tomllib

from kit import features
from leeward.spec.limits import CEILINGS, GIB, MIB, OF_SANDBOXES, Limits

README, CONFIGURATION = ((features.ROOT / page).read_text() for page in ("README.md", "docs/configuration.md"))

#: The page's words for each limit.
ROWS = {
    "memory": "memory, no swap",
    "processes": "processes and threads",
    "time": "time",
    "output": "output, stdout and stderr together",
    "cpu": "processor time",
    "files": "files in `/workspace`, `/tmp` and `/dev/shm` together",
    "descriptors": "open descriptors in a process",
}


def shown(limit: str, value: float) -> str:
    """A limit in the page's units."""
    if limit in ("memory", "output", "files"):
        return f"{value // GIB} GiB" if 0 == value % GIB else f"{value // MIB} MiB"
    return {"time": f"{value:g} s", "cpu": f"{value} % of one processor"}.get(limit, f"{value}")


def test_the_table_of_limits_is_the_one_in_force():
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \|.*\|$", CONFIGURATION, re.MULTILINE))
    ceilings = dict(re.findall(r"^\| (.+?) \| .+? \| (.*?) ?\|$", CONFIGURATION, re.MULTILINE))

    assert set(Limits.__dataclass_fields__) - {"cuts_output", "cpu_time", "wall"} == set(ROWS)  # requests have those
    for limit, words in ROWS.items():
        assert shown(limit, getattr(Limits(), limit)) == rows[words], limit
        assert (shown(limit, getattr(CEILINGS, limit)) if limit in OF_SANDBOXES else "") == ceilings[words], limit


def test_the_readme_shows_only_tasks_that_dev_has():
    tasks = set(re.findall(r"^([a-z]+)\)", (features.ROOT / "dev").read_text(), re.MULTILINE))

    assert set(re.findall(r"\./dev ([a-z]+)", README)) <= tasks


def test_every_package_of_the_design_is_declared():
    project = tomllib.loads((features.ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = {group: {re.match(r"[\w-]+", line)[0] for line in lines}
             for group, lines in {"product": project["dependencies"], **extras}.items()}

    assert {"cffi", "click", "msgpack", "structlog"} == names["product"]
    assert {"cryptography", "h11", "pyroute2"} == names["egress"]
    assert {"pytest", "hypothesis", "python-prctl", "landlock", "pyseccomp"} <= names["test"]


def test_the_readme_is_read_in_a_few_minutes():
    assert README.count("\n") <= 100
