"""R1's and R2's numbers beside ours: what the tables say comes from the files, whoever measured."""

import json
import shutil

import pytest

from sgemm_lab.devices import devices
from sgemm_lab.ladder import ladder
from sgemm_lab.measure import others, studies
from sgemm_lab.measure.limits import limits
from sgemm_lab.paths import MEASUREMENTS
from sgemm_lab.show import charts
from sgemm_lab.show.prose import recorded

WITH_STUDY = (charts.cpu, charts.starts)


@pytest.fixture
def copy(tmp_path):
    """The measurements, to be changed."""
    for path in MEASUREMENTS.glob("*.json"):
        shutil.copy(path, tmp_path)
    return tmp_path


def change(path, row, do):
    """Does `do` to every row of a file's runs or rows for which `row` holds."""
    record = json.loads(path.read_text())
    for each in record.get("runs", []) + record.get("rows", []):
        if row(each):
            do(each)
    path.write_text(json.dumps(record))


def lines(bundle, beginning):
    """The lines of a text that begin so, as words."""
    return [line.split() for line in bundle.text.splitlines() if line.startswith(beginning)]


def test_r1s_table_has_r1s_times_and_the_rates_that_follow():
    text = charts.r1()
    theirs, ours = lines(text, "– tiled,")[:2], lines(text, "– tiled,")[2:]
    assert theirs[0][3:] == ["162", "448", "401", "599", "933"]
    assert theirs[1][5:] == ["27.5", "19.4", "11.4", "14.6", "25.8"]
    assert len(ours) == 2 and "cuda-ml-accelerator" in text.text


def test_another_number_in_a_file_is_another_number_in_the_table(copy):
    before = charts.r1(copy).text
    change(copy / "t4-r1.json", lambda run: run["kernel"] == "R1 naive" and run["M"] == 512,
           lambda run: run["ms"].update(median=7.77))  # fmt: skip
    change(copy / "r1_h200.json", lambda row: row["kernel"] == "NumPy",
           lambda row: row["ms"].update(min=1, median=8.88, max=9))  # fmt: skip
    after = charts.r1(copy).text
    assert "7.77" not in before and "7.77" in after and after.count("8.88") == 5


@pytest.fixture
def with_a_t4(copy):
    """As if a reader had measured a T4: the H200's runs, ten times as long."""
    record = json.loads((copy / "h200.json").read_text())
    for run in record["runs"]:
        for name in ("ms", "cublas_ms"):
            run[name] = {key: 10 * value for key, value in run[name].items()}
    (copy / "t4.json").write_text(json.dumps(record | {"gpu": "t4", "gpu_name": "Tesla T4"}))
    return copy


def test_a_gpu_that_a_reader_measured_appears_by_itself(with_a_t4):
    text = charts.r1(with_a_t4).text
    assert "T4, measured" in text and "H200, measured" in text
    assert text.count("three loops") == 3, "R1's and the H200's CPU, and the note on flags"
    assert "4096: ours on T4, ours on H200 ×10.0" in charts.scaling(with_a_t4).text
    assert "T4, measured, 4096" in charts.shares(with_a_t4).text


def test_a_kernel_that_has_changed_since_is_marked(copy):
    assert "*" not in charts.r1(copy).text + charts.tiles(directory=copy).text
    stale = {"source_hash": "0" * 16}
    change(copy / "h200.json", lambda run: run["step"] == 2, lambda run: run.update(stale))
    change(copy / "r1_h200.json", lambda row: row["kernel"].startswith("02"),
           lambda row: row.update(stale))  # fmt: skip
    for text in (charts.r1(copy), charts.tiles(directory=copy), charts.starts(directory=copy),
                 charts.shares(copy)):  # fmt: skip
        assert "measured with another version of this kernel" in text.text


