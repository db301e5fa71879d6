"""The book's figures. Each function returns a Bundle: an SVG with its table, or plain text.

Numbers come from records, from counters or from the arguments; nothing is drawn that was not
measured, reported or counted. Grey for everything, one accent for what the chapter is about.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from sgemm_lab.devices import Device, devices
from sgemm_lab.ladder import Step, Variant, as_variant
from sgemm_lab.ladder import ladder as steps
from sgemm_lab.measure import records
from sgemm_lab.measure.records import Run
from sgemm_lab.show.bundle import (
    ACCENT,
    FAINT,
    INK,
    MUTED,
    PAPER,
    STYLE,
    WIDTH,
    Bundle,
    Cell,
    figure,
    path,
    plot,
    rect,
    svg,
    table_html,
    table_text,
    text,
)
from sgemm_lab.simt.accesses import WarpAccess
from sgemm_lab.simt.counters import BANKS

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

    def x(units: float) -> float:  # from the left, in per cent, which the axis counts from `left`
        left, right = 204, WIDTH - _COLUMN * len(columns) - 10
        return (units - left) / (right - left) * top

    ends = [x(WIDTH - _COLUMN * n - 2) for n in reversed(range(len(columns)))]

    def draw(axes: Axes) -> None:
        axes.set(xlim=(x(0), x(WIDTH)), ylim=(len(numbers) - 0.5, -0.5), yticks=())
        axes.xaxis.tick_top()
        axes.set_xticks((0, 50, 100))
        axes.set_xticks(ends, [_short(device) for device, _ in heads], minor=True, ha="right")
        for column, (_, label) in enumerate(heads):
            axes.annotate(
                _glyph(column, label), (ends[column], 1), (0, 21), ("data", "axes fraction"),
                textcoords="offset points", ha="right", color=MUTED,
            )  # fmt: skip
        for row, number in enumerate(numbers):
            here = number == step
            words = {"va": "center_baseline", "weight": "bold" if here else "normal"}
            if here:
                axes.axhspan(row - 0.5, row + 0.5, color=ACCENT, alpha=0.25, linewidth=0)
            axes.text(x(18), row, number, ha="right", color=INK if here else MUTED, **words)
            axes.text(x(26), row, titles[number], **words)
            marks = {c: runs[number] for c, runs in enumerate(columns.values()) if number in runs}
            lanes = _lanes([run.pct_of_cublas for run in marks.values()], x(_MARK) - x(0))
            for (column, run), lane in zip(marks.items(), lanes, strict=True):
                label = heads[column][1]
                tone = ACCENT if here else MUTED
                axes.plot(
                    run.pct_of_cublas, row + lane * _MARK / _ROW, _MARKERS[column % 3], color=tone,
                    clip_on=False, markerfacecolor=tone if label == "measured" else PAPER,
                    markersize=_MARK, markeredgewidth=1 + here,
                )  # fmt: skip
                tone = MUTED if run.stale and not here else INK
                axes.text(ends[column], row, _percent(run), ha="right", color=tone, **words)

    stale = any(run.stale for runs in columns.values() for run in runs.values())
    caption = f"Per cent of cuBLAS at M = N = K = {N}. " + " ".join(
        f"{_glyph(column, label)} {device.name}: {_origin(label)}."
        for column, (device, label) in enumerate(heads)
    )
    caption += _sources(run for runs in columns.values() for run in runs.values())
    caption += " * measured with another version of this kernel." * stale
    alt = f"Per cent of cuBLAS, step by step, at N = {N}" + (
        f"; step {step}, {titles[step]}, is marked." if step in titles else "."
    )
    header = ["step", *(f"{device.name} ({_origin(label)})" for device, label in heads)]
    rows = [
        [f"{number} {titles[number]}", *(_percent(runs.get(number)) for runs in columns.values())]
        for number in numbers
    ]
    drawing, png = plot(draw, 42 + _ROW * len(numbers), alt)
    return figure(drawing, alt, header, rows, caption, png)


_COLUMN = 44  # width of a GPU's column of numbers
_ROW = 22  # height of a step's row
_MARK = 7  # size of a mark


def _lanes(places: Sequence[float], apart: float) -> list[float]:
    """How many marks' height to move each mark, so that those closer than `apart` part company."""
    order = sorted(range(len(places)), key=places.__getitem__)
    groups: list[list[int]] = []
    for index in order:
        if groups and places[index] - places[groups[-1][-1]] < apart:
            groups[-1].append(index)
        else:
            groups.append([index])
    lanes = [0.0] * len(places)
    for group in groups:
        for lane, index in enumerate(sorted(group)):
            lanes[index] = lane - (len(group) - 1) / 2
    return lanes


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


def _sources(runs: Iterable[Run]) -> str:
    """Who reported what is shown: " R1: “…”, …. ladder a: …." """
    named = {run.label: run.source for run in runs if run.kind == "reported"}
    return "".join(
        f" {source if source.startswith(label) else f'{label}: {source}'}."
        for label, source in sorted(named.items())
    )


def _short(device: Device) -> str:
    return device.name.removeprefix("RTX ").split(" SXM")[0].replace("2080 Super", "2080S")


