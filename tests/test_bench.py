"""The benchmark's logic, on a stand-in for CuPy whose clock we control; no GPU is needed."""

import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from sgemm_lab.ladder import ladder
from sgemm_lab.measure import bench as bench_module
from sgemm_lab.measure import records
from sgemm_lab.measure.bench import NO_GPU, bench, main, median_interval, repeats


class FakeGpu:
    """NumPy with a clock: a kernel takes `kernel_ms`, cuBLAS `cublas_ms`; `drift` slows both."""

    def __init__(self, kernel_ms=2.0, cublas_ms=1.0, drift=1.0, wrong=False, tf32=False):
        self.now, self.pace, self.drift = 0.0, 1.0, drift
        self.kernel_ms, self.cublas_ms = kernel_ms, cublas_ms
        self.wrong, self.tf32 = wrong, tf32
        self.log = []

    def work(self, name, ms):
        self.log.append(name)
        self.now += ms * self.pace
        self.pace *= 1.0 if name == "flush" else self.drift

    def prepare(self, variant, A, B, C):
        """What sgemm_lab.run.launch.prepare does: check, then give a function that launches."""
        if variant.step.function is None and self.tf32:
            raise RuntimeError("CUPY_TF32 turns TF32 on")
        name = "kernel" if variant.step.function else "cublas"

        def run():
            self.work(name, self.kernel_ms if name == "kernel" else self.cublas_ms)
            C[...] = A @ B
            if self.wrong and name == "kernel":
                C[-1, -1] = np.nan

        return run

    def module(self):
        gpu = self

        class Event:
            def record(self):
                self.at = gpu.now

            def synchronize(self):
                pass

        class Array(np.ndarray):
            data = SimpleNamespace(memset_async=lambda value, size: gpu.work("flush", 0.1))

        runtime = SimpleNamespace(
            getDeviceProperties=lambda i: {"name": b"NVIDIA H200", "l2CacheSize": 1 << 20},
            deviceGetPCIBusId=lambda i: "0000:00:00.0",
            driverGetVersion=lambda: 13000,
            runtimeGetVersion=lambda: 12090,
        )
        device = SimpleNamespace(get_cublas_handle=lambda: 0)
        cuda = SimpleNamespace(
            Event=Event,
            Device=lambda: SimpleNamespace(id=0),
            get_elapsed_time=lambda a, b: b.at - a.at + 1e-9,
            runtime=runtime,
            cublas=SimpleNamespace(getVersion=lambda handle: 120900),
            nvrtc=SimpleNamespace(getVersion=lambda: (12, 9)),
            device=device,
        )
        return SimpleNamespace(
            cuda=cuda,
            __version__="0",
            asarray=np.asarray,
            abs=np.abs,
            empty=lambda shape, dtype: np.empty(shape, dtype).view(Array),
            get_default_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: None),
        )


@pytest.fixture
def install(monkeypatch):
    def use(gpu):
        fake = gpu.module()
        monkeypatch.setitem(sys.modules, "cupy.cuda", fake.cuda)
        monkeypatch.setattr(bench_module, "cp", fake)
        monkeypatch.setattr(bench_module, "prepare", gpu.prepare)
        monkeypatch.setattr(bench_module, "gpu_available", lambda: True)
        monkeypatch.setattr(bench_module, "smi", lambda bus_id, *fields: ["580.1"])
        monkeypatch.setattr(bench_module.Stand, "heat_up", lambda self: None)
        return gpu

    return use


def test_without_a_gpu_nothing_is_timed_and_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(bench_module, "gpu_available", lambda: False)
    result = bench(ladder[1]())
    assert result.runs == () and str(result) == NO_GPU
    assert main(["1", "--sizes", "64"]) == 2
    assert "no NVIDIA GPU" in capsys.readouterr().out


def test_a_run_is_a_valid_record(install, tmp_path):
    install(FakeGpu())
    result = bench([ladder[0], ladder[2](TILE=16)], [64, (33, 65, 17)])
    records.write(tmp_path / "h200.json", result.record())
    loaded = records.load(tmp_path)
    assert [(r.step, r.M, r.N, r.K) for r in loaded] == [
        (0, 64, 64, 64), (2, 64, 64, 64), (0, 33, 65, 17), (2, 33, 65, 17),
    ]  # fmt: skip
    assert loaded[1].macros["TILE"] == 16 and not loaded[1].stale
    assert loaded[1].pct_of_cublas == pytest.approx(50, abs=0.01)
    assert loaded[1].provenance["driver"] == "580.1"


def test_drift_hits_both_of_a_pair(install):
    install(FakeGpu(kernel_ms=2, cublas_ms=2, drift=1.02))
    (run,) = bench(ladder[2](), [64]).runs
    assert run["ms"]["max"] > 1.3 * run["ms"]["min"], "the clock did drift"
    assert run["ratio"]["median"] == pytest.approx(1, abs=0.025)


