#!/bin/sh
# PyArrow's data sets by client: "007" and "7" become one client, unless some client has a letter in its name.
#
# Guess: a column of strings comes back as it was written.  A column by which files are divided is kept in the
# names of folders only, and its type is guessed when they are read: names that are all digits become
# numbers.  Clients "007" and "7", whose folders are two, are then one with the examples of both, and a
# lookup of "007" finds none.  One more client with a letter in its name, or a schema for the partitioning,
# brings back all names.  Order is lost as well: clients come as folders sort, "10" before "2".
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check pyarrow==26.0.1
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import collections
import sys

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq

print("pyarrow", pa.__version__)


def written_and_read(name, clients, **options):
    path = f"{sys.argv[1]}/{name}"
    table = pa.table({"client": clients, "x": list(range(len(clients)))})
    pq.write_to_dataset(table, path, partition_cols=["client"])
    column = pq.read_table(path, **options)["client"]
    return column.type, column.to_pylist()


schema = pa.schema([("client", pa.string())])
digits, letters = ["7", "007", "10", "2", "7", "007"], ["7", "007", "10", "2", "7", "007", "a1"]
for name, clients, options in (
    ("digits", digits, {}),
    ("one letter", letters, {}),
    ("digits and a schema", digits, {"partitioning": pa.dataset.partitioning(schema, flavor="hive")}),
):
    kind, found = written_and_read(name, clients, **options)
    kept = collections.Counter(found) == collections.Counter(clients)
    print(f"{name}: type {kind}")
    print("    written", clients)
    print("    read   ", found)
    assert kept == (name != "digits")
    assert len(set(found)) == len(set(clients)) - (name == "digits")
    assert found != clients
    if name == "digits":
        assert sorted(found) == [2, 7, 7, 7, 7, 10]
PYTHON
