"""Data sets as options: tables, plain texts, generated examples."""

import numpy as np
import pandas as pd
import pytest

from fedjax_sim.datasets import DataError
from fedjax_sim.studies.setups.checks import check_study
from fedjax_sim.studies.setups.data import Generated, Table, Text, generated, load
from fedjax_sim.studies.setups.presets import options
from fedjax_sim.studies.setups.problem import clients_of, load_dataset
from fedjax_sim.studies.setups.study import Study


def test_a_plain_text_is_divided_into_its_parts(tmp_path):
    """The clients' windows, one after the other, are the text; the last tenth is for testing."""
    text = "".join(chr(97 + i * i % 13) for i in range(2000))
    (tmp_path / "some.txt").write_text(text)
    values = {"data": Text(tmp_path / "some.txt"), "num_clients": 3}
    study = Study(options(**values, partition="contiguous"))
    dataset = load_dataset(study)
    assert dataset is not None
    assert (dataset.name, dataset.train["x"].shape) == ("some", (22, 80))
    data = clients_of(study, dataset).data
    assert data.sizes.tolist() == [8, 7, 7]
    assert dataset.class_names is not None
    read = "".join(dataset.class_names[i] for i in data.examples["x"].ravel())
    assert read == text[: 22 * 80]
    np.testing.assert_array_equal(data.examples["y"][:, :-1], data.examples["x"][:, 1:])
    with pytest.raises(ValueError, match="'dirichlet': data set some has a label per position; ex"):
        clients_of(Study(options(**values)), dataset)
    shorter = load(Text(tmp_path / "some.txt", context=16), 3, 0)
    assert shorter.train["x"].shape[1:] == (16,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read .*; expected plain text, UTF-8"),
        (b"\xff\xfe", "cannot be read .*; expected plain text, UTF-8"),
        (b"short", r".* has [45] characters; expected at least"),
    ],
)
def test_texts_that_cannot_be_read_are_refused(tmp_path, content, message):
    path = tmp_path / "some.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=f"some.txt.*{message}"):
        load(Text(path), 3, 0)


