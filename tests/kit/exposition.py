"""
A reader of Prometheus' text format, version 0.0.4, stricter than Prometheus itself.

prometheus.io/docs/instrumenting/exposition_formats: HELP and TYPE once per family and before its samples, the samples
of a family together, no series twice, histograms that add up.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\n"])*)"(,|$)')

Labels = tuple[tuple[str, str], ...]


@dataclass
class Family:
    """
    Attributes:
        samples: value by name and labels.
    """

    kind: str
    help: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def value(self, **labels: str) -> float:
        [found] = [value for (_, have), value in self.samples.items() if dict(have) == labels]
        return found

    def labels(self, name: str) -> list[str]:
        return [dict(have)[name] for _, have in self.samples]


def read(text: str) -> dict[str, Family]:
    """The families in *text*; AssertionError if it isn't the format."""
    assert text.endswith("\n")
    families: dict[str, Family] = {}
    helps: dict[str, str] = {}
    current = ""
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            _, _, name, about = line.split(" ", 3)
            assert name not in helps
            helps[name] = about
        elif line.startswith("# TYPE "):
            _, _, current, kind = line.split(" ")
            assert kind in ("counter", "gauge", "histogram")
            assert current not in families
            families[current] = Family(kind, helps[current])
        else:
            match = _SAMPLE.fullmatch(line)
            assert match is not None, line
            name, labels, value = match[1], _labels(match[2] or ""), float(match[3])
            family = families[current]
            ends = ("_bucket", "_sum", "_count") if "histogram" == family.kind else ("",)
            assert name in [f"{current}{end}" for end in ends], line
            assert (name, labels) not in family.samples, line
            assert not math.isnan(value)
            assert value >= 0
            family.samples[name, labels] = value
    for name, family in families.items():
        if "histogram" == family.kind:
            _check_histogram(name, family)
    return families


def _labels(text: str) -> Labels:
    labels = []
    while text:
        match = _LABEL.match(text)
        assert match is not None, text
        labels.append((match[1], re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), match[2])))
        text = text[match.end():]
    assert len({name for name, _ in labels}) == len(labels)
    return tuple(labels)


def _check_histogram(name: str, family: Family) -> None:
    buckets = [(float(dict(labels)["le"]), value) for (sample, labels), value in family.samples.items()
               if sample == f"{name}_bucket"]
    assert buckets == sorted(buckets)
    assert [count for _, count in buckets] == sorted(count for _, count in buckets)
    assert math.inf == buckets[-1][0]
    assert buckets[-1][1] == family.samples[f"{name}_count", ()]
    assert (f"{name}_sum", ()) in family.samples