def test_kernel_and_cublas_take_turns_at_going_first(install):
    gpu = install(FakeGpu())
    (run,) = bench(ladder[2](), [64]).runs
    pairs = [name for name in gpu.log if name != "flush"][-2 * run["repeats"] :]
    firsts = pairs[::2]
    assert firsts[:4] in (["kernel", "cublas"] * 2, ["cublas", "kernel"] * 2)
    assert all(set(pairs[i : i + 2]) == {"kernel", "cublas"} for i in range(0, len(pairs), 2))


def test_the_gpu_is_kept_busy_until_the_host_has_queued_everything(install):
    gpu = install(FakeGpu())
    bench(ladder[2](), [64])
    timed = " ".join(gpu.log).split("kernel")[-3:-1]  # the flushes around the last kernels
    assert all(between.count("flush") * 0.1 >= 1.05 for between in timed)


def test_short_kernels_are_launched_back_to_back(install):
    install(FakeGpu(kernel_ms=0.02, cublas_ms=0.01))
    (run,) = bench(ladder[2](), [64]).runs
    assert run["launches"] == 10
    assert run["ms"]["median"] == pytest.approx(0.02, rel=1e-3), "the time of one"


def test_a_wrong_result_is_never_timed(install):
    install(FakeGpu(wrong=True))
    with pytest.raises(RuntimeError, match=r"02_tiled .* is wrong at 64×64×64.*Nothing was timed"):
        bench(ladder[2](), [64])


def test_tf32_in_cublas_is_refused(install):
    install(FakeGpu(tf32=True))
    with pytest.raises(RuntimeError, match="TF32"):
        bench(ladder[2](), [64])


def test_ctrl_c_keeps_what_was_measured(install):
    install(FakeGpu())

    def interrupted(wanted):
        yield wanted[0]
        raise KeyboardInterrupt

    result = bench(ladder[2](), [64, 128], progress=interrupted)
    assert len(result.runs) == 1 and "Stopped after 1 of 2" in str(result)


def test_the_command_records_and_adds_to_what_is_there(install, tmp_path, capsys):
    install(FakeGpu())
    out = tmp_path / "h200.json"
    for size in ("32", "64"):
        assert main(["0", "1", "--sizes", size, "--out", str(out)]) == 0
    assert len(records.load(tmp_path)) == 4
    assert "Recorded in" in capsys.readouterr().out


def test_what_was_measured_before_a_wrong_kernel_is_kept(install, tmp_path, capsys, monkeypatch):
    gpu = install(FakeGpu())

    def wrong_at_128(variant, A, B, C):
        gpu.wrong = A.shape[0] == 128
        return gpu.prepare(variant, A, B, C)

    monkeypatch.setattr(bench_module, "prepare", wrong_at_128)
    out = tmp_path / "h200.json"
    assert main(["2", "--sizes", "64", "128", "256", "--out", str(out)]) == 1
    assert [run.N for run in records.load(tmp_path)] == [64]
    assert "is wrong at 128×128×128" in capsys.readouterr().err


def test_a_time_limit_ends_it_and_missing_goes_on(install, tmp_path, capsys, monkeypatch):
    install(FakeGpu())
    out = tmp_path / "h200.json"
    now = iter(range(0, 1000, 25))
    monkeypatch.setattr(bench_module.time, "monotonic", lambda: next(now))
    asked = ["2", "--sizes", "32", "64", "128", "--out", str(out)]
    assert main([*asked, "--minutes", "0.6"]) == 0
    assert [run.N for run in records.load(tmp_path)] == [32]
    assert "Stopped after 0.6 minutes and 1 of 3" in capsys.readouterr().out
    assert main([*asked, "--missing"]) == 0
    assert [run.N for run in records.load(tmp_path)] == [32, 64, 128]
    assert "32" not in {line.split()[4] for line in capsys.readouterr().out.splitlines()[1:-1]}


def test_with_nothing_named_it_measures_what_the_book_shows(install, tmp_path, monkeypatch):
    install(FakeGpu())
    shown = [((32, 32, 32), ladder[2]()), ((32, 32, 64), ladder[5](TM=8))]
    monkeypatch.setattr(bench_module, "book", lambda: shown)
    assert main(["--out", str(tmp_path / "h200.json")]) == 0
    found = {((run.M, run.N, run.K), run.kernel) for run in records.load(tmp_path)}
    assert found == {(size, variant.key) for size, variant in shown}


def test_the_book_shows_every_setting_and_the_defaults_first():
    points = bench_module.book()
    assert len(points) == len(set(points))
    every = {v for step in ladder if step.function for v in step.variants()} | {ladder[0]()}
    assert {v for _, v in points} == every
    first = points[: len(ladder) * len(bench_module.SIZES)]
    assert all(v == v.step() for _, v in first), "the defaults come first"


