"""
The manifests of the chart with its defaults, for those without Helm: leeward.yaml beside this file.

    .venv-kubernetes/bin/python packaging/kubernetes/render.py            # writes it
    .venv-kubernetes/bin/python packaging/kubernetes/render.py --check    # fails if it would change

Both render the chart with Helm's own library, lint it, and hold each manifest against the schema of Kubernetes, in which a
field that doesn't exist is an error.
"""

from __future__ import annotations

import sys
from pathlib import Path

import helm_python
import kubernetes_validate
import yaml  # type: ignore[import-untyped]  # it has none

FOLDER = Path(__file__).parent
#: Of Kubernetes: the oldest of the chart, and the newest that there is a schema of.
VERSIONS = ("1.33", "1.37")
VALUES: dict[str, object] = {"image": "registry.example/leeward:latest"}
#: More of what the chart may be given, which is rendered and held against the schema as well.
OTHERS = {**VALUES, "domain": "lw.example", "nodes": 5, "servers": 1, "faces": ["e2b", "ports"], "installSeccomp": False,
          "daemonOptions": ["--pool-size=8"], "serveOptions": ["--wait=20"], "config": "pool_size = 2\n",
          "nodeSelector": {"kind": "sandboxes"}, "tolerations": [{"key": "sandboxes", "operator": "Exists"}]}
HEAD = "# Made by packaging/kubernetes/render.py from the chart beside it: release `leeward`, namespace `sandboxes`.\n"


def rendered(values: dict[str, object]) -> str:
    """The manifests, one after the other; an exception if one isn't Kubernetes'."""
    found = helm_python.Chart.load(FOLDER / "leeward").render(values, name="leeward", namespace="sandboxes")
    texts = [text.strip() for _, whole in sorted(found.items()) for text in whole.split("\n---\n") if text.strip()]
    for text in texts:
        manifest = yaml.safe_load(text)
        for version in VERSIONS:
            kubernetes_validate.validate(manifest, version, strict=True)
    return HEAD + "".join(f"---\n{text}\n" for text in texts)


def main(check: bool) -> str:
    lint = helm_python.lint(FOLDER / "leeward", VALUES, strict=True, namespace="sandboxes")
    wrong = [*lint["errors"], *(each["error"] for each in lint["messages"] if each["severity"] > 1)]
    if wrong:
        return "\n".join(wrong)
    rendered(OTHERS)
    text, path = rendered(VALUES), FOLDER / "leeward.yaml"
    if check:
        return "" if path.read_text() == text else f"{path}: make it anew with {__file__}"
    path.write_text(text)
    return ""


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv) or None)
