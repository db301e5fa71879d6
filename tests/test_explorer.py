import dataclasses
import re

import ipywidgets as widgets
import pytest
from test_records import measured_run, record

from sgemm_lab.ladder import ladder
from sgemm_lab.measure import records
from sgemm_lab.paths import MEASUREMENTS
from sgemm_lab.run import backend
from sgemm_lab.show import explorer
from sgemm_lab.show.explorer import explore


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(backend, "gpu_available", lambda: False)


@pytest.fixture(scope="module")
def tiled():
    return explore(2)


def visible(stack):
    while hasattr(stack, "selected_index"):
        stack = stack.children[stack.selected_index]
    return stack


def parts(shown):
    _, *selectors, stack = shown.widget.children
    return selectors, stack


def test_there_is_a_pane_for_every_choice_legal_or_not(tiled):
    assert len(tiled.panes) == 4 * 3 * 2
    assert set(tiled.panes) == {
        (t, a, s) for t in (8, 16, 32, 64) for a in (1, 2, 4) for s in (0, 1)
    }


def test_it_opens_on_the_default(tiled):
    selectors, stack = parts(tiled)
    assert [s.value for s in selectors] == list(ladder[2]().macros.values())
    assert visible(stack) is tiled.panes[32, 1, 0]


def follow_links(shown):
    """What the browser does: every link copies its source's index."""
    for link in shown.widget.links:
        (source, name), (target, trait) = link.source, link.target
        setattr(target, trait, getattr(source, name))


def test_each_choice_shows_its_own_pane(tiled):
    selectors, stack = parts(tiled)
    for setting, pane in tiled.panes.items():
        for selector, value in zip(selectors, setting, strict=True):
            selector.value = value
        follow_links(tiled)
        assert visible(stack) is pane


def test_links_work_in_the_browser_without_python(tiled):
    assert len(tiled.widget.links) == 1 + 4 + 4 * 3
    assert all(isinstance(link, widgets.widget_link.Link) for link in tiled.widget.links)


def test_an_illegal_choice_says_why_and_what_to_choose(tiled):
    for setting, pane in tiled.panes.items():
        problem = "a block may have 1024. Choose 8, 16 or 32." in pane.value
        assert problem == (setting[0] == 64)
    assert "64×64 = 4096 threads" in tiled.text


def test_a_pane_has_resources_occupancy_counters_and_the_default_beside_it(tiled):
    pane = tiled.panes[16, 1, 1].value
    for words in ("256 threads", "T4", "A100", "L4", "H200", "occupancy", "limited by",
                  "shared load wavefronts", "the default"):  # fmt: skip
        assert words in pane
    counted = records.counters(ladder[2](TILE=16, LAYOUT=1)).shared_load_wavefronts
    assert f"{counted:,}".replace(",", " ") in pane


def test_panes_are_small_enough_to_travel_in_a_page(tiled):
    assert max(len(pane.value) for pane in tiled.panes.values()) <= 3000
    assert sum(len(pane.value) for pane in explore(1).panes.values()) < 250_000


def test_the_text_is_ours_and_always_the_same(tiled):
    bundle = tiled._repr_mimebundle_()
    view = bundle["application/vnd.jupyter.widget-view+json"]
    assert view["model_id"] == tiled.widget.model_id
    assert bundle["text/plain"] == tiled.text == explore(2).text
    assert not re.search(r"0x[0-9a-f]{6}|[0-9a-f]{32}", tiled.text)


def test_recorded_runs_of_exactly_this_choice_are_shown(tmp_path):
    for name in ("counters.json", "resources.json"):
        (tmp_path / name).write_bytes((MEASUREMENTS / name).read_bytes())
    run = measured_run(N=2048) | {"macros": dict(ladder[2](TILE=16).macros)}
    records.write(tmp_path / "h200.json", record(run))
    shown = explore(2, directory=tmp_path)
    rate = f"{2 * 2048**3 / 1e-3 * 1e-9:,.0f}".replace(",", " ")
    assert f"{rate} (50 %)" in shown.panes[16, 1, 0].value
    assert "No run of this choice is recorded" in shown.panes[32, 1, 0].value


def test_fewer_macros_can_be_chosen_and_the_others_keep_their_default():
    shown = explore(2, "TILE")
    assert list(shown.panes) == [(8,), (16,), (32,), (64,)]


@pytest.mark.parametrize(
    ("names", "message"),
    [(("TIEL",), "no macro TIEL"), (("TILE",) * 4, "at most 3 selectors")],
)
def test_what_cannot_be_explored_is_refused_in_words(names, message):
    with pytest.raises(ValueError, match=message):
        explore(2, *names)


def test_cublas_has_nothing_to_explore():
    with pytest.raises(ValueError, match="no macro to explore"):
        explore(0)


def test_a_step_without_records_names_the_command(tmp_path):
    with pytest.raises(LookupError, match="python -m sgemm_lab record"):
        explore(2, directory=tmp_path)


def test_old_ipywidgets_without_stack_get_tabs(monkeypatch):
    monkeypatch.setattr(explorer, "Stack", widgets.Tab)
    shown = explore(2, "TILE")
    _, stack = parts(shown)
    assert isinstance(stack, widgets.Tab) and stack.get_title(3) == "TILE = 64"
    assert visible(stack) is shown.panes[(32,)]
    assert shown.text == explore(2, "TILE").text


def test_the_button_that_measures_is_there_only_beside_a_gpu(monkeypatch):
    from sgemm_lab.measure import bench as bench_module

    asked = []
    monkeypatch.setattr(backend, "gpu_available", lambda: True)
    monkeypatch.setattr(bench_module, "bench", lambda v, sizes: asked.append(v) or "a < table")
    *_, button, answer = explore(2, "TILE").widget.children
    button.click()
    assert asked == [ladder[2]()] and answer.value == "<pre>a &lt; table</pre>"


def test_a_new_step_needs_no_new_code():
    step = dataclasses.replace(ladder[2], title="Another")
    assert "Another" in explore(step, "TILE").text


@pytest.mark.parametrize("step", range(5, 12))
def test_the_explorers_of_thread_tiles_show_every_choice_and_why_some_are_refused(step):
    shown = explore(step)
    legal = {tuple(v.macros.values()) for v in ladder[step].variants()}
    assert legal <= set(shown.panes)
    for setting, pane in shown.panes.items():
        assert ("limited by" in pane.value) == (setting in legal)
        if setting not in legal:
            problem = ladder[step].problem(**dict(zip(("TILE", "BK", "TM"), setting, strict=True)))
            assert problem in pane.value and problem in shown.text
    assert shown.panes[tuple(ladder[step]().macros.values())] is visible(parts(shown)[1])
