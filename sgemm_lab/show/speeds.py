"""Charts of recorded speed: the ladder, steps over sizes, everything at once.

Numbers come from records; nothing is drawn that was not measured or reported. Grey for everything,
one accent for what the chapter is about.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from PIL import Image

from sgemm_lab.devices import Device, devices
from sgemm_lab.ladder import Step, Variant, as_variant
from sgemm_lab.ladder import ladder as steps
from sgemm_lab.measure import limits, records
from sgemm_lab.measure.records import Run
from sgemm_lab.show.bundle import ACCENT, FAINT, INK, MUTED, PAPER, WIDTH, Bundle, figure, plot
from sgemm_lab.show.labels import digits, line_name, short, spaced

# --------------------------------------------------------------------------------- the ladder


def ladder(step: int | None = None, N: int = 2048, directory=None) -> Bundle:
    """Every step's share of cuBLAS at M = N = K = `N`, one column a GPU; `step` in the accent.

    A GPU appears where at least two steps are recorded at this size: measured by this book (filled
    marks; the default variant) or reported by others (hollow; their fastest kernel of that step).
    Of many GPUs the drawing has room for three, those that this book measured first; the table has
    all. Raises ValueError where nothing is recorded at this size.
    """
    every = _columns(N, directory)
    if not every:
        raise ValueError(f"no record has two steps at N = {N}")
    first = sorted(every, key=lambda key: key[1] != "measured")[:_COLUMNS]
    columns = {key: runs for key, runs in every.items() if key in first}
    numbers = sorted({number for runs in every.values() for number in runs})
    titles = {number: _title(number, every.values()) for number in numbers}
    top = max(100.0, *(r.pct_of_cublas for runs in columns.values() for r in runs.values()))
    heads = [(devices[gpu], label) for gpu, label in columns]

    def x(units: float) -> float:  # from the left, in per cent, which the axis counts from `left`
        left, right = 230, WIDTH - _COLUMN * len(columns) - 10
        return (units - left) / (right - left) * top

    ends = [x(WIDTH - _COLUMN * n - 2) for n in reversed(range(len(columns)))]

    def draw(axes: Axes) -> None:
        axes.set(xlim=(x(0), x(WIDTH)), ylim=(len(numbers) - 0.5, -0.5), yticks=())
        axes.xaxis.tick_top()
        axes.set_xticks((0, 50, 100))
        axes.set_xticks(ends, [short(device) for device, _ in heads], minor=True, ha="right")
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
            axes.text(x(26), row, titles[number], size=12, **words)
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
        f"{_glyph(column, label)} {device.name}: {origin(label)}."
        for column, (device, label) in enumerate(heads)
    )
    if more := [devices[gpu].name for gpu, label in every if (gpu, label) not in first]:
        caption += f" In the table only: {', '.join(more)}."
    caption += sources(run for runs in columns.values() for run in runs.values())
    caption += " * measured with another version of this kernel." * stale
    alt = f"Per cent of cuBLAS, step by step, at N = {N}" + (
        f"; step {step}, {titles[step]}, is marked." if step in titles else "."
    )
    header = ["step", *(f"{devices[gpu].name} ({origin(label)})" for gpu, label in every)]
    rows = [
        [f"{number} {titles[number]}", *(_percent(runs.get(number)) for runs in every.values())]
        for number in numbers
    ]
    drawing, png = plot(draw, 42 + _ROW * len(numbers), alt)
    return figure(drawing, alt, header, rows, caption, png)


_COLUMN = 44  # width of a GPU's column of numbers
_COLUMNS = 3  # that leave the marks some room
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
    for run in squares(directory, N=N):
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


def squares(directory, **wanted) -> list[Run]:
    """Square runs; where this book measured a GPU, what others report of it is left out."""
    found = records.runs(**wanted, **({"directory": directory} if directory else {}))
    ours = {run.gpu for run in found if run.kind == "measured"}
    return [
        run for run in found
        if run.M == run.N == run.K and (run.kind == "measured" or run.gpu not in ours)
    ]  # fmt: skip


def origin(label: str) -> str:
    return "measured" if label == "measured" else f"reported, {label}"


def sources(runs: Iterable[Run]) -> str:
    """Who reported what is shown: " R1: “…”, …. ladder a: …." """
    named = {run.label: run.source for run in runs if run.kind == "reported"}
    return "".join(
        f" {source if source.startswith(label) else f'{label}: {source}'}."
        for label, source in sorted(named.items())
    )


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
            runs = [run for run in runs if _value(run, unit) is not None]
            if runs:
                name = f"{label}, {differs}" if differs else line_name(variant, variants, label)
                points = [(run.N, _value(run, unit)) for run in runs]
                lines.append(Line(name, points, runs, variant == variants[0]))
    if not lines:
        raise ValueError(f"nothing is recorded for these variants on {device.name} in {unit}")
    return _line_chart(lines, device, unit)


@dataclass(frozen=True)
class Line:
    """A kernel over N: the points to draw and the runs that they come from."""

    name: str
    points: list[tuple[int, float]]
    runs: list[Run]
    accent: bool = False

    @property
    def even(self) -> list[tuple[int, float]]:
        """The points to join: all but those for edges, such as N = 4095 beside 4096."""
        return [p for p in self.points if p[0] % EVEN == 0] or self.points

    @property
    def odd(self) -> list[tuple[int, float]]:
        return [point for point in self.points if point not in self.even]

    @property
    def stale(self) -> bool:
        return any(run.stale for run in self.runs)


EVEN = 32  # divides every N that is not recorded for its edges


def _device(gpu: str) -> Device:
    if str(gpu).lower() not in devices:
        raise ValueError(f"gpu={gpu!r} is not known; known are {', '.join(devices)}.")
    return devices[gpu.lower()]


def _lines(
    variant: Variant, variants: Sequence[Variant], gpu: str, directory
) -> dict[tuple[str, str], list[Run]]:
    """(label, macros that differ) → the runs to show for `variant` at square sizes, by N, the
    fastest where a size has several."""
    runs = squares(directory, gpu=gpu, step=variant.step.number)
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


def _line_chart(lines: Sequence[Line], device: Device, unit: str) -> Bundle:
    title = f"{'Per cent of cuBLAS' if unit == '%' else 'GFLOPS'} on {device.name}"
    peak = max(value for line in lines for _, value in line.points)

    def draw(axes: Axes) -> None:
        axes.set_title(title)
        axes.set_xlabel("M = N = K")
        axes.yaxis.set_major_formatter(lambda value, _: spaced(value))
        axes.yaxis.set_major_locator(ticks := MaxNLocator(5, steps=(1, 2, 2.5, 5, 10)))
        _draw(axes, lines, ticks.tick_values(0, peak)[-1], 0.08)

    alt = f"{title} over N: {_ends(lines)}"
    origins = dict.fromkeys(
        origin(run.label).partition(",")[0] for line in lines for run in line.runs
    )
    caption = f"{device.name}: {'; '.join(origins)}." + _notes(lines)
    drawing, png = plot(draw, 260, alt)
    return figure(drawing, alt + ".", *_numbers(lines), caption, png)


def _draw(
    axes: Axes,
    lines: Sequence[Line],
    top: float,
    gap: float,
    ticks=(),
    mark: int = 5,
    size: int = 13,
) -> None:
    """The lines over N from 0 to `top`, named at their ends, names a `gap` of the height apart."""
    sizes = sorted({N for line in lines for N, _ in line.even})
    axes.set_xscale("log", base=2)
    powers = [N for N in sizes if N.bit_count() == 1]  # of two
    axes.set_xticks(ticks or (powers if len(powers) > 1 else sizes))
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.grid(False, axis="x")
    axes.set_ylim(0, top)
    ordered = sorted(lines, key=lambda line: line.even[-1][1])
    heights = _apart([line.even[-1][1] / top for line in ordered], gap)
    for line, height in zip(ordered, heights, strict=True):
        tone = ACCENT if line.accent and not line.stale else MUTED
        look = {"color": tone, "zorder": 2 + line.accent, "clip_on": False, "markersize": mark}
        axes.plot(*zip(*line.even, strict=True), "o:" if line.stale else "o-",
                  linewidth=1 + line.accent, **look)  # fmt: skip
        if line.odd:
            axes.plot(*zip(*line.odd, strict=True), "o", markerfacecolor=PAPER, **look)
        axes.annotate(
            line.name + " *" * line.stale, line.even[-1], (1.02, height),
            textcoords="axes fraction", va="center_baseline", color=tone,
            size=size, weight="bold" if line.accent else "normal",
            arrowprops={"arrowstyle": "-", "color": FAINT, "shrinkA": 3, "shrinkB": 4,
                        "relpos": (0, 0.5)},
        )  # fmt: skip


def _ends(lines: Sequence[Line]) -> str:
    """What the lines show, in words: the first and the last value of each."""
    return "; ".join(
        f"{line.name} {', '.join(f'{digits(value)} at {N}' for N, value in ends)}"
        for line in lines
        for ends in [dict.fromkeys((line.even[0], line.even[-1]))]
    )


def _numbers(lines: Sequence[Line]) -> tuple[list, list]:
    """The header and the rows of a table of the lines, a row for each N."""
    sizes = sorted({N for line in lines for N, _ in line.points})
    rows = [[N, *(digits(dict(line.points).get(N)) for line in lines)] for N in sizes]
    return ["N", *(line.name for line in lines)], rows


def _notes(lines: Sequence[Line]) -> str:
    """What a caption says of the marks and of who reported what."""
    edges = sorted({N for line in lines for N, _ in line.odd})
    return (
        "".join(f" Hollow: N = {N}." for N in edges)
        + sources(run for line in lines for run in line.runs)
        + " * measured with another version of this kernel." * any(line.stale for line in lines)
    )


def _apart(heights: Sequence[float], gap: float) -> np.ndarray:
    """Ascending `heights` moved as little as puts neighbours a `gap` apart, between 0 and 1."""
    steps = gap * np.arange(len(heights))
    free = np.asarray(heights) - steps
    middle = (np.maximum.accumulate(free) + np.minimum.accumulate(free[::-1])[::-1]) / 2
    return middle.clip(0, max(0, 1 - steps[-1])) + steps


# ------------------------------------------------------------------------ everything at once

_SPACE = "<style>.lab svg+svg{margin-top:1em}</style>"
SIZES = (256, 512, 1024, 2048, 4096, 8192)


def everything(step: int | None = None, directory=None) -> Bundle:
    """All steps over all square sizes on every recorded GPU, in per cent of its FP32 limit.

    A chart for each GPU, what others reported of it apart from what this book measured. Of ours the
    default variants. `step` has the accent, else cuBLAS.
    """
    look = {"directory": directory} if directory else {}
    panels: dict[tuple[str, str], dict[str, list[Run]]] = {}
    for run in records.runs(**look):
        if run.M == run.N == run.K and comparable(run):
            panels.setdefault((run.gpu, run.kind), {}).setdefault(kernel_name(run), []).append(run)
    order = list(devices)
    drawings, pngs, texts, rows, shown = [], [], [], [], []
    for gpu, kind in sorted(panels, key=lambda key: (order.index(key[0]), key[1])):
        device = devices[gpu]
        lines = [_of_limit(name, runs, device, step) for name, runs in panels[gpu, kind].items()]
        title = f"{device.name}, {kind}: per cent of {device.fp32_tflops:.1f} TFLOPS"
        alt = f"{title}, over N: {_ends(lines)}"
        drawing, png = _limit_chart(lines, device, title, alt)
        drawings.append(drawing)
        pngs.append(png)
        texts.append(alt)
        rows += [[device.name, kind, line.name, N, digits(value)]
                 for line in lines for N, value in line.points]  # fmt: skip
        shown += lines
    caption = (
        "Per cent of the GPU's FP32 limit: SMs × lanes × 2 × boost clock. "
        + "".join(_loop(devices[gpu], look) for gpu, kind in panels if kind == "measured")
        + _notes(shown)
    )
    header = ["GPU", "source", "kernel", "N", "% of the limit"]
    return figure(
        _SPACE + "".join(drawings), ". ".join(texts) + ".", header, rows, caption, _stack(pngs)
    )


def _loop(device: Device, look: Mapping) -> str:
    """What a caption says of a loop of multiply-adds, where one was measured."""
    if (record := limits.measured(device, **look)) is None:
        return ""
    lanes, clock = (record["rates"][name] for name in ("ffma_lanes", "clock_mhz"))
    tflops = 2e-6 * device.sms * lanes * clock
    return f"On {device.name} a loop of nothing but multiply-adds reaches {tflops:.1f} TFLOPS."


def comparable(run: Run) -> bool:
    """Whether a run belongs beside others of its GPU: of ours the default variants; of others all
    but those under other clocks or on no GPU."""
    if run.kind == "measured":
        return not run.step or dict(run.macros) == dict(steps[run.step]().macros)
    return "Nsight" not in run.kernel and "CPU" not in run.kernel


def kernel_name(run: Run) -> str:
    """A run's line in a chart of everything: the step where all come from one source."""
    if run.step in steps and (run.kind == "measured" or run.label == "R3"):
        return f"{run.step} {steps[run.step].title}" if run.step else "cuBLAS"
    return run.kernel if run.label in run.kernel else f"{run.label}, {run.kernel}"


