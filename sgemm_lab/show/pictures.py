"""Pictures of tiles, banks, sectors and orders, put together from a few shapes.

What a warp touches or executes comes from the PTX machine or from the arguments.
"""

from collections import Counter
from collections.abc import Sequence
from html import escape

import numpy as np

from sgemm_lab.ladder import Step, Variant, as_variant
from sgemm_lab.run.profile import accesses, order
from sgemm_lab.show.bundle import WIDTH, Bundle, figure, path, rect, svg, text
from sgemm_lab.show.labels import names
from sgemm_lab.simt.accesses import WarpAccess
from sgemm_lab.simt.counters import BANKS, SECTOR

FLOAT = 4  # bytes

# ---------------------------------------------------------------------------------- the tiling


def tiling(
    variant: Variant | Step,
    M: int = 0,
    N: int = 0,
    K: int = 0,
    block: tuple[int, int] = (1, 1),
) -> Bundle:
    """Which block computes which tile of C, and the strips of A and B that it reads.

    A size that is not given makes three tiles (along K, twelve where they are narrow). `block` is
    the tile's (row, column), counted from 0. Raises ValueError where C has no such tile.
    """
    variant = as_variant(variant)
    BM, BN, BK = variant.tile
    M, N = M or 3 * BM, N or 3 * BN
    K = K or (3 * BM if BK in (1, BM) else 12 * BK)
    rows, columns, row, column = -(-M // BM), -(-N // BN), *block
    if not (0 <= row < rows and 0 <= column < columns):
        raise ValueError(f"block={block}: C has {rows}×{columns} tiles at {M}×{N}")
    gap, pad = 26, 20
    scale = min((WIDTH - gap - 2 * pad) / (K + N), 300 / (K + M))
    left, top = pad + (WIDTH - 2 * pad - gap - scale * (K + N)) / 2, 22
    c_x, c_y = left + scale * K + gap, top + scale * K + gap
    places = {  # name: x, y, rows, columns, tile rows, tile columns, picked rows, picked columns
        "A": (left, c_y, M, K, BM, BK, (row, row + 1), None),
        "B": (c_x, top, K, N, BK, BN, None, (column, column + 1)),
        "C": (c_x, c_y, M, N, BM, BN, (row, row + 1), (column, column + 1)),
    }
    parts = []
    for name, (x, y, height, width, tile_h, tile_w, picked_r, picked_c) in places.items():
        y0, y1 = _extent(picked_r, tile_h, height)
        x0, x1 = _extent(picked_c, tile_w, width)
        style = "a" if name == "C" else "w"
        parts += [rect(x + scale * x0, y + scale * y0, scale * (x1 - x0), scale * (y1 - y0), style)]
        parts += _grid(x, y, height, width, tile_h, tile_w, scale)
        parts += [rect(x, y, scale * width, scale * height, "n lm")]
    size = {"A": f"A  {M}×{K}", "B": f"B  {K}×{N}", "C": f"C  {M}×{N}"}
    parts += [text(left, c_y - 8, size["A"], "b"), text(c_x, top - 8, size["B"], "b")]
    parts += [text(c_x, c_y + scale * M + 16, size["C"], "b")]
    alt = (
        f"C is cut into {rows}×{columns} tiles of {BM}×{BN}. The block of tile ({row}, {column}) "
        f"reads rows {row * BM} to {min(M, row * BM + BM) - 1} of A and columns {column * BN} to "
        f"{min(N, column * BN + BN) - 1} of B."
    )
    facts = [
        ["blocks", rows * columns],
        ["threads a block", variant.threads],
        ["tile of C", f"{BM}×{BN}"],
        ["step along K", BK],
        ["floats of A that a block needs", (min(M, row * BM + BM) - row * BM) * K],
        ["floats of B that a block needs", (min(N, column * BN + BN) - column * BN) * K],
        ["blocks that need one element of A", columns],
        ["blocks that need one element of B", rows],
    ]
    height = c_y + scale * M + 22
    header = [variant.step.title, variant.label]
    return figure(svg(WIDTH, height, parts, alt), alt, header, facts, caption=alt)


def _extent(picked: tuple[int, int] | None, tile: int, size: int) -> tuple[int, int]:
    return (0, size) if picked is None else (picked[0] * tile, min(size, picked[1] * tile))


def _grid(x, y, height, width, tile_h, tile_w, scale) -> list[str]:
    """The borders of tiles, left out where they would be closer than three units."""
    lines = []
    if tile_w * scale >= 3:
        lines += [
            path([(x + scale * at, y), (x + scale * at, y + scale * height)], "lf")
            for at in range(tile_w, width, tile_w)
        ]
    if tile_h * scale >= 3:
        lines += [
            path([(x, y + scale * at), (x + scale * width, y + scale * at)], "lf")
            for at in range(tile_h, height, tile_h)
        ]
    return lines


# ------------------------------------------------------------------------- one warp's accesses


def warp_access(
    *panels: tuple[str, Sequence[int], Sequence[int]] | tuple[str, WarpAccess],
    shape: tuple[int, int],
    name: str = "A",
) -> Bundle:
    """Which elements of a row-major matrix a warp touches in one load, and the sectors it fetches.

    Each panel is (title, rows, columns): 32 integers, or one for all lanes; or (title, access) from
    `accesses`. `shape` is the matrix's (rows, columns); its first 32×32 elements are drawn. The
    last panel has the accent.
    Raises ValueError for an element outside what is drawn.
    """
    shown_rows, shown_columns = (min(32, size) for size in shape)
    panel = (WIDTH - 16 * (len(panels) - 1)) / len(panels)
    spots = [_spots(where, shape[1]) for _, *where in panels]
    lowest = max(int(rows.max()) for rows, *_ in spots)
    drawn_rows = min(shown_rows, -(-(lowest + 1) // 8) * 8)
    cell = min(9.0, panel / shown_columns)
    parts, facts = [], []
    for index, ((title, *_), (rows, columns, lanes)) in enumerate(zip(panels, spots, strict=True)):
        if rows.min() < 0 or columns.min() < 0:
            raise ValueError(f"{title}: negative element")
        if rows.max() >= shown_rows or columns.max() >= shown_columns:
            raise ValueError(
                f"{title}: element ({rows.max()}, {columns.max()}) lies outside the "
                f"{shown_rows}×{shown_columns} that are drawn"
            )
        accent = index == len(panels) - 1
        left, top = index * (panel + 16), 44
        touched = sorted(set(zip(rows.tolist(), columns.tolist(), strict=True)))
        sectors = sorted({(r * shape[1] + c) * FLOAT // SECTOR for r, c in touched})
        parts += [text(left, 14, title, "b")]
        told = f"{_sectors(len(sectors))} for {lanes} lanes"
        parts += [text(left, 32, told, "a s" if accent else "m s")]
        for sector in sectors:
            parts += _sector(sector, shape, drawn_rows, shown_columns, left, top, cell)
        for r, c in touched:
            tone = "a" if accent else "m"
            at = left + c * cell + 0.8, top + r * cell + 0.8
            parts += [rect(*at, cell - 1.6, cell - 1.6, tone)]
        size = shown_columns * cell, drawn_rows * cell
        parts += [rect(left, top, *size, "n lm")]
        used = len(touched) * FLOAT
        facts.append([title, lanes, len(touched), len(sectors), len(sectors) * SECTOR, used])
    alt = f"One load of a warp from a row-major {shape[0]}×{shape[1]} matrix {name}: " + "; ".join(
        f"{title}: {_sectors(sectors)}, {fetched} bytes fetched for {used} used"
        for title, _, _, sectors, fetched, used in facts
    )
    height = 44 + drawn_rows * cell + 4
    header = ["access", "lanes", "elements", "sectors", "bytes fetched", "bytes used"]
    caption = (
        f"The first {drawn_rows}×{shown_columns} elements of {name}, row by row in memory. "
        "Shaded: the 32-byte sectors that are fetched; filled: the elements that are used."
    )
    return figure(svg(WIDTH, height, parts, alt), alt + ".", header, facts, caption)


def _spots(where: Sequence, width: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Rows and columns of all elements that are touched, and by how many lanes."""
    if len(where) == 2:
        return *(np.broadcast_to(each, 32) for each in where), 32
    (access,) = where
    lanes = np.flatnonzero(access.active)
    first = access.addresses[lanes, None] // FLOAT + np.arange(max(1, access.size // FLOAT))
    return *np.divmod(first.ravel(), width), len(lanes)


def banks(*panels: tuple[str, WarpAccess]) -> Bundle:
    """Which banks of shared memory the lanes of a warp need for one instruction.

    Each panel is (title, access); accesses come from `accesses`. A row is a lane, a column a bank;
    filled are the words of a lane. Lines part the groups of lanes that are served together. The
    last panel has the accent.
    """
    panel = (WIDTH - 16 * (len(panels) - 1)) / len(panels)
    cell, top = panel / BANKS, 60
    parts, facts = [], []
    for index, (title, access) in enumerate(panels):
        tone, left = "a" if index == len(panels) - 1 else "m", index * (panel + 16)
        lanes = np.flatnonzero(access.active)
        needed = access.words[lanes, None] + np.arange(max(1, access.size // FLOAT))
        spots = sorted((int(n), int(word % BANKS)) for n, row in zip(lanes, needed, strict=True)
                       for word in row)  # fmt: skip
        words, used = len(np.unique(needed)), len({bank for _, bank in spots})
        cuts = (top + lane * cell for lane in range(access.together, 32, access.together))
        parts += [path([(left, y), (left + panel, y)], "lf") for y in cuts]
        parts += [text(left, 14, title, "b")]
        parts += [text(left, 32, f"{words} words in {used} bank{'s' * (used != 1)}", "m s")]
        parts += [text(left, 50, f"wavefronts: {access.wavefronts}", f"{tone} s")]
        for lane, bank in spots:
            place = left + bank * cell + 0.6, top + lane * cell + 0.6
            parts += [rect(*place, cell - 1.2, cell - 1.2, tone)]
        parts += [rect(left, top, panel, 32 * cell, "n lm")]
        facts.append([title, access.line, 8 * access.size, words, used, access.wavefronts])
    alt = "Banks that the lanes of a warp need: " + "; ".join(
        f"{title}: {words} words in {used} banks, wavefronts: {wavefronts}"
        for title, _, _, words, used, wavefronts in facts
    )
    header = ["access", "line", "bits a lane", "words", "banks", "wavefronts"]
    caption = "Lanes 0 to 31 from top to bottom, banks 0 to 31 from left to right."
    if any(access.size > FLOAT for _, access in panels):
        caption += " Lines part the lanes that are served together."
    drawing = svg(WIDTH, top + 32 * cell + 4, parts, alt)
    return figure(drawing, alt + ".", header, facts, caption)


def _sectors(count: int) -> str:
    return f"{count} sector{'s' * (count != 1)}"


def _sector(sector, shape, drawn_rows, shown_columns, left, top, cell) -> list[str]:
    """A sector's elements as boxes, one a row that it touches, cut to what is drawn."""
    boxes: dict[int, list[int]] = {}
    for element in range(sector * SECTOR // FLOAT, (sector + 1) * SECTOR // FLOAT):
        r, c = divmod(element, shape[1])
        if r < drawn_rows and c < shown_columns:
            boxes.setdefault(r, []).append(c)
    return [
        rect(left + c[0] * cell, top + r * cell + 0.3, len(c) * cell, cell - 0.6, "f")
        for r, c in boxes.items()
    ]


# ------------------------------------------------------------------------- who computes what

_PANELS = """<style>
.lab .panels{display:flex;flex-wrap:wrap;align-items:end;gap:.8em 1.2em}
.lab .panels>div{flex:1 1 11em;max-width:18em;line-height:1.3}
.lab.lab .panels svg{min-width:0;margin-top:.3em}
.lab .panels small{display:block;color:var(--m)}
</style>"""


def outputs(*variants: Variant | Step) -> Bundle:
    """The tile of C that a block computes: what its first warp writes, and of that its first lane.

    Read from the stores to C on the PTX machine. A step stands for its default variant.
    """
    variants = [as_variant(variant) for variant in variants]
    titles = names(variants)
    drawings, facts = [], []
    for variant, title in zip(variants, titles, strict=True):
        BM, BN, _ = variant.tile
        warp, lane, sectors = _written(variant)
        sides = [len(np.unique(each)) for each in np.nonzero(warp)]
        shape, mine = "×".join(map(str, sides)), int(lane.sum())
        told = f"{mine} output{'s' * (mine != 1)} a thread; a warp: {shape}"
        scale, parts = 200 / max(BM, BN), []
        for mask, style in ((warp, "w"), (lane, "a")):
            parts += [
                rect(*(scale * edge for edge in (column, row, width, height)), style)
                for row, column, height, width in boxes(mask)
            ]
        parts.append(rect(0.5, 0.5, scale * BN - 1, scale * BM - 1, "n lm"))
        drawing = svg(200, scale * BM, parts, f"{title}: of a {BM}×{BN} tile, {told}")
        drawings.append(f"<div><b>{escape(title)}</b><small>{told}</small>{drawing}</div>")
        facts.append([title, f"{BM}×{BN}", variant.threads, mine, shape, sum(sides), sectors])
    header = ["kernel", "tile of C", "threads", "outputs a thread", "a warp's rows×columns",
              "rows + columns", "sectors a store"]  # fmt: skip
    alt = "Elements of a block's tile of C that one thread and one warp compute: " + "; ".join(
        f"{title}: {mine} a thread, {shape} a warp" for title, _, _, mine, shape, *_ in facts
    )
    caption = (
        "The tile of C of one block. Filled: what its first thread computes; shaded: the rest of "
        "that thread's warp. Each k takes as many floats from shared memory as a warp's part has "
        "rows and columns."
    )
    panels = f'<div class="panels">{"".join(drawings)}</div>'
    return figure(_PANELS + panels, alt + ".", header, facts, caption)


def _written(variant: Variant) -> tuple[np.ndarray, np.ndarray, str]:
    """(by the first warp?, by its first lane?) for each element of a tile of C, and the sectors of
    one of its stores."""
    BM, BN, BK = variant.tile
    stores = [
        each
        for each in accesses(variant, BM, BN, max(BK, 4), limit=100_000)
        if (each.space, each.kind, each.array) == ("global", "store", "C")
    ]
    warp = np.zeros((2, BM, BN), bool)
    for each in stores:
        rows, columns = each.elements(BN)
        for lane in np.flatnonzero(each.active):
            here = rows[lane], slice(columns[lane], columns[lane] + each.size // FLOAT)
            warp[0][here] = True
            warp[1][here] |= lane == 0
    counted = sorted({each.sectors for each in stores})
    return *warp, " or ".join(map(str, counted))


def boxes(mask: np.ndarray) -> list[tuple[int, int, int, int]]:
    """(row, column, height, width) of rectangles that cover `mask`, equal rows in one."""
    boxes: list[tuple[int, int, int, int]] = []
    open_: dict[tuple[int, int], int] = {}  # (column, width) → its first row
    for row in range(len(mask) + 1):
        line = mask[row] if row < len(mask) else np.zeros(mask.shape[1], bool)
        edges = np.flatnonzero(np.diff(np.concatenate(([0], line.astype(int), [0]))))
        runs = {(int(a), int(b - a)) for a, b in zip(edges[::2], edges[1::2], strict=True)}
        for run in [run for run in open_ if run not in runs]:
            first = open_.pop(run)
            boxes.append((first, run[0], row - first, run[1]))
        for run in runs:
            open_.setdefault(run, row)
    return sorted(boxes)


# ----------------------------------------------------------------------- in which order

_DOING = {  # class of PTX instruction → what the warp is doing
    "load.global": "fetch", "store.shared": "put", "load.shared": "compute", "ffma": "compute",
    "barrier": "barrier",
}  # fmt: skip
_LOOKS = {"fetch": (1.25, "w"), "put": (1.05, "n lm"), "compute": (2.1, "f"), "barrier": (0.2, "m")}


def schedule(*variants: Variant | Step, tiles: int = 3) -> Bundle:
    """What a warp does, in order, while its block computes with `tiles` tiles of A and B: a row a
    variant.

    Read from what the PTX machine executes; it is the order of the PTX, and says nothing of time.
    """
    variants = [as_variant(variant) for variant in variants]
    rows = [_runs_of(variant, tiles) for variant in variants]
    titles = names(variants)
    longest = max(sum(_LOOKS[what][0] for what, *_ in row) for row in rows)
    scale, parts, y = (WIDTH - 1) / longest, [], 0.0
    for title, row in zip(titles, rows, strict=True):
        parts.append(text(0, y + 14, title, "b"))
        x = 0.5
        for what, tile, _ in row:
            width, style = _LOOKS[what]
            width *= scale
            if what == "barrier":
                parts.append(rect(x + width / 2 - 1.5, y + 20, 3, 36, style))
            else:
                parts.append(rect(x + 1, y + 24, width - 2, 28, style))
                words = f"{what} {tile}" if scale > 32 else f"{tile}"
                parts.append(text(x + width / 2, y + 42, words, "s", "middle"))
            x += width
        y += 72
    alt = "What a warp does, in order: " + "; ".join(
        f"{title}: {', '.join(f'{what} {tile}'.strip() for what, tile, _ in row)}"
        for title, row in zip(titles, rows, strict=True)
    )
    caption = (
        "The order in which one warp executes, from left to right; widths say nothing of time. "
        "fetch: loads from global memory; put: stores to shared memory; compute: loads from shared "
        "memory and multiply-adds; an upright bar: a barrier. The number is the tile's."
    )
    cells = [[" ".join(filter(None, [f"{what} {tile}".strip(), told])) for what, tile, told in row]
             for row in rows]  # fmt: skip
    facts = [
        [n + 1, *(column[n] if n < len(column) else "–" for column in cells)]
        for n in range(max(map(len, cells)))
    ]
    return figure(svg(WIDTH, y - 12, parts, alt), alt + ".", ["order", *titles], facts, caption)


def _runs_of(variant: Variant, tiles: int) -> list[tuple[str, int | str, str]]:
    """(what, tile, how many instructions) for each stretch of one kind, up to the last tile's."""
    BM, BN, BK = variant.tile
    found = order(variant, BM, BN, tiles * max(BK, 1))
    runs: list[tuple[str, Counter]] = []
    for name in found:
        what = _DOING.get(name)
        if what and (not runs or runs[-1][0] != what or what == "barrier"):
            runs.append((what, Counter()))
        if what:
            runs[-1][1][name] += 1
    seen: Counter = Counter()
    rows = []
    for what, amounts in runs:
        seen[what] += 1
        told = ", ".join(f"{count} {name}" for name, count in amounts.items())
        rows.append((what, "", "") if what == "barrier" else (what, seen[what], f"({told})"))
    return rows
