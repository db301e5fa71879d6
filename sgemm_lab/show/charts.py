"""The book's figures. Each function returns a Bundle: an SVG with its table, or plain text.

Numbers come from records, from counters or from the arguments; nothing is drawn that was not
measured, reported or counted. Grey for everything, one accent for what the chapter is about.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from sgemm_lab.devices import Device, devices
from sgemm_lab.ladder import Variant
from sgemm_lab.ladder import ladder as steps
from sgemm_lab.measure import records
from sgemm_lab.measure.records import Run
from sgemm_lab.show.bundle import (
    STYLE,
    Bundle,
    Cell,
    circle,
    figure,
    path,
    rect,
    svg,
    table_html,
    table_text,
    text,
)

WIDTH = 480  # units of every drawing; a column of 345 pixels still shows 9-pixel letters
FLOAT = 4  # bytes
SECTOR = 32  # bytes that memory delivers at least


# --------------------------------------------------------------------------------- the ladder


def ladder(step: int | None = None, N: int = 2048, directory=None) -> Bundle:
    """Every step's share of cuBLAS at M = N = K = `N`, one column a GPU; `step` in the accent.

    A GPU appears where at least two steps are recorded at this size: measured by this book (filled
    marks; the default variant) or reported by others (hollow; their fastest kernel of that step).
    Raises ValueError where nothing is recorded at this size.
    """
    columns = _columns(N, directory)
    if not columns:
        raise ValueError(f"no record has two steps at N = {N}")
    numbers = sorted({number for runs in columns.values() for number in runs})
    titles = {number: _title(number, columns.values()) for number in numbers}
    top = max(100.0, *(r.pct_of_cublas for runs in columns.values() for r in runs.values()))
    heads = [(devices[gpu], label) for gpu, label in columns]

    left, high, first = 204, 22, 34
    right = WIDTH - _COLUMN * len(columns) - 10
    bottom = first + high * len(numbers)

    def x(percent: float) -> float:
        return left + (right - left) * percent / top

    parts = []
    for percent in (0, 50, 100):
        parts += [path([(x(percent), first - 6), (x(percent), bottom)], "lf")]
        parts += [text(x(percent), first - 12, f"{percent}", "m s", "middle")]
    for column, (device, label) in enumerate(heads):
        at = right + _COLUMN * (column + 1) + 8
        parts += [_mark(column, label, at - 5, first - 28, "")]
        parts += [text(at, first - 10, _short(device), "m s", "end")]
    for row, number in enumerate(numbers):
        y = first + high * row + high / 2
        here = number == step
        if here:
            parts += [rect(0, y - high / 2, WIDTH, high, "w")]
        parts += [text(18, y + 4.5, str(number), "b" if here else "m", "end")]
        parts += [text(26, y + 4.5, titles[number], "b" if here else "")]
        for column, ((_, label), runs) in enumerate(columns.items()):
            run = runs.get(number)
            if run is None:
                continue
            parts += [_mark(column, label, x(run.pct_of_cublas), y, "a" if here else "")]
            tone = "b" if here else "m" if run.stale else ""
            at = right + _COLUMN * (column + 1) + 8
            parts += [text(at, y + 4.5, _percent(run), tone, "end")]
    stale = any(run.stale for runs in columns.values() for run in runs.values())
    caption = f"Per cent of cuBLAS at M = N = K = {N}. " + " ".join(
        f"{_GLYPHS[(column % 3, label == 'measured')]} {device.name}: {_origin(label)}."
        for column, (device, label) in enumerate(heads)
    )
    caption += " * measured with another version of this kernel." * stale
    alt = f"Per cent of cuBLAS, step by step, at N = {N}" + (
        f"; step {step}, {titles[step]}, is marked." if step in titles else "."
    )
    header = ["step", *(f"{device.name} ({_origin(label)})" for device, label in heads)]
    rows = [
        [f"{number} {titles[number]}", *(_percent(runs.get(number)) for runs in columns.values())]
        for number in numbers
    ]
    return figure(svg(WIDTH, bottom + 6, parts, alt), alt, header, rows, caption)


_COLUMN = 44  # width of a GPU's column of numbers


def _columns(N: int, directory) -> dict[tuple[str, str], dict[int, Run]]:
    """(gpu, label) → step → the run to show, for sources with two steps or more besides cuBLAS."""
    found: dict[tuple[str, str], dict[int, Run]] = {}
    for run in _runs(directory, N=N):
        if run.step is None or run.pct_of_cublas is None:
            continue
        runs = found.setdefault((run.gpu, run.label), {})
        if run.step not in runs or _rank(run) > _rank(runs[run.step]):
            runs[run.step] = run
    order = list(devices)
    return {
        key: found[key]
        for key in sorted(found, key=lambda k: (order.index(k[0]), k[1] != "measured", k[1]))
        if len(set(found[key]) - {0}) >= 2
    }


def _rank(run: Run) -> tuple:
    """Our default variant before the others; else the faster run."""
    ours = run.kind == "measured" and run.step in steps
    return (ours and dict(run.macros) == dict(steps[run.step]().macros), run.gflops)


def _title(number: int, columns: Iterable[Mapping[int, Run]]) -> str:
    """Our name for the step, else the one its author gave it: "R3 step 5: 4×1 thread tile"."""
    if number in steps:
        return steps[number].title
    names = (runs[number].kernel.partition(": ")[2] for runs in columns if number in runs)
    return next(filter(None, names), f"Step {number}")


def _runs(directory, **wanted) -> list[Run]:
    return records.runs(**wanted, **({"directory": directory} if directory else {}))


def _origin(label: str) -> str:
    return "measured" if label == "measured" else f"reported, {label}"


def _short(device: Device) -> str:
    return device.name.removeprefix("RTX ").split(" SXM")[0].replace("2080 Super", "2080S")


def _percent(run: Run | None) -> str:
    if run is None:
        return "–"
    value = run.pct_of_cublas
    return f"{value:.0f}" + "*" * run.stale if value >= 9.95 else f"{value:.1f}" + "*" * run.stale


_GLYPHS = {(0, False): "□", (1, False): "○", (2, False): "△",
           (0, True): "■", (1, True): "●", (2, True): "▲"}  # fmt: skip


def _mark(column: int, label: str, x: float, y: float, tone: str) -> str:
    """The column's mark: its shape tells GPUs apart, filled is measured and hollow is reported."""
    style = {("measured", ""): "m", ("measured", "a"): "a"}.get((label, tone), "h" + tone)
    if column % 3 == 0:
        return rect(x - 4, y - 4, 8, 8, style)
    if column % 3 == 1:
        return circle(x, y, 4.5, style)
    return path([(x - 5, y + 4), (x, y - 5), (x + 5, y + 4)], style, closed=True)


