"""The commands and examples of docs/trained_models.md run, in order."""

import pathlib
import re
import shlex

import pytest
from safetensors.numpy import load_file

from fedjax_sim.cli.main import main

PAGE = (pathlib.Path(__file__).parent.parent / "docs" / "trained_models.md").read_text()


@pytest.mark.slow
def test_examples_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train, export = re.findall(r"```\n(fedjax-sim .*)\n```", PAGE)
    use, watch = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    short = ["--rounds", "20", "--seeds", "2", "--algorithms", "fedavg", "scaffold"]
    assert main([*shlex.split(train)[1:], *short]) == 0
    names: dict = {}
    exec(compile(use, "trained_models.md", "exec"), names)
    assert (names["labels"] == names["digits"]["y"]).mean() > 0.7  # chance is 0.1
    assert main(shlex.split(export)[1:]) == 0
    arrays = load_file("scaffold.safetensors")
    assert re.search(r"such as `([\w/]+)`", PAGE)[1] in arrays, arrays.keys()
    exec(compile(watch, "trained_models.md", "exec"), names)
    assert "FedAvg 6 " in capsys.readouterr().out
    assert names["watching"][1].models["FedAvg"].seeds == ["0", "1"]