def _percent(run: Run | None) -> str:
    if run is None:
        return "–"
    value = run.pct_of_cublas
    return f"{value:.0f}" + "*" * run.stale if value >= 9.95 else f"{value:.1f}" + "*" * run.stale


_MARKERS = "so^"  # a column's mark: its shape tells GPUs apart, filled is measured, hollow reported


def _glyph(column: int, label: str) -> str:
    return ("■●▲" if label == "measured" else "□○△")[column % 3]


# ------------------------------------------------------------------------------ over the sizes


def speed(*variants: Variant | Step, gpu: str = "h200", unit: str = "%", directory=None) -> Bundle:
    """Each variant over N on one GPU, the first in the accent. `unit` is "%" of cuBLAS or "GFLOPS".

    A step stands for its default variant. Measured runs must have exactly these macros; reported
    ones must not contradict them. Who reported the step, but no such kernel, is shown with the
    default variant, the line named for what differs: "R2, ACCUMULATORS=4".
    Raises ValueError for an unknown GPU, or where nothing is recorded.
    """
    variants, device = [as_variant(variant) for variant in variants], _device(gpu)
    if unit not in ("%", "GFLOPS"):
        raise ValueError(f'unit={unit!r}: choose "%" or "GFLOPS"')
    lines = []
    for variant in variants:
        for (label, differs), runs in _lines(variant, variants, device.key, directory).items():
            points = [(run.N, _value(run, unit)) for run in runs]
            points = [point for point in points if point[1] is not None]
            if points:
                name = f"{label}, {differs}" if differs else _line_name(variant, variants, label)
                lines.append((name, label, points, variant == variants[0], runs))
    if not lines:
        raise ValueError(f"nothing is recorded for these variants on {device.name} in {unit}")
    return _line_chart(lines, device, unit)


def _device(gpu: str) -> Device:
    if str(gpu).lower() not in devices:
        raise ValueError(f"gpu={gpu!r} is not known; known are {', '.join(devices)}.")
    return devices[gpu.lower()]


def _lines(
    variant: Variant, variants: Sequence[Variant], gpu: str, directory
) -> dict[tuple[str, str], list[Run]]:
    """(label, macros that differ) → the runs to show for `variant` at square sizes, by N, the
    fastest where a size has several."""
    runs = [r for r in _runs(directory, gpu=gpu, step=variant.step.number) if r.M == r.N == r.K]
    agree = {run.label for run in runs if not _differs(run, variant)}
    found: dict[tuple[str, str], dict[int, Run]] = {}
    for run in runs:
        differs = _differs(run, variant)
        nearest = run.kind == "reported" and variant == variant.step() and run.label not in agree
        if differs and not (nearest and all(_differs(run, other) for other in variants)):
            continue
        sizes = found.setdefault((run.label, differs), {})
        if run.N not in sizes or run.gflops > sizes[run.N].gflops:
            sizes[run.N] = run
    return {key: [sizes[N] for N in sorted(sizes)] for key, sizes in sorted(found.items())}


def _differs(run: Run, variant: Variant) -> str:
    """The macros of a run that `variant` has otherwise: "ACCUMULATORS=4"; empty for none."""
    return " ".join(f"{n}={v}" for n, v in run.macros.items() if variant.macros.get(n) != v)


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
    peak = max(value for _, _, points, *_ in lines for _, value in points)
    title = f"{'Per cent of cuBLAS' if unit == '%' else 'GFLOPS'} on {device.name}"

    def draw(axes: Axes) -> None:
        axes.set_title(title)
        axes.set_xlabel("M = N = K")
        axes.set_xscale("log", base=2)
        powers = [N for N in sizes if N.bit_count() == 1]  # of two
        axes.set_xticks(powers if len(powers) > 1 else sizes)
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}".replace(",", " "))
        axes.yaxis.set_major_locator(ticks := MaxNLocator(5, steps=(1, 2, 5, 10)))
        axes.grid(False, axis="x")
        top = ticks.tick_values(0, peak)[-1]
        axes.set_ylim(0, top)
        ordered = sorted(lines, key=lambda line: line[2][-1][1])
        heights = _apart([points[-1][1] / top for _, _, points, *_ in ordered], 0.08)
        for (name, _, points, accent, runs), height in zip(ordered, heights, strict=True):
            stale = any(run.stale for run in runs)
            tone = ACCENT if accent and not stale else MUTED
            axes.plot(
                *zip(*points, strict=True), "o:" if stale else "o-", color=tone,
                linewidth=1 + accent, zorder=2 + accent, clip_on=False,
            )  # fmt: skip
            axes.annotate(
                name + " *" * stale, points[-1], (1.02, height), textcoords="axes fraction",
                va="center_baseline", color=tone, weight="bold" if accent else "normal",
                arrowprops={"arrowstyle": "-", "color": FAINT, "shrinkA": 3, "shrinkB": 4,
                            "relpos": (0, 0.5)},
            )  # fmt: skip

    alt = f"{title} over N: " + "; ".join(
        f"{name} {', '.join(f'{_format(value)} at {N}' for N, value in ends)}"
        for name, _, points, *_ in lines
        for ends in [dict.fromkeys((points[0], points[-1]))]
    )
    rows = [
        [N, *(_format(dict(points).get(N)) for _, _, points, _, _ in lines)] for N in sizes
    ]  # fmt: skip
    origins = dict.fromkeys(_origin(label).partition(",")[0] for _, label, *_ in lines)
    caption = (
        f"{device.name}: {'; '.join(origins)}."
        + _sources(run for *_, runs in lines for run in runs)
        + (
            " * measured with another version of this kernel."
            if any(run.stale for *_, runs in lines for run in runs)
            else ""
        )
    )
    header = ["N", *(name for name, *_ in lines)]
    drawing, png = plot(draw, 260, alt)
    return figure(drawing, alt + ".", header, rows, caption, png)


