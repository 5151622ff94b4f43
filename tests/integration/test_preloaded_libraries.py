"""
Real libraries in `preload`: each leaves the zygote one thread, jobs use it at once, and no two draw the same numbers.

With the newest versions that pip finds: `./dev test` installs them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit import packages
from kit.box import Box

MIB = 1 << 20

pytestmark = [pytest.mark.needs("preload-packages"), pytest.mark.timeout(300)]


@dataclass(frozen=True, slots=True)
class Preloaded:
    """
    Attributes:
        modules: what `preload` names.
        use: sets `right`, which is whether the library computes what it should, and `drawn`, by a generator of its own.
    """

    modules: tuple[str, ...]
    use: str


LIBRARIES = {
    "numpy": Preloaded(("numpy",), """
import numpy
a = numpy.random.rand(200, 200)
right = bool(numpy.allclose(a @ numpy.linalg.inv(a), numpy.eye(200)))
drawn = [float(a[0, 0]), float(numpy.random.default_rng().random())]
"""),
    "pandas": Preloaded(("pandas",), """
import io, pandas
table = pandas.DataFrame({"city": ["Ulm", "Bern"] * 500, "people": range(1000)})
table.to_parquet("a.parquet")
read = pandas.read_parquet("a.parquet").groupby("city").people.sum()
right = ({"Bern": 250000, "Ulm": 249500} == read.to_dict()
         and 6 == pandas.read_csv(io.StringIO("a,b\\n1,2\\n3,4")).b.sum())
drawn = [int(each) for each in table.people.sample(5)]
"""),
    "pyarrow": Preloaded(("pyarrow", "pyarrow.parquet", "pyarrow.csv", "pyarrow.compute"), """
import pyarrow, pyarrow.compute, pyarrow.csv, pyarrow.parquet
open("a.csv", "w").write("x,y\\n" + "1,2\\n" * 100_000)
table = pyarrow.csv.read_csv("a.csv")
pyarrow.parquet.write_table(table, "a.parquet")
right = 200_000 == pyarrow.compute.sum(pyarrow.parquet.read_table("a.parquet")["y"]).as_py()
drawn = pyarrow.compute.random(3).to_pylist()
"""),
    "scikit-learn": Preloaded(("sklearn.ensemble", "sklearn.cluster", "sklearn.linear_model"), """
import numpy
from sklearn.cluster import KMeans
from sklearn.ensemble import RandomForestClassifier, HistGradientBoostingClassifier
x = numpy.random.rand(300, 4)
y = x[:, 0] > 0.5
right = (RandomForestClassifier(20, n_jobs=2).fit(x, y).score(x, y) > 0.95
         and HistGradientBoostingClassifier(max_iter=10).fit(x, y).score(x, y) > 0.9
         and KMeans(2, n_init=1).fit(x).inertia_ > 0)
drawn = [float(RandomForestClassifier(3).fit(x, y).feature_importances_[1]), float(x[0, 0])]
"""),
    "polars": Preloaded(("polars",), """
import polars
table = polars.DataFrame({"a": [1, 2, 3] * 10_000, "b": range(30_000)})
table.write_parquet("a.parquet")
want = [149_985_000, 149_995_000, 150_005_000]
asked = polars.scan_parquet("a.parquet").group_by("a").agg(polars.col("b").sum()).sort("a")
right = all(want == asked.collect(engine=each)["b"].to_list() for each in ("in-memory", "streaming"))
drawn = polars.select(polars.int_range(0, 1_000_000).shuffle())[:3, 0].to_list()
"""),
    "matplotlib": Preloaded(("matplotlib.pyplot",), """
import matplotlib.pyplot as plt, numpy, os
plt.plot(numpy.random.rand(9))
plt.title("résumé")
plt.savefig("a.png")
right = open("a.png", "rb").read(4) == b"\\x89PNG" and "agg" == plt.get_backend().lower()
drawn = [float(numpy.random.rand())]
"""),
}

#: Tells what was there before, too: what the import cost, in seconds of processor, and how many threads there were.
TELL = """
import json, os, sys, time
began = time.process_time()
import {modules}
said = {{"took": time.process_time() - began, "threads": len(os.listdir("/proc/self/task"))}}
{use}
print(json.dumps({{**said, "right": bool(right), "drawn": drawn}}))
"""


@pytest.fixture(scope="module")
def env(shown_packages: Callable[[Path], Path]) -> Path:
    return shown_packages(packages.PRELOAD)


@pytest.mark.parametrize("name", [*LIBRARIES, "all at once"])
def test_a_library_can_be_imported_before_jobs(env: Path, name: str) -> None:
    chosen = LIBRARIES if "all at once" == name else {name: LIBRARIES[name]}
    modules = [module for each in chosen.values() for module in each.modules]
    limits: dict[str, Any] = {"memory": 1024 * MIB, "time": 60.0, "processes": 64}
    with Box(python_env=str(env), preload=tuple(modules), pool_size=2) as box:
        zygote = box.engine.main.zygotes.current
        assert zygote is not None
        assert [str(zygote.pid)] == os.listdir(f"/proc/{zygote.pid}/task")
        for library in chosen.values():
            said = []
            for _ in range(2):
                got = box.run(TELL.format(modules=", ".join(library.modules), use=library.use), limits=limits)
                assert not got.error, (got, got.stderr.decode())
                said.append(json.loads(got.stdout))
            assert [(1, True)] * 2 == [(each["threads"], each["right"]) for each in said]
            assert all(each["took"] < 0.1 for each in said)  # seconds; imported anew the least of them takes as long
            assert said[0]["drawn"] != said[1]["drawn"]
