"""Figures of programs compiled for accelerators, from recorded texts of the compilers.

The texts are those of one tiny program on four devices: 7 rounds of 5 steps of gradient descent on
a convolution of 6 x 6 images with 4 channels in 4 groups, 8 images per step, and a mean over the
devices at the end of each round.  Metadata are removed.
"""

import json
import pathlib
import re
from types import SimpleNamespace

import jax
import pytest

from benchmarks.compiled import arithmetic, command, figures, hlo, page, report, targets, thunks
from benchmarks.compiled.cases import CASES, ROUNDS
from fedjax_sim.engine.execution import chunks

TEXTS = pathlib.Path(__file__).parent / "compiled_texts"
GPU, TPU = targets.target("h200:4"), targets.target("v5e:2x2")
MEMORY = SimpleNamespace(
    temp_size_in_bytes=10, argument_size_in_bytes=20, output_size_in_bytes=5, alias_size_in_bytes=1
)
# Kernel positions that meet an image of 6 x 6 with a border of 1: 16 per axis.
PRODUCTS = 2 * 8 * 8 * 16**2  # of a convolution with one input channel per group


def read(name: str) -> str:
    return (TEXTS / f"{name}.txt").read_text()


def of(name: str, target: targets.Target, on_host=()) -> dict:
    found = figures.figures(read(name), MEMORY, target, 7, 5, on_host)
    return found | {"versions": {"jax": "0.10.2"}}


def test_figures_of_a_gpu_program():
    """In the step: slice, counter, 2 convolutions, 2 fusions; in the round 5 more kernels."""
    row = of("gpu", GPU, thunks.parse(read("gpu_thunks")).loops)
    assert (row["kernels_per_step"], row["kernels_per_round"]) == (6, 5 * 6 + 5)
    assert row["flops_per_step"] == 2 * PRODUCTS
    assert row["flops_per_round"] == 5 * row["flops_per_step"]
    assert row["collectives_per_round"] == {"all-reduce": 1}
    assert row["host_iterations_per_round"] == 1 + 5
    assert (row["temporaries"], row["aliased"], row["unknown_trips"]) == (10, 1, 0)
    captured = of("gpu", GPU, (False, False))
    assert captured["host_iterations_per_round"] == 0
    assert of("gpu", GPU, (True, False))["host_iterations_per_round"] == 1


def test_figures_of_a_tpu_program():
    """The sum of the estimates; the forward convolution has a dense kernel, of 4 channels."""
    row = of("tpu", TPU)
    step = 1826 + 1841 + 2283 + 2931 + 100 + 2931 + 1915
    assert (row["cycles_per_step"], row["cycles_per_round"]) == (step, 5 * step + 1824 + 1906)
    assert row["flops_per_step"] == (4 + 1) * PRODUCTS
    assert row["collectives_per_round"] == {"all-reduce": 1}
    assert "kernels_per_step" not in row
    assert "host_iterations_per_round" not in row


def test_trip_count_from_a_condition_and_unknown_one():
    """The TPU's text has no trip counts; without the comparison there is none to be found."""
    text = read("tpu")
    assert [loop.trips for loop in hlo.loops(hlo.parse(text), "main.7_spmd")] == [7]
    other = hlo.parse(text.replace("direction=LT", "direction=NE"))
    assert [loop.trips for loop in hlo.loops(other, "main.7_spmd")] == [None]


def test_conditionals_count_their_largest_branch_and_calls_their_computation():
    text = """
%small (p: f32[]) -> f32[] {
  %p = f32[] parameter(0)
  ROOT %n = f32[] negate(%p)
}

%large (q: f32[]) -> f32[] {
  %q = f32[] parameter(0)
  %m = f32[] negate(%q)
  ROOT %o = f32[] call(%m), to_apply=%small
}

ENTRY %main (i: s32[], x: f32[]) -> f32[] {
  %i = s32[] parameter(0)
  %x = f32[] parameter(1)
  ROOT %c = f32[] conditional(%i, %x, %x), branch_computations={%small, %large}
}
"""
    module = hlo.parse(text)
    assert hlo.total(module, module.entry, lambda o: o.opcode == "negate") == 2


