"""What each resource allows a kernel, beside what was measured: a roofline, tables, an explorer."""

from collections.abc import Sequence
from html import escape

import ipywidgets as widgets
from matplotlib.axes import Axes

from sgemm_lab.devices import Device, devices
from sgemm_lab.ladder import Step, Variant, as_variant
from sgemm_lab.ladder import ladder as steps
from sgemm_lab.measure import records
from sgemm_lab.measure.limits import Limits, limits, measured, rates
from sgemm_lab.measure.records import Run
from sgemm_lab.show.bundle import (
    ACCENT,
    FAINT,
    INK,
    MUTED,
    Bundle,
    Cell,
    figure,
    plot,
    table_html,
    table_text,
)  # fmt: skip
from sgemm_lab.show.explorer import GPUS, Explorer, assemble, buttons
from sgemm_lab.show.labels import digits, names, short, spaced
from sgemm_lab.show.tables import STALE, bar, captioned, worded

_WORDS = """<style>
.lab .how{display:block;min-width:9em;text-align:left;white-space:normal}
.lab .why{display:block;min-width:4em;white-space:normal}
@media(min-width:40rem){.lab .why{white-space:nowrap}}
.lab.steps:has(.how) tr>:first-child{min-width:5em}
.lab.steps:has(.why) tr>:first-child{min-width:7em}
.lab select{appearance:auto;background:var(--p);color:var(--i);color-scheme:inherit}
</style>"""
_BOUND = "Each time is a lower bound at the boost clock; the largest, marked, is the bound."


def intensity(variant: Variant | Step) -> float:
    """FLOP for each byte that a kernel asks global memory for, if nothing is cached: its structural
    intensity. A thread of the naive kernel asks for two floats for a multiply-add; a block with
    shared memory for BM + BN floats for BM·BN of them."""
    variant = as_variant(variant)
    BM, BN, _ = variant.tile if variant.shared_bytes else (1, 1, 1)
    return 2 * BM * BN / (4 * (BM + BN))


def _recorded(variant: Variant, device: Device, N: int, look: dict) -> list[Run]:
    """What was measured of the variant at M = N = K = `N`; else what others reported of kernels
    that its macros don't contradict, of each the fastest."""
    runs = [
        run
        for run in records.runs(device.key, variant.step.number, N=N, **look)
        if run.macros.items() <= variant.macros.items()
    ]
    ours = [run for run in runs if run.kind == "measured" and run.macros == variant.macros]
    fastest = {run.label: run for run in sorted(runs, key=lambda r: r.gflops) if run not in ours}
    return ours or list(fastest.values())


def _named(run: Run) -> str:
    return ("measured" if run.kind == "measured" else f"reported, {run.label}") + " *" * run.stale


def _share(found: Limits, run: Run) -> float:
    """The bound in per cent of the time that was taken."""
    return 100 * run.gflops / found.gflops


# ----------------------------------------------------------------------------- one kernel


def ceilings(variant: Variant | Step, gpu: str = "h200", N: int = 4096, directory=None) -> Bundle:
    """The time that each resource of a GPU needs for M = N = K = `N` by a variant (a step: its
    default), the bound marked, beside what was measured or reported.

    Raises ValueError and LookupError as `limits` does.
    """
    variant, device = as_variant(variant), devices[gpu]
    look = {"directory": directory} if directory else {}
    found = limits(variant, device, N, N, N, **look)
    header = [
        f"{names([variant])[0]}, {short(device)}, N = {N}",
        "ms",
        "TFLOPS",
        worded("how", "how"),
    ]
    rows = _rows(found, _recorded(variant, device, N, look))
    return captioned(header, rows, f"{_BOUND} {_origin(found, device, look)}", _WORDS)


def _origin(found: Limits, device: Device, look: dict) -> str:
    """Where the rates come from, and what is left out for want of one."""
    left = f" Left out: {'; '.join(found.left_out)}." if found.left_out else ""
    return f"Rates that are on no data sheet: {rates(device, **look).source}.{left}"


