import copy
import json

import pytest

from sgemm_lab.ladder import ladder
from sgemm_lab.measure import records


def spread(median):
    return {"min": 0.9 * median, "median": median, "max": 1.1 * median}


def measured_run(step=2, N=256, ms=1.0, **changes):
    variant = ladder[step]()
    return {
        "step": step,
        "kernel": variant.key,
        "macros": dict(variant.macros),
        "source_hash": variant.source_hash,
        "M": N,
        "N": N,
        "K": N,
        "ms": spread(ms),
        "cublas_ms": spread(0.5),
        "ratio": {"low": 0.48, "median": 0.5, "high": 0.52},
        "repeats": 7,
        "launches": 1,
        "session": 0,
    } | changes


def session(second):
    return {"started": f"2026-01-01T00:00:0{second}Z", "commit": None, "protocol": "by hand"}


def record(*runs, **changes):
    return {
        "schema": 1,
        "kind": "measured",
        "gpu": "h200",
        "gpu_name": "NVIDIA H200",
        "provenance": {"driver": "1", "cuda": "2", "cublas": "3", "nvrtc": "4"},
        "sessions": [session(1)],
        "runs": list(runs or [measured_run()]),
    } | changes


def test_gflops_are_two_flops_a_multiply_add_over_the_median_time(tmp_path):
    records.write(tmp_path / "h200.json", record(measured_run(N=1000, ms=2.0)))
    (run,) = records.load(tmp_path)
    assert run.gflops == pytest.approx(2 * 1000**3 / 2e-3 * 1e-9)
    assert run.pct_of_cublas == 50  # the median of the pairs, not the quotient of the medians


def test_what_is_written_reads_back_the_same(tmp_path):
    path = tmp_path / "h200.json"
    records.write(path, record())
    assert records.read(path) == record()


def with_run(**changes):
    return record(measured_run() | changes)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (record(gpu="rtx9090"), "unknown GPU 'rtx9090'.*devices.py"),
        (record(kind="guessed"), '"kind" must be one of measured, reported'),
        (record(schema=2), "schema"),
        (with_run(ms=spread(-1.0)), r"runs\[0\].*ms"),
        (with_run(ms={"min": 2, "median": 1, "max": 3}), "min ≤ median ≤ max"),
        (with_run(M=0), r"runs\[0\].*M"),
        (with_run(repeats=1.5), "repeats"),
        (with_run(step=0), "step 0 is cuBLAS, which has no source_hash"),
        (with_run(session=1), "there is no session 1"),
        (with_run(throttled=["tired"]), "throttled"),
        (record(provenance={"driver": "1", "cuda": "2", "cublas": "3"}), "nvrtc"),
        (with_run(speed=3), "speed"),
        (with_run(gflops=1e4), r"runs\[0\]"),
        (with_run(macros={"TILE": "32"}), "TILE"),
        (record({k: v for k, v in measured_run().items() if k != "ms"}), r"runs\[0\].*ms"),
        (record({k: v for k, v in measured_run().items() if k != "source_hash"}), "source_hash"),
        (record(measured_run(), measured_run(ms=2.0)), "same kernel and size"),
    ],
)
def test_a_bad_record_is_refused_with_the_place_and_the_reason(tmp_path, bad, message):
    with pytest.raises(records.RecordError, match=f"h200.json.*{message}|h200.json: {message}"):
        records.write(tmp_path / "h200.json", bad)
    assert not list(tmp_path.iterdir()), "nothing was written"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_not_finite_is_refused(tmp_path, number):
    path = tmp_path / "h200.json"
    text = json.dumps(record()).replace('"median": 1.0', f'"median": {number}')
    path.write_text(text)
    with pytest.raises(records.RecordError, match=r"h200.json: .*not a finite number"):
        records.load(tmp_path)


def test_a_truncated_file_is_named_with_the_way_out(tmp_path):
    path = tmp_path / "h200.json"
    path.write_text(json.dumps(record())[:-40])
    with pytest.raises(records.RecordError, match=r"h200.json: not complete JSON.*git"):
        records.load(tmp_path)


def test_a_run_is_stale_once_a_token_of_its_kernel_has_changed(tmp_path):
    old = measured_run(step=1, source_hash="0" * 16)
    records.write(tmp_path / "h200.json", record(measured_run(), old))
    assert [run.stale for run in records.load(tmp_path)] == [False, True]