def test_bytes_count_slices_and_updates_in_place():
    text = """
%slice (p: f32[100,8], i: s32[]) -> f32[1,8] {
  %p = f32[100,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %s = f32[1,8]{1,0} dynamic-slice(%p, %i, %zero), dynamic_slice_sizes={1,8}
}

%update (q: f32[100,8], u: f32[1,8], j: s32[]) -> f32[100,8] {
  %q = f32[100,8]{1,0} parameter(0)
  %b = f32[100,8]{1,0} bitcast(%q)
  %u = f32[1,8]{1,0} parameter(1)
  %j = s32[] parameter(2)
  %zero.1 = s32[] constant(0)
  ROOT %d = f32[100,8]{1,0} dynamic-update-slice(%b, %u, %j, %zero.1)
}

ENTRY %main (table: f32[100,8], k: s32[]) -> f32[100,8] {
  %table = f32[100,8]{1,0} parameter(0)
  %k = s32[] parameter(1)
  %row = f32[1,8]{1,0} fusion(%table, %k), kind=kLoop, calls=%slice
  ROOT %new = f32[100,8]{1,0} fusion(%table, %row, %k), kind=kLoop, calls=%update
}
"""
    module = hlo.parse(text)
    within = module.computations["main"]
    index, row = 4, 32
    found = [arithmetic.bytes_accessed(module, within[name], within) for name in ("row", "new")]
    assert found == [row + index + row, row + index + row]


def test_flops_of_products():
    """Of dots, and of cuBLAS's calls: 2 x 3 x 5 outputs, 4 terms each."""
    text = """
ENTRY %main (a: f32[2,3,4], b: f32[2,4,5]) -> f32[2,3,5] {
  %a = f32[2,3,4]{2,1,0} parameter(0)
  %b = f32[2,4,5]{2,1,0} parameter(1)
  %c = (f32[2,3,5]{2,1,0}, s8[64]{0}) custom-call(%a, %b), custom_call_target="__cublas$lt$matmul",\
 backend_config={"dot_dimension_numbers":{"lhs_contracting_dimensions":["2"],"x":["1"]}}
  ROOT %d = f32[2,3,5]{2,1,0} dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2},\
 rhs_batch_dims={0}, rhs_contracting_dims={1}
}
"""
    module = hlo.parse(text)
    within = module.computations["main"]
    found = [arithmetic.flops(module, within[name], within) for name in ("c", "d", "a")]
    assert found == [2 * 30 * 4, 2 * 30 * 4, 0]


