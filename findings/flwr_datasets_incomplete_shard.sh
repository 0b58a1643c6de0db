#!/bin/sh
# flwr-datasets' ShardPartitioner: to keep an incomplete shard it may drop a complete one.
#
# Guess: keep_incomplete_shard=True loses no example, or at least fewer than False does.  With a number of
# shards per client, the shorter last shard joins the complete ones, and as many as are needed are drawn:
# one of 21 is left out, each with the same chance.  Of 1,003 examples for ten clients with two shards, 3 are
# lost with False, whatever the seed, and 50 in 20 of 21 seeds with True, where one client has 53 examples and not 100.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check flwr-datasets==0.6.1 datasets==4.8.5 numpy==2.4.6
FLWR_TELEMETRY_ENABLED=0 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
from collections import Counter

import datasets
from datasets import Dataset
from flwr_datasets.partitioner import ShardPartitioner

print("flwr-datasets", importlib.metadata.version("flwr-datasets"), "datasets", importlib.metadata.version("datasets"))
datasets.disable_progress_bars()
data = Dataset.from_dict({"label": [number * 10 // 1003 for number in range(1003)]})


def lost(keep, seed):
    """Examples that no client has, and the smallest client."""
    partitioner = ShardPartitioner(
        10, "label", num_shards_per_partition=2, keep_incomplete_shard=keep, seed=seed
    )
    partitioner.dataset = data
    sizes = [len(partitioner.load_partition(client)) for client in range(10)]
    return len(data) - sum(sizes), min(sizes)


found = {}
for keep in (False, True):
    found[keep] = Counter(lost(keep, seed) for seed in range(63))
    for (count, smallest), seeds in sorted(found[keep].items()):
        print(f"keep_incomplete_shard={keep}: {count} examples lost, smallest client {smallest}, for {seeds} of 63 seeds")
assert set(found[False]) == {(3, 100)}
assert set(found[True]) == {(50, 53), (3, 100)}
assert found[True][50, 53] > 50
PYTHON
