"""The roofline, the tables of limits and their explorer: what they show of which record."""

import json
import re
import shutil
from html import escape

import pytest

from sgemm_lab.ladder import ladder
from sgemm_lab.measure.limits import limits, rates
from sgemm_lab.paths import MEASUREMENTS
from sgemm_lab.show import charts
from sgemm_lab.show.ceilings import explore_limits, intensity


@pytest.fixture
def copied(tmp_path):
    """The book's measurements, to be changed."""
    directory = tmp_path / "measurements"
    shutil.copytree(MEASUREMENTS, directory)
    return directory


def change(path, where, how):
    record = json.loads(path.read_text())
    for run in record["runs"]:
        if where(run):
            how(run)
    path.write_text(json.dumps(record))


def at_4096(step):
    macros = dict(ladder[step]().macros)
    return lambda run: (run["step"], run["macros"], run["N"], run["M"]) == (
        step, macros, 4096, 4096) and run["K"] == 4096  # fmt: skip


def line(bundle, start):
    return next(line for line in repr(bundle).splitlines() if line.startswith(start))


def test_structural_intensity_is_what_threads_ask_for():
    assert [intensity(ladder[n]) for n in (1, 2, 7, 8)] == [0.25, 8, 16, 32]
    assert intensity(ladder[2](TILE=16)) == 4


def test_ceilings_mark_the_limit_that_binds_and_no_other():
    bundle, found = charts.ceilings(ladder[8]), limits(ladder[8], "h200", 4096, 4096, 4096)
    assert re.findall(r'<b class="x">(.*?)</b>', bundle.html) == [found.binding.name]
    for limit in found.rows:
        assert limit.how in line(bundle, limit.name)


def test_what_is_left_out_and_where_rates_come_from_stands_below():
    for gpu, said in (("t4", "Jia"), ("a100", "Luo"), ("l4", "Guide"), ("h200", "on NVIDIA H200")):
        assert said in repr(charts.ceilings(ladder[9], gpu=gpu)).splitlines()[-1]
        assert ("Left out: L1" in repr(charts.limiters(gpu=gpu))) == (gpu != "h200")


def test_an_uneven_share_is_shown_where_it_is_part_of_the_bound():
    large, small = (repr(charts.ceilings(ladder[8], N=N)) for N in (4096, 256))
    assert "uneven share" in large and "uneven share" not in small


def test_a_changed_record_changes_the_tables(copied):
    def slower(run):
        run["ms"] = {name: 2 * ms for name, ms in run["ms"].items()}

    before = charts.ceilings(ladder[9]), charts.limiters(), charts.roofline()
    change(copied / "h200.json", at_4096(9), slower)
    again = (
        charts.ceilings(ladder[9], directory=copied),
        charts.limiters(directory=copied),
        charts.roofline(directory=copied),
    )
    for start, old, new in zip(("measured", "9", "9"), before, again, strict=True):
        assert line(old, start) != line(new, start)
    others = [b for b in repr(before[1]).splitlines() if not b.startswith("9")]
    assert others == [b for b in repr(again[1]).splitlines() if not b.startswith("9")]


def test_a_run_of_another_version_of_the_kernel_is_starred(copied):
    change(copied / "h200.json", at_4096(9), lambda run: run.update(source_hash="0"))
    bundle = charts.limiters(directory=copied)
    assert "*" in line(bundle, "9") and "* measured with another version" in repr(bundle)
    assert "*" not in repr(charts.limiters(ladder[8], directory=copied))


def test_a_t4_shows_what_others_reported_and_says_who():
    shown = repr(charts.limiters(ladder[2], gpu="t4"))
    assert "0.933, R1" in shown and "0.868, ladder a" in shown
    assert "can't be less than" in line(charts.ceilings(ladder[2], gpu="t4"), "reported, R1")


def test_a_kernel_whose_tile_is_not_told_has_no_place_on_a_roofline():
    small, large = (repr(charts.roofline("t4", N=N)) for N in (2048, 4096))
    assert "R1" in small and "R2" in small
    assert "ladder a" in large and "ladder b" not in large
    assert "2 Shared-memory tiles  reported, ladder a" not in large


def test_marks_that_would_lie_on_each_other_are_one():
    html = charts.roofline().html
    assert ">2, 3, 4<" in html and ">7<" in html


def test_what_is_not_recorded_is_refused_in_words(tmp_path):
    with pytest.raises(ValueError, match="nothing is recorded on A100"):
        charts.roofline("a100")
    for chart in (charts.waits, charts.wavefronts):
        with pytest.raises(LookupError, match=r"rates_l4\.json: run benchmarks"):
            chart("l4")


def test_the_explorer_has_a_pane_for_every_step_and_gpu():
    explorer = explore_limits()
    steps = [step.number for step in ladder if step.function]
    gpus = "t4", "a100", "l4", "h200"
    assert list(explorer.panes) == [(step, gpu) for step in steps for gpu in gpus]
    assert len(explorer.panes) <= 64
    for (step, gpu), pane in explorer.panes.items():
        (marked,) = re.findall(r'<b class="x">(.*?)</b>', pane.value)
        assert marked == limits(ladder[step], gpu, 4096, 4096, 4096).binding.name
        assert ("No run of this kernel" in pane.value) == ("be less than" not in pane.value)
        assert escape(rates(gpu).source) in pane.value
        assert ("Left out: L1" in pane.value) == (gpu != "h200")
    assert len(explorer.widget.links) == 1 + len(steps)