def test_products_and_sums_in_half_precision():
    """Two products with rounded results, a wide one and a sum; no maximum, no late rounding."""
    text = """
%add (p: bf16[], q: bf16[]) -> bf16[] {
  %p = bf16[] parameter(0)
  %q = bf16[] parameter(1)
  ROOT %sum = bf16[] add(%p, %q)
}

%wide_add (t: f32[], u: f32[]) -> f32[] {
  %t = f32[] parameter(0)
  %u = f32[] parameter(1)
  ROOT %wide_sum = f32[] add(%t, %u)
}

%larger (r: bf16[], s: bf16[]) -> bf16[] {
  %r = bf16[] parameter(0)
  %s = bf16[] parameter(1)
  ROOT %most = bf16[] maximum(%r, %s)
}

ENTRY %main (a: bf16[3,4], b: bf16[4,5], c: f32[4,5]) -> f32[3,5] {
  %a = bf16[3,4]{1,0} parameter(0)
  %b = bf16[4,5]{1,0} parameter(1)
  %c = f32[4,5]{1,0} parameter(2)
  %zero = bf16[] constant(0)
  %rounded = bf16[3,5]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %call = (bf16[3,5]{1,0}, s8[64]{0}) custom-call(%a, %b), custom_call_target="__cublas$gemm"
  %other = f32[4,5]{1,0} custom-call(%c), custom_call_target="__other"
  %total = bf16[3]{0} reduce(%rounded, %zero), dimensions={1}, to_apply=%add
  %late = bf16[3]{0} reduce(%rounded, %zero), dimensions={1}, to_apply=%wide_add
  %top = bf16[3]{0} reduce(%rounded, %zero), dimensions={1}, to_apply=%larger
  ROOT %wide = f32[3,5]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
    expected = {"wide_products": 1, "half_products": 2, "half_sums": 1}
    assert figures.half_precision(hlo.parse(text)) == expected
    # A program in float32 has nothing to report.
    assert figures.half_precision(hlo.parse(text.replace("bf16", "f32"))) == {}
    assert "half_precision" not in of("gpu", GPU)


def test_captured_loops():
    """Both loops of the recorded sequence run on the host, and every kernel is outside."""
    found = thunks.parse(read("gpu_thunks"))
    assert (found.command_buffers, found.loops, found.loops_outside) == (0, (True, True), 2)
    assert found.others.count("kConvolution") == 2
    inner = "000: kWhile [source | sink]\n  001: kCommandBuffer [source | sink]\n"
    inner += "      002: kWhile [source | sink]\n003: kCopy [source | sink] kCopy"
    assert thunks.parse(inner) == (1, (True, False), ("kCopy",))


def test_read_takes_the_sequence_after_the_passes(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected XLA's dump there"):
        thunks.read(tmp_path)
    (tmp_path / "module_1.jit_f.thunk_sequence.txt").write_text(read("gpu_thunks"))
    assert thunks.read(tmp_path).loops_outside == 2
    after = tmp_path / "module_1.jit_f.thunk_sequence_after_thunk_passes.txt"
    after.write_text("000: kCommandBuffer [source | sink]\n    001: kWhile [source | sink]\n")
    assert thunks.read(tmp_path) == (1, (False,), ())


def test_accumulators_of_matrix_units(tmp_path):
    """From PTX: both kinds of instructions, those of TF32 and others not."""
    lines = [
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r1}, {%r2}, {%r3}, {%r4};",
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%f1}, %rd1, %rd2, 1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%f1}, %rd1, %rd2, 1, 1, 1, 0, 0;",
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r1}, {%r2}, {%r3}, {%r4};",
        "fma.rn.f32 %f1, %f2, %f3, %f4;",
    ]
    (tmp_path / "module_1.ptx").write_text("\n".join(lines))
    (tmp_path / "module_1.txt").write_text(lines[0])
    assert thunks.accumulators(tmp_path) == {"f32": 2, "f16": 1}


def test_bfloat16_is_added_in_float32_by_the_matrix_units_of_a_gpu():
    """Sums in matrix units of the stored programs are in float32, whatever their results are."""
    rows = [row for name, row in stored().items() if re.match("h200 .*-bfloat16 ", name)]
    assert rows
    for row in rows:
        assert set(row["accumulators"]) == {"f32"}


@pytest.mark.parametrize("name", ["h100", "h200:0", "v5e", "v5e:2by2", "v6e:8"])
def test_unknown_target(name):
    with pytest.raises(ValueError, match=f"target is '{name}'; expected h200"):
        targets.target(name)


def test_absent_environment(tmp_path):
    """The command prints how to create what is needed, and no more."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    environments = ["--environment", f"tpu={tmp_path / 'none'}", f"cuda={tmp_path}"]
    with pytest.raises(SystemExit) as stop:
        command.main(["--target", "h200", "v5e:2x2", *environments])
    text = str(stop.value)
    assert f"python -m venv {tmp_path / 'none'}" in text
    assert "install -r requirements/tpu.txt" in text
    assert "cuda" not in text


def test_table_shows_changes_beyond_a_tenth():
    row = of("gpu", GPU) | {
        "grouped_convolutions": 2, "command_buffers": 1, "loops_outside": 0,
        "default": {"command_buffers": 3, "loops_outside": 2},
    }  # fmt: skip
    old = row | {"kernels_per_step": 12, "kernels_per_round": 36, "collectives_per_round": {}}
    text = report.table(GPU, {"h200:4 sharded by-client": row}, {"h200:4 sharded by-client": old})
    cells = [cell.strip() for cell in text.splitlines()[-1].strip("|").split("|")]
    assert cells[:4] == ["sharded", "by-client", "6 (was 12)", "35"]
    assert "1 all-reduce (was none)" in cells
    assert "1, 0 (3, 2)" in cells
    large = report.table(GPU, {"h200:4 sharded by-client": row | {"temporaries": 2e11}}, {})
    assert "200.00 GB (does not fit)" in large