SMI = """\
2026/01/01 00:00:01.000, 1980, 100.5, 40, 0x0000000000000001
2026/01/01 00:00:02.000, 1500, [N/A], 60, 0x0000000000000024
2026/01/01 00:00:03.000, 1700, 300.5, 50, 0x0000000000000000
2026/01/01 00:00:04.0"""


def test_a_lowered_clock_is_told_with_its_reasons():
    samples = bench_module.parse_samples(SMI)
    begun, _, ended = (sample.at for sample in samples)
    assert bench_module.during(samples, begun, ended) == {
        "clock_mhz": 1700, "throttled": ["power cap", "heat"]
    }  # fmt: skip
    assert bench_module.during(samples, ended, ended)["throttled"] == []
    assert bench_module.during(samples, ended + 1, ended + 2) == {}, "nothing is known"
    assert bench_module.summary(samples)["power_w"] == {"min": 100.5, "median": 200.5, "max": 300.5}


def test_reasons_that_a_driver_does_not_tell_are_not_guessed():
    samples = bench_module.parse_samples("2026/01/01 00:00:01.000, 1980, 100.5, 40, P0")
    assert bench_module.during(samples, 0, 1e12) == {"clock_mhz": 1980}


def test_a_gpu_without_a_data_sheet_is_measured_and_not_recorded(install, monkeypatch, capsys):
    install(FakeGpu())
    monkeypatch.setattr(bench_module, "device_named", lambda name: None)
    assert main(["2", "--sizes", "32"]) == 0
    said = capsys.readouterr()
    assert "02_tiled" in said.out and "Recorded" not in said.out
    assert "unknown GPU NVIDIA H200" in said.err and "devices.py" in said.err


def test_a_macro_to_vary_that_no_step_has_is_refused(capsys, install):
    install(FakeGpu())
    assert main(["2", "--vary", "WIDTH"]) == 2
    assert "--vary WIDTH: no such macro here. There are ACCUMULATORS" in capsys.readouterr().err


def test_the_command_takes_squares_and_products_of_three_sizes(install, tmp_path):
    install(FakeGpu())
    out = tmp_path / "h200.json"
    assert main(["2", "--sizes", "64", "33x65x17", "--out", str(out)]) == 0
    assert {(run.M, run.N, run.K) for run in records.load(tmp_path)} == {(64,) * 3, (33, 65, 17)}


@pytest.mark.parametrize("size", ["0", "-4", "64x", "64x64", "8x8x8x8", "8x0x8", "8*8*8", "many"])
def test_a_size_that_is_none_is_refused(size, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["2", f"--sizes={size}"])
    assert stop.value.code == 2 and f"'{size}' is no size: give N" in capsys.readouterr().err


def test_the_command_takes_steps_and_macros_as_the_other_commands_do(install, tmp_path, capsys):
    install(FakeGpu())
    out = tmp_path / "h200.json"
    asked = ["02_tiled", "TILE=16", "--vary", "LAYOUT", "--sizes", "32", "--out", str(out)]
    assert main(asked) == 0
    found = [(run.macros["TILE"], run.macros["LAYOUT"]) for run in records.load(tmp_path)]
    assert found == [(16, 0), (16, 1)]
    assert main(["99"]) == 2 and main(["2", "TILE=64"]) == 2
    said = capsys.readouterr().err
    assert "there is no step 9" in said and "TILE=64 needs 64×64" in said


def test_another_driver_is_not_mixed_in(install, tmp_path, monkeypatch, capsys):
    install(FakeGpu())
    out = tmp_path / "h200.json"
    assert main(["1", "--sizes", "64", "--out", str(out)]) == 0
    monkeypatch.setattr(bench_module, "smi", lambda bus_id, *fields: ["600.0"])
    assert main(["1", "--sizes", "64", "--out", str(out)]) == 1
    assert "Not recorded" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pair_ms", "expected"), [(0.1, 50), (10, 30), (60, 7), (430, 6), (900, 3), (5000, 3)]
)
def test_repeats_follow_the_budget(pair_ms, expected):
    assert repeats(pair_ms, budget_ms=300) == expected


def test_the_interval_of_the_median_holds_in_95_percent_of_samples():
    source = random.Random(0)
    for n in (6, 7, 20, 51):
        hits = 0
        for _ in range(2000):
            low, high = median_interval([source.gauss(0, 1) for _ in range(n)])
            hits += low <= 0 <= high
        assert hits / 2000 > 0.94


def test_the_interval_of_few_values_is_their_range_and_of_many_is_narrower():
    assert median_interval([3, 1, 2]) == (1, 3)
    assert median_interval(list(range(50))) == (17, 32)  # tables of the sign test: 18th, 33rd