def _rows(found: Limits, runs: Sequence[Run]) -> list[list]:
    """A row for each limit, the uneven share of an SM's, and each run."""
    times = [run.ms or found.flops / run.gflops * 1e-6 for run in runs]
    most = max([1e3 * found.binding.seconds, *times])

    def row(name: str, ms: float, how: str, marked: bool = False) -> list:
        label = Cell(name, f'<b class="x">{name}</b>') if marked else name
        return [label, bar(ms, most, marked), digits(found.flops / ms * 1e-9), worded(how, "how")]

    rows = []
    for limit in found.rows:
        if limit.seconds is None:
            rows.append([limit.name, "–", "–", worded(f"left out: {limit.how}", "how")])
        else:
            rows.append(row(limit.name, 1e3 * limit.seconds, limit.how, limit == found.binding))
    if part := found.uneven:
        rows.append([part.name, bar(1e3 * part.seconds, most, False), "", worded(part.how, "how")])
    for run, ms in zip(runs, times, strict=True):
        rows.append(row(_named(run), ms, f"can't be less than {_share(found, run):.0f} % of this"))
    return rows


# ----------------------------------------------------------------------------- all kernels


def limiters(*variants: Variant | Step, gpu: str = "h200", N: int = 4096, directory=None) -> Bundle:
    """What limits each variant (none: every step's default) on a GPU at M = N = K = `N`: the
    resource that binds, what it allows, what was measured or reported, and its share of that."""
    variants = [as_variant(v) for v in variants or (step for step in steps if step.function)]
    look = {"directory": directory} if directory else {}
    device, rows, stale, left_out = devices[gpu], [], False, {}
    for variant, title in zip(variants, names(variants), strict=True):
        found = limits(variant, device, N, N, N, **look)
        runs = _recorded(variant, device, N, look)
        stale |= any(run.stale for run in runs)
        left_out |= dict.fromkeys(found.left_out)
        first = [title, worded(str(found.binding), "why"), digits(found.gflops / 1e3)]
        for run in runs:
            origin = digits(run.gflops / 1e3) + f", {run.label}" * (run.kind == "reported")
            rows.append([*first, origin + " *" * run.stale, f"{_share(found, run):.0f} %"])
            first = ["", "", ""]
        if not runs:
            rows.append([*first, "–", "–"])
    header = [f"N = {N}, {short(device)}", "limit", "at most, TFLOPS", "reached", "share"]
    caption = (
        "At most: 2·M·N·K by the largest lower bound of the time. Reached: measured, or reported "
        "by the source named."
        + f" Left out: {'; '.join(left_out)}." * bool(left_out)
        + STALE * stale
    )
    return captioned(header, rows, caption, _WORDS)


# ----------------------------------------------------------------------------- the roofline


