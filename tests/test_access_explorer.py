import time
from math import prod

import ipywidgets as widgets
import numpy as np
import pytest
from test_explorer import page_bytes, parts, wrong_choices

from sgemm_lab.ladder import ladder
from sgemm_lab.run.profile import accesses, executed_accesses, profile_variant
from sgemm_lab.show import explorer
from sgemm_lab.show.access_explorer import explore_accesses, product

PACKED, PADDED, BARE = ladder[4](LAYOUT=0, PAD=0), ladder[4](PAD=4), ladder[4](PAD=0)


@pytest.fixture(scope="module")
def layouts():
    return explore_accesses(BARE, PACKED, ladder[4], PADDED)


def test_every_kernel_instruction_and_warp_has_a_pane_and_no_more_than_fit(layouts):
    kernels, instructions, warps = (set(part) for part in zip(*layouts.panes, strict=True))
    assert kernels == {BARE, PACKED, ladder[4](), PADDED}
    names = {" ".join(instruction) for instruction in instructions}
    assert names == {"load A", "load B", "store As", "store Bs", "load As", "load Bs", "store C"}
    assert warps == {"first", "edge"} and len(layouts.panes) == 4 * 7 * 2 <= explorer.MOST_PANES
    assert {warp for *_, warp in explore_accesses(ladder[2]).panes} == {
        "first", "second", "last", "edge"}  # fmt: skip


@pytest.mark.parametrize(
    ("variant", "bits", "wavefronts"), [(BARE, 128, 32), (PACKED, 32, 1), (PADDED, 128, 4)]
)
def test_a_pane_says_the_line_the_width_and_the_wavefronts(layouts, variant, bits, wavefronts):
    pane = layouts.panes[variant, ("load", "Bs"), "first"].value
    line = next(
        n for n, text in enumerate(ladder[4].source.splitlines(), 1) if "sum += As[ty][k]" in text
    )
    assert f"<b>{line}</b>sum += As[ty][k] * Bs[k * BS_K + tx * BS_N];" in pane
    assert f"{bits} bits a lane." in pane
    assert f": {wavefronts} wavefront{'s' * (wavefronts > 1)}. " in pane
    M, N, K = product(variant)
    assert f"In a {M}×{N}×{K} product the warp does it {K // (bits // 32)} times." in pane


def test_the_warp_at_the_edge_stores_only_what_lies_in_c(layouts):
    inside, edge = (layouts.panes[BARE, ("store", "C"), warp].value for warp in ("first", "edge"))
    assert "32 lanes write 32 elements to 4 sectors" in inside
    assert "8 lanes write 8 elements to 1 sector of" in edge


def test_the_accesses_as_executed_add_up_to_the_counters():
    size = (40, 24, 36)
    blocks = range(prod(ladder[4](TILE=16, PAD=4).grid(*size[:2])))
    variant = ladder[4](TILE=16, PAD=4)
    warps = [(block, warp) for block in blocks for warp in range(variant.threads // 32)]
    found = [each for warp in executed_accesses(variant, *size, warps) for each in warp]
    counted = profile_variant(variant, *size).counters
    for space, kind, name, cost in (
        ("global", "load", "global_load_sectors", "sectors"),
        ("global", "store", "global_store_sectors", "sectors"),
        ("shared", "load", "shared_load_wavefronts", "wavefronts"),
        ("shared", "store", "shared_store_wavefronts", "wavefronts"),
        ("shared", "load", "shared_load_conflicts", "conflicts"),
    ):
        chosen = [each for each in found if (each.space, each.kind) == (space, kind)]
        assert sum(getattr(each, cost) for each in chosen) == getattr(counted, name), name


def test_shared_accesses_are_called_after_the_variable_that_they_touch():
    found = accesses(ladder[11], 128, 128, 16)
    arrays = {each.array for each in found if each.space == "shared"}
    assert arrays == {"As", "Bs"}
    bytes_of_a = 2 * 8 * 132 * 4
    for each in found:
        if each.space == "shared":
            assert ((each.addresses[each.active] < bytes_of_a) == (each.array == "As")).all()


def test_as_executed_four_neighbours_are_one_access():
    (merged,) = executed_accesses(BARE, 32, 32, 32, [(0, 0)])
    single = [e for e in accesses(BARE, 32, 32, 32) if (e.kind, e.array) == ("load", "Bs")]
    wide = [e for e in merged if (e.kind, e.array) == ("load", "Bs")]
    assert len(single) == 4 * len(wide) == 32 and {each.size for each in wide} == {16}
    assert sorted(w for e in wide for n in range(4) for w in e.words + n) == sorted(
        w for each in single for w in each.words
    )


def test_a_kernel_without_such_an_instruction_or_warp_says_so():
    tiny = ladder[1](BLOCK_X=8, BLOCK_Y=4)
    shown = explore_accesses(ladder[2], tiny, warps=("first", "second"))
    assert (
        "This warp has no such instruction here" in shown.panes[tiny, ("load", "As"), "first"].value
    )
    assert "A block has no such warp here" in shown.panes[tiny, ("load", "A"), "second"].value


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (((), ()), "no kernel to explore"),
        (((ladder[2],), ("third",)), "'third' is not known. Choose first, second, last, edge"),
        ((tuple(ladder[4].variants()[:10]), ()), "70 choices; 64 fit. Take fewer kernels"),
    ],
)
def test_what_cannot_be_explored_is_refused_in_words(given, message):
    variants, warps = given
    with pytest.raises(ValueError, match=message):
        explore_accesses(*variants, warps=warps)


def test_it_opens_at_a_conflict_and_each_choice_shows_its_pane(layouts):
    selectors, stack = parts(layouts)
    assert [selector.label for selector in selectors] == ["LAYOUT=1 PAD=0", "load Bs", "first"]
    assert wrong_choices(layouts, selectors, stack) == []


def test_a_button_shows_the_line_of_source_that_it_stands_for(layouts):
    (_, instruction, _), _ = parts(layouts)
    tips = dict(zip((label for label, _ in instruction.options), instruction.tooltips, strict=True))
    assert tips["store As"] == "As[ty][tx] = a_next;"


def test_old_ipywidgets_get_tabs_and_the_same_text(monkeypatch, layouts):
    monkeypatch.setattr(explorer, "Stack", widgets.Tab)
    shown = explore_accesses(BARE, PACKED, ladder[4], PADDED)
    _, stack = parts(shown)
    assert isinstance(stack, widgets.Tab) and stack.get_title(1) == "kernel = LAYOUT=0 PAD=0"
    assert shown.text == layouts.text


def test_it_is_small_and_quick():
    begun = time.process_time()
    shown = explore_accesses(ladder[1], ladder[9], ladder[11])
    assert time.process_time() - begun <= 5
    assert len(shown.panes) <= 64 and page_bytes(shown) <= 250_000


def test_the_text_has_a_row_for_every_pane_that_shows_an_access(layouts):
    rows = layouts.text.split("\n\n")[1].splitlines()[1:]
    assert len(rows) == len(layouts.panes)
    row = next(r for r in rows if r.startswith("LAYOUT=1 PAD=4") and "store Bs  first" in r)
    assert row.split()[-3:] == ["32", "32", "4"]
    assert np.all([len(r) == len(rows[0]) for r in rows])