def _apart(heights: Sequence[float], gap: float) -> np.ndarray:
    """Ascending `heights` moved as little as puts neighbours a `gap` apart, between 0 and 1."""
    steps = gap * np.arange(len(heights))
    free = np.asarray(heights) - steps
    middle = (np.maximum.accumulate(free) + np.minimum.accumulate(free[::-1])[::-1]) / 2
    return middle.clip(0, max(0, 1 - steps[-1])) + steps


def _format(value: float | None) -> str:
    """Three significant digits, at least the whole part; a dash for None."""
    if value is None:
        return "–"
    decimals = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{decimals}f}".replace(",", " ")


# ------------------------------------------------------------------------------ what it moves

_MOVES = (  # row, how to compute it from counters
    ("multiply-adds of threads", lambda c: c.ffma),
    ("global load requests", lambda c: c.global_load_requests),
    ("global sectors loaded", lambda c: c.global_load_sectors),
    ("– a request", lambda c: _ratio(c.global_load_sectors, c.global_load_requests)),
    ("global sectors stored", lambda c: c.global_store_sectors),
    ("shared loads", lambda c: c.shared_load_instructions),
    ("shared load wavefronts", lambda c: c.shared_load_wavefronts),
    ("– a load", lambda c: _ratio(c.shared_load_wavefronts, c.shared_load_instructions)),
    ("shared store wavefronts", lambda c: c.shared_store_wavefronts),
    ("FLOP per byte of sectors", lambda c: _ratio(
        2 * c.ffma, SECTOR * (c.global_load_sectors + c.global_store_sectors))),
)  # fmt: skip


def _ratio(over: float, under: float) -> float:
    return over / under if under else 0.0


def moves(
    this: Variant | Step | tuple, other: Variant | Step | tuple | None = None,
    M: int = 256, N: int = 256, K: int = 256,
) -> Bundle:  # fmt: skip
    """What `this` kernel moves, beside `other`: instructions, sectors, wavefronts, intensity.

    Each is a Variant (or a Step, for its default), whose recorded counters at M×N×K are taken, or
    a pair (name, counters or Profile). Rows that are zero on both sides are left out. Raises
    LookupError where a Variant has no record at that size.
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
    given = not any(isinstance(each, tuple) for each in (this, other))
    header = [
        f"counted at {size}" if given else "counted",
        *names,
        *(["change"] if other is not None else []),
    ]
    html = f'<figure class="lab">{STYLE}{table_html(header, cells)}</figure>'
    return Bundle(html, table_text(header, cells))


def _side(each, M: int, N: int, K: int):
    if isinstance(each, tuple) and len(each) == 2:
        return each[0], getattr(each[1], "counters", each[1])
    variant = as_variant(each)
    return variant, records.counters(variant, M, N, K)


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
    return [("PTX instructions of warps", lambda c: c.instructions)] + [
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
    variant: Variant | Step, M: int = 96, N: int = 96, K: int = 96, block: tuple[int, int] = (1, 1)
) -> Bundle:
    """Which block computes which tile of C, and the strips of A and B that it reads.

    `block` is the tile's (row, column), counted from 0. Raises ValueError where C has no such tile.
    """
    variant = as_variant(variant)
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
        told = f"{_sectors(len(sectors))} for {rows.size} lanes"
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


def banks(*panels: tuple[str, WarpAccess]) -> Bundle:
    """Which banks of shared memory the lanes of a warp need for one instruction.

    Each panel is (title, access); accesses come from `accesses`. A row is a lane, a column a bank,
    and a lane's first word is filled. The last panel has the accent.
    """
    panel = (WIDTH - 16 * (len(panels) - 1)) / len(panels)
    cell, top = panel / BANKS, 60
    parts, facts = [], []
    for index, (title, access) in enumerate(panels):
        tone, left = "a" if index == len(panels) - 1 else "m", index * (panel + 16)
        lanes = np.flatnonzero(access.active)
        spots = sorted(zip(lanes.tolist(), access.banks[lanes].tolist(), strict=True))
        words, used = len(np.unique(access.words[lanes])), len({bank for _, bank in spots})
        parts += [text(left, 14, title, "b")]
        parts += [text(left, 32, f"{words} words in {used} banks", "m s")]
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
