#!/bin/sh
# Hugging Face datasets' class_encode_column: of more than ten labels most get other numbers, by client others.
#
# Guess: a column of labels 0, 1, 2, ... is marked as one of classes, which train_test_split needs to
# stratify, and its numbers stay.  They are turned into strings, sorted as such and numbered anew: of the 62
# labels of FEMNIST only 0 and 1 keep their numbers, and 2 becomes 12.  Only labels that occur are numbered, so
# that each client that is encoded by itself has its own classes: label 7 is class 0 for one and 2 for
# another, and models of both are averaged.  A model that is tested on the labels as they were looks
# untrained.  cast_column with ClassLabel(num_classes=62) marks the column and keeps the numbers.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check datasets==5.2.0
export HF_HOME="$folder/cache" HF_HUB_OFFLINE=1
"$folder/venv/bin/python" - 2>"$folder/log" <<'PYTHON' || { cat "$folder/log"; exit 1; }
import datasets

print("datasets", datasets.__version__)


def encoded(labels):
    table = datasets.Dataset.from_dict({"label": labels})
    return table.class_encode_column("label")["label"][:]


def cast(labels):
    table = datasets.Dataset.from_dict({"label": labels})
    return table.cast_column("label", datasets.ClassLabel(num_classes=62))["label"][:]


for classes in (10, 11, 62):
    labels = list(range(classes))
    found = encoded(labels)
    kept = sum(a == b for a, b in zip(labels, found, strict=True))
    print(f"{classes} labels: {kept} keep their number; those of 0 to 11 are {found[:12]}")
    assert kept == (10 if classes == 10 else 2)
    assert sorted(found) == labels
    assert found[2] == (2 if classes == 10 else 3 if classes == 11 else 12)
for labels in ([7, 8, 9], [1, 3, 7], [7, 12, 30]):
    print(f"a client with labels {labels}: encoded {encoded(labels)}, cast {cast(labels)}")
    assert cast(labels) == labels
assert encoded([7, 8, 9])[0] == 0 and encoded([1, 3, 7])[2] == 2 and encoded([7, 12, 30])[0] == 2
PYTHON
