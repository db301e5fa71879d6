"""Drawings of some hundred bytes for the panes of an explorer, in the page's colours.

A row of squares is one stroke, and all borders of a grid are one dashed stroke.
"""

from collections.abc import Callable, Iterable, Mapping
from html import escape

import numpy as np

from sgemm_lab.ladder import Macros, Variant
from sgemm_lab.show.pictures import FLOAT, boxes
from sgemm_lab.simt.accesses import WarpAccess
from sgemm_lab.simt.counters import BANKS, SECTOR, WARP

STYLE = """<style>
.lab.lab.lab svg.k{width:auto;min-width:0;max-width:100%}.lab .k text{font-size:11px}
.lab .k .sa{stroke:var(--a)}.lab .k .sw{stroke:var(--a);stroke-opacity:.3}
.lab .k .sf{stroke:var(--f)}.lab .k .si{stroke:var(--i);fill:none}
</style>"""


def drawing(width: float, height: float, parts: Iterable[str], alt: str) -> str:
    """An SVG of the class k, a unit a pixel where there is room; `alt` is read out."""
    return (
        f"<svg class=k width={width:g} viewBox='0 0 {width:g} {height:g}' role=img "
        f'aria-label="{escape(alt)}">'
        f"{''.join(parts)}</svg>"
    )


def _words(x: float, y: float, words: str, anchor: str = "") -> str:
    at = f" text-anchor={anchor}" if anchor else ""
    return f"<text class=m x={x:g} y={y:g}{at}>{escape(words, quote=False)}</text>"


def _runs(rows: Mapping[int, Iterable[int]], shrink: float) -> str:
    """Strokes of width 1 along the squares {row: columns}; neighbours of a row are one."""
    d = []
    for row, columns in rows.items():
        columns = np.unique(list(columns))
        for run in np.split(columns, np.flatnonzero(np.diff(columns) != 1) + 1):
            if len(run):
                d.append(f"M{run[0]} {row}h{len(run) - shrink:g}")
    return "".join(d)


# ------------------------------------------------------------------------------- the tiling

_SIDE, _PART = 140, 256  # units that a square has; rows and columns of C that are drawn


def tiles(variant: Variant) -> str:
    """How C is cut into tiles; and of one block's tile, what its first warp and thread compute."""
    BM, BN, _ = variant.tile
    scale, grown = _SIDE / _PART, _SIDE / max(BM, BN)
    height, width = BM * scale, BN * scale
    left = _SIDE + 40
    parts = [
        f"<path class=sf stroke-width={_SIDE} stroke-dasharray='1 {pitch - 1:g}' d='{d}'/>"
        for pitch, d in ((width, f"M0 {_SIDE / 2}h{_SIDE}"), (height, f"M{_SIDE / 2} 0v{_SIDE}"))
    ]
    parts += [
        f"<path class=lm d='M0 0h{_SIDE}v{_SIDE}h-{_SIDE}z'/>",
        f"<path class=w d='M0 0h{width:g}v{height:g}h-{width:g}z'/>",
        f"<path class=lf d='M{width:g} 0H{left}M{width:g} {height:g}L{left} {BM * grown:g}'/>",
    ]
    inside, told = [], ""
    if shares := share(variant, np.arange(min(WARP, variant.threads))):
        warp, thread = shares
        for mask, style in ((warp, "w"), (thread, "a")):
            d = "".join(f"M{x} {y}h{w}v{h}h-{w}z" for y, x, h, w in boxes(mask))
            inside.append(f"<path class={style} d='{d}'/>")
        told = f"; a warp computes {_extent(warp)} of it, a thread {_extent(thread)}"
    parts.append(f"<g transform='translate({left})scale({grown:.4g})'>{''.join(inside)}</g>")
    parts.append(f"<path class=lm d='M{left} 0h{BN * grown:g}v{BM * grown:g}H{left}z'/>")
    parts.append(_words(0, _SIDE + 14, f"{_PART}×{_PART} of C"))
    parts.append(_words(left, _SIDE + 14, f"one block's {BM}×{BN}"))
    alt = f"C is cut into tiles of {BM}×{BN}, one for each block{told}."
    return drawing(2 * _SIDE + 41, _SIDE + 20, parts, alt)


