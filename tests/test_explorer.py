import dataclasses
import json
import re
import time

import ipywidgets as widgets
import pytest
from ipywidgets.embed import dependency_state
from test_records import measured_run, record

from sgemm_lab import book
from sgemm_lab.devices import devices
from sgemm_lab.ladder import ladder
from sgemm_lab.measure import records
from sgemm_lab.measure.limits import limits
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


def wrong_choices(shown, selectors, stack):
    """The choices at which another pane than theirs is to be seen."""
    found = []
    for setting, pane in shown.panes.items():
        for selector, value in zip(selectors, setting, strict=True):
            selector.value = value
        follow_links(shown)
        if visible(stack) is not pane:
            found.append(setting)
    return found


def test_each_choice_shows_its_own_pane(tiled):
    assert wrong_choices(tiled, *parts(tiled)) == []


def test_a_link_that_is_missing_would_be_noticed():
    broken = explore(2)
    del broken.widget.links[0]
    assert wrong_choices(broken, *parts(broken)) != []


def test_a_selectors_name_says_what_it_is(tiled):
    assert [selector.tooltip for selector in parts(tiled)[0]] == ["TILE", "ACCUMULATORS", "LAYOUT"]


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
    assert f"{counted:,}".replace(",", "\N{NO-BREAK SPACE}") in pane


def page_bytes(shown):
    """What an explorer adds to a page: the state of its widgets, as the book writes it."""
    state = dependency_state(shown.widget)
    return len(json.dumps({key: book.drop_nulls(model) for key, model in state.items()}))


def test_sixty_four_choices_fit_a_page_and_the_patience_of_a_reader():
    biggest = max((step for step in ladder if step.macros), key=lambda s: len(explore(s).panes))
    begun = time.process_time()
    shown = explore(biggest)
    seconds = time.process_time() - begun
    choices = len(shown.panes)
    assert 32 <= choices <= 64
    assert page_bytes(shown) * 64 / choices <= 250_000
    assert seconds * 64 / choices <= 5


def test_equal_panes_travel_once(tiled):
    refused = {id(pane) for setting, pane in tiled.panes.items() if setting[0] == 64}
    assert len(refused) == 1
    assert len({id(pane) for pane in tiled.panes.values()}) == 18 + 1


def test_a_pane_shows_how_c_is_cut_and_says_it_in_words(tiled):
    pane = tiled.panes[16, 1, 0].value
    assert pane.count("<svg") == 1
    alt = re.search(r'aria-label="([^"]*)"', pane)[1]
    cut, told = alt.split("; ")
    assert cut == "C is cut into tiles of 16×16, one for each block"
    assert told == "a warp computes 2×16 of it, a thread 1×1."
    assert 200 <= len(re.search(r"<svg.*</svg>", pane)[0]) <= 2000
    assert "#" not in re.search(r"<svg.*</svg>", pane)[0], "colours are the page's"


@pytest.mark.parametrize(("number", "setting"), [(2, (32, 1, 0)), (8, (128, 8, 8))])
def test_a_pane_has_the_bound_of_each_gpu_and_what_is_measured_of_it(number, setting):
    pane = explore(number).panes[setting].value.replace("\N{NO-BREAK SPACE}", " ")
    table = pane[pane.index("registers a thread") :]
    cells = {
        row[0]: row[1:]
        for row in (re.findall(r"<td>(.*?)</td>", r) for r in table.split("</tr>"))
        if row
    }
    for column, gpu in enumerate(explorer.GPUS):
        found = limits(ladder[number], devices[gpu], 4096, 4096, 4096)
        assert cells["bound at N = 4096, GFLOPS"][column] == f"{found.gflops:,.0f}".replace(
            ",", " "
        )
        assert cells["– by"][column] == found.binding.name
        runs = records.runs(gpu, number, ladder[number]().macros, 4096, "measured")
        share = [f"{100 * run.gflops / found.gflops:.0f}" + " *" * run.stale for run in runs]
        assert [cells["– measured, % of it"][column]] == (share or [""])


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
    pane = shown.panes[16, 1, 0].value.replace("\N{NO-BREAK SPACE}", " ")
    assert f"{rate} (50 %)" in pane and "another version" not in pane
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


@pytest.fixture
def gpu(monkeypatch):
    """An explorer of step 2's tile beside a GPU: (selector, button, answer), and what times."""
    from sgemm_lab.measure import bench as module

    monkeypatch.setattr(backend, "gpu_available", lambda: True)
    _, selector, _, button, answer = explore(2, "TILE").widget.children

    def measure_by(bench):
        monkeypatch.setattr(module, "bench", bench)

    return selector, button, answer, measure_by


def test_the_button_that_measures_is_there_only_beside_a_gpu(gpu, tiled):
    selector, button, answer, measure_by = gpu
    asked = []
    measure_by(lambda variant, sizes, **_: asked.append((variant, sizes)) or "a < table")
    selector.value = 16
    button.click()
    assert asked == [(ladder[2](TILE=16), explorer.SIZES)] and "a &lt; table" in answer.value
    assert not any(isinstance(child, widgets.Button) for child in tiled.widget.children)


def test_while_it_measures_the_button_rests_and_the_last_answer_stays(gpu):
    _, button, answer, measure_by = gpu
    seen = []

    def bench(variant, sizes, progress, **_):
        for point in progress([((size,) * 3, variant) for size in sizes]):
            seen.append((button.disabled, button.description, answer.value, point[0][0]))
        return "new figures"

    measure_by(bench)
    answer.value = "the figures before"
    button.click()
    assert [N for *_, N in seen] == list(explorer.SIZES)
    for number, (disabled, name, shown, N) in enumerate(seen, 1):
        assert disabled and name == "Measuring…"
        assert f"N = {N}: {number} of 3" in shown and "the figures before" in shown
    assert not button.disabled and button.description == "Measure on this GPU"
    assert "new figures" in answer.value and "the figures before" not in answer.value


def test_what_goes_wrong_while_it_measures_is_said_in_words(gpu):
    _, button, answer, measure_by = gpu

    def bench(*_, **__):
        raise RuntimeError("cuBLAS uses TF32 < here")

    measure_by(bench)
    button.click()
    assert "could not be measured. RuntimeError: cuBLAS uses TF32 &lt; here" in answer.value
    assert not button.disabled


def test_a_refused_choice_is_not_measured(gpu):
    selector, button, answer, measure_by = gpu
    measure_by(lambda *_, **__: pytest.fail("measured"))
    selector.value = 64
    button.click()
    assert "a block may have 1024" in answer.value and not button.disabled


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
