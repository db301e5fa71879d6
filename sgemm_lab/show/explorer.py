"""Choose a kernel's macros and see what follows: in JupyterLab, on Colab, on a page with no kernel.

Every choice has its pane, filled from records when the cell runs; the selectors are linked to the
panes in the browser. Nested Stacks hold the panes, or where ipywidgets is older than 8, Tabs whose
bars are hidden. The one thing that needs Python is the button that measures, which appears only
beside a GPU.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import product

import ipywidgets as widgets

from sgemm_lab.devices import devices
from sgemm_lab.ladder import Macro, Step, Variant
from sgemm_lab.ladder import ladder as steps
from sgemm_lab.measure import records
from sgemm_lab.measure.limits import limits
from sgemm_lab.run.resources import occupancy
from sgemm_lab.show import sketches
from sgemm_lab.show.bundle import STYLE, table_html, table_text
from sgemm_lab.show.labels import spaced
from sgemm_lab.show.speeds import origin
from sgemm_lab.show.tables import STALE

GPUS = ("t4", "a100", "l4", "h200")
SIZES = (1024, 2048, 4096)  # of the recorded runs that a pane shows
BOUND_AT = 4096
MOST_SELECTORS = 3
MOST_PANES = 64  # of an explorer, so that its page stays small

Pane = widgets.HTML
Stack = getattr(widgets, "Stack", widgets.Tab)


@dataclass(frozen=True)
class Explorer:
    """A widget shown with a text of our choosing, which nbval compares."""

    widget: widgets.Widget
    text: str
    panes: Mapping[tuple, widgets.HTML] = field(repr=False)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        return {"application/vnd.jupyter.widget-view+json": view, "text/plain": self.text}

    def __repr__(self) -> str:
        return self.text


# ------------------------------------------------------------------------ selectors and panes

_STYLE = """<style>
.lab .note,.lab .lab .note{font-size:.875em;color:var(--m);margin:.3em 0}
.lab .widget-toggle-buttons{row-gap:3px}.lab.lab .fit td{white-space:normal}
.lab .two{display:flex;flex-wrap:wrap;gap:.5em 1.5em;align-items:center}
.lab .two p{flex:1 1 12em;margin:0}
.lab .p-TabBar,.lab .lm-TabBar{display:none!important}
.lab.lab.lab .widget-tab-contents{padding:0;border:0}
</style>"""


def assemble(
    head: str,
    selectors: Sequence[widgets.ToggleButtons],
    panes: Mapping[tuple, str],
    text: str,
    below: Iterable[widgets.Widget] = (),
) -> Explorer:
    """An explorer of one pane of HTML for each choice of the selectors' values, in their order.

    `head` stands above, `below` under the panes. Equal panes are one widget.
    """
    plain = {"layout": widgets.Layout(), "style": Pane().style}
    made = {html: Pane(value=html, **plain) for html in dict.fromkeys(panes.values())}
    shown = {choice: made[html] for choice, html in panes.items()}
    for selector in selectors:  # without one, a page says "null" of the name
        tip = "tooltip" if selector.has_trait("tooltip") else "description_tooltip"
        setattr(selector, tip, selector.description)
    values = [[value for _, value in selector.options] for selector in selectors]
    stack, links = nest(selectors, values, shown, ())
    box = widgets.VBox([widgets.HTML(value=STYLE + _STYLE + head), *selectors, stack, *below])
    box.add_class("lab")
    box.links = links  # they live as long as the widget
    return Explorer(box, text, shown)


def buttons(
    name: str, options: Iterable[tuple[str, object]], value, tooltips=(), width: str = "auto"
) -> widgets.ToggleButtons:
    """A selector: one button, `width` wide, for each (label, value); `value` is chosen."""
    return widgets.ToggleButtons(
        options=list(options),
        value=value,
        description=name,
        tooltips=list(tooltips),
        style={"button_width": width, "description_width": _NAME},
        layout={"width": "auto", "margin": _BELOW},
    )


_NAME, _BELOW = "9em", "0 0 0.5em"  # the width of a selector's name, its margins


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
        for index, (label, _) in enumerate(selectors[0].options):
            stack.set_title(index, f"{selectors[0].description} = {label}")
    link = widgets.jslink((selectors[0], "index"), (stack, "selected_index"))
    return stack, [link, *links]


# ------------------------------------------------------------------------- the tile explorer


def explore(step: Step | int, *names: str, directory=None) -> Explorer:
    """An explorer of a step's macros: `names`, else the first three; the others keep their default.

    Choices that are refused are there too, and say why. Raises ValueError for an unknown macro or
    for more than three, LookupError where the counters or resources of a choice are not recorded.
    """
    step = step if isinstance(step, Step) else steps[step]
    macros = _chosen(step, names)
    look = {"directory": directory} if directory else {}
    values = {macro.name: sorted({*macro.choices, *macro.shown}) for macro in macros}
    panes, rows, refused = {}, [], []
    for setting in product(*values.values()):
        chosen = dict(zip(values, setting, strict=True))
        if problem := step.problem(**chosen):
            panes[setting] = f"<div class=lab><p class=x>{escape(problem)}</p></div>"
            rows.append([*setting, *["–"] * (len(_COLUMNS) - 1), "refused"])
            refused.append(problem)
        else:
            variant = step(**chosen)
            panes[setting] = _pane(variant, look)
            rows.append([*setting, *_summary(variant, look)])

    selectors = [
        buttons(
            macro.name,
            [(str(value), value) for value in values[macro.name]],
            macro.default,
            [macro.meaning] * len(values[macro.name]),
            "3.5em",
        )
        for macro in macros
    ]
    title = f"Explorer of step {step.number}, {step.title}: choose {', '.join(values)}."
    title += f"\n{_ABOUT}"
    table = table_text([*values, *_COLUMNS], rows)
    why = "\n".join(dict.fromkeys(refused))
    return assemble(
        f"{sketches.STYLE}<div class=lab><b>{escape(step.title)}</b>{_NOTE}</div>",
        selectors,
        panes,
        "\n\n".join(filter(None, [title, table, why])),
        _measure(step, macros, selectors),
    )


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


# ------------------------------------------------------------------------------- one choice


def _pane(variant: Variant, look: dict) -> str:
    x, y = variant.block
    BM, BN, BK = variant.tile
    facts = (
        f"{x}×{y} = {variant.threads} threads a block, which computes {BM}×{BN} of C"
        f"{f', {BK} along K at a time' if BK > 1 else ''}. "
        f"At N = 2048 the grid has {'×'.join(map(str, variant.grid(2048, 2048)))} blocks."
        " Shaded: what one warp computes; filled: one thread."
    )
    runs = _runs(variant, look)
    recorded = _recorded(runs) or "<p>No run of this choice is recorded.</p>"
    tables = f"{_on_gpus(variant, runs, look)}{_counters(variant, look)}{recorded}"
    tables = re.sub(r"(?<=\d) (?=[\d%])", "\N{NO-BREAK SPACE}", tables)
    return (
        f"<div class=lab><div class=two><span>{sketches.tiles(variant)}</span><p>{facts}</p></div>"
        f"<div class=fit>{tables}</div></div>"
    )


_NOTE = (
    "<p class=note>A bound is what the resource named allows at most, at the boost clock; it is no "
    "prediction.</p>"
)
_LIMIT = f"bound at N = {BOUND_AT}, GFLOPS"
_ON_A_GPU = ("registers a thread", "shared bytes a block", "bytes spilled a thread",
             "occupancy, %", "blocks an SM", "– limited by", _LIMIT, "– by",
             "– measured, % of it")  # fmt: skip


def _on_gpus(variant: Variant, runs: Mapping, look: dict) -> str:
    """What it takes of each GPU, what limits its occupancy, and the bound of its speed."""
    columns = []
    for key in GPUS:
        device = devices[key]
        used = records.resources(variant, device.arch, **look)
        fit = occupancy(device, variant.threads, used.registers, used.shared_bytes)
        bound = limits(variant, device, BOUND_AT, BOUND_AT, BOUND_AT, **look)
        run = runs.get((key, "measured"), {}).get(BOUND_AT)
        share = f"{100 * run.gflops / bound.gflops:.0f}{' *' * run.stale}" if run else ""
        columns.append((
            used.registers, used.shared_bytes, used.spill_stores + used.spill_loads,
            round(100 * fit.fraction), fit.blocks, fit.limiter,
            spaced(round(bound.gflops)), bound.binding.name, share,
        ))  # fmt: skip
    rows = [row for row in zip(_ON_A_GPU, *columns, strict=True)
            if any(row[1:]) or row[0] == "shared bytes a block"]  # fmt: skip
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
            rows.append([label, spaced(here), spaced(there), _times(here, there)])
    return table_html(["counted at 256³", "this choice", "the default", ""], rows)


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
    return {key: found[key] for key in sorted(found, key=lambda key: key[1] != "measured")}


def _recorded(runs: Mapping) -> str:
    rows = []
    for (gpu, label), sizes in runs.items():
        name = f"{devices[gpu].name.split(' SXM')[0]} ({origin(label)})"
        rows.append([name, *(_rate(sizes.get(N)) for N in SIZES)])
    stale = any(run.stale for sizes in runs.values() for run in sizes.values())
    table = table_html(["GFLOPS (% of cuBLAS)", *(f"N = {N}" for N in SIZES)], rows)
    return table + f"<p class=note>{STALE}</p>" * stale if rows else ""


def _rate(run: records.Run | None) -> str:
    if run is None:
        return "–"
    share = f" ({run.pct_of_cublas:.0f} %)" if run.pct_of_cublas is not None else ""
    return f"{spaced(round(run.gflops))}{share}{' *' * run.stale}"


_COLUMNS = ("threads", "registers", "occupancy", "sectors", "wavefronts", "bound", "GFLOPS")
_ABOUT = (
    f"Registers and occupancy on a T4; on an H200, at N = {BOUND_AT}, the bound of the GFLOPS and "
    "what was measured (% of cuBLAS)."
)


def _summary(variant: Variant, look: dict) -> list[str]:
    """The row of one legal choice in the plain text."""
    used = records.resources(variant, devices["t4"].arch, **look)
    fit = occupancy(devices["t4"], variant.threads, used.registers, used.shared_bytes)
    counted = records.counters(variant, 256, 256, 256, **look)
    bound = limits(variant, "h200", BOUND_AT, BOUND_AT, BOUND_AT, **look)
    return [
        str(variant.threads),
        str(used.registers),
        f"{100 * fit.fraction:.0f} %",
        spaced(counted.global_load_sectors),
        spaced(counted.shared_load_wavefronts),
        spaced(round(bound.gflops)),
        _rate(_runs(variant, look).get(("h200", "measured"), {}).get(BOUND_AT)),
    ]


# ------------------------------------------------------------------------------- measuring


def _measure(step: Step, macros: list[Macro], selectors: list) -> list[widgets.Widget]:
    """A button that times the chosen variant here; nothing without a GPU.

    It can't be pressed while it measures, and the answer before stays until the next is there.
    """
    from sgemm_lab.run.backend import gpu_available

    if not gpu_available():
        return []
    name = "Measure on this GPU"
    told = f"beside cuBLAS, at N = {', '.join(map(str, SIZES))}; takes some seconds"
    button = widgets.Button(description=name, tooltip=told, layout={"width": "auto"})
    answer = widgets.HTML()

    def measure(_) -> None:
        chosen = {macro.name: s.value for macro, s in zip(macros, selectors, strict=True)}
        before = answer.value
        button.disabled, button.description = True, "Measuring…"
        try:
            answer.value = _answer(step, chosen, before, answer)
        finally:
            button.disabled, button.description = False, name

    button.on_click(measure)
    return [button, answer]


def _answer(step: Step, chosen: Mapping[str, int], before: str, answer: widgets.HTML) -> str:
    """The runs of this choice, or why there are none, in words; meanwhile `answer` says how far
    it is, above what it said before."""
    from sgemm_lab.measure.bench import bench

    def told(words: str, look: str = "") -> str:
        return f"<div class=lab><p{look}>{escape(words)}</p></div>"

    def progress(points: Sequence) -> Iterator:
        for number, point in enumerate(points, 1):
            setting = " ".join(f"{name}={value}" for name, value in chosen.items())
            answer.value = (
                told(f"{setting}, N = {point[0][0]}: {number} of {len(points)} …") + before
            )
            yield point

    if problem := step.problem(**chosen):
        return told(problem, " class=x")
    try:
        runs = bench(step(**chosen), SIZES, seconds=0.2, progress=progress)
    except Exception as error:  # whatever a driver or a compiler says: the page goes on
        return told(f"This could not be measured. {type(error).__name__}: {error}", " class=x")
    return f"<div class=lab><pre>{escape(str(runs))}</pre></div>"
