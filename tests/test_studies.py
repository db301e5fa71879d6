"""The study beside R1: the script on a stand-in for a GPU, and the reader of its file."""

import contextlib
import copy
import io
import json
import shutil
import subprocess
from functools import partial
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import benchmark

from sgemm_lab.ladder import ladder
from sgemm_lab.measure import bench, records, studies
from sgemm_lab.run.backend import cp, ptx

benchmark("hardware_counters")
script = benchmark("r1_study")
cold = benchmark("cold_start")

TOOK = {"import_ms": 300, "context_ms": 200, "arrays_ms": 2, "module_ms": 90, "steady_ms": 0.5,
        "steady_events_ms": 0.4, "launch_ms": [9, 0.6], "launch_events_ms": [1.0, 0.5]}  # fmt: skip


class Stand:
    """What the script uses of bench's `Stand`; kernels run for real, on what `cp` is here. Every
    call takes a millisecond, and two in float64."""

    gpu_name, bus_id = "NVIDIA H200", "0"

    def problem(self, size):
        M, N, _ = size
        A, B = (cp.asarray(X) for X in script.inputs(N))
        C = cp.empty((M, N), np.float32)
        call = lambda variant: bench.prepare(variant, A, B, C)  # noqa: E731
        return SimpleNamespace(size=size, A=A, B=B, C=C, call=call)

    def time(self, call, launches):
        return {"float32": 1.0, "float64": 2.0}[call.dtype]

    def heat_up(self):
        pass

    def provenance(self):
        return {"driver": "1", "cuda": "2", "nvrtc": "3", "cublas": "4"}


def log(scale: float = 1.0) -> str:
    """What ncu writes for the launches of the script, the units' row included."""
    columns = ["ID", "Kernel Name", *script.METRICS.values()]
    values = {"ms": 2e6, "sm_mhz": 3.96e6, "registers": 32, "occupancy_pct": 99.5}
    lines = [columns, ["", "", *["unit"] * len(script.METRICS)]]
    for variant, _ in script.profiled():
        for number in range(script.NCU_LAUNCHES):
            row = [f"{scale * values.get(name, 7) + (number == 2)}" for name in script.METRICS]
            lines.append(["0", variant.step.function, *row])
    return "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)


@pytest.fixture
def machine(monkeypatch):
    """A small study on a stand-in; `asked` lists the clocks that ncu was started with."""
    asked, product = [], script.product

    def labelled(variant, problem, dtype):
        call, C = product(variant, problem, dtype)
        call = partial(call)
        call.dtype = dtype
        return call, C

    monkeypatch.setattr(script, "product", labelled)
    monkeypatch.setattr(bench, "Stand", Stand)
    monkeypatch.setattr(bench, "smi", lambda bus_id, *fields: ["Enabled"])
    monkeypatch.setattr(
        bench, "Monitor", lambda bus: contextlib.nullcontext(SimpleNamespace(samples=list))
    )
    monkeypatch.setattr(script, "_process", lambda variant, N, cache: copy.deepcopy(TOOK))
    monkeypatch.setattr(script, "_ncu", lambda control: asked.append(control) or log())
    monkeypatch.setattr(script, "provenance_of", lambda commit: {"ncu": "1", "commit": commit})
    loop = {"part": "cpu", "kernel": "ijk", "flags": "-O2", "threads": 1, "N": 64}
    monkeypatch.setattr(script, "loops", lambda: [loop | {"ms": [3.0, 1.0, 2.0]}])
    monkeypatch.setattr(script, "blas", lambda: ("some BLAS 1.0", []))
    monkeypatch.setattr(script, "compiler", lambda: "cc 12")
    monkeypatch.setattr(script, "GPU_SIZES", (33,))
    return asked


def run(tmp_path, *words) -> studies.Study:
    out = tmp_path / "r1_h200.json"
    assert script.main([*words, "--commit", "abc", "--out", str(out)]) == 0
    return studies.r1("h200", tmp_path)


def test_what_the_script_writes_the_reader_reads(machine, tmp_path, capsys):
    study = run(tmp_path)
    assert study.row("cpu", kernel="ijk")["ms"] == {"min": 1, "median": 2, "max": 3}
    kernels = {row["kernel"] for row in study.rows("gpu")}
    assert kernels == {"00_cublas", *(v.key for v in (ladder[1](), ladder[2](), script.TILE_16))}
    for row in study.rows("gpu", dtype="float64"):
        assert row["ratio"]["median"] == 2 and row["repeats"] == script.ROUNDS
    first = study.row("start", N=256, cache="empty")
    assert first["launch_ms"] == [9, 0.6] and first["module_ms"]["median"] == 90
    assert study.record["provenance"]["commit"] == "abc"
    assert not any(map(studies.stale, study.record["rows"]))
    assert studies.studied(tmp_path) == ["h200"]
    said = capsys.readouterr().out
    assert "not asked for" in said and "float64 free" in said