# ------------------------------------------------------------------------------ over the sizes


def speed(*variants: Variant, gpu: str = "h200", unit: str = "%", directory=None) -> Bundle:
    """Each variant over N on one GPU, the first in the accent. `unit` is "%" of cuBLAS or "GFLOPS".

    Measured runs must have exactly these macros; reported ones must not contradict them. Raises
    ValueError where nothing is recorded.
    """
    if unit not in ("%", "GFLOPS"):
        raise ValueError(f'unit={unit!r}: choose "%" or "GFLOPS"')
    lines = []
    for variant in variants:
        for label, runs in _lines(variant, gpu, directory).items():
            points = [(run.N, _value(run, unit)) for run in runs]
            points = [point for point in points if point[1] is not None]
            if points:
                name = _line_name(variant, variants, label)
                lines.append((name, label, points, variant == variants[0], runs))
    if not lines:
        raise ValueError(f"nothing is recorded for these variants on {devices[gpu].name} in {unit}")
    return _line_chart(lines, devices[gpu], unit)


def _lines(variant: Variant, gpu: str, directory) -> dict[str, list[Run]]:
    """Label → the runs of `variant` at square sizes, by N, the fastest where a size has several."""
    found: dict[str, dict[int, Run]] = {}
    for run in _runs(directory, gpu=gpu, step=variant.step.number):
        same = all(variant.macros.get(name) == value for name, value in run.macros.items())
        if same and run.M == run.N == run.K:
            sizes = found.setdefault(run.label, {})
            if run.N not in sizes or run.gflops > sizes[run.N].gflops:
                sizes[run.N] = run
    return {label: [sizes[N] for N in sorted(sizes)] for label, sizes in sorted(found.items())}


