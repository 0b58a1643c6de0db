#!/bin/sh
# scikit-learn's LIBSVM loader: files of one data set are read with features shifted against each other.
#
# Guess: a part of a file is read as that part of the whole.  Whether numbers of features begin at 0 or 1
# is guessed per file from whether a 0 occurs.  Of a data set with numbers from 0, each client whose
# examples lack feature 0 gets all features one place to the left; giving n_features changes nothing.
# The model that is right for one client multiplies another's features by their neighbours' weights.  Here
# 10 of 20 clients are shifted, and the accuracy of the true model falls from 1 to 0.77.
# load_svmlight_files decides once for all of its files.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 scikit-learn==1.9.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import sklearn
from sklearn.datasets import dump_svmlight_file, load_svmlight_file, load_svmlight_files

print("scikit-learn", sklearn.__version__, "numpy", np.__version__)
generator = np.random.default_rng(0)
clients, rows, features = 20, 50, 30
model = generator.normal(size=features)
data = []
for client in range(clients):
    x = generator.normal(size=(rows, features)) * (generator.random((rows, features)) < 0.2)
    x[:, 0] *= generator.random() < 0.6  # a feature that is rare, so that some clients lack it
    data.append(x)
    dump_svmlight_file(x, (x @ model > 0).astype(int), f"{client}.txt", zero_based=True)

single = [load_svmlight_file(f"{client}.txt", n_features=features) for client in range(clients)]
shifted = [i for i in range(clients) if not np.allclose(single[i][0].toarray(), data[i])]
assert all(np.allclose(single[i][0].toarray()[:, :-1], data[i][:, 1:]) for i in shifted)


def accuracy(parts):
    return np.mean([((x @ model > 0) == y).mean() for x, y in parts])


names = [f"{client}.txt" for client in range(clients)]
loaded = load_svmlight_files(names, n_features=features)
together = list(zip(loaded[::2], loaded[1::2]))
print("clients without feature 0, shifted:", shifted)
print("accuracy of the true model, files one by one:", accuracy(single), "together:", accuracy(together))
assert len(shifted) == 10
assert accuracy(together) == 1 and accuracy(single) < 0.8
PYTHON