def test_the_clocks_are_locked_only_where_that_was_asked_for(machine, tmp_path):
    assert run(tmp_path).record["ncu"] == {"free": None, "locked": script.NOT_ASKED}
    assert machine == ["none"]
    study = run(tmp_path, "--locked")
    assert study.record["ncu"] == {"free": None, "locked": None}
    assert machine == ["none", "none", "base"] and len(study.rows("ncu", clocks="locked")) == 5


def test_what_ncu_refuses_is_recorded_as_not_measured_with_the_reason(
    machine, tmp_path, monkeypatch
):
    def refuses(control):
        if control == "base":
            raise script.Unable("ncu ended with exit code 1: no permission")
        return log()

    monkeypatch.setattr(script, "_ncu", refuses)
    study = run(tmp_path, "--locked")
    assert study.record["ncu"]["locked"].endswith("no permission")
    assert study.rows("ncu", clocks="free") and not study.rows("ncu", clocks="locked")


def test_a_row_of_ncu_is_the_median_of_its_launches_and_the_clock_is_cycles_over_time():
    rows = script.parse(log(), "free")
    assert [(row["kernel"], row["dtype"]) for row in rows] == [
        (variant.key, dtype) for variant, dtype in script.profiled()
    ]
    assert rows[0]["ms"] == 2 and rows[0]["sm_mhz"] == 1980 and rows[0]["registers"] == 32


def test_a_metric_that_ncu_lacks_is_null_and_one_that_is_needed_is_an_error():
    without = log().replace(script.METRICS["fp64_pct"], "other")
    assert script.parse(without, "free")[0]["fp64_pct"] is None
    with pytest.raises(script.Unable, match="gpu__time_duration"):
        script.parse(log().replace(script.METRICS["ms"], "other"), "free")


def test_launches_that_do_not_fit_what_was_launched_are_refused():
    with pytest.raises(script.Unable, match="ncu saw naive; 02_tiled TILE=16"):
        script.parse(log().replace('"tiled"', '"naive"'), "free")
    with pytest.raises(script.Unable, match="14 launches; 15 were made"):
        script.parse(log().rpartition("\n")[0], "free")


@pytest.mark.parametrize("variant", [ladder[1](), ladder[2](), ladder[2](TILE=16)])
def test_the_float64_kernel_is_right_to_float64s_precision(variant):
    problem = Stand().problem((65,) * 3)
    call, C = script.product(variant, problem, "float64")
    call()
    A, B = cp.asnumpy(problem.A), cp.asnumpy(problem.B)
    assert 0 < script.error(cp.asnumpy(C), A, B, np.longdouble) < 1


@pytest.mark.parametrize(
    "slip", [("double sum", "float sum"), ("k < K; ++k", "k < K - 1; ++k")], ids=["float", "short"]
)
def test_a_wrong_float64_kernel_is_not_recorded(machine, tmp_path, monkeypatch, capsys, slip):
    right = studies.float64_text
    monkeypatch.setattr(studies, "float64_text", lambda text: right(text).replace(*slip))
    assert script.main(["--out", str(tmp_path / "r1_h200.json")]) == 1
    assert "a result is wrong" in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler here")
def test_the_loops_in_c_are_compiled_checked_and_timed(monkeypatch):
    monkeypatch.setattr(script, "LOOPS", {"ijk": (33,), "ikj": (33,)})
    rows = script.loops()
    assert [(row["kernel"], row["flags"]) for row in rows] == [
        (name, flags) for flags in script.FLAGS for name in ("ijk", "ikj")
    ]
    assert all(len(row["ms"]) >= 3 and min(row["ms"]) > 0 for row in rows)


def test_numpy_is_timed_in_processes_with_so_many_threads(monkeypatch):
    environments = []

    def started(command, env, **_):
        environments.append(env["OPENBLAS_NUM_THREADS"])
        return SimpleNamespace(stdout=json.dumps({"blas": "some 1", "ms": {"256": [1.0]}}))

    monkeypatch.setattr(script.subprocess, "run", started)
    monkeypatch.setattr(script, "cores", lambda: 6)
    name, rows = script.blas()
    assert name == "some 1" and environments == ["1", "6"]
    assert [(row["threads"], row["N"]) for row in rows] == [(1, 256), (6, 256)]


def test_numpys_process_says_which_library_and_checks_it(monkeypatch, capsys):
    monkeypatch.setattr(script, "BLAS_SIZES", (48,))
    script.child_blas()
    said = json.loads(capsys.readouterr().out)
    assert said["blas"].strip() and len(said["ms"]["48"]) >= 3