FRAME = pd.DataFrame(
    {
        "a": np.arange(20) * 1.0, "b": np.arange(20) * 100.0, "id": range(20), "c": ["u", "v"] * 10,
        "y": np.arange(20) % 2,
    }
)  # fmt: skip


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"drop": ("id", "c")}, {"features": 2}),
        ({"drop": ("id",), "encode": "one_hot"}, {"features": 4}),
        ({"drop": ("id", "c"), "scale": "standardise"}, {"features": 2, "deviation": 1.0}),
        ({"drop": ("id", "c"), "target": "numbers"}, {"features": 2, "target": "numbers"}),
        ({"drop": ("id", "c"), "separator": ";", "decimal": ","}, {"features": 2}),
        ({"drop": ("id", "c"), "label_column": "y"}, {"features": 2}),
        ({"drop": ("id",), "client_column": "c"}, {"features": 2, "clients": 2}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*scale")
def test_options_of_tables_are_those_of_the_library(tmp_path, values, expected):
    path = tmp_path / "table.csv"
    csv = {"sep": values.get("separator", ","), "decimal": values.get("decimal", ".")}
    FRAME.to_csv(path, index=False, **csv)
    dataset = load(Table(path, **values), 3, 0)
    assert dataset.train["x"].shape[1:] == (expected["features"],)
    assert dataset.target == expected.get("target", "classes")
    if "deviation" in expected:
        np.testing.assert_allclose(dataset.train["x"].std(0), expected["deviation"], rtol=1e-5)
    assert len(dataset.group_names or ()) == expected.get("clients", 0)


def test_the_loss_decides_the_target_of_a_table(tmp_path):
    path = tmp_path / "table.csv"
    FRAME[["a", "y"]].assign(a=FRAME["a"] / 20).to_csv(path, index=False)
    table = {"data": Table(path), "partition": "iid"}
    for loss, target in ((None, "classes"), ("squared", "numbers"), ("huber", "numbers")):
        dataset = load_dataset(Study(options(**table, loss=loss)))
        assert dataset is not None
        assert dataset.target == target


def test_a_column_of_clients_needs_a_partition_that_reads_it(tmp_path):
    data = Table(tmp_path / "table.csv", client_column="site")
    check_study(Study(options(data=data, partition="natural")))
    with pytest.raises(ValueError, match="client_column is 'site'; expected partition:natural wit"):
        check_study(Study(options(data=data, partition="iid")))


def test_missing_tables_and_data_sets(tmp_path):
    with pytest.raises(DataError, match=r"none.csv"):
        load(Table(tmp_path / "none.csv"), 3, 0)
    with pytest.raises(ValueError, match="dgits"):
        load_dataset(Study(options(dataset="dgits")))


def test_labels_of_generated_examples_are_those_of_linear_models():
    """Without spread of the models there is one, which the examples of all clients determine.

    A linear programme would find it; the perceptron does too, since the classes are separable.
    """
    data = generated(Generated(features=3, examples=200, model_spread=0.0), 5, seed=1)
    x, sign = data.train["x"].astype(np.float64), 2.0 * data.train["y"] - 1
    w = np.zeros(3)
    for _ in range(2000):
        wrong = (x @ w) * sign <= 0
        if not wrong.any():
            break
        w += (x[wrong] * sign[wrong, None]).sum(0)
    assert not wrong.any()
    agree = (data.test["x"] @ w > 0) == (data.test["y"] == 1)
    assert agree.mean() > 0.98  # 1,000 training examples leave a small angle


def test_moments_of_generated_examples():
    """x = m_i + z with m_i ~ N(0, s^2 I), so variance 1 + s^2, and covariance s^2 in a client."""
    clients, s = 4000, 2.0
    data = generated(Generated(features=4, examples=3, feature_spread=s), clients, seed=0)
    x = data.train["x"].reshape(clients, 3, 4).astype(np.float64)
    # 48,000 and 16,000 products: standard errors of at most 1.5 % and 3 % of the moments.
    np.testing.assert_allclose(x.mean(), 0, atol=0.1)
    np.testing.assert_allclose((x**2).mean(), 1 + s**2, rtol=0.06)
    np.testing.assert_allclose((x[:, 0] * x[:, 1]).mean(), s**2, rtol=0.12)
    own = data.test["x"].reshape(clients, -1, 4).astype(np.float64)  # the same clients
    np.testing.assert_allclose((x[:, 0] * own[:, 0]).mean(), s**2, rtol=0.12)
    apart = (x[:-1, 0] * x[1:, 0]).mean()
    assert abs(apart) < 0.15 * s**2


@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0])
def test_models_of_generated_clients_differ_by_their_spread(spread):
    """Two classes: y = [u_i x > 0] with u_i = w + s v_i of normal w and v_i, entries of one law.

    For x ~ N(0, I), E[(2 y - 1) x] = sqrt(2 / pi) u_i / |u_i|.  The squared norm of its estimate,
    by products of two halves of the examples, is 2 / pi; products of two clients are 2 / pi times
    the cosine of their models, which is 1 / (1 + s^2) up to 1 / sqrt(d).
    """
    d, clients, examples = 400, 100, 200
    chosen = Generated(features=d, examples=examples, model_spread=spread, feature_spread=0.0)
    data = generated(chosen, clients, seed=3)
    x = data.train["x"].reshape(clients, examples, d)
    sign = (2.0 * data.train["y"] - 1).reshape(clients, examples, 1)
    half = [(sign[:, k::2] * x[:, k::2]).mean(1) for k in (0, 1)]
    products = half[0] @ half[1].T
    within = products.trace() / clients
    between = (products.sum() - products.trace()) / (clients * (clients - 1))
    # A product of two halves has the standard error sqrt(400) / 100, so 0.02 over 100 clients.
    np.testing.assert_allclose(within, 2 / np.pi, atol=0.1)
    # |w|^2 is off by 7 % of its mean, the cosine by at most a quarter of that.
    np.testing.assert_allclose(between / within, 1 / (1 + spread**2), atol=0.08)


@pytest.mark.parametrize(
    ("clients", "tested", "each"), [(1, 1, 10_000), (30, 30, 333), (20_000, 10_000, 1)]
)
def test_all_clients_have_equal_parts_of_the_test_examples(clients, tested, each):
    data = generated(Generated(features=2, examples=1), clients, seed=0)
    assert data.test_groups is not None
    counts = np.bincount(data.test_groups, minlength=clients)
    assert counts.tolist() == [each] * tested + [0] * (clients - tested)
    assert np.bincount(data.train_groups).tolist() == [1] * clients


@pytest.mark.parametrize("partition", ["natural", "iid", "dirichlet"])
def test_generated_examples_are_divided(partition):
    study = Study(options(data="generated", partition=partition, num_clients=12))
    dataset = load_dataset(study)
    assert dataset is not None
    result = clients_of(study, dataset)
    assert result.data.sizes.tolist() == [10] * 12
    if partition == "natural":
        assert result.data.client_ids == tuple(f"{i:02}" for i in range(12))
        np.testing.assert_array_equal(result.data.examples["x"], dataset.train["x"])
    again = load_dataset(study)
    assert again is not None
    np.testing.assert_array_equal(again.train["x"], dataset.train["x"])
