"""The small drawings of the explorers: against what kernels store and what counters count."""

import re

import numpy as np
import pytest

from sgemm_lab.ladder import ladder
from sgemm_lab.run.profile import accesses, executed_accesses
from sgemm_lab.show import sketches
from sgemm_lab.simt.accesses import WarpAccess

VARIANTS = list(dict.fromkeys(v for s in ladder if s.function for v in (s(), s.variants()[0])))


def unruled() -> list[str]:
    """What is to be added where a step's share of C is not known."""
    line = '"{}": _one,  # or the rule by which its threads share a tile'
    unknown = [s.stem for s in ladder if s.function and s.stem not in sketches._SHARES]
    return [f"sgemm_lab/show/sketches.py, _SHARES: {line.format(stem)}" for stem in unknown]


def test_of_every_step_it_is_known_what_a_thread_computes(monkeypatch):
    assert unruled() == []
    monkeypatch.delitem(sketches._SHARES, "11_double_buffer")
    (told,) = unruled()
    assert '_SHARES: "11_double_buffer": _one,' in told


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.key)
def test_what_a_warp_and_a_thread_are_said_to_compute_is_what_they_store(variant):
    BM, BN, _ = variant.tile
    stored = np.zeros((2, BM, BN), bool)
    for each in accesses(variant, BM, BN, 0, limit=100_000):
        rows, columns = each.elements(BN)
        for lane in np.flatnonzero(each.active):
            here = rows[lane], slice(columns[lane], columns[lane] + each.size // 4)
            stored[0][here] = True
            stored[1][here] |= lane == 0
    warp, thread = sketches.share(variant, np.arange(min(32, variant.threads)))
    assert (warp == stored[0]).all() and (thread == stored[1]).all()


def test_all_threads_together_compute_the_tile_once():
    for step in list(ladder)[1:9]:  # of the later ones the rule is about the first warp
        variant = step()
        counts = np.zeros(variant.tile[:2], int)
        for thread in range(variant.threads):
            counts += sketches.share(variant, np.array([thread]))[0]
        assert (counts == 1).all(), step


def squares(drawing, style):
    """(row, column) of every square that a drawing's strokes of one style cover."""
    (d,) = re.findall(rf"<path class={style} d='([^']*)'", drawing)
    return [
        (int(y), int(x) + n)
        for x, y, length in re.findall(r"M(\d+) (\d+)h([\d.]+)", d)
        for n in range(round(float(length) + 0.3))
    ]


def shared(step, kind, array, **macros):
    variant = ladder[step](**macros)
    (found,) = executed_accesses(variant, *variant.tile, [(0, 0)])
    return next(e for e in found if (e.space, e.kind, e.array) == ("shared", kind, array))


@pytest.mark.parametrize(
    ("step", "kind", "array", "macros", "wavefronts"),
    [
        (4, "load", "Bs", {"PAD": 0}, [8, 8, 8, 8]),
        (4, "load", "Bs", {"PAD": 4}, [1, 1, 1, 1]),
        (4, "load", "As", {}, [1, 1]),
        (4, "store", "Bs", {"PAD": 4}, [4]),
        (9, "load", "Bs", {}, [1, 1]),
    ],
)
def test_a_map_of_banks_has_a_square_for_every_word_and_the_wavefronts_beside_it(
    step, kind, array, macros, wavefronts
):
    access = shared(step, kind, array, **macros)
    drawing = sketches.bank_map(access)
    filled, shaded = squares(drawing, "sa"), squares(drawing, "sw")
    size = access.size // 4
    expected = {
        (lane, (int(access.words[lane]) + n) % 32) for lane in range(32) for n in range(size)
    }
    assert set(filled) | set(shaded) == expected and len(filled) + len(shaded) == 32 * size
    beside = re.findall(r"<text class=m x=270 y=[\d.]+>(\d+)</text>", drawing)
    assert list(map(int, beside)) == wavefronts
    assert sum(wavefronts) == access.wavefronts
    assert f"{access.wavefronts} wavefront" in drawing


def test_a_word_that_lanes_share_is_filled_once_a_group():
    drawing = sketches.bank_map(shared(4, "load", "As"))
    assert squares(drawing, "sa") == [(lane, bank) for lane in (0, 16) for bank in range(4)]


def column_of(rows, columns, kind="load", size=4):
    addresses = 4 * np.array([4 * lane * columns if rows else lane for lane in range(32)])
    return WarpAccess("global", kind, 1, "A", addresses, np.ones(32, bool), size)


def test_a_map_of_sectors_shades_what_is_fetched_and_fills_what_is_used():
    access = column_of(True, 64)
    drawing = sketches.sector_map(access, (128, 64))
    assert squares(drawing, "sa") == [(4 * lane, 0) for lane in range(32)]
    assert squares(drawing, "sf") == [(4 * lane, c) for lane in range(32) for c in range(8)]
    told = "32 lanes read 32 elements from 32 sectors of 32 bytes, of which 12.5 % are used."
    assert told in drawing.replace("\N{NO-BREAK SPACE}", " ")
    told = sketches.sectors_told(column_of(False, 64, "store"))
    assert told.startswith("32 lanes write 32 elements to 4 sectors of 32 bytes, of which 100")
    assert told.endswith("% are written.")


def test_a_sector_that_goes_on_in_the_next_row_is_drawn_in_both_and_ends_with_the_array():
    access = WarpAccess("global", "load", 1, "A", np.full(32, 4 * 11), np.arange(32) == 0, 4)
    drawing = sketches.sector_map(access, (3, 5))  # elements 8 to 15, of which 15 is none
    assert squares(drawing, "sf") == [(1, 3), (1, 4), *((2, c) for c in range(5))]
    assert squares(drawing, "sa") == [(2, 1)]


def test_drawings_are_some_hundred_bytes():
    for number in range(1, 12):
        for variant in ladder[number].variants():
            assert len(sketches.tiles(variant)) <= 1000
    assert len(sketches.bank_map(shared(4, "load", "Bs", PAD=0))) <= 1500
    assert len(sketches.sector_map(column_of(True, 64), (128, 64))) <= 1500