def test_a_cold_start_is_taken_apart(monkeypatch, capsys):
    clock = count()
    cuda = SimpleNamespace(
        runtime=SimpleNamespace(free=lambda pointer: None),
        Device=lambda: SimpleNamespace(synchronize=lambda: None),
        Event=lambda: SimpleNamespace(record=lambda: None, synchronize=lambda: None),
        get_elapsed_time=lambda start, stop: float(next(clock)),
    )
    fake = SimpleNamespace(
        asarray=np.array, asnumpy=np.array, RawModule=ptx.RawModule, cuda=cuda
    )  # fmt: skip
    monkeypatch.setitem(cold.sys.modules, "cupy", fake)
    for name, value in {"FIRST": 3, "WARM_MS": 0, "STEADY": 2}.items():
        monkeypatch.setattr(cold, name, value)
    asked = {}
    monkeypatch.setattr(script.subprocess, "run", lambda command, input, **_: (
        asked.update(text=input) or SimpleNamespace(returncode=0, stdout="{}")
    ))  # fmt: skip
    script._process(ladder[2](TILE=8), 24, "cache")
    monkeypatch.setattr(cold.sys, "stdin", io.StringIO(asked["text"]))
    cold.main()
    took = json.loads(capsys.readouterr().out)
    assert set(took) == set(TOOK)
    assert took["launch_events_ms"] == [0, 1, 2] and took["steady_events_ms"] == 3.5


def test_without_a_gpu_it_says_so_and_writes_nothing(monkeypatch, tmp_path, capsys):
    failed = subprocess.CompletedProcess([], 1, "", "first\ncudaErrorNoDevice: no device")
    monkeypatch.setattr(script.subprocess, "run", lambda *_, **__: failed)
    assert script.main(["--out", str(tmp_path / "r1_h200.json")]) == 2
    assert "cudaErrorNoDevice" in capsys.readouterr().err and not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------ the reader


def broken(record, **changes):
    record = copy.deepcopy(record)
    record["rows"][0] |= changes
    return record


def test_a_bad_file_is_refused_with_the_place_and_the_reason(machine, tmp_path):
    good = run(tmp_path).record
    for bad, message in (
        (good | {"gpu": "rtx9090"}, "unknown GPU 'rtx9090'"),
        (good | {"kind": "measured"}, "kind"),
        ({k: v for k, v in good.items() if k != "ncu"}, "ncu"),
        (broken(good, ms={"min": -1.0, "median": 1.0, "max": 2.0}), r"rows\[0\].*ms"),
        (broken(good, ms={"min": 2.0, "median": 1.0, "max": 3.0}), "min ≤ median ≤ max"),
        (broken(good, threads=0), r"rows\[0\].*threads"),
        (broken(good, speed=1), r"rows\[0\].*speed"),
        (broken(good, part="tpu"), "part"),
        (good | {"rows": [*good["rows"], good["rows"][0]]}, "same measurement"),
    ):
        path = tmp_path / "r1_h200.json"
        path.write_text(json.dumps(bad))
        with pytest.raises(records.RecordError, match=message):
            studies.r1("h200", tmp_path)
    path.write_text(json.dumps(good)[:-30])
    with pytest.raises(records.RecordError, match="not complete JSON"):
        studies.r1("h200", tmp_path)


def test_a_row_is_stale_once_a_token_of_its_kernel_has_changed(machine, tmp_path):
    row = run(tmp_path).rows("gpu", kernel=ladder[2]().key)[0]
    assert not studies.stale(row) and studies.stale(row | {"source_hash": "0" * 16})


def test_a_study_that_is_not_there_names_the_command(tmp_path):
    with pytest.raises(LookupError, match=r"no r1_t4.json: .*benchmarks/r1_study.py"):
        studies.r1("t4", tmp_path)
    assert studies.studied(tmp_path) == []


def test_a_row_that_is_not_one_is_named(machine, tmp_path):
    with pytest.raises(LookupError, match="has 0 rows of 'cpu' with kernel='kji'"):
        run(tmp_path).row("cpu", kernel="kji")


def test_the_t4s_float64_pipe_is_a_32nd_of_its_float32_and_the_h200s_half():
    from sgemm_lab.devices import devices

    for gpu, share in (("t4", 32), ("h200", 2), ("a100", 2), ("l4", 64)):
        assert devices[gpu].fp32_tflops / devices[gpu].fp64_tflops == pytest.approx(share)


def test_every_committed_study_is_valid():
    for gpu in studies.studied():
        assert studies.r1(gpu).rows("gpu")
