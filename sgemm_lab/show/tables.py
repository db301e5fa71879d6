"""Tables of what was counted, compiled and measured: what it moves and needs, how fast it is."""

from html import escape
from math import prod

from sgemm_lab.devices import Device, devices
from sgemm_lab.ladder import Step, Variant, as_variant
from sgemm_lab.ladder import ladder as steps
from sgemm_lab.measure import records
from sgemm_lab.measure.gains import Gain
from sgemm_lab.run.resources import REPORTED, occupancy
from sgemm_lab.show.bundle import STYLE, Bundle, Cell, table_html, table_text
from sgemm_lab.show.labels import digits, names, short, size, spaced
from sgemm_lab.simt.counters import SECTOR, WARP, WAVEFRONT

# ------------------------------------------------------------------------------ what it moves

_MOVES = (  # row, how to compute it from counters
    ("multiply-adds of threads", lambda c: c.ffma),
    ("global load requests", lambda c: c.global_load_requests),
    ("global sectors loaded", lambda c: c.global_load_sectors),
    ("– a request", lambda c: _ratio(c.global_load_sectors, c.global_load_requests)),
    ("global sectors stored", lambda c: c.global_store_sectors),
    ("shared loads", lambda c: c.shared_load_instructions),
    ("– a multiply-add of a warp", lambda c: _ratio(WARP * c.shared_load_instructions, c.ffma)),
    ("shared load wavefronts", lambda c: c.shared_load_wavefronts),
    ("– a load", lambda c: _ratio(c.shared_load_wavefronts, c.shared_load_instructions)),
    ("– a multiply-add of a warp", lambda c: _ratio(WARP * c.shared_load_wavefronts, c.ffma)),
    ("shared store wavefronts", lambda c: c.shared_store_wavefronts),
    ("barrier arrivals of warps", lambda c: c.barriers),
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
    titles = names([name for name, _ in sides])
    rows = []
    for label, measure in (*_classes(sides), *_MOVES):
        values = [measure(counters) for _, counters in sides]
        if any(values):
            rows.append([label, *values])
    cells = []
    for label, *values in rows:
        most = max(values)
        marked = [bar(v, most, v_index == len(values) - 1) for v_index, v in enumerate(values)]
        if len(values) == 2:
            marked.append(f"×{values[1] / values[0]:.2g}" if values[0] and values[1] else "–")
        cells.append([label, *marked])
    size = f"{M}³" if M == N == K else f"{M}×{N}×{K}"
    given = not any(isinstance(each, tuple) for each in (this, other))
    header = [
        f"counted at {size}" if given else "counted",
        *titles,
        *(["change"] if other is not None else []),
    ]
    html = f'<figure class="lab">{STYLE}{table_html(header, cells)}</figure>'
    return Bundle(html, table_text(header, cells))


def _side(each, M: int, N: int, K: int):
    if isinstance(each, tuple) and len(each) == 2:
        return each[0], getattr(each[1], "counters", each[1])
    variant = as_variant(each)
    return variant, records.counters(variant, M, N, K)


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


def bar(value: float, most: float, accent: bool) -> Cell:
    words = digits(value) if isinstance(value, float) else spaced(value)
    width = f"{4 * value / most:.2f}" if most else "0"  # em
    style = ' class="x"' if accent else ""
    return Cell(words, f'<span{style}>{words}<u style="width:{width}em"></u></span>')


# ------------------------------------------------------------------------------ what it needs

GPUS = ("t4", "a100", "rtx3090", "l4", "h200")  # one for each architecture


def resources(*variants: Variant | Step, directory=None) -> Bundle:
    """Registers a thread and occupancy on a GPU of each architecture, and shared bytes a block.

    All steps' defaults if none is named. Under a step, what others reported of theirs. Raises
    LookupError where a variant is not recorded.
    """
    variants = [as_variant(v) for v in variants or (step for step in steps if step.function)]
    look = {"directory": directory} if directory else {}
    others = {v: [r for r in REPORTED if r.step == v.step.number] for v in variants}
    last = {v.step.number: v for v in variants}  # a step's others come under its last variant
    spilled, rows = False, []
    for variant, title in zip(variants, names(variants), strict=True):
        cells = []
        for key in GPUS:
            used = records.resources(variant, devices[key].arch, **look)
            cells.append(_use(devices[key], variant.threads, used))
            spilled |= bool(used.spill_stores + used.spill_loads)
        rows.append([title, _block(variant.threads, variant.shared_bytes), *cells])
        for each in others[variant] if last[variant.step.number] == variant else ():
            told = (_use(devices[each.gpu], each.threads, each) if key == each.gpu else ""
                    for key in GPUS)  # fmt: skip
            rows.append([f"– {each.kernel}", _block(each.threads, each.shared_bytes), *told])
    gpus = [(short(devices[key]), devices[key].arch) for key in GPUS]
    header = ["", "threads, shared bytes",
              *(Cell(f"{gpu}, {arch}", f"{gpu}<br>{arch}") for gpu, arch in gpus)]  # fmt: skip
    named = dict.fromkeys(each.source for found in others.values() for each in found)
    caption = (
        "Registers a thread, then the share of an SM's warps that fit at once and what limits it. "
        + ("" if spilled else "Nothing is spilled. ")
        + " ".join(f"{source}." for source in named)
    )
    return captioned(header, rows, caption.strip())


def _block(threads: int, shared_bytes: int | None) -> Cell | str:
    """ "256, 8448 B": what a block has."""
    if shared_bytes is None:
        return str(threads)
    return Cell(f"{threads}, {shared_bytes} B", f"{threads}<br><small>{shared_bytes} B</small>")


def _use(device: Device, threads: int, used) -> Cell:
    """ "57, 75 % registers": what a thread takes and how many warps of an SM that leaves."""
    spills = 0
    if used.shared_bytes is None:
        words = used.said
    else:
        fit = occupancy(device, threads, used.registers, used.shared_bytes)
        spills = used.spill_stores + used.spill_loads
        words = f"{100 * fit.fraction:.0f} % {fit.limiter}" + f", {spills} B spilled" * bool(spills)
    style = ' class="x"' if spills else ""
    broken = words.replace("% ", "%<br>").replace(", ", "<br>")  # five of them beside each other
    return Cell(f"{used.registers}, {words}",
                f"{used.registers}<br><small{style}>{broken}</small>")  # fmt: skip


# ------------------------------------------------------------------------------ how fast it is


def results(*shapes: tuple[int, int, int], gpu: str = "h200", directory=None) -> Bundle:
    """Per cent of cuBLAS of every step's default, a column a shape (M, N, K), the best marked.

    All recorded shapes if none is given. Raises ValueError where nothing is recorded.
    """
    runs = {(run.step, run.M, run.N, run.K): run for run in _defaults(gpu, directory)}
    recorded = sorted({key[1:] for key in runs}, key=lambda shape: (prod(shape), shape))
    shapes = shapes or tuple(recorded)
    numbers = sorted({key[0] for key in runs if key[0] and key[1:] in shapes})
    if not numbers:
        raise ValueError(f"nothing is recorded on {gpu} at {shapes}")
    best: dict[tuple, float] = {}
    for (number, *shape), run in runs.items():
        if number:
            best[*shape] = max(run.pct_of_cublas, best.get((*shape,), 0))

    def cell(number: int, shape: tuple) -> Cell | str:
        run = runs.get((number, *shape))
        if run is None:
            return "–"
        words = f"{run.pct_of_cublas:.0f}" + "*" * run.stale
        first = run.pct_of_cublas == best[shape]
        return Cell(f"[{words}]", f'<b class="x">{words}</b>') if first else words

    rows = [[_titled(n), *(cell(n, shape) for shape in shapes)] for n in numbers]
    absolute = [runs.get((0, *shape)) for shape in shapes]
    rows.append(
        ["cuBLAS, TFLOPS", *(f"{run.gflops / 1e3:.1f}" if run else "–" for run in absolute)]
    )
    header = [f"% of cuBLAS, {short(devices[gpu])}", *map(size, shapes)]
    stale = any(run.stale for run in runs.values())
    return captioned(header, rows, "Marked: the fastest of a column." + STALE * stale)


def beside(label: str = "R3", N: int = 4096, gpu: str = "h200", directory=None) -> Bundle:
    """Every step's default at M = N = K = `N`, with the interval of its ratio to cuBLAS, beside the
    kernels of `label` on the same GPU, each beside its own run of cuBLAS."""
    look = {"directory": directory} if directory else {}
    ours = {run.step: run for run in _defaults(gpu, directory) if run.M == run.N == run.K == N}
    theirs = {run.step: run for run in records.runs(gpu=gpu, label=label, N=N, **look)}
    rows = []
    for number in sorted(ours):
        run, other = ours[number], theirs.get(number)
        low, middle, high = run.ratio if number and run.ratio else (1, 1, 1)
        row = [_titled(number), f"{run.gflops / 1e3:.1f}" + "*" * run.stale, f"{middle:.3f}",
               f"{low:.3f}–{high:.3f}" if number else ""]  # fmt: skip
        if other:
            share = other.pct_of_cublas / 100
            row += [f"{other.gflops / 1e3:.1f}", f"{share:.2f}", f"×{middle / share:.2f}"]
        rows.append(row + ["–"] * (7 - len(row)))
    header = [f"N = {N}, {short(devices[gpu])}", "TFLOPS", "of cuBLAS", "95 %", f"{label}, TFLOPS",
              "of cuBLAS", "ours to theirs"]  # fmt: skip
    stale = STALE * any(run.stale for run in ours.values())
    sources = dict.fromkeys(run.source for run in theirs.values())
    caption = (
        "Ratios to cuBLAS of the same session; 95 %: of the median of the pairs. "
        "The last column compares the ratios. " + " ".join(f"{each}." for each in sources)
    )
    return captioned(header, rows, caption + stale)


def gains(N: int = 4096, gpu: str = "h200", directory=None) -> Bundle:
    """What each step does, and how many times as fast that is as the step before, at size `N`."""
    runs = {run.step: run for run in _defaults(gpu, directory) if run.M == run.N == run.K == N}
    rows, before = [], None
    for number in sorted(set(runs) - {0}):
        now = runs[number]
        gain = f"×{Gain(before, now, floor=0).ratio:.2f}" if before else ""
        rows.append(
            [_titled(number), worded(steps[number].summary), gain, f"{now.pct_of_cublas:.0f}"]
        )
        before = now
    header = ["", worded("what it does"), "gain", "% of cuBLAS"]
    return captioned(header, rows, f"{devices[gpu].name}, measured, N = {N}, default variants.")


def bounds(*variants: Variant | Step, gpu: str = "t4", N: int = 1024, directory=None) -> Bundle:
    """What a GPU's data sheet, registers, shared memory and counters allow each kernel.

    All steps' defaults if none is named. Counted at 256³. Nothing here is measured on the GPU.
    """
    variants = [as_variant(v) for v in variants or (step for step in steps if step.function)]
    look = {"directory": directory} if directory else {}
    device, rows = devices[gpu], []
    for variant, title in zip(variants, names(variants), strict=True):
        used = records.resources(variant, device.arch, **look)
        counted = records.counters(variant, 256, 256, 256, **look)
        fit = occupancy(device, variant.threads, used.registers, used.shared_bytes)
        wavefronts = counted.shared_load_wavefronts + counted.shared_store_wavefronts
        per_ffma = WARP * wavefronts / counted.ffma
        slots = per_ffma * WAVEFRONT * device.fp32_lanes / (WARP * device.shared_bytes_per_cycle)
        blocks = prod(variant.grid(N, N))
        rows.append([
            title, used.registers, used.shared_bytes, f"{100 * fit.fraction:.0f} %",
            digits(per_ffma) if wavefronts else "–",
            f"{100 / max(1, slots):.0f} %" if wavefronts else "–",
            digits(_ratio(2 * counted.ffma, SECTOR * counted.global_load_sectors)),
            digits(blocks / (device.sms * fit.blocks)),
        ])  # fmt: skip
    header = ["", "registers", "shared bytes", "occupancy", "wavefronts a multiply-add",
              "shared memory allows", "FLOP per byte fetched", f"waves at N = {N}"]  # fmt: skip
    ridge = device.fp32_tflops * 1e3 / device.dram_gbs
    caption = (
        f"{device.name}, argued, not measured: ptxas for {device.arch}; counters of the PTX "
        f"machine; {device.shared_bytes_per_cycle} bytes of shared memory and {device.fp32_lanes} "
        "multiply-adds a cycle and SM. Shared memory allows the share shown of "
        f"{device.fp32_tflops:.1f} TFLOPS, the FP32 limit. From {ridge:.0f} FLOP per byte on, DRAM "
        "could feed every block without any cache. Waves: blocks of the grid to those that "
        f"{device.sms} SMs hold at once."
    )
    return captioned(header, rows, caption)


_LOOK = """<style>.lab.steps tr>:first-child{min-width:9em}.lab.steps small{font-size:.85em}
.lab .words{display:block;min-width:11em;text-align:left;white-space:normal}</style>"""
STALE = " * measured with another version of this kernel."


def _defaults(gpu: str, directory) -> list:
    """What this book measured of cuBLAS and of every step's default variant."""
    look = {"directory": directory} if directory else {}
    return [
        run
        for run in records.runs(gpu=gpu, kind="measured", **look)
        if not run.step or dict(run.macros) == dict(steps[run.step]().macros)
    ]


def _titled(number: int) -> str:
    return f"{number} {steps[number].title}" if number in steps else f"{number}"


def worded(text: str, kind: str = "words") -> Cell:
    """A cell of words, which may break; `kind`: its class, for a style sheet."""
    return Cell(text, f'<span class="{kind}">{escape(text)}</span>')


def captioned(header, rows, caption: str, style: str = "") -> Bundle:
    """A table with a caption under it; `style`: a style sheet of its own."""
    html = f'<figure class="lab steps">{STYLE}{_LOOK}{style}{table_html(header, rows)}'
    return Bundle(
        f"{html}<figcaption>{escape(caption)}</figcaption></figure>",
        f"{table_text(header, rows)}\n\n{caption}",
    )
