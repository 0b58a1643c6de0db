"""Measurement of implicit products beside the present choice."""

import json

import jax.numpy as jnp
import pytest

from benchmarks import implicit as part

LAYER = part.Layer(16, 32, 4, stride=2, copies=3)


@pytest.fixture
def one_layer(monkeypatch):
    monkeypatch.setattr(part, "TINY", ((LAYER,),))
    monkeypatch.setattr(part, "DTYPES", {"bfloat16": jnp.bfloat16})
    monkeypatch.setattr(part, "TIMED", 1e-4)


@pytest.mark.slow
def test_every_candidate_is_checked_and_timed(one_layer, capsys):
    numbers = part.measure(seconds=1e3, tiny=True)
    run = part.Run(2, 1, interpret=True)
    names = [program.name for program in part.programs([LAYER], run)]
    names += [name.replace("auto", "lax") for name in names if "auto" in name]
    assert len(names) == 3 + 3 + 3 + 2 * 3 - 1  # kernel gradients have two different tiles
    assert all(0 < numbers[f"{name} error"] < part.ALLOWED["bfloat16"] for name in names)
    assert all(numbers[f"{name} us"] > 0 for name in names)
    for operation in part.OPERATIONS:
        start = f"{LAYER.name} {operation} bfloat16"
        auto = numbers[f"{start} auto us"] * LAYER.copies / 1e3
        total = f"ResNet-18 {operation} bfloat16"
        assert numbers[f"{total} auto ms"] == pytest.approx(auto, abs=1e-4)
        least = min(numbers[f"{total} {name} ms"] for name in ("auto", "kernels"))
        assert numbers[f"{total} mixed ms"] == least
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert [len(line) for line in lines] == [2 * i + 2 for i in range(len(names))]
    assert printed.err.count("TFLOP/s") == len(part.OPERATIONS)


@pytest.mark.slow
def test_wrong_results_have_no_time(one_layer, monkeypatch, capsys):
    right = part.implicit.conv_clients
    made = part.programs

    def of_convolutions(*arguments):
        return [program for program in made(*arguments) if program.operation == "conv"]

    monkeypatch.setattr(part, "programs", of_convolutions)
    monkeypatch.setattr(part.implicit, "conv_clients", lambda *a: right(*a) * 1.1)
    numbers = part.measure(seconds=1e3, tiny=True)
    timed = {key for key in numbers if key.endswith(" us")}
    assert timed == {f"{LAYER.name} conv bfloat16 {name} us" for name in ("auto", "lax")}
    assert capsys.readouterr().err.count("wrong by 0.1") == 3


def test_candidates_that_fail_or_come_late_are_left_out(one_layer, monkeypatch, capsys):
    def fails(*_):
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(part, "compiled", fails)
    assert part.measure(seconds=1e3, tiny=True) == {}
    assert (
        "kernel_grad bfloat16 auto: not compiled: RuntimeError no such" in capsys.readouterr().err
    )
    monkeypatch.undo()
    monkeypatch.setattr(part, "TINY", ((LAYER,),))
    assert part.measure(seconds=0.0, tiny=True) == {}


def test_kernels_need_a_gpu():
    with pytest.raises(ValueError, match="the device is a cpu; expected a GPU, or tiny=True"):
        part.measure()


def test_tiles_fit_their_layers():
    for layer in (layer for group in part.GROUPS for layer in group):
        for operation in part.OPERATIONS:
            for precision in part.DTYPES:
                for t in part.tiles(layer, operation, precision, part.Run()):
                    inner = {"conv": layer.channels, "input_grad": layer.outputs}
                    columns = layer.channels if operation == "input_grad" else layer.outputs
                    assert columns % t.columns == 0
                    assert inner.get(operation, t.inner) % t.inner == 0
                    assert layer.side**2 % t.taps == 0
                    assert operation != "kernel_grad" or layer.channels % t.rows == 0
