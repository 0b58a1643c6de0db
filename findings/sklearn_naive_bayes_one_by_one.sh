#!/bin/sh
# scikit-learn's GaussianNB: learned example by example it predicts the first class for everything.
#
# Guess: partial_fit gives the model of fit up to rounding, since means and variances of chunks can be merged.
# A share of the largest variance, var_smoothing, is added to each; partial_fit takes the largest within
# the chunk, and takes it off again at the next chunk, where it is another number.  What stays is a mean over
# chunks: 0 if each has one example.  A pixel that is constant within a class then has variance 0, every score
# is NaN, and argmax is class 0: 9.9 % of the digits are right, for 85.8 % with fit.  Chunks of two do as well as
# fit.  Of clients that differ in their means alone, whole clients as chunks smooth by a hundredth.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    scikit-learn==1.9.1 scipy==1.17.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
import sklearn
from sklearn.datasets import load_digits
from sklearn.naive_bayes import GaussianNB

print("scikit-learn", sklearn.__version__)


def learned(x, y, size, **options):
    model = GaussianNB(**options)
    for start in range(0, len(x), size):
        model.partial_fit(x[start : start + size], y[start : start + size], classes=np.unique(y))
    return model


x, y = load_digits(return_X_y=True)
whole = GaussianNB().fit(x, y)
for size in (1, 2, 10, 100, len(x)):
    model = learned(x, y, size)
    np.testing.assert_allclose(model.theta_, whole.theta_, atol=1e-9)
    np.testing.assert_allclose(model.var_, whole.var_, atol=1e-6)
    right, scores = model.score(x, y), model.predict_joint_log_proba(x)
    print(f"digits, chunks of {size}: {right:.1%} right, fit {whole.score(x, y):.1%}; smallest variance "
          f"{model.var_.min():.1e}, fit {whole.var_.min():.1e}; NaN in {np.isnan(scores).mean():.0%} of scores")
    assert (model.predict(x) == 0).all() == np.isnan(scores).all() == (model.var_.min() == 0) == (size == 1)
    assert abs(right - (0.099 if size == 1 else 0.858)) < 0.006

# Two clients whose features vary by 1 within them, and whose means are 20 apart.
rng = np.random.default_rng(0)
x = rng.normal(size=(200, 2)) + np.repeat([-10, 10], 100)[:, None]
y = np.arange(200) % 2
exact, by_fit = (GaussianNB(var_smoothing=smoothing).fit(x, y).var_ for smoothing in (0, 0.1))
for size in (100, 1):
    added = learned(x, y, size, var_smoothing=0.1).var_ - exact
    own = np.mean([0.1 * x[start : start + size].var(0).max() for start in range(0, 200, size)])
    print(f"two clients, chunks of {size}: {added.mean():.3f} is added to variances, {own:.3f} by the chunks' "
          f"own, {(by_fit - exact).mean():.3f} by fit")
    np.testing.assert_allclose(added, own, atol=1e-9)
    np.testing.assert_allclose(by_fit - exact, 0.1 * x.var(0).max())
    assert own < 0.02 * 0.1 * x.var(0).max()
PYTHON
