#!/bin/sh
# Runs `leeward bench` several times and prints the median of each figure over the runs.
set -eu
cd -- "$(dirname -- "$0")/.."
runs=${1:-5}
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT
run=0
while [ "$run" -lt "$runs" ]; do
	run=$((run + 1))
	./dev bench --json >"$folder/$run.json"
done
.venv/bin/python - "$folder"/*.json <<'PYTHON'
import json
import statistics
import sys

runs = []
for path in sys.argv[1:]:
    with open(path) as file:
        runs.append(json.load(file))
first = runs[0]
print(f"leeward {first['leeward']}, {first['date']}, {first['machine']}, {len(runs)} runs,"
      f" noisy: {sum(run['noise']['noisy'] for run in runs)}")
for at, row in enumerate(first["latency"]):
    values = [[run["latency"][at][key] for run in runs] for key in ("p50", "p90", "p99")]
    print(f"{row['subject']:24}gap {row['gap_ms']:g} ms  ", *(f"{statistics.median(each):9.0f}" for each in values))
for at, each in enumerate(first["ratios"]):
    ratio = statistics.median(run["ratios"][at]["ratio"] for run in runs)
    print(f"{each['over']} over {each['under']}, gap {each['gap_ms']:g} ms: {ratio:.2f}")
for at, row in enumerate(first["rates"]):
    rate = statistics.median(run["rates"][at]["p50"] for run in runs)
    print(f"{row['subject']:24}{row['callers']} callers: {rate:.0f} jobs per second")
PYTHON
