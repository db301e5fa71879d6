import re
import time

import ipywidgets as widgets
import pytest
from test_explorer import page_bytes, wrong_choices
from test_records import measured_run, record, spread

from sgemm_lab.devices import devices
from sgemm_lab.ladder import ladder
from sgemm_lab.measure import records
from sgemm_lab.show import explorer
from sgemm_lab.show.labels import digits
from sgemm_lab.show.ladder_explorer import SIZES, UNITS, explore_ladder


@pytest.fixture(scope="module")
def shown():
    return explore_ladder()


def bars(pane):
    """name → (share of the full width, what stands beside the bar, in the accent?)."""
    found = re.findall(
        r"<tr( class=x)?><th scope=row>(.*?)<td>(?:<i style=--w:([\d.]+)></i>)?([^<]*)", pane.value
    )
    return {name: (float(width or 0), words, bool(here)) for here, name, width, words in found}


@pytest.mark.parametrize("N", [1024, 4096])
def test_bars_and_numbers_are_those_of_the_records(shown, N):
    peak = devices["h200"].fp32_tflops
    for number in range(1, 12):
        step = ladder[number]
        (run,) = records.runs("h200", number, step().macros, N, "measured")
        expected = {
            "% of cuBLAS": (run.pct_of_cublas, 100),
            "GFLOPS": (run.gflops, 1000 * peak),
            "% of peak": (run.gflops / peak / 10, 100),
            "ms": (run.ms, None),
        }
        for unit, (value, full) in expected.items():
            width, words, _ = bars(shown.panes[N, "h200", unit])[f"{number} {step.title}"]
            assert words == digits(value) + " *" * run.stale
            if full:
                assert width == pytest.approx(value / full, abs=6e-4)


def test_in_milliseconds_the_slowest_has_the_whole_width(shown):
    found = bars(shown.panes[4096, "h200", "ms"])
    assert max(width for width, *_ in found.values()) == 1
    assert found["1 Naive"][0] == 1


def test_the_fastest_kernel_has_the_accent_or_the_step_that_is_asked_for(shown):
    def marked(explorer_of):
        found = bars(explorer_of.panes[4096, "h200", "GFLOPS"])
        return [name for name, (*_, here) in found.items() if here]

    rates = {
        n: records.runs("h200", n, ladder[n]().macros, 4096, "measured")[0].gflops
        for n in range(1, 12)
    }
    best = max(rates, key=rates.get)
    assert marked(shown) == [f"{best} {ladder[best].title}"]
    assert marked(explore_ladder(step=5)) == [f"5 {ladder[5].title}"]


def test_every_size_gpu_and_unit_has_a_pane_and_few_enough_travel(shown):
    sizes, gpus, units = (set(part) for part in zip(*shown.panes, strict=True))
    recorded = {run.gpu for run in records.load() if run.N in SIZES}
    assert gpus == recorded and units == set(UNITS) and sizes <= set(SIZES) and 4096 in sizes
    assert len({id(pane) for pane in shown.panes.values()}) <= explorer.MOST_PANES


def test_each_choice_shows_its_pane(shown):
    _, *selectors, stack, _ = shown.widget.children
    assert [s.label for s in selectors] == ["4096", "H200", "% of cuBLAS"]
    assert wrong_choices(shown, selectors, stack) == []


def test_what_others_reported_is_shown_with_their_names_where_we_measured_nothing(shown):
    found = bars(shown.panes[4096, "t4", "GFLOPS"])
    (run,) = records.runs("t4", 2, N=4096, label="R1")
    name = next(name for name in found if name.startswith("R1") and "tiled" in name)
    assert found[name][1] == digits(run.gflops)
    assert "T4, reported, N = 4096" in shown.panes[4096, "t4", "GFLOPS"].value
    assert not any("R3" in name for name in bars(shown.panes[4096, "h200", "GFLOPS"]))
    assert "R1: “" in shown.text and "R1: “" in shown.widget.children[-1].value


