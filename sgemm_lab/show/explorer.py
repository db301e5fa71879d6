"""Choose a kernel's macros and see what follows: in JupyterLab, on Colab, on a page with no kernel.

Every choice has its pane, filled from records when the cell runs; the selectors are linked to the
panes in the browser. Nested Stacks hold the panes, or Tabs where ipywidgets is older than 8. The
one thing that needs Python is the button that measures, which appears only beside a GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from itertools import product

import ipywidgets as widgets

from sgemm_lab.devices import devices
from sgemm_lab.ladder import Macro, Step, Variant
from sgemm_lab.ladder import ladder as steps
from sgemm_lab.measure import records
from sgemm_lab.run.resources import occupancy
from sgemm_lab.show.bundle import STYLE, table_html, table_text

GPUS = ("t4", "a100", "l4", "h200")
SIZES = (1024, 2048, 4096)  # of the recorded runs that a pane shows
MOST_SELECTORS = 3

Pane = widgets.HTML
Stack = getattr(widgets, "Stack", widgets.Tab)


@dataclass(frozen=True)
class Explorer:
    """A widget shown with a text of our choosing, which nbval compares."""

    widget: widgets.Widget
    text: str
    panes: Mapping[tuple[int, ...], widgets.HTML] = field(repr=False)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        return {"application/vnd.jupyter.widget-view+json": view, "text/plain": self.text}

    def __repr__(self) -> str:
        return self.text


def explore(step: Step | int, *names: str, directory=None) -> Explorer:
    """An explorer of a step's macros: `names`, else the first three; the others keep their default.

    Choices that are refused are there too, and say why. Raises ValueError for an unknown macro or
    for more than three, LookupError where the counters or resources of a choice are not recorded.
    """
    step = step if isinstance(step, Step) else steps[step]
    macros = _chosen(step, names)
    look = {"directory": directory} if directory else {}
    values = {macro.name: sorted({*macro.choices, *macro.shown}) for macro in macros}
    plain = {"layout": widgets.Layout(), "style": Pane().style}
    panes, rows = {}, []
    for setting in product(*values.values()):
        chosen = dict(zip(values, setting, strict=True))
        problem = step.problem(**chosen)
        if problem:
            html = f'<div class="lab"><p class="x">{escape(problem)}</p></div>'
            rows.append([*setting, *["–"] * (len(_COLUMNS) - 1), "refused"])
        else:
            variant = step(**chosen)
            html = _pane(variant, look)
            rows.append([*setting, *_summary(variant, look)])
        panes[setting] = Pane(value=html, **plain)

    selectors = [_selector(macro, values[macro.name]) for macro in macros]
    stack, links = nest(selectors, list(values.values()), panes, ())
    head = widgets.HTML(value=f"{STYLE}<div class='lab'><b>{escape(step.title)}</b></div>")
    box = widgets.VBox([head, *selectors, stack, *_measure(step, macros, selectors)])
    box.add_class("lab")
    box.links = links  # they live as long as the widget
    title = f"Explorer of step {step.number}, {step.title}: choose {', '.join(values)}."
    refused = [step.problem(**dict(zip(values, s, strict=True))) for s in panes]
    why = "\n".join(dict.fromkeys(filter(None, refused)))
    table = table_text([*values, *_COLUMNS], rows)
    return Explorer(box, "\n\n".join(filter(None, [title, table, why])), panes)


def _chosen(step: Step, names: tuple[str, ...]) -> list[Macro]:
    known = {macro.name: macro for macro in step.macros}
    unknown = [name for name in names if name not in known]
    if unknown or not known:
        raise ValueError(f"{step.stem} has no macro {', '.join(unknown) or 'to explore'}.")
    if len(names) > MOST_SELECTORS:
        raise ValueError(
            f"{len(names)} macros: an explorer has at most {MOST_SELECTORS} selectors."
        )
    return [known[name] for name in names or list(known)[:MOST_SELECTORS]]


def _selector(macro: Macro, values: list[int]) -> widgets.ToggleButtons:
    return widgets.ToggleButtons(
        options=[(str(value), value) for value in values],
        value=macro.default,
        description=macro.name,
        tooltips=[macro.meaning] * len(values),
        style={"button_width": "3.5em", "description_width": "9em"},
        layout={"width": "auto", "margin": "0 0 0.5em"},
    )


def nest(selectors, values, panes, prefix) -> tuple[widgets.Widget, list]:
    """A Stack of Stacks of panes, one level a selector, and the links that turn them."""
    if not selectors:
        return panes[prefix], []
    children, links = [], []
    for value in values[0]:
        child, below = nest(selectors[1:], values[1:], panes, (*prefix, value))
        children.append(child)
        links += below
    stack = Stack(children=children, selected_index=selectors[0].index)
    if Stack is widgets.Tab:
        for index, value in enumerate(values[0]):
            stack.set_title(index, f"{selectors[0].description} = {value}")
    link = widgets.jslink((selectors[0], "index"), (stack, "selected_index"))
    return stack, [link, *links]


# ------------------------------------------------------------------------------- one choice


def _pane(variant: Variant, look: dict) -> str:
    x, y = variant.block
    BM, BN, BK = variant.tile
    facts = (
        f"{x}×{y} = {variant.threads} threads a block, which computes {BM}×{BN} of C"
        f"{f', {BK} along K at a time' if BK > 1 else ''}. "
        f"At N = 2048 the grid has {'×'.join(map(str, variant.grid(2048, 2048)))} blocks."
    )
    parts = [f"<p>{facts}</p>", _resources(variant, look), _counters(variant, look)]
    recorded = _recorded(variant, look)
    parts.append(recorded or "<p>No run of this choice is recorded.</p>")
    return f'<div class="lab">{"".join(parts)}</div>'


def _resources(variant: Variant, look: dict) -> str:
    rows = [["registers a thread"], ["shared bytes a block"], ["bytes spilled a thread"],
            ["occupancy, %"], ["blocks an SM"], ["limited by"]]  # fmt: skip
    for key in GPUS:
        device = devices[key]
        used = records.resources(variant, device.arch, **look)
        fit = occupancy(device, variant.threads, used.registers, used.shared_bytes)
        cells = (used.registers, used.shared_bytes, used.spill_stores + used.spill_loads,
                 round(100 * fit.fraction), fit.blocks, fit.limiter)  # fmt: skip
        for row, cell in zip(rows, cells, strict=True):
            row.append(cell)
    rows = [row for row in rows if row[0] != "bytes spilled a thread" or any(row[1:])]
    return table_html(["", *(devices[key].name.split()[0] for key in GPUS)], rows)


_COUNTED = {
    "PTX instructions of warps": "instructions",
    "global sectors loaded": "global_load_sectors",
    "shared load wavefronts": "shared_load_wavefronts",
    "barrier arrivals of warps": "barriers",
}


def _counters(variant: Variant, look: dict) -> str:
    default = variant.step()
    mine, theirs = (records.counters(v, 256, 256, 256, **look) for v in (variant, default))
    rows = []
    for label, name in _COUNTED.items():
        here, there = getattr(mine, name), getattr(theirs, name)
        if here or there:
            rows.append([label, _spaced(here), _spaced(there), _times(here, there)])
    return table_html(["counted at 256³", "this choice", "the default", ""], rows)


def _spaced(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def _times(here: float, there: float) -> str:
    return f"×{here / there:.3g}" if here and there else "–"


def _runs(variant: Variant, look: dict) -> dict[tuple[str, str], dict[int, records.Run]]:
    """(gpu, label) → N → the run. Reported runs count where they name the macros that matter."""
    found: dict = {}
    for N in SIZES:
        for run in records.runs(step=variant.step.number, N=N, **look):
            macros = dict(run.macros)
            if run.kind == "reported":
                whole = {m.name for m in variant.step.macros} == set(macros)
                if not whole:
                    continue
            if macros == dict(variant.macros):
                sizes = found.setdefault((run.gpu, run.label), {})
                if N not in sizes or run.gflops > sizes[N].gflops:
                    sizes[N] = run
    return found


def _recorded(variant: Variant, look: dict) -> str:
    rows = []
    for (gpu, label), sizes in _runs(variant, look).items():
        origin = "measured" if label == "measured" else f"reported, {label}"
        name = f"{devices[gpu].name.split(' SXM')[0]} ({origin})"
        rows.append([name, *(_rate(sizes.get(N)) for N in SIZES)])
    return table_html(["GFLOPS (% of cuBLAS)", *(f"N = {N}" for N in SIZES)], rows) if rows else ""


def _rate(run: records.Run | None) -> str:
    if run is None:
        return "–"
    share = f" ({run.pct_of_cublas:.0f} %)" if run.pct_of_cublas is not None else ""
    return f"{_spaced(round(run.gflops))}{share}{' *' * run.stale}"


_COLUMNS = ("threads", "registers, T4", "occupancy, T4", "sectors", "wavefronts", "GFLOPS, N=2048")


def _summary(variant: Variant, look: dict) -> list[str]:
    """The row of one legal choice in the plain text."""
    used = records.resources(variant, devices["t4"].arch, **look)
    fit = occupancy(devices["t4"], variant.threads, used.registers, used.shared_bytes)
    counted = records.counters(variant, 256, 256, 256, **look)
    measured = _runs(variant, look).get(("h200", "measured"), {}).get(2048)
    return [
        str(variant.threads),
        str(used.registers),
        f"{100 * fit.fraction:.0f} %",
        _spaced(counted.global_load_sectors),
        _spaced(counted.shared_load_wavefronts),
        f"{_rate(measured)}, H200" if measured else "–",
    ]


# ------------------------------------------------------------------------------- measuring


def _measure(step: Step, macros: list[Macro], selectors: list) -> list[widgets.Widget]:
    """A button that times the chosen variant here; nothing without a GPU."""
    from sgemm_lab.run.backend import gpu_available

    if not gpu_available():
        return []
    button = widgets.Button(description="Measure on this GPU", layout={"width": "auto"})
    answer = widgets.HTML()

    def measure(_) -> None:
        from sgemm_lab.measure.bench import bench

        chosen = {macro.name: s.value for macro, s in zip(macros, selectors, strict=True)}
        problem = step.problem(**chosen)
        answer.value = "Measuring…"
        told = problem or str(bench(step(**chosen), SIZES))
        answer.value = f"<pre>{escape(told)}</pre>"

    button.on_click(measure)
    return [button, answer]