def test_a_run_of_a_step_that_is_not_here_is_not_stale(tmp_path):
    run = measured_run(source_hash="0" * 16) | {"step": 77}
    records.write(tmp_path / "h200.json", record(run))
    assert not records.load(tmp_path)[0].stale


def test_merging_replaces_the_same_kernel_and_size_and_keeps_the_rest(tmp_path):
    path = tmp_path / "h200.json"
    records.merge(path, record(measured_run(N=256), measured_run(N=512)))
    records.merge(path, record(measured_run(N=512, ms=3.0), measured_run(N=1024)))
    assert [(run.N, run.ms) for run in records.load(tmp_path)] == [(256, 1), (512, 3), (1024, 1)]


def test_merging_keeps_each_runs_session_and_drops_those_without_a_run(tmp_path):
    path = tmp_path / "h200.json"
    both = measured_run(N=256), measured_run(N=512)
    records.merge(path, record(*both, sessions=[session(1)]))
    records.merge(path, record(measured_run(N=512), sessions=[session(2)]))
    starts = [run.provenance["started"][-3:] for run in records.load(tmp_path)]
    assert starts == ["01Z", "02Z"]
    records.merge(path, record(measured_run(N=256), sessions=[session(3)]))
    assert [s["started"][-3:] for s in records.read(path)["sessions"]] == ["02Z", "03Z"]
    assert [run.provenance["started"][-3:] for run in records.load(tmp_path)] == ["03Z", "02Z"]


def test_runs_taken_with_another_driver_are_not_mixed_in(tmp_path):
    path = tmp_path / "h200.json"
    records.merge(path, record())
    before = path.read_bytes()
    other = copy.deepcopy(record())
    other["provenance"]["driver"] = "580"
    with pytest.raises(records.RecordError, match=r"measured with driver 1, this run with 580"):
        records.merge(path, other)
    assert path.read_bytes() == before


def test_every_committed_file_is_valid_and_says_who_measured():
    loaded = records.load()
    assert {"R1", "R2", "R3"} <= {run.label for run in loaded}
    for run in loaded:
        assert run.source and run.kernel and run.gflops > 0


def test_a_reported_kernel_keeps_its_authors_name():
    for run in records.runs(kind="reported"):
        assert run.step == 0 or run.kernel.startswith(run.label)


def test_published_rates_and_times_of_one_row_agree():
    rows = [r for r in records.runs(kind="reported") if r.ms and r.published_gflops]
    assert len(rows) == 5
    for run in rows:
        assert run.published_gflops == pytest.approx(2 * run.N**3 / run.ms * 1e-6, rel=2e-3)


def test_r1_stands_at_26_percent_of_cublas_at_4096():
    (run,) = records.runs(label="R1", step=2, N=4096)
    assert round(run.pct_of_cublas) == 26


def test_r3_is_there_whole_and_reaches_96_9_percent_of_cublas():
    assert len(records.runs(gpu="rtx2080s", label="R3")) == 4 * 8 + 8 * 24
    (run,) = records.runs(gpu="rtx2080s", label="R3", step=11, N=6144)
    assert round(run.pct_of_cublas, 1) == 96.9
    (first, second) = (records.runs(gpu="rtx2080s", label="R3", step=s, N=2048)[0] for s in (1, 2))
    assert 3.3 < first.gflops / second.gflops < 3.5


def test_r2_has_no_cublas_to_compare_with():
    rows = records.runs(label="R2")
    assert {run.gpu for run in rows} == {"t4", "h100"}
    assert all(run.pct_of_cublas is None for run in rows)


def test_a_selection_matches_everything_given():
    (run,) = records.runs(gpu="t4", step=1, macros={"COALESCED": 0}, N=4096)
    assert run.gflops == 62
    assert not records.runs(gpu="t4", step=1, macros={"COALESCED": 0}, N=4095)


def fake_tables(directory, variant, **changes):
    origin = {"source_hash": variant.source_hash, "nvrtc": "12.9.86"} | changes
    for name, column, values in (
        ("counters", "256x256x256", {"ffma": 7}),
        ("resources", "sm_75", {"registers": 42}),
    ):
        rows = {f"{variant.key} {column}": values | origin}
        (directory / f"{name}.json").write_text(json.dumps({"schema": 1, "rows": rows}))