def _of_limit(name: str, runs: Sequence[Run], device: Device, step: int | None) -> Line:
    """The fastest run of each N, in per cent of the device's FP32 limit."""
    best = {}
    for run in sorted(runs, key=lambda run: (run.N, run.gflops)):
        best[run.N] = run
    points = [(N, run.gflops / device.fp32_tflops / 10) for N, run in best.items()]
    return Line(name, points, list(best.values()), runs[0].step == (step or 0))


def _limit_chart(lines: Sequence[Line], device: Device, title: str, alt: str) -> tuple[str, bytes]:
    height = 70 + 15 * max(6, len(lines))

    def draw(axes: Axes) -> None:
        axes.set_title(title)
        axes.set_yticks((0, 25, 50, 75, 100))
        axes.axhline(100, color=INK, linewidth=1.2)
        axes.set_xlim(224, 9216)
        _draw(axes, lines, 100, 13 / (height - 60), SIZES, mark=3, size=11)

    return plot(draw, height, alt)


def _stack(pngs: Sequence[bytes]) -> bytes:
    """Pictures of one width below each other."""
    pictures = [Image.open(io.BytesIO(png)).convert("RGB") for png in pngs]
    page = Image.new("RGB", (pictures[0].width, sum(each.height for each in pictures)))
    top = 0
    for picture in pictures:
        page.paste(picture, (0, top))
        top += picture.height
    out = io.BytesIO()
    page.quantize(64).save(out, "png", optimize=True)
    return out.getvalue()
