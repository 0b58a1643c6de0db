"""FAVANO's experiments on images, on made-up data and cut down to seconds."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from made_up_images import images
from PIL import Image

from experiments.favano import (
    cifar,
    cifar_parts,
    cifar_report,
    methods,
    mnist,
    theory,
    tiny_imagenet,
)
from experiments.favano.images import BUFFER, shrunk
from fedjax_sim import datasets, models

pytestmark = pytest.mark.usefixtures("compiled_without_optimizations")


@pytest.mark.parametrize(
    ("low", "close", "below"),
    [
        ((0.598, 0.599, 0.601), True, False),  # as accurate
        ((0.57, 0.572, 0.571), True, True),  # 2.9 points below, at most 5 are close
        ((0.4, 0.41, 0.42), False, True),
        ((0.5, 0.6, 0.7), False, False),  # the seeds differ by more than what is close
    ],
)
def test_claims_about_quantised_networks_are_those_of_the_same_seeds(low, close, below):
    rows = [
        (name, seed, 10, value)
        for name, values in (("FAVANO", (0.6, 0.6, 0.6)), ("FAVANO[QNN]", low))
        for seed, value in enumerate(values)
    ]
    history = pd.DataFrame(rows, columns=pd.Index(["algorithm", "seed", "round", "accuracy"]))
    claims = cifar_report.quantized_claims(history)
    assert [claim.holds for claim in claims] == [close, below]


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A dense network, which compiles fast, on images of distinct classes."""
    monkeypatch.setattr(datasets, "load", lambda name, data_dir: images(32, 3))

    def dense(classes, conv, dot):
        return models.mlp((32, 32, 3), hidden=(8,), num_classes=classes, dot=dot)

    networks = {**cifar.CIFAR.networks, "dense": dense}
    changed = cifar.CIFAR._replace(networks=networks)
    monkeypatch.setattr(cifar.Options, "images", changed)
    monkeypatch.setattr(cifar, "SPLITS", {"non-IID": "shards"})
    monkeypatch.setattr(cifar_parts, "SELECTED", (10,))
    return lambda part: cifar.Options(
        part=part, scale="smoke", network="dense", server_lrs=(0.3,), work=tmp_path / "work",
        output=tmp_path / "out",
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("allow_nans")  # the probe of the variance is NaN between its moments
class TestCifar:
    def test_parts(self, small, tmp_path):
        cifar.main(small("methods"))
        folder = tmp_path / "out" / "favano" / "cifar-smoke-dense"
        text = (folder / "methods.md").read_text()
        assert "scale smoke: dense (paper: ResNet-20) on cifar10" in text
        assert "200 of 10000 time units, 10 of 100 clients with 20 train images each" in text
        assert text.count("| non-IID | FedBuff") == 3  # its row, and both claims
        history = pd.read_csv(folder / "methods.csv")
        assert set(history["algorithm"]) == {"FedAvg", "QuAFL", "FedBuff", "FAVANO"}
        measured = history.dropna(subset=["variance"])
        assert set(measured["algorithm"]) == {"QuAFL", "FedBuff", "FAVANO"}
        assert (folder / "methods.png").exists()
        rates = pd.read_csv(folder / "methods-rates.csv")
        assert rates["server rate"].tolist() == [0.3]

        cifar.main(small("selected"))
        part = pd.read_csv(folder / "selected.csv")
        assert set(part["algorithm"]) == {"s = 1"}  # of ten clients
        np.testing.assert_array_equal(part["reports"], part["round"])

        cifar.main(small("quantized"))
        history = pd.read_csv(folder / "quantized.csv")
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
    for scales in (cifar.SCALES, tiny_imagenet.SCALES):
        paper = scales["paper"]
        assert paper[:2] == (10_000.0, 100)
        assert (paper.max_steps, paper.batch_size, paper.examples) == (20, 128, None)
        for scale in scales.values():
            # FedBuff's rate is scaled by Z / n, the paper's 1 / 10.
            assert shrunk(BUFFER, scale) / scale.clients == 0.1


def test_other_networks_and_rates_have_folders_of_their_own():
    """Their results would replace those of the scale's own network."""
    wanted = {
        "cifar-cpu": {}, "cifar-cpu-ResNet-20": {"network": "ResNet-20"},
        "cifar-cpu-ResNet-20-horizon500-lr0.1": {
            "network": "ResNet-20", "horizon": 500.0, "lr": 0.1
        },
    }  # fmt: skip
    assert {name: cifar.Options(**o).folder("cifar").name for name, o in wanted.items()} == {
        name: name for name in wanted
    }


@pytest.mark.parametrize(
    ("options", "wrong", "message"),
    [
        (mnist.Options, {"settings": ("IID",)}, "settings is"),
        (mnist.Options, {"seeds": -1}, "seeds is -1; expected at least 1"),
        (cifar.Options, {"network": "VGG"}, "network is 'VGG'; expected one of ResNet-20"),
        (cifar.Options, {"seeds": 0}, "seeds is 0; expected at least 1"),
        (cifar.Options, {"horizon": 0.0}, "horizon is 0.0; expected a positive number"),
        (cifar.Options, {"server_lrs": ()}, r"server_lrs is \(\); expected positive"),
        (tiny_imagenet.Options, {"network": "LeNet-5"}, "expected one of ResNet-18"),
        (theory.Options, {"server_steps": 1}, "server_steps is 1; expected at least 2"),
        (theory.Options, {"repetitions": 1}, "repetitions is 1; expected at least 2"),
    ],
)
def test_refusals(options, wrong, message):
    with pytest.raises(ValueError, match=message):
        options(**wrong)


@pytest.mark.slow
@pytest.mark.usefixtures("allow_nans")
class TestTinyImagenet:
    def test_from_the_official_tree(self, tmp_path, monkeypatch):
        """FAVANO alone, on a dense network; the test of CIFAR-10 runs all four methods."""

        def compared(runs, chosen):
            (setting,) = chosen
            frame = runs(methods.favano(), setting, variance="exact").assign(algorithm="FAVANO")
            rates = pd.DataFrame({"setting": chosen, "server rate": [0.3], "best": [True]})
            return {"": frame, "rates": rates}

        monkeypatch.setattr(tiny_imagenet, "compared", compared)
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
        monkeypatch.setattr(tiny_imagenet.Options, "images", _dense_tiny())
        tiny_imagenet.main(
            tiny_imagenet.Options(
                scale="smoke", network="dense", server_lrs=(0.3,), data_dir=tmp_path / "data",
                work=tmp_path / "work", output=tmp_path / "out",
            )
        )  # fmt: skip
        folder = tmp_path / "out" / "favano" / "tiny_imagenet-smoke-dense"
        text = (folder / "methods.md").read_text()
        assert "on tiny_imagenet" in text
        assert "10 of 100 clients with 3 train images each" in text
        assert "| IID | FAVANO is best |" in text
        assert set(pd.read_csv(folder / "methods.csv")["setting"]) == {"IID"}


def _dense_tiny():
    def dense(classes, conv, dot):
        model = models.mlp((32, 32, 3), hidden=(4,), num_classes=classes, dot=dot)
        return tiny_imagenet.halved(model)

    return tiny_imagenet.TINY_IMAGENET._replace(networks={"ResNet-18": dense, "dense": dense})


def test_halved_images_are_means():
    x = np.random.default_rng(0).normal(size=(2, 4, 6, 3)).astype(np.float32)
    model = tiny_imagenet.halved(models.Model(lambda key: (), lambda params, x: x))
    expected = (x[:, ::2, ::2] + x[:, 1::2, ::2] + x[:, ::2, 1::2] + x[:, 1::2, 1::2]) / 4
    # A mean of four in single precision.
    np.testing.assert_allclose(model.apply((), jnp.asarray(x)), expected, atol=1e-6)