def test_counters_and_resources_are_found_by_variant(tmp_path):
    variant = ladder[2](TILE=16)
    fake_tables(tmp_path, variant)
    counters = records.counters(variant, directory=tmp_path)
    assert (counters.ffma, counters.nvrtc, counters.stale) == (7, "12.9.86", False)
    assert records.resources(variant, "sm_75", directory=tmp_path).registers == 42
    assert not records.load(tmp_path), "tables are not runs"


def test_recorded_counters_of_an_older_kernel_are_stale(tmp_path):
    fake_tables(tmp_path, ladder[2](), source_hash="0" * 16)
    assert records.counters(ladder[2](), directory=tmp_path).stale


def test_what_was_not_recorded_names_the_command(tmp_path):
    with pytest.raises(LookupError, match=r"02_tiled .* 9x9x9: run `python -m sgemm_lab record`"):
        records.counters(ladder[2](), 9, 9, 9, directory=tmp_path)
    fake_tables(tmp_path, ladder[2]())
    with pytest.raises(AttributeError, match="'wavefronts' was not recorded; there are ffma"):
        _ = records.counters(ladder[2](), directory=tmp_path).wavefronts


def test_the_tables_are_complete_and_fresh():
    for step in ladder:
        for variant in step.variants() if step.function else ():
            assert not records.counters(variant, 256, 256, 256).stale
            for arch in records.ARCHS:
                assert not records.resources(variant, arch).stale
        if step.function:
            assert not records.counters(step(), 129, 65, 97).stale


def a_spread_of_variants():
    kernels = [step.variants() for step in ladder if step.function]
    return [v for every in kernels for v in (every[0].step(), every[len(every) // 2])]


@pytest.mark.parametrize("variant", a_spread_of_variants(), ids=lambda v: v.key)
def test_recorded_counters_and_resources_are_what_the_pinned_compiler_gives_today(variant):
    from sgemm_lab.run.nvrtc import version

    recorded = records.counters(variant)
    if version() != recorded.nvrtc:
        pytest.skip(f"recorded with NVRTC {recorded.nvrtc}, here is {version()}")
    assert records.count(variant, 256, 256, 256) == dict(recorded.values)
    arch = "sm_75"
    assert records.compile_report(variant, arch) == dict(records.resources(variant, arch).values)


@pytest.fixture
def computed(monkeypatch):
    """The keys that `record` computes, with numbers made up."""
    keys = []
    for name in ("count", "compile_report"):
        monkeypatch.setattr(
            records, name, lambda v, *columns: keys.append((v.key, columns)) or {"n": len(keys)}
        )
    return keys


def rows(directory, table):
    return json.loads((directory / f"{table}.json").read_text())["rows"]


def test_recording_goes_on_where_it_was_stopped(computed, tmp_path):
    def first(many):
        def progress(variants):
            yield from variants[:many]
            raise KeyboardInterrupt

        return progress

    with pytest.raises(KeyboardInterrupt):
        records.record(tmp_path, progress=first(3))
    assert len(rows(tmp_path, "counters")) == 3 and len(rows(tmp_path, "resources")) == 15
    records.record(tmp_path, missing=True)
    assert len(computed) == len(set(computed)), "nothing twice"
    variants = [v for step in ladder if step.function for v in step.variants()]
    kept = rows(tmp_path, "resources")
    assert list(kept) == [f"{v.key} {arch}" for v in variants for arch in records.ARCHS]
    assert len(rows(tmp_path, "counters")) == len(variants) + len(ladder) - 1
    records.record(tmp_path, missing=True)
    assert rows(tmp_path, "resources") == kept and len(computed) == len(set(computed))
    with pytest.raises(KeyboardInterrupt):
        records.record(tmp_path, progress=first(1))  # anew: what comes later is still there
    again = rows(tmp_path, "resources")
    assert again.keys() == kept.keys() and sum(again[k] != kept[k] for k in kept) == 5


def test_recording_what_is_missing_computes_rows_of_other_kernels_and_compilers(computed, tmp_path):
    records.record(tmp_path, missing=True)
    path, table = tmp_path / "counters.json", rows(tmp_path, "counters")
    old, other, *_ = table
    table[old]["source_hash"], table[other]["nvrtc"] = "0" * 16, "1.2.3"
    table["99_gone 1x1x1"] = table[old]
    path.write_text(json.dumps({"schema": 1, "rows": table}))
    computed.clear()
    records.record(tmp_path, missing=True)
    assert [f"{key} {'x'.join(map(str, size))}" for key, size in computed] == [old, other]
    assert "99_gone 1x1x1" not in rows(tmp_path, "counters")