def test_r2s_ratio_is_17_and_the_same_sizes_give_less_than_half(copy):
    own, *same = [ratio for ratio in others.ratios() if ratio.gpu == "h100"]
    assert own.times == pytest.approx(17.3, abs=0.05)
    assert [ratio.on_t4 for ratio in same] == ["R1", "ladder a"]
    assert all(7 < ratio.times < 8.2 for ratio in same)
    text = charts.scaling().text
    assert lines(charts.scaling(), "shared memory")[0][-2:] == ["8.22", "8.22"]
    assert "17.3" in text and "ladder a on T4" in text


def test_no_tiled_kernel_exceeds_its_bound_which_is_counted_in_cycles():
    runs = others.tiled()
    assert {run.gpu for run in runs} >= {"t4", "h100", "h200"}
    for run in runs:
        found = limits(ladder[2](**run.macros), run.gpu, run.M, run.N, run.K)
        assert found.binding.name in ("shared memory", "latency")
        assert run.gflops < found.gflops == others.allowed(run)


def test_a_rate_is_a_larger_share_of_what_a_lower_clock_allows():
    run = others.reported(2)[4096]
    assert others.share(run) == pytest.approx(run.gflops / others.allowed(run))
    assert others.share(run, 795) == pytest.approx(2 * others.share(run))


def test_our_share_of_cublas_is_the_median_of_the_pairs_as_everywhere():
    ours = lines(charts.r1(), "– tiled, %")[-1][-1]
    assert float(ours) == pytest.approx(recorded(2, 4096).pct_of_cublas, abs=0.05)


def test_a_clock_that_suffices_is_the_share_of_the_boost_clock():
    row = next(words for words in lines(charts.shares(), "T4, R2"))
    gflops, bound, percent, mhz, at_base = (float(word) for word in
                                            (row[3], "".join(row[4:6]), *row[6:]))  # fmt: skip
    assert percent == pytest.approx(100 * gflops / bound, abs=0.6)
    assert mhz == pytest.approx(1590 * gflops / bound, abs=2)
    assert at_base == pytest.approx(100 * mhz / devices["t4"].base_mhz, abs=1)


def test_r1s_bytes_are_its_rate_times_its_time():
    small, large = lines(charts.tiles(), "R1, T4")
    assert "".join(small[-2:]) == "4279" and "".join(large[-2:]) == "1652"
    assert small[-4:-2] == ["99.6", "92.5"] and "28.7" in large and "28.7" not in small


def test_locked_clocks_are_shown_where_they_were_measured(copy):
    assert "clocks locked: not measured" in charts.tiles(directory=copy).text
    path = copy / "r1_h200.json"
    record = json.loads(path.read_text())
    record["ncu"]["locked"] = None
    record["rows"] += [row | {"clocks": "locked", "ms": 3.21}
                       for row in record["rows"] if row["part"] == "ncu"]  # fmt: skip
    path.write_text(json.dumps(record))
    text = charts.tiles(directory=copy).text
    locked = [line for line in text.splitlines() if line.startswith("ours") and "locked" in line]
    assert "not measured" not in text
    assert len(locked) == 2 and all("3.21" in line for line in locked)


@pytest.mark.parametrize("chart", WITH_STUDY, ids=lambda chart: chart.__name__)
def test_without_a_study_the_command_is_named(copy, chart):
    (copy / "r1_h200.json").unlink()
    with pytest.raises(LookupError, match=r"benchmarks/r1_study\.py"):
        chart(directory=copy)
    assert "NumPy" not in charts.r1(copy).text


def test_the_host_s_rate_is_two_flops_a_multiply_add():
    study = studies.r1()
    ms = study.ms("cpu", kernel="ijk", flags="-O2", N=1024)
    assert float(lines(charts.cpu(), "ijk, -O2")[0][-1]) == pytest.approx(
        2 * 1024**3 / ms * 1e-6, rel=0.01
    )


def test_r1s_times_under_nsight_are_kept_apart():
    assert all("Nsight" not in run.kernel for run in others.reported(2).values())
    found = others.under_nsight()
    assert found.keys() == others.R1_NSIGHT.keys()
    assert [found[tile].ms for tile in (16, 32)] == [46.26, 41.89]
