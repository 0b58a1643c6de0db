"""FAVANO's experiments on data made up here, cut down to seconds; the theory beside bounds."""

import dataclasses
import functools
import io
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from experiments import (
    favano_cifar,
    favano_common,
    favano_methods,
    favano_mnist,
    favano_theory,
    favano_tinyimagenet,
)
from experiments.favano_methods import Clock
from fedjax_sim import datasets, models
from fedjax_sim.timelines import counts

# The probe of the variance is NaN between its moments.
smoke = [pytest.mark.slow, pytest.mark.usefixtures("allow_nans")]


@pytest.fixture(autouse=True, scope="module")
def compiled_in_a_hurry():
    """The programs run for a moment only."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def images(side, channels, train=400, test=30):
    """Labels in turn; every class has its own grey."""
    rng = np.random.default_rng(0)

    def part(count):
        y = np.arange(count, dtype=np.int32) % 10
        noise = rng.integers(0, 20, (count, side, side, channels))
        return {"x": (20 * y[:, None, None, None] + noise).astype(np.uint8), "y": y}

    return datasets.Dataset("made up", part(train), part(test), 10, None, None, None, "files")


def no_training(*arguments):
    raise AssertionError("a finished run was trained again")


def test_seeds_with_clients_of_other_sizes_run_apart():
    """One program has one number of examples for each client."""

    class Parts(NamedTuple):
        assignment: Any

    problem: Any = Parts(lambda seed: [np.arange(3 + seed % 2), np.arange(4)])
    assert favano_common._of_equal_sizes(problem, [0, 1, 2, 5]) == [[0, 2], [1, 5]]
    assert favano_common._of_equal_sizes(problem, []) == []


@pytest.fixture
def mnist(tmp_path, monkeypatch):
    """Ten clients instead of a hundred, on images that can be told apart; one setting."""
    small = {"num_clients": 10, "cohort_size": 2, "max_steps": 3, "buffer": 2}
    monkeypatch.setattr(datasets, "load", lambda name, data_dir: images(28, 1))
    monkeypatch.setattr(favano_mnist, "Clock", functools.partial(Clock, **small))
    problem = functools.partial(favano_mnist.problem, num_clients=10)
    monkeypatch.setattr(favano_mnist, "problem", problem)
    for name, value in {
        "BATCH_SIZE": 8,
        "LR": 0.05,
        "EVAL_TIME": 50.0,
        "SERVER_LRS": (0.1,),
    }.items():
        monkeypatch.setattr(favano_mnist, name, value)

    def options(part, **changes):
        return favano_mnist.Options(
            part=part, seeds=1, horizon=300.0, settings=("non-IID, 2/3 fast",),
            work=tmp_path / "work", output=tmp_path / "out", **changes,
        )  # fmt: skip

    return options


class TestMnist:
    pytestmark = smoke

    def test_parts_and_resuming(self, mnist, tmp_path, monkeypatch):
        """One test, since the parts have runs in common."""
        options = mnist("table")
        favano_mnist.main(options)
        text = (tmp_path / "out" / "table2.md").read_text()
        assert "300 of the paper's 5000 time units; 1 seeds" in text
        assert all(f"| non-IID, 2/3 fast | {name} |" in text for name in favano_mnist.PAPER)
        history = pd.read_csv(tmp_path / "out" / "table2.csv")
        favano = history[history["algorithm"] == "FAVANO"]
        # A contact every 7 time units, of two clients; the greys are learnt a little.
        np.testing.assert_array_equal(favano["time"], 7 * favano["round"])
        np.testing.assert_array_equal(favano["reports"], 2 * favano["round"])
        assert favano["loss"].iloc[-1] < favano["loss"].iloc[0]
        # 32 bits an entry up and down.
        entries = 784 * 32 + 32 + 32 * 10 + 10
        np.testing.assert_allclose(favano["bits"], 64 * entries * favano["reports"], rtol=1e-4)
        assert {path.suffix for path in (tmp_path / "out").iterdir()} == {
            ".csv", ".json", ".md", ".png"
        }  # fmt: skip

        trained = favano_common._train
        monkeypatch.setattr(favano_common, "_train", no_training)
        favano_mnist.main(options)
        assert (tmp_path / "out" / "table2.md").read_text() == text

        # A file cut short, and one that a kill left unrenamed: both runs are done again, alone.
        files = sorted((tmp_path / "work").glob("*/0.csv"))
        whole = [path.read_text() for path in files[:2]]
        files[0].write_text(whole[0][:-20])
        files[1].rename(files[1].with_suffix(".tmp"))
        again = []

        def counting(problem, clock, method, *rest):
            again.append(method.label)
            trained(problem, clock, method, *rest)

        monkeypatch.setattr(favano_common, "_train", counting)
        favano_mnist.main(options)
        assert len(again) == 2
        for path, text in zip(files[:2], whole, strict=True):
            frames = [pd.read_csv(source) for source in (path, io.StringIO(text))]
            pd.testing.assert_frame_equal(*(frame.drop(columns="seconds") for frame in frames))

        favano_mnist.main(mnist("sensitivity"))
        found = pd.read_csv(tmp_path / "out" / "sensitivity.csv")
        assert found["choice"].is_unique
        assert found["accuracy"].between(0, 100).all()
        laws = {f"law of E: {law}" for law in favano_methods.LAWS[1:]}
        assert laws | {"split: pairs", "alpha: deterministic"} <= set(found["choice"])

        favano_mnist.main(mnist("variance"))
        history = pd.read_csv(tmp_path / "out" / "variance.csv").dropna(subset=["variance"])
        assert set(history["algorithm"]) == {"QuAFL", "FedBuff", "FAVANO"}
        assert (history["variance"] > 0).all()
        # Clients that have moved differ from what they received.
        assert (history["variance"] != history["variance_lazy"]).any()


def test_same_split_for_everyone():
    labels = np.repeat(np.arange(10), 60)
    for split, classes in (("iid", 5), ("shards", 2), ("pairs", 2)):
        parts = favano_common.assignment(labels, split, 20)(3)
        assert len({len(rows) for rows in parts}) == 1
        rows = np.concatenate(parts)
        assert len(np.unique(rows)) == len(rows)
        many = [len(np.unique(labels[rows])) for rows in parts]
        assert min(many) >= classes if split == "iid" else set(many) == {2}


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """A dense network, which compiles fast, on images that can be told apart."""
    monkeypatch.setattr(datasets, "load", lambda name, data_dir: images(32, 3))

    def dense(classes, conv, dot):
        return models.mlp((32, 32, 3), hidden=(8,), num_classes=classes, dot=dot)

    networks = {**favano_cifar.CIFAR.networks, "dense": dense}
    changed = favano_cifar.CIFAR._replace(networks=networks)
    monkeypatch.setattr(favano_cifar.Options, "images", changed)
    monkeypatch.setattr(favano_cifar, "SPLITS", {"non-IID": "shards"})
    monkeypatch.setattr(favano_cifar, "SELECTED", (10, 20))
    return lambda part: favano_cifar.Options(
        part=part, scale="smoke", network="dense", server_lrs=(0.3,), work=tmp_path / "work",
        output=tmp_path / "out",
    )  # fmt: skip


class TestCifar:
    pytestmark = smoke

    def test_parts(self, cifar, tmp_path):
        favano_cifar.main(cifar("methods"))
        folder = tmp_path / "out" / "favano_cifar-smoke"
        text = (folder / "methods.md").read_text()
        assert "scale smoke: dense (paper: ResNet-20) on cifar10" in text
        assert "200 of 10000 time units, 10 of 100 clients with 20 train images each" in text
        assert text.count("| non-IID | FedBuff") == 3  # its row, and both claims
        history = pd.read_csv(folder / "methods.csv")
        assert set(history["algorithm"]) == {"FedAvg", "QuAFL", "FedBuff", "FAVANO"}
        measured = history.dropna(subset=["variance"])
        assert set(measured["algorithm"]) == {"QuAFL", "FedBuff", "FAVANO"}
        assert (folder / "non-iid-variance-time.png").exists()

        # Every method at two rates, of which one is the scale's: those runs are found again.
        options = dataclasses.replace(cifar("rates"), lrs=(0.005, 0.05))
        favano_cifar.main(options)
        rated = pd.read_csv(folder / "rates.csv")
        same = rated[rated["lr"] == 0.005].drop(columns="lr").reset_index(drop=True)
        pd.testing.assert_frame_equal(same, history)
        final = rated.groupby(["algorithm", "lr"])["loss"].last().unstack()
        assert (final[0.005] != final[0.05]).all()
        assert (folder / "rates.md").read_text().count("| non-IID | FAVANO") == 3

        favano_cifar.main(cifar("selected"))
        history = pd.read_csv(tmp_path / "out" / "favano_cifar-smoke" / "selected.csv")
        for s in (1, 2):  # of ten clients
            part = history[history["algorithm"] == f"s = {s}"]
            np.testing.assert_array_equal(part["reports"], s * part["round"])

        favano_cifar.main(cifar("quantized"))
        history = pd.read_csv(tmp_path / "out" / "favano_cifar-smoke" / "quantized.csv")
        last = history.groupby("algorithm").last()
        full, low = last.loc["FAVANO"], last.loc["FAVANO[QNN]"]
        # The same schedule and messages, another network.
        assert (full["bits"], full["local_steps"]) == (low["bits"], low["local_steps"])
        assert full["loss"] != low["loss"]
        # Scales of the four tensors apart, 14 of 32 bits.
        share = last["bits"] / full["bits"]
        for name in ("FAVANO, 14-bit messages", "QuAFL, 14-bit lattice"):
            assert share[name] == pytest.approx(14 / 32, rel=1e-3)
        # So fine a grid hardly changes what is learnt.
        coded = last.loc["FAVANO, 14-bit messages"]
        assert coded["loss"] == pytest.approx(full["loss"], rel=0.01)


def test_scales_say_what_they_leave_out():
    for scales in (favano_cifar.SCALES, favano_tinyimagenet.SCALES):
        paper = scales["paper"]
        assert paper[:2] == (10_000.0, 100)
        assert (paper.max_steps, paper.batch_size, paper.examples) == (20, 128, None)
        for scale in scales.values():
            # FedBuff's rate is scaled by Z / n, the paper's 1 / 10.
            assert favano_cifar.shrunk(favano_cifar.BUFFER, scale) / scale.clients == 0.1


@pytest.mark.parametrize(
    ("options", "wrong", "message"),
    [
        (favano_mnist.Options, {"settings": ("IID",)}, "settings has"),
        (favano_mnist.Options, {"seeds": -1}, "seeds is -1; expected at least 1"),
        (favano_cifar.Options, {"network": "VGG"}, "network is 'VGG'; expected one of ResNet-20"),
        (favano_cifar.Options, {"seeds": 0}, "seeds is 0; expected at least 1"),
        (favano_cifar.Options, {"horizon": 0.0}, "horizon is 0.0; expected a positive time"),
        (favano_cifar.Options, {"server_lrs": ()}, r"server_lrs is \(\); expected positive"),
        (favano_tinyimagenet.Options, {"network": "LeNet-5"}, "expected one of ResNet-18"),
        (favano_theory.Options, {"server_steps": 1}, "server_steps is 1; expected at least 2"),
        (favano_theory.Options, {"repetitions": 1}, "repetitions is 1; expected at least 2"),
    ],
)
def test_refusals(options, wrong, message):
    with pytest.raises(ValueError, match=message):
        options(**wrong)


class TestTinyImagenet:
    pytestmark = smoke

    def test_from_the_official_tree(self, tmp_path, monkeypatch):
        root = tmp_path / "data" / "tiny-imagenet-200"
        names = ("n02124075", "n04067472")
        for label, name in enumerate(names):
            folder = root / "train" / name / "images"
            folder.mkdir(parents=True)
            for number in range(16):
                image = Image.new("RGB", (64, 64), (100 * label, 10 * number, 50))
                image.save(folder / f"{name}_{number}.JPEG", "JPEG")
        (root / "val" / "images").mkdir(parents=True)
        lines = []
        for number in range(4):
            image = Image.new("RGB", (64, 64), (100 * (number % 2), 90, 50))
            image.save(root / "val" / "images" / f"val_{number}.JPEG", "JPEG")
            lines.append(f"val_{number}.JPEG\t{names[number % 2]}\t0\t0\t9\t9\n")
        (root / "val" / "val_annotations.txt").write_text("".join(lines))
        (root / "wnids.txt").write_text("".join(f"{name}\n" for name in names))
        monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "none"))
        monkeypatch.setattr(favano_tinyimagenet.Options, "images", _dense_tiny())
        favano_tinyimagenet.main(
            favano_tinyimagenet.Options(
                scale="smoke", network="dense", server_lrs=(0.3,), data_dir=tmp_path / "data",
                work=tmp_path / "work", output=tmp_path / "out",
            )
        )  # fmt: skip
        folder = tmp_path / "out" / "favano_tinyimagenet-smoke"
        text = (folder / "methods.md").read_text()
        assert "on tiny_imagenet" in text
        assert "10 of 100 clients with 3 train images each" in text
        assert "| IID | FAVANO is best |" in text
        assert set(pd.read_csv(folder / "methods.csv")["setting"]) == {"IID"}


def _dense_tiny():
    def dense(classes, conv, dot):
        model = models.mlp((32, 32, 3), hidden=(4,), num_classes=classes, dot=dot)
        return favano_tinyimagenet.halved(model)

    return favano_tinyimagenet.TINY_IMAGENET._replace(networks={"ResNet-18": dense, "dense": dense})


def test_halved_images_are_means():
    x = np.random.default_rng(0).normal(size=(2, 4, 6, 3)).astype(np.float32)
    model = favano_tinyimagenet.halved(models.Model(lambda key: (), lambda params, x: x))
    expected = (x[:, ::2, ::2] + x[:, 1::2, ::2] + x[:, ::2, 1::2] + x[:, 1::2, 1::2]) / 4
    # A mean of four in single precision.
    np.testing.assert_allclose(model.apply((), jnp.asarray(x)), expected, atol=1e-6)


@pytest.mark.usefixtures("x64")
class TestTheory:
    def test_constants_of_the_quadratics(self):
        """At random models the assumptions hold, the one on gradients with equality."""
        made = favano_theory.problem(0)
        known = made.constants
        rng = np.random.default_rng(1)
        for _ in range(3):
            x = rng.normal(size=favano_theory.DIM)
            total = made.hessian @ x
            each = made.scales[:, None] * total + made.linear
            np.testing.assert_allclose(each.mean(axis=0), total, rtol=1e-10, atol=1e-12)
            second = np.mean(np.sum(each**2, axis=1))
            expected = known["G"] ** 2 + known["B"] ** 2 * (total @ total)
            np.testing.assert_allclose(second, expected, rtol=1e-12)  # some ten operations
        largest = np.linalg.norm(made.hessian, 2) * made.scales.max()
        assert known["L"] == pytest.approx(largest, rel=1e-12)
        assert known["B"] > 1

    def test_noise_has_its_length(self):
        made, x = favano_theory.problem(0), jnp.ones(favano_theory.DIM)
        exact = made.scales[3] * made.hessian @ np.ones(favano_theory.DIM) + made.linear[3]
        keys = jax.random.split(jax.random.key(0), 400)
        grads = jax.vmap(lambda key: favano_theory.oracle(made, 3, key, 5).grad(x, 13))(keys)
        noise = np.asarray(grads) - exact
        np.testing.assert_allclose(np.linalg.norm(noise, axis=1), favano_theory.SIGMA, rtol=1e-12)
        # 400 signs have a mean of 0.05 standard deviation.
        assert abs(noise.mean(axis=0)).max() < 4 * 0.05 * favano_theory.SIGMA

    def test_runs_have_the_laws_of_their_constants(self):
        runs = favano_theory.batch(5, 4, favano_theory.Options(server_steps=3, repetitions=2))
        for i, fraction in enumerate(favano_theory.SLOW_FRACTIONS):
            law = counts.geometric(favano_theory.success(fraction), 4)
            for row in range(2 * i, 2 * i + 2):
                np.testing.assert_allclose(runs.chances[row].sum(axis=1), 1, rtol=1e-12)
                mean = runs.chances[row] @ np.arange(1, 5)
                np.testing.assert_allclose(mean, law.mean, rtol=1e-12)
                np.testing.assert_array_equal(runs.mean[row], law.mean)

    @pytest.mark.slow
    def test_bounds_hold_and_can_fail(self, tmp_path, monkeypatch):
        monkeypatch.setattr(favano_theory, "COHORTS", (5,))
        monkeypatch.setattr(favano_theory, "CAPS", (3,))
        monkeypatch.setattr(favano_theory, "DRAWN", (3, 0.5, 1.0, "stochastic"))
        options = favano_theory.Options(server_steps=25, repetitions=3, output=tmp_path)
        favano_theory.main(options)
        table = pd.read_csv(tmp_path / "favano_theory.csv")
        assert len(table) == 12  # versions, speeds, rates
        assert table["holds"].all()
        assert (table["bound / mean"] > 1).all()
        assert (table["kappa': bound / potential"] > 1).all()
        assert (table["kappa: bound / potential"] > table["kappa': bound / potential"]).all()
        assert {path.name for path in tmp_path.iterdir()} == {
            "favano_theory.png",
            *(f"favano_theory{end}" for end in (".csv", ".md", ".json")),
            *(f"units{end}" for end in (".csv", ".md", ".json")),
        }
        units = pd.read_csv(tmp_path / "units.csv").set_index(["slow", "method"])["time per step"]
        # Exact for FedAvg, to the digits of a table computed elsewhere; FedBuff's mean over
        # 10,000 time units has the filling of the first buffer, 1 %.
        for slow, fedavg, fedbuff in (("1/3", 418.9, 6.07), ("8/9", 461.4, 20.3)):
            assert units[slow, "FedAvg"] == pytest.approx(fedavg, abs=0.05)
            assert units[slow, "FedBuff"] == pytest.approx(fedbuff, rel=0.02)

        made = favano_theory.problem(0)
        known = favano_theory.admitted(made, 5, 3, 0.5, "stochastic")
        traces = np.ones((3, 5, 3)) * np.array([1e-3, 1e-9, 1.0])
        row = functools.partial(
            favano_theory.row, known=known, version="stochastic", fraction=0.5, share=1.0
        )
        assert row(traces)["holds"]
        high = row(traces)["bound"]
        assert not row(traces * np.array([2 * high / 1e-3, 1, 1]))["holds"]
        jump = traces.copy()
        jump[:, 3, 1] = 1.0  # beyond what that step's progress can do
        assert not row(jump)["holds"]

    @pytest.mark.slow
    def test_progress_against_numpy(self, monkeypatch):
        """Without noise it is a number; both alphas, half of the clients slow, from the start."""
        monkeypatch.setattr(favano_theory, "SIGMA", 0.0)
        made, K, lr = favano_theory.problem(0), 3, 0.05
        runs = favano_theory.batch(2, K, favano_theory.Options(server_steps=2, repetitions=2))
        success = favano_theory.success(0.5)
        for version in favano_theory.VERSIONS:
            lrs = np.full((1, len(runs.key)), lr)
            traces = favano_theory.over_all(made, runs, lrs, version, K)[0]
            expected = 0.0
            for client, stop in enumerate(success):
                chances = [stop, stop * (1 - stop), (1 - stop) ** 2]
                mean = np.dot(chances, [1, 2, 3])
                x, total = made.start.copy(), np.zeros(favano_theory.DIM)
                for k, chance in enumerate(chances, start=1):
                    gradient = made.scales[client] * made.hessian @ x + made.linear[client]
                    total, x = total + gradient, x - lr * gradient
                    alpha = k if version == "stochastic" else mean
                    expected += chance * np.sum(total**2) / alpha**2
            np.testing.assert_allclose(traces[2, 0, 2], expected, rtol=1e-10)  # float64

    @pytest.mark.slow
    def test_trace_against_numpy(self):
        """Two contacts by hand: the mean model's gradient and the potential."""
        made = favano_theory.problem(0)
        runs = favano_theory.batch(2, 3, favano_theory.Options(server_steps=2, repetitions=2))
        lr = 0.05
        lrs = np.full((1, len(runs.key)), lr)
        traces = favano_theory.over_all(made, runs, lrs, "deterministic", 3)[0]
        row = 2  # half slow
        n = favano_theory.NUM_CLIENTS
        server, held = made.start, np.tile(made.start, (n, 1))
        timeline = favano_common.batch_of(runs.timeline, row)
        key = runs.key[row]
        for t in range(3):
            mu = (server + held.sum(axis=0)) / (n + 1)
            gradient = made.hessian @ mu
            phi = np.sum((server - mu) ** 2) + np.sum((held - mu) ** 2)
            # Float64, some hundred operations.
            np.testing.assert_allclose(traces[row, t, 0], gradient @ gradient, rtol=1e-10)
            np.testing.assert_allclose(traces[row, t, 1], phi, rtol=1e-8, atol=1e-20)
            if t == 2:
                break
            joined = server.copy()
            chosen = np.asarray(timeline.clients[t])
            for slot, client in enumerate(chosen):
                # The engine's draws: round, client, then the minibatches' branch.
                visit = jax.random.fold_in(jax.random.fold_in(key, t), int(client))
                grad = favano_theory.oracle(made, int(client), jax.random.fold_in(visit, 0), 3).grad
                x = held[client].copy()
                for k in range(int(timeline.num_steps[t, slot])):
                    x = x - lr * np.asarray(grad(jnp.asarray(x), k))
                joined += held[client] + (x - held[client]) / runs.mean[row, client]
            server = joined / (len(chosen) + 1)
            held[chosen] = server