def roofline(gpu: str = "h200", N: int = 4096, directory=None) -> Bundle:
    """A GPU's roofline and every step at its structural intensity, as measured at M = N = K = `N`:
    the default variants, or where this book measured none, others' kernels whose tile is known.
    Raises ValueError where there are none."""
    device, points = devices[gpu], _points(gpu, N, {"directory": directory} if directory else {})
    if not points:
        raise ValueError(f"nothing is recorded on {device.name} at N = {N}")
    peak = 1e3 * device.fp32_tflops
    ridge = peak / device.dram_gbs

    def roof(x: float) -> float:
        return min(peak, x * device.dram_gbs)

    low = min(min(run.gflops, roof(x)) for run, x in points)

    def draw(axes: Axes) -> None:
        axes.set(xscale="log", yscale="log", xlim=(0.15, 100), ylim=(low / 1.5, peak * 1.8))
        axes.set_title(f"GFLOPS on {device.name}, N = {N}")
        axes.set_xlabel("FLOP per byte asked of global memory")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter(lambda value, _: spaced(value))
        axes.minorticks_off()
        axes.plot((0.1, ridge, 200), (roof(0.1), peak, peak), color=INK, linewidth=1.5)
        beside = {"textcoords": "offset points", "size": 11}
        axes.annotate(f"{ridge:.1f}", (ridge, peak), (0, 7), ha="center", color=MUTED, **beside)
        for label, x, y in _marks(points):
            axes.plot((x, x), (y, roof(x)), ":", color=FAINT, linewidth=1.5)
            axes.plot(x, y, "o", color=ACCENT, zorder=3)
            axes.annotate(label, (x, y), (7, 0), va="center_baseline", color=INK, **beside)

    alt = (
        f"Roofline of {device.name}: {device.dram_gbs:g} GB a second, {peak:.0f} GFLOPS, ridge at "
        f"{ridge:.1f} FLOP per byte; each step at its structural intensity, at N = {N}."
    )
    rows = [
        [f"{run.step} {steps[run.step].title}", _named(run), digits(x), digits(roof(x)),
         digits(run.gflops), f"×{run.gflops / roof(x):.2g}"]
        for run, x in points
    ]  # fmt: skip
    header = ["", "", "FLOP per byte", "roof, GFLOPS", "GFLOPS", "of the roof"]
    caption = (
        f"Line: {device.dram_gbs:g} GB a second from DRAM, then {spaced(peak)} GFLOPS of "
        f"multiply-adds; they meet at {ridge:.1f} FLOP per byte. Dots: the steps, as measured or "
        "reported."
    )
    drawing, png = plot(draw, 300, alt)
    return figure(drawing, alt, header, rows, caption, png)


def _points(gpu: str, N: int, look: dict) -> list[tuple[Run, float]]:
    """(run, its structural intensity), the fastest of each step and source."""
    found: dict[tuple, tuple[Run, float]] = {}
    runs = sorted(records.runs(gpu, N=N, **look), key=lambda run: run.gflops)
    ours = [run for run in runs if run.kind == "measured"]
    for run in ours or runs:
        if run.step not in steps or not run.step:
            continue
        step = steps[run.step]
        if run.macros == step().macros or (not ours and (run.step == 1 or "TILE" in run.macros)):
            found[run.step, run.label] = run, intensity(step(**run.macros))
    return [found[key] for key in sorted(found)]


def _marks(points: Sequence[tuple[Run, float]]) -> list[tuple[str, float, float]]:
    """(label, x, y): the steps' numbers, and who reported them. Those that would lie on each other
    are one mark, at the first's place."""
    marks: list[tuple[list[str], float, float]] = []
    for run, x in points:
        label = f"{run.step}" if run.kind == "measured" else f"{run.label}, step {run.step}"
        near = (m for m in marks if m[1] == x and 1 / 1.2 < run.gflops / m[2] < 1.2)
        if mark := next(near, None):
            mark[0].append(label)
        else:
            marks.append(([label], x, run.gflops))
    return [(", ".join(labels), x, y) for labels, x, y in marks]


# ----------------------------------------------------------------------------- the rates


def wavefronts(gpu: str = "h200", directory=None) -> Bundle:
    """Cycles that an SM takes for a shared load or store of a warp, measured, and in brackets the
    wavefronts that our rules count, by width and by how many places the lanes share.

    Raises LookupError where benchmarks/throughput.py has recorded nothing.
    """
    record = _rates_of(gpu, directory)
    cells = {(r["pattern"], r["op"], r["bits"]): r for r in record["shared"]}
    columns = sorted({(op, bits) for _, op, bits in cells})
    rows = [
        [pattern, *(f"{(r := cells[pattern, *column])['cycles']:.2f} ({r['wavefronts']})"
                    for column in columns)]
        for pattern in dict.fromkeys(pattern for pattern, *_ in cells)
    ]  # fmt: skip
    header = ["places of the lanes", *(f"{op} {bits}" for op, bits in columns)]
    caption = (
        f"{record['gpu_name']}: cycles an instruction of a warp, by bits a lane; in brackets the "
        "wavefronts that the PTX machine counts. In “4 quarters” the lanes of each quarter share a "
        "place; in “8 repeated” every eight lanes have the same eight places."
    )
    return captioned(header, rows, caption)