def _value(run: Run, unit: str) -> float | None:
    return run.pct_of_cublas if unit == "%" else run.gflops


def _line_name(variant: Variant, variants: Sequence[Variant], label: str) -> str:
    """What tells this line from the others: the step, its macros, or who reported it."""
    same_step = [v for v in variants if v.step == variant.step]
    differing = [
        f"{macro}={value}"
        for macro, value in variant.items
        if len({v.macros[macro] for v in same_step}) > 1
    ]
    name = " ".join(differing) or variant.step.title
    return name if label == "measured" else f"{name}, {label}"


def _line_chart(lines: list, device: Device, unit: str) -> Bundle:
    sizes = sorted({N for _, _, points, _, _ in lines for N, _ in points})
    peak = max(value for _, _, points, _, _ in lines for _, value in points)
    step = _nice(peak / 4)
    top = step * math.ceil(peak / step - 1e-9)
    widest = max(_label_width(name) for name, *_ in lines)
    left, right, first, bottom = 46, WIDTH - 14 - min(widest, 220), 26, 226
    spread = math.log2(sizes[-1] / sizes[0]) or 1

    def at(N: int, value: float) -> tuple[float, float]:
        along = math.log2(N / sizes[0]) / spread if sizes[-1] > sizes[0] else 0.5
        return left + (right - left) * along, bottom - (bottom - first) * value / top

    title = f"{'Per cent of cuBLAS' if unit == '%' else 'GFLOPS'} on {device.name}"
    parts = [text(0, 12, title, "m s")]
    for index in range(round(top / step) + 1):
        y = at(sizes[0], step * index)[1]
        parts += [path([(left, y), (right, y)], "lf")]
        parts += [text(left - 6, y + 4, f"{step * index:,.0f}".replace(",", " "), "m s", "end")]
    free = -math.inf
    for N in sizes:
        x = at(N, 0)[0]
        if x - free >= 38:
            parts += [text(x, bottom + 16, str(N), "m s", "middle")]
            free = x
    parts += [text(left - 26, bottom + 16, "N", "m s", "end")]
    labels = []
    for name, _, points, accent, runs in reversed(lines):  # the accent last, on top
        stale = any(run.stale for run in runs)
        tone = "lf" if stale else "la t" if accent else "lm"
        parts += [path([at(*point) for point in points], tone)]
        parts += [circle(*at(*point), 2.5, "a" if accent else "m") for point in points]
        x, y = at(*points[-1])
        labels.append((y, x, name + " *" * stale, "a b" if accent else "m"))
    parts += _labels(labels, bottom)
    alt = f"{title} over N: " + "; ".join(
        f"{name} {', '.join(f'{_format(value)} at {N}' for N, value in ends)}"
        for name, _, points, *_ in lines
        for ends in [dict.fromkeys((points[0], points[-1]))]
    )
    rows = [
        [N, *(_format(dict(points).get(N)) for _, _, points, _, _ in lines)] for N in sizes
    ]  # fmt: skip
    origins = dict.fromkeys(_origin(label) for _, label, *_ in lines)
    caption = f"{device.name}: {'; '.join(origins)}." + (
        " * measured with another version of this kernel."
        if any(run.stale for *_, runs in lines for run in runs)
        else ""
    )
    header = ["N", *(name for name, *_ in lines)]
    return figure(svg(WIDTH, bottom + 22, parts, alt), alt + ".", header, rows, caption)