def test_results_are_merged_and_shown(tmp_path, monkeypatch, capsys):
    """A second run replaces its rows and keeps the others."""
    out = tmp_path / "compiled.json"
    row = of("tpu", TPU) | {"grouped_convolutions": 0}
    monkeypatch.setattr(command, "missing", lambda *_: "")
    fresh = {"vmapped": row}
    monkeypatch.setattr(command, "compiled", lambda *_: fresh)
    main = ["--target", "v5e:2x2", "--strategies", "vmapped", "--out", str(out)]
    command.main([*main, "--cases", "W1"])
    fresh = {"vmapped": row | {"cycles_per_step": 2 * row["cycles_per_step"]}}
    command.main([*main, "--cases", "W2"])
    command.main([*main, "--cases", "W1"])
    assert "27.7 k (was 13.8 k)" in capsys.readouterr().out
    command.main(["--show", "--out", str(out)])
    shown = capsys.readouterr().out
    assert "27.7 k |" in shown
    assert "jax 0.10.2" in shown
    assert "h200" not in shown
    rows = json.loads(out.read_text())["rows"]
    assert set(rows) == {"v5e:2x2 W1 vmapped", "v5e:2x2 W2 vmapped"}
    assert rows["v5e:2x2 W1 vmapped"]["cycles_per_step"] == fresh["vmapped"]["cycles_per_step"]


def test_rows_stored_by_another_process_meanwhile_are_kept(tmp_path, monkeypatch):
    out = tmp_path / "compiled.json"
    row = of("tpu", TPU) | {"grouped_convolutions": 0}

    def compiled(*_):
        out.write_text(json.dumps({"rows": {"v6e:2x2 W4 vmapped": row}}))
        return {"vmapped": row}

    monkeypatch.setattr(command, "missing", lambda *_: "")
    monkeypatch.setattr(command, "compiled", compiled)
    main = ["--target", "v5e:2x2", "--cases", "W1", "--strategies", "vmapped", "--out", str(out)]
    command.main(main)
    assert set(json.loads(out.read_text())["rows"]) == {"v5e:2x2 W1 vmapped", "v6e:2x2 W4 vmapped"}


def test_a_failing_strategy_loses_no_other(monkeypatch, tmp_path, capsys):
    """A compiler that ends the process of all strategies is run for each of them alone."""
    row = of("tpu", TPU) | {"grouped_convolutions": 0}

    def compiled(one, case, strategies, environment, timeout):
        if "sequential" in strategies:
            raise RuntimeError("the compiler failed")
        return dict.fromkeys(strategies, row)

    monkeypatch.setattr(command, "missing", lambda *_: "")
    monkeypatch.setattr(command, "compiled", compiled)
    out = tmp_path / "compiled.json"
    command.main(["--target", "v5e:2x2", "--cases", "W1", "--out", str(out)])
    kept = set(json.loads(out.read_text())["rows"])
    expected = {f"v5e:2x2 W1 {name}" for name in CASES["W1"].strategies}
    assert kept == expected - {"v5e:2x2 W1 sequential"} != expected
    assert "W1 sequential: not compiled: the compiler failed" in capsys.readouterr().err