_WAITS = {
    "ffma": "a multiply-add that needs the last one's result",
    "shared": "a load from shared memory",
    "l1": "a load that hits L1",
    "l2": "a load that hits L2",
    "dram": "a load from DRAM",
    **{f"barrier_{n}": f"a barrier of {n // 32} warp{'s' * (n > 32)}" for n in (32, 256, 1024)},
    **{f"handoff_{n}": f"store, barrier, load; {n // 32} warp{'s' * (n > 32)}"
       for n in (32, 256, 1024)},
}  # fmt: skip


_PAGES = "Loads from DRAM jump about in 1 GiB, so finding the page may be part of their time."


def waits(gpu: str = "h200", directory=None) -> Bundle:
    """The latencies that benchmarks/throughput.py measured, in cycles. Raises LookupError where it
    recorded nothing."""
    record = _rates_of(gpu, directory)
    rows = [[name, digits(record["latencies"][key])] for key, name in _WAITS.items()]
    caption = f"{record['gpu_name']}, measured. {_PAGES}"
    return captioned(["one after the other", "cycles each"], rows, caption)


def _rates_of(gpu: str, directory) -> dict:
    record = measured(gpu, **({"directory": directory} if directory else {}))
    if record is None:
        raise LookupError(f"no rates_{gpu}.json: run benchmarks/throughput.py on that GPU")
    return record


# ----------------------------------------------------------------------------- the explorer


def explore_limits(N: int = 4096, directory=None) -> Explorer:
    """Choose a step and a GPU, and see what each resource allows at M = N = K = `N`."""
    look = {"directory": directory} if directory else {}
    numbers = [step.number for step in steps if step.function]
    panes, rows = {}, []
    for number in numbers:
        for gpu in GPUS:
            variant, device = steps[number](), devices[gpu]
            found = limits(variant, device, N, N, N, **look)
            runs = _recorded(variant, device, N, look)
            table = table_html(["", "ms", "TFLOPS", worded("how", "how")], _rows(found, runs))
            told = "" if runs else "No run of this kernel is recorded on this GPU. "
            note = escape(told + _origin(found, device, look))
            name = f"Step {number}, {escape(steps[number].title)}, on {device.name}"
            panes[number, gpu] = f"<div class=lab><p>{name}:</p>{table}<p>{note}</p></div>"
            best = max(runs, key=lambda run: run.gflops, default=None)
            rows.append([
                number, device.name.split()[0], found.binding, digits(found.gflops / 1e3),
                f"{digits(best.gflops / 1e3)}, {_named(best)}" if best else "–",
                f"{_share(found, best):.0f} %" if best else "–",
            ])  # fmt: skip
    header = ["step", "GPU", "limit", "at most, TFLOPS", "recorded, TFLOPS", "share"]
    title = f"Explorer of what limits a step at N = {N}: choose step, GPU. {_BOUND}"
    return assemble(
        f"{_WORDS}<div class=lab><b>What limits it, N = {N}</b></div>",
        [
            buttons(
                "step",
                [(str(n), n) for n in numbers],
                numbers[1],
                [steps[n].title for n in numbers],
                "3em",
            ),
            buttons("GPU", [(devices[key].name.split()[0], key) for key in GPUS], "h200"),
        ],
        panes,
        f"{title}\n\n{table_text(header, rows)}",
        [widgets.HTML(value=f"<div class=lab><p>{_BOUND}</p></div>")],
    )