def _label_width(name: str) -> float:
    """Units that a bold label may take, in the widest of the fonts a reader may have."""
    return sum(10.4 if letter.isupper() or letter in "=_" else 8.8 for letter in name)


def _labels(labels: list, bottom: float) -> list[str]:
    """Labels at the ends of lines, moved apart where they would overlap."""
    placed, y_free = [], -math.inf
    ordered = sorted(labels)
    heights = []
    for y, *_ in ordered:
        y_free = max(y, y_free + 15)
        heights.append(y_free)
    excess = heights[-1] - bottom if heights else 0
    if excess > 0:  # push the stack up from below
        limit = bottom
        for index in range(len(heights) - 1, -1, -1):
            heights[index] = min(heights[index], limit)
            limit = heights[index] - 15
    for (_, x, name, tone), y in zip(ordered, heights, strict=True):
        placed.append(text(x + 8, y + 4.5, name, tone))
    return placed


def _nice(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= value * (1 - 1e-9))


def _format(value: float | None) -> str:
    """Three significant digits, at least the whole part; a dash for None."""
    if value is None:
        return "–"
    decimals = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{decimals}f}".replace(",", " ")


# ------------------------------------------------------------------------------ what it moves

_MOVES = (  # row, how to compute it from counters
    ("multiply-adds, per thread", lambda c: c.ffma),
    ("global load requests", lambda c: c.global_load_requests),
    ("global sectors loaded", lambda c: c.global_load_sectors),
    ("– a request", lambda c: _ratio(c.global_load_sectors, c.global_load_requests)),
    ("global sectors stored", lambda c: c.global_store_sectors),
    ("shared loads", lambda c: c.shared_load_instructions),
    ("shared load wavefronts", lambda c: c.shared_load_wavefronts),
    ("– a load", lambda c: _ratio(c.shared_load_wavefronts, c.shared_load_instructions)),
    ("shared store wavefronts", lambda c: c.shared_store_wavefronts),
    ("FLOP per byte to or from L1", lambda c: _ratio(
        2 * c.ffma, SECTOR * (c.global_load_sectors + c.global_store_sectors))),
)  # fmt: skip


def _ratio(over: float, under: float) -> float:
    return over / under if under else 0.0


def moves(
    this: Variant | tuple, other: Variant | tuple | None = None, M: int = 256, N: int = 256,
    K: int = 256,
) -> Bundle:  # fmt: skip
    """What `this` kernel moves, beside `other`: instructions, sectors, wavefronts, intensity.

    Each is a Variant, whose recorded counters at M×N×K are taken, or a pair (name, counters or
    Profile). Rows that are zero on both sides are left out. Raises LookupError where a Variant has
    no record at that size.
    """
    sides = [_side(each, M, N, K) for each in (other, this) if each is not None]
    names = _side_names(sides)
    rows = []
    for label, measure in (*_classes(sides), *_MOVES):
        values = [measure(counters) for _, counters in sides]
        if any(values):
            rows.append([label, *values])
    cells = []
    for label, *values in rows:
        most = max(values)
        marked = [_bar(v, most, v_index == len(values) - 1) for v_index, v in enumerate(values)]
        if len(values) == 2:
            marked.append(f"×{values[1] / values[0]:.2g}" if values[0] and values[1] else "–")
        cells.append([label, *marked])
    size = f"{M}³" if M == N == K else f"{M}×{N}×{K}"
    header = [f"counted at {size}", *names, *(["change"] if other is not None else [])]
    html = f'<figure class="lab">{STYLE}{table_html(header, cells)}</figure>'
    return Bundle(html, table_text(header, cells))


def _side(each, M: int, N: int, K: int):
    if isinstance(each, Variant):
        return each, records.counters(each, M, N, K)
    name, source = each
    return name, getattr(source, "counters", source)


