"""Choose a size, a GPU and a unit, and see every kernel that was measured or reported there."""

from collections.abc import Callable, Iterator, Sequence
from html import escape

import ipywidgets as widgets

from sgemm_lab.devices import Device, devices
from sgemm_lab.measure.records import Run
from sgemm_lab.show.bundle import table_text
from sgemm_lab.show.explorer import MOST_PANES, Explorer, assemble, buttons
from sgemm_lab.show.labels import digits, short
from sgemm_lab.show.speeds import comparable, kernel_name, sources, squares
from sgemm_lab.show.tables import STALE

SIZES = (4096, 1024, 2048, 256, 8192, 512)  # the most wanted first: as many as there is room for

# name of a unit → (value of a run, what a bar of full width is)
UNITS: dict[str, tuple[Callable[[Run], float | None], Callable[[Device, float], float]]] = {
    "% of cuBLAS": (lambda run: run.pct_of_cublas, lambda device, most: max(100, most)),
    "GFLOPS": (lambda run: run.gflops, lambda device, most: 1e3 * device.fp32_tflops),
    "% of peak": (
        lambda run: run.gflops / devices[run.gpu].fp32_tflops / 10,
        lambda device, most: 100,
    ),
    "ms": (lambda run: 2e-6 * run.N**3 / run.gflops, lambda device, most: most),
}

_STYLE = """<style>
.lab .bars{width:100%;table-layout:fixed}.lab.lab .bars th{font-weight:400;width:42%;border:0}
.lab.lab .bars td{text-align:left;border:0}.lab .bars .x{font-weight:600}
.lab .bars i{display:inline-block;height:.75em;margin-right:.4em;background:var(--m);\
width:calc((100% - 5em)*var(--w))}.lab .bars .x i{background:var(--a)}
</style>"""


def explore_ladder(step: int | None = None, directory=None) -> Explorer:
    """Every kernel at one size on one GPU, in a unit of your choice: of ours the default variants,
    and where this book measured nothing, what others reported. `step` has the accent, else the
    fastest but cuBLAS.

    Raises ValueError where nothing is recorded at any of `SIZES`.
    """
    found: dict[tuple[str, int], list[tuple[str, Run]]] = {}
    runs = [run for run in squares(directory) if run.N in SIZES and comparable(run)]
    for key in sorted({(run.gpu, run.N) for run in runs}):
        found[key] = _kernels([run for run in runs if (run.gpu, run.N) == key])
    if not found:
        raise ValueError("nothing is recorded at N = " + ", ".join(map(str, sorted(SIZES))))
    gpus = [gpu for gpu in devices if any(gpu == key for key, _ in found)]
    sizes = _sizes(found)
    panes, rows = {}, []
    for N in sizes:
        for gpu in gpus:
            kernels = found.get((gpu, N), [])
            rows += _rows(kernels)
            for unit in UNITS:
                panes[N, gpu, unit] = _pane(kernels, unit, step) if kernels else _NOTHING
    shown = [run for key in found if key[1] in sizes for _, run in found[key]]
    measured = {run.gpu for run in shown if run.kind == "measured"}
    first = next((gpu for gpu in gpus if gpu in measured), gpus[0])
    opens = next((N for N in SIZES if N in sizes and (first, N) in found), sizes[-1])
    selectors = [
        buttons("N", [(str(N), N) for N in sizes], opens),
        buttons(
            "GPU",
            [(short(devices[gpu]), gpu) for gpu in gpus],
            first,
            ["measured" if gpu in measured else "reported by others" for gpu in gpus],
        ),
        buttons("unit", [(unit, unit) for unit in UNITS], next(iter(UNITS))),
    ]
    told = sources(shown).strip() + STALE * any(run.stale for run in shown)
    title = "Explorer of the ladder: choose N, GPU, unit."
    table = table_text(["GPU", "N", "kernel", *UNITS], rows)
    return assemble(
        f"{_STYLE}<div class=lab><b>The ladder</b></div>",
        selectors,
        panes,
        f"{title}\n\n{table}\n\n{told}".rstrip(),
        [widgets.HTML(value=f"<div class=lab><p class=note>{escape(told)}</p></div>")],
    )


def _kernels(runs: Sequence[Run]) -> list[tuple[str, Run]]:
    """(name, its fastest run) of one GPU and size, by step, cuBLAS first."""
    fastest = {kernel_name(run): run for run in sorted(runs, key=lambda run: run.gflops)}

    def place(name: str) -> tuple:
        number = fastest[name].step
        return (number is None, number or 0, fastest[name].label, name)

    return [(name, fastest[name]) for name in sorted(fastest, key=place)]


def _sizes(found: dict[tuple[str, int], list]) -> list[int]:
    """The first of `SIZES` whose panes, one a unit and GPU, are not too many."""
    chosen, panes = [], 0
    for N in SIZES:
        more = len(UNITS) * sum(size == N for _, size in found)
        if more and panes + more <= MOST_PANES:
            chosen.append(N)
            panes += more
    return sorted(chosen)


_NOTHING = "<div class=lab><p>Nothing is recorded of this GPU at this size.</p></div>"


def _pane(kernels: Sequence[tuple[str, Run]], unit: str, step: int | None) -> str:
    device = devices[kernels[0][1].gpu]
    value, full = UNITS[unit]
    values = [value(run) for _, run in kernels]
    most = full(device, max(filter(None, values), default=1))
    marked = _marked(kernels, step)
    rows = []
    for (name, run), amount in zip(kernels, values, strict=True):
        here = " class=x" if name in marked else ""
        bar = f"<i style=--w:{min(1, amount / most):.3f}></i>" if amount else ""
        words = digits(amount) + " *" * run.stale
        rows.append(f"<tr{here}><th scope=row>{escape(name)}<td>{bar}{words}")
    kinds = dict.fromkeys(run.kind for _, run in kernels)
    told = f"{device.name}, {' and '.join(kinds)}, N = {kernels[0][1].N}: {unit}."
    if unit in ("GFLOPS", "% of peak"):
        told += f" The peak is {digits(1e3 * device.fp32_tflops)} GFLOPS at the boost clock."
    return f"<div class=lab><p>{told}</p><table class=bars>{''.join(rows)}</table></div>"


def _marked(kernels: Sequence[tuple[str, Run]], step: int | None) -> set[str]:
    """The names of the kernels that have the accent."""
    if step is not None:
        return {name for name, run in kernels if run.step == step}
    others = [(name, run) for name, run in kernels if run.step != 0]
    return {max(others, key=lambda each: each[1].gflops)[0]} if others else set()


def _rows(kernels: Sequence[tuple[str, Run]]) -> Iterator[list]:
    for name, run in kernels:
        words = [digits(value(run)) for value, _ in UNITS.values()]
        yield [short(devices[run.gpu]), run.N, name, *(word + " *" * run.stale for word in words)]