def test_requirement_files_exist():
    for platform in command.ENVIRONMENTS:
        text = (command.ROOT / "requirements" / f"{platform}.txt").read_text()
        assert f"jax[{platform.replace('cuda', 'cuda12')}]==" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("asynchronous", "sequential"),
        ("sweep", "auto"),
        ("SCAFFOLD", "vmapped"),
        ("sharded", "by-client"),
        ("sharded", "replicated"),
    ],
)
def test_cases_are_lowered_from_shapes(name, strategy):
    """No data are made; the program has a loop of the declared rounds."""
    program = CASES[name].build(jax.devices(), strategy)
    assert program.rounds == (20 if name == "asynchronous" else ROUNDS)
    jitted = jax.jit(program.function, in_shardings=program.shardings)
    text = jitted.lower(*program.arguments).as_text()
    assert f"dense<{program.rounds}> : tensor<i32>" in text


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case"), [("v5e:2x2", "SCAFFOLD"), ("h200", "W1")])
def test_compiles_where_the_environment_exists(name, case, tmp_path):
    target = targets.target(name)
    environment = command.ENVIRONMENTS[target.platform]
    if not command.interpreter(environment).is_file():
        pytest.skip(f"{environment} does not exist")
    row = command.compiled(target, case, ["vmapped"], environment, 600)["vmapped"]
    assert row["flops_per_round"] > 0
    assert row["collectives_per_round"] == {}
    if target.platform == "cuda":
        assert 1 <= row["kernels_per_step"] <= 10
        assert row["command_buffers"] >= 1


def stored() -> dict[str, dict]:
    """The figures of the last published compilation of every case."""
    path = pathlib.Path(__file__).parents[2] / "benchmarks" / "results" / "compiled.json"
    return json.loads(path.read_text())["rows"]


def test_the_page_has_the_stored_figures():
    """After a compilation ``python -m benchmarks.compiled.page`` has been called."""
    text = page.PAGE.read_text()
    for name in page.SECTIONS:
        assert text.count(f"<!-- compiled {name}: ") == 2
    assert page.filled(text, stored()) == text


def test_a_section_shows_a_changed_figure_and_its_day():
    rows = stored()
    name = "h200 W1 auto"
    rows[name] = rows[name] | {"kernels_per_step": 77.0, "date": "2027-01-02"}
    assert "| W1, 100 clients | 77, " in page.gpus(rows)
    assert "to 2 Jan" in page.gpus(rows)
    del rows["h200 W2 sequential"]
    assert "| not compiled |" in page.gpus(rows)
    del rows["v5e:2x2 ViT-Tiny auto"]
    # Without one of the three chunks the least is not known.
    assert "| ViT-Tiny | |" in page.chunks(rows)


def test_odd_cohorts_are_divided_into_pairs_where_that_is_faster():
    """The constant of the code is what follows from the stored cycles."""
    faster = [n for n in range(3, 99, 2) if page.pairs_in_odd_cohort(stored(), n) < 1]
    assert faster[0] == chunks._TPU_ODD_COHORT
    assert chunks.tpu_chunk(faster[0], 2**28) == 2
    assert chunks.tpu_chunk(faster[0] - 2, 2**28) == 1


def test_a_whole_run_on_a_gpu_is_one_command_buffer():
    """With the strategy that `auto` chooses, the host launches one graph and waits for it."""
    rows = [row for name, row in stored().items() if re.fullmatch(r"h200 .* auto", name)]
    assert len(rows) >= 4
    for row in rows:
        assert (row["command_buffers"], row["loops_outside"], row["kernels_outside"]) == (1, 0, 0)
        assert row["host_iterations_per_round"] == 0


def test_clients_on_several_devices_need_one_all_reduce_per_round():
    rows = [row for name, row in stored().items() if name.endswith(" by-client")]
    assert len(rows) >= 2
    for row in rows:
        assert row["collectives_per_round"] == {"all-reduce": 1.0}


@pytest.mark.parametrize("target", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
def test_auto_is_close_to_the_best_strategy_on_each_tpu(target):
    """One rule for all chips may cost something on each, by docs/performance.md at most 5 %."""
    rows = {name: row["cycles_per_step"] for name, row in stored().items() if target in name}
    cases = [name.removesuffix(" vmapped") for name in rows if name.endswith(" vmapped")]
    assert len(cases) >= 8
    for case in cases:
        best = min(rows[f"{case} vmapped"], rows[f"{case} sequential"])
        assert rows[f"{case} auto"] <= 1.05 * best, case