def _side_names(sides: list) -> list[str]:
    """A step's title, or what differs where the same step stands on both sides."""
    variants = [name for name, _ in sides if isinstance(name, Variant)]
    steps = {variant.step.number for variant in variants}
    one_step = len(variants) == 2 and len(steps) == 1

    def name(each) -> str:
        if not isinstance(each, Variant):
            return str(each)
        if one_step:
            return _line_name(each, variants, "measured")
        extra = "" if each.label == "default" else f", {each.label}"
        return f"{each.step.number} {each.step.title}{extra}"

    return [name(each) for each, _ in sides]


def _classes(sides: list) -> list:
    """Rows for the classes of PTX instructions; those under 2 % on every side make one row."""
    names = sorted({name for _, counters in sides for name in counters.by_class})

    def small(name: str) -> bool:
        return all(c.by_class.get(name, 0) < 0.02 * c.instructions for _, c in sides)

    rest = [name for name in names if small(name)]
    groups = [(name, [name]) for name in names if name not in rest] + [("other", rest)]
    return [("PTX instructions, per warp", lambda c: c.instructions)] + [
        (f"– {label}", lambda c, group=group: sum(c.by_class.get(name, 0) for name in group))
        for label, group in groups
    ]


def _bar(value: float, most: float, accent: bool) -> Cell:
    words = _format(value) if isinstance(value, float) else f"{value:,}".replace(",", " ")
    width = f"{4 * value / most:.2f}" if most else "0"  # em
    style = ' class="x"' if accent else ""
    return Cell(words, f'<span{style}>{words}<u style="width:{width}em"></u></span>')


# ---------------------------------------------------------------------------------- the tiling


def tiling(
    variant: Variant, M: int = 96, N: int = 96, K: int = 96, block: tuple[int, int] = (1, 1)
) -> Bundle:
    """Which block computes which tile of C, and the strips of A and B that it reads.

    `block` is the tile's (row, column), counted from 0. Raises ValueError where C has no such tile.
    """
    BM, BN, BK = variant.tile
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
    *panels: tuple[str, Sequence[int], Sequence[int]], shape: tuple[int, int], name: str = "A"
) -> Bundle:
    """Which elements of a row-major matrix a warp touches in one load, and the sectors it fetches.

    Each panel is (title, rows, columns): 32 integers, or one for all lanes. `shape` is the
    matrix's (rows, columns); its first 32×32 elements are drawn. The last panel has the accent.
    Raises ValueError for an element outside what is drawn.
    """
    shown_rows, shown_columns = (min(32, size) for size in shape)
    panel = (WIDTH - 16 * (len(panels) - 1)) / len(panels)
    spots = [[np.broadcast_to(each, 32) for each in where] for _, *where in panels]
    lowest = max(int(rows.max()) for rows, _ in spots)
    drawn_rows = min(shown_rows, -(-(lowest + 1) // 8) * 8)
    cell = min(9.0, panel / shown_columns)
    parts, facts = [], []
    for index, ((title, *_), (rows, columns)) in enumerate(zip(panels, spots, strict=True)):
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
        told = (
            f"{len(sectors)} {'sector' if len(sectors) == 1 else 'sectors'} for {rows.size} lanes"
        )
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
        facts.append([title, rows.size, len(touched), len(sectors), len(sectors) * SECTOR, used])
    alt = f"One load of a warp from a row-major {shape[0]}×{shape[1]} matrix {name}: " + "; ".join(
        f"{title}: {sectors} sectors, {fetched} bytes fetched for {used} used"
        for title, _, _, sectors, fetched, used in facts
    )
    height = 44 + drawn_rows * cell + 4
    header = ["access", "lanes", "elements", "sectors", "bytes fetched", "bytes used"]
    caption = (
        f"The first {drawn_rows}×{shown_columns} elements of {name}, row by row in memory. "
        "Shaded: the 32-byte sectors that are fetched; filled: the elements that are used."
    )
    return figure(svg(WIDTH, height, parts, alt), alt + ".", header, facts, caption)


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