def test_where_nothing_is_recorded_it_says_so(shown):
    empty = [pane for (N, gpu, _), pane in shown.panes.items() if not records.runs(gpu, N=N)]
    assert empty and {pane.value for pane in empty} == {
        "<div class=lab><p>Nothing is recorded of this GPU at this size.</p></div>"
    }


@pytest.fixture
def another(tmp_path):
    runs = [measured_run(step, N, ms) for N in (1024, 4096) for step, ms in ((1, 4.0), (2, 2.0))]
    records.write(tmp_path / "a100.json", record(*runs, gpu="a100", gpu_name="NVIDIA A100"))
    return tmp_path


def test_a_new_gpu_needs_no_new_code(another):
    (_, gpu, _), _ = _selectors(explore_ladder(directory=another))
    assert gpu.options == (("A100", "a100"),) and list(gpu.tooltips) == ["measured"]
    found = bars(explore_ladder(directory=another).panes[4096, "a100", "ms"])
    assert found["2 Shared-memory tiles"][:2] == (0.5, "2.00")


def _selectors(shown):
    _, *selectors, stack, _ = shown.widget.children
    return selectors, stack


def test_a_run_of_another_version_is_marked_and_the_mark_is_explained(another):
    path = another / "a100.json"
    old = record(measured_run(2, 4096, source_hash="0" * 16), gpu="a100", gpu_name="NVIDIA A100")
    records.write(path, old)
    found = explore_ladder(directory=another)
    assert bars(found.panes[4096, "a100", "ms"])["2 Shared-memory tiles"][1] == "1.00 *"
    assert "* measured with another version of this kernel" in found.text


def test_a_kernel_without_cublas_beside_it_has_a_dash_and_no_bar(tmp_path):
    run = {"step": 1, "kernel": "X naive", "macros": {}, "M": 4096, "N": 4096, "K": 4096,
           "ms": spread(1.0)}  # fmt: skip
    records.write(
        tmp_path / "l4-x.json",
        record(run, kind="reported", gpu="l4", gpu_name="L4", label="X", source="somebody",
               provenance={}) | {"sessions": []},
    )  # fmt: skip
    found = bars(explore_ladder(directory=tmp_path).panes[4096, "l4", "% of cuBLAS"])
    assert found == {"X naive": (0, "–", True)}


def test_many_gpus_leave_room_for_fewer_sizes(tmp_path):
    runs = [measured_run(2, N) for N in SIZES]
    for gpu in devices:
        records.write(tmp_path / f"{gpu}.json", record(*runs, gpu=gpu, gpu_name=gpu))
    panes = explore_ladder(directory=tmp_path).panes
    assert len(panes) <= explorer.MOST_PANES
    assert {N for N, *_ in panes} == set(SIZES[: 64 // (4 * len(devices))])


def test_without_records_it_says_at_which_sizes(tmp_path):
    with pytest.raises(ValueError, match="nothing is recorded at N = 256, 512, 1024"):
        explore_ladder(directory=tmp_path)


def test_the_text_is_a_table_of_all_that_the_panes_show(shown):
    table = shown.text.split("\n\n")[1].splitlines()
    assert table[0].split()[:3] == ["GPU", "N", "kernel"]
    charts = {(N, gpu): len(bars(pane)) for (N, gpu, _), pane in shown.panes.items()}
    assert len(table) - 1 == sum(charts.values())


def test_old_ipywidgets_get_tabs(monkeypatch, shown):
    monkeypatch.setattr(explorer, "Stack", widgets.Tab)
    tabs = explore_ladder()
    _, stack = _selectors(tabs)
    assert isinstance(stack, widgets.Tab) and stack.get_title(0).startswith("N = ")
    assert tabs.text == shown.text


def test_it_is_small_and_quick():
    begun = time.process_time()
    shown = explore_ladder()
    assert time.process_time() - begun <= 5
    assert page_bytes(shown) <= 250_000