def _extent(mask: np.ndarray) -> str:
    """ "4×8": the rows and columns that a mask has elements in."""
    return "×".join(str(len(np.unique(each))) for each in np.nonzero(mask))


def share(variant: Variant, threads: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """(by these threads of a block?, by the first of them?) for each element of a tile of C; None
    for a step that is not known here. What the kernels store is the test's measure."""
    if (rule := _SHARES.get(variant.step.stem)) is None:
        return None
    BM, BN, _ = variant.tile
    masks = np.zeros((2, BM, BN), bool)
    for thread in threads:
        rows, columns = rule(variant.macros, *variant.block, int(thread))
        masks[: 1 + (thread == threads[0]), np.ravel(rows)[:, None], np.ravel(columns)] = True
    return masks[0], masks[1]


def _one(m: Macros, x: int, y: int, thread: int) -> tuple:
    row, column = divmod(thread, x)
    return (row, column) if m.get("COALESCED", 1) else (column, row)


def _column(m: Macros, x: int, y: int, thread: int) -> tuple:
    row, column = divmod(thread, x)
    return row * m["TM"] + np.arange(m["TM"]), column


def _square(m: Macros, x: int, y: int, thread: int) -> tuple:
    each = np.arange(m["TM"])
    return tuple(place * m["TM"] + each for place in divmod(thread, x))


def _fours(m: Macros, x: int, y: int, thread: int) -> tuple:
    return _in_fours(m, divmod(thread, x), (y, x))


def _warp_tile(m: Macros, x: int, y: int, thread: int) -> tuple:
    """Of the block's first warp."""
    return _in_fours(m, (thread // 16 * 2 + thread % 2, thread // 2 % 8), (4, 8))


def _in_fours(m: Macros, place: tuple[int, int], threads: tuple[int, int]) -> tuple:
    """Four neighbours for each of the `threads` along an axis, and again, TM / 4 times."""
    each = np.arange(m["TM"])
    return tuple(
        each // 4 * 4 * count + 4 * at + each % 4 for at, count in zip(place, threads, strict=True)
    )


_SHARES: dict[str, Callable] = {
    **dict.fromkeys(("01_naive", "02_tiled", "03_index_in_register", "04_bank_conflicts"), _one),
    **dict.fromkeys(("05_thread_tile_1d", "06_vectorized"), _column),
    "07_thread_tile_4x4": _square,
    "08_thread_tile_8x8": _fours,
    **dict.fromkeys(("09_warp_tile", "10_prefetch", "11_double_buffer"), _warp_tile),
}


# ------------------------------------------------------------------- one access of one warp


def bank_map(access: WarpAccess) -> str:
    """Lane × bank of a shared access. Filled: the words to deliver; shaded: a word that another
    lane of its group takes, too; beside each group of lanes its wavefronts."""
    cell, left, top, group = 7, 40, 16, access.together
    first, again, parts, marks = {}, {}, [], []
    lanes = np.flatnonzero(access.active)
    for start in range(0, WARP, group):
        seen: set[int] = set()
        for lane in lanes[(lanes >= start) & (lanes < start + group)]:
            words = access.words[lane] + np.arange(max(1, access.size // FLOAT))
            fresh = [word for word in words if word not in seen]
            first[lane] = [word % BANKS for word in fresh]
            again[lane] = [word % BANKS for word in words if word in seen]
            seen.update(fresh)
        if seen:
            passes = np.bincount([word % BANKS for word in seen]).max()
            middle = top + cell * (start + group / 2) + 4
            marks.append(_words(left + cell * BANKS + 6, middle, str(passes)))
    edge = cell * BANKS
    if group < WARP:
        d = "".join(f"M0 {start}h{BANKS}" for start in range(group, WARP, group))
        parts.append(f"<path class=lf stroke-width=.3 d='{d}'/>")
    parts += [
        f"<g transform='translate(0 .5)' stroke-width=.84>"
        f"<path class=sw d='{_runs(again, 0.16)}'/><path class=sa d='{_runs(first, 0.16)}'/></g>"
    ]
    return drawing(
        left + edge + 90,
        top + edge + 4,
        [
            f"<g transform='translate({left} {top})scale({cell})'>{''.join(parts)}</g>",
            f"<path class=lm d='M{left} {top}h{edge}v{edge}h-{edge}z'/>",
            _words(left, top - 5, "bank 0"),
            _words(left + edge, top - 5, "31", "end"),
            _words(left + edge + 6, top - 5, "wavefronts"),
            _words(left - 5, top + 10, "lane 0", "end"),
            _words(left - 5, top + edge, "31", "end"),
            *marks,
        ],
        f"Lane by bank: {banks_told(access)}",
    )


def banks_told(access: WarpAccess) -> str:
    """ "32 lanes take 32 words from 1 bank: 32 wavefronts." """
    lanes = int(access.active.sum())
    words = np.unique(access.words[access.active, None] + np.arange(max(1, access.size // FLOAT)))
    banks = len(np.unique(words % BANKS))
    verb, to = ("take", "from") if access.kind == "load" else ("put", "into")
    return (
        f"{_count(lanes, 'lane')} {verb}{'s' * (lanes == 1)} {_count(len(words), 'word')} {to} "
        f"{_count(banks, 'bank')}: {_count(access.wavefronts, 'wavefront')}."
    )


def sector_map(access: WarpAccess, shape: tuple[int, int]) -> str:
    """Where a global access lies in its row-major array of (rows, columns). Shaded: the sectors
    that it touches; filled: the elements that lanes use."""
    each, columns = SECTOR // FLOAT, shape[1]
    elements = _elements(access)
    sectors = np.unique(elements // each)[:, None] * each + np.arange(each)
    sectors = [sector[sector < shape[0] * columns] for sector in sectors]
    places = np.divmod(np.concatenate(sectors), columns)
    (r0, high), (c0, wide) = (
        _window(int(at.min()), int(at.max()), least, size)
        for at, least, size in zip(places, (8, 32), shape, strict=True)
    )
    cell, left, top = min(7.0, 392 / wide), 58, 16

    def strokes(numbers: np.ndarray, shrink: float) -> str:
        rows: dict[int, list[int]] = {}
        for row, column in zip(*np.divmod(numbers, columns), strict=True):
            rows.setdefault(int(row) - r0, []).append(int(column) - c0)
        return _runs(rows, shrink)

    # a stroke for each sector, so that one sees where it ends
    fetched, used = (
        "".join(strokes(numbers, 0.3) for numbers in each)
        for each in (sectors, (np.intersect1d(elements, sector) for sector in sectors))
    )
    right, bottom = left + wide * cell, top + high * cell
    return drawing(
        right + 2,
        bottom + 4,
        [
            f"<g transform='translate({left} {top})scale({cell:.4g})translate(0 .5)' "
            f"stroke-width=.84><path class=sf d='{fetched}'/>"
            f"<path class=sa d='{used}'/></g>",
            f"<path class=lm d='M{left} {top}H{right:g}V{bottom:g}H{left}z'/>",
            _words(left, top - 5, f"column {c0}"),
            _words(right, top - 5, str(c0 + wide - 1), "end"),
            _words(left - 5, top + 10, f"row {r0}", "end"),
            _words(left - 5, bottom, str(r0 + high - 1), "end"),
        ],
        f"Where in {access.array}: {sectors_told(access)}",
    )


def _window(first: int, last: int, least: int, size: int) -> tuple[int, int]:
    """(start, length) of what is drawn of an axis: at least `least`, from a multiple of 8 on."""
    start = min(first, max(0, size - least)) // 8 * 8
    return start, min(size, max(last + 1, start + least)) - start


def _elements(access: WarpAccess) -> np.ndarray:
    """Numbers of the array's elements that the lanes touch."""
    first = access.addresses[access.active, None] // FLOAT
    return np.unique(first + np.arange(max(1, access.size // FLOAT)))


def sectors_told(access: WarpAccess) -> str:
    """ "32 lanes read 32 elements from 4 sectors of 32 bytes, of which 100 % are used." """
    lanes, elements = int(access.active.sum()), len(_elements(access))
    verb, to, done = ("write", "to", "written") if access.kind == "store" else (
        "read", "from", "used")  # fmt: skip
    return (
        f"{_count(lanes, 'lane')} {verb}{'s' * (lanes == 1)} {_count(elements, 'element')} {to} "
        f"{_count(access.sectors, 'sector')} of {SECTOR} bytes, of which "
        f"{100 * elements * FLOAT / (access.sectors * SECTOR):.3g}\N{NO-BREAK SPACE}% "
        f"are {done}."
    )


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
