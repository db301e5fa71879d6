"""R1's and R2's numbers beside this book's: the sizes, the chips, and what R1 measured besides.

Reported figures come from their files, ours from the records and from `r1_<gpu>.json`; a GPU that
has been measured appears by itself.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.axes import Axes

from sgemm_lab.devices import devices
from sgemm_lab.ladder import ladder
from sgemm_lab.measure import others, records, studies
from sgemm_lab.measure.bench import BATCH_MS
from sgemm_lab.measure.records import Run
from sgemm_lab.paths import MEASUREMENTS
from sgemm_lab.show.bundle import ACCENT, FAINT, INK, MUTED, PAPER, Bundle, Cell, figure, plot
from sgemm_lab.show.labels import digits, short
from sgemm_lab.show.tables import STALE, captioned

SIZES = (256, 512, 1024, 2048, 4096)
LOOPS = "ijk", "-O2"  # the order and the flags that stand for "three loops in C"


# ------------------------------------------------------------------------------- R1's table


@dataclass(frozen=True)
class _Column:
    """One of R1's columns as somebody has it: milliseconds, and per cent of cuBLAS, by N."""

    name: str
    ms: Mapping[int, float]
    percent: Mapping[int, float | None] = field(default_factory=dict)
    stale: bool = False


def _column(name: str, runs: Iterable[Run]) -> _Column:
    runs = {run.N: run for run in runs}
    return _Column(
        name,
        {N: run.ms for N, run in runs.items()},
        {N: run.pct_of_cublas for N, run in runs.items()},
        any(run.stale for run in runs.values()),
    )


def _columns(directory: Path) -> dict[str, list[_Column]]:
    """R1's columns, and the same for every GPU that this book has measured, by who says so."""
    theirs = [
        _column(name, others.reported(step, directory=directory).values())
        for name, step in (("three loops, CPU", None), ("naive", 1), ("tiled", 2), ("cuBLAS", 0))
    ]
    found = {"T4, R1": theirs}
    measured = {run.gpu for run in records.runs(kind="measured", directory=directory)}
    for gpu in (gpu for gpu in devices if gpu in measured):
        found[f"{short(devices[gpu])}, measured"] = [
            *(_host(gpu, directory) if gpu in studies.studied(directory) else ()),
            *(_ours(name, gpu, step, directory)
              for name, step in (("naive", 1), ("tiled", 2), ("cuBLAS", 0))),
        ]  # fmt: skip
    return found


def _host(gpu: str, directory: Path) -> Iterator[_Column]:
    study = studies.r1(gpu, directory)
    order, flags = LOOPS
    loops = study.rows("cpu", kernel=order, flags=flags)
    threads = study.record["cpu"]["cores"]
    products = study.rows("cpu", kernel="NumPy", threads=threads)
    for name, rows in (("three loops, CPU", loops), (f"NumPy, {threads} threads", products)):
        yield _Column(name, {row["N"]: row["ms"]["median"] for row in rows})


def _ours(name: str, gpu: str, step: int, directory: Path) -> _Column:
    runs = records.runs(gpu, step, dict(ladder[step]().macros), kind="measured",
                        directory=directory)  # fmt: skip
    return _column(name, (run for run in runs if run.M == run.N == run.K in SIZES))


def r1(directory: Path = MEASUREMENTS) -> Bundle:
    """R1's table, the rates of its tiled kernel computed anew, and the same table for each GPU that
    this book has measured. Milliseconds, but for the last two rows of each."""
    rows, stale = [], False
    for source, columns in _columns(directory).items():
        rows.append([Cell(source, f"<b>{source}</b>"), *[""] * len(SIZES)])
        for column in columns:
            stale |= column.stale
            cells = [digits(column.ms.get(N)) + " *" * column.stale for N in SIZES]
            rows.append([f"– {column.name}", *cells])
        tiled = next(column for column in columns if column.name == "tiled")
        rate = {N: 2 * N**3 / ms * 1e-6 for N, ms in tiled.ms.items()}
        rows.append(["– tiled, GFLOPS", *(digits(rate.get(N)) for N in SIZES)])
        rows.append(["– tiled, % of cuBLAS", *(digits(tiled.percent.get(N)) for N in SIZES)])
    caption = (
        "Milliseconds. R1's cuBLAS is PyTorch's product. Of ours, tiled has TILE = 32 as R1's. "
        f"Measured GPU times: where cuBLAS takes less than {BATCH_MS} ms, of several launches back "
        "to back, L2 warm; elsewhere of one launch, L2 cold. "
        + _hosts(directory)
        + _source("R1", directory)
        + STALE * stale
    )
    return captioned(["", *map(str, SIZES)], rows, caption)


def _hosts(directory: Path) -> str:
    """The CPUs of the studies, in a sentence each."""
    return "".join(
        f"CPU beside the {short(devices[gpu])}: {cpu['model']}, {cpu['cores']} cores; three loops "
        f"compiled by {cpu['compiler']} with {LOOPS[1]}; NumPy with {cpu['blas']}. "
        for gpu in studies.studied(directory)
        for cpu in [studies.r1(gpu, directory).record["cpu"]]
    )


def _source(label: str, directory: Path) -> str:
    return records.runs(label=label, directory=directory)[0].source + "."


# ---------------------------------------------------------------------- what R1 measured besides


def cpu(gpu: str = "h200", directory: Path = MEASUREMENTS) -> Bundle:
    """The product on the host of a GPU: the loops in either order and with either flags, NumPy."""
    study = studies.r1(gpu, directory)
    found: dict[tuple, dict[int, float]] = {}
    for row in study.rows("cpu"):
        key = row["kernel"], row.get("flags", ""), row["threads"]
        found.setdefault(key, {})[row["N"]] = row["ms"]["median"]
    rows = []
    for (kernel, flags, threads), ms in found.items():
        name = f"{kernel}, {flags}" if flags else f"{kernel}, {_threads(threads)}"
        rate = 2 * 1024**3 / ms[1024] * 1e-6
        rows.append([name, *(digits(ms.get(N)) for N in SIZES), digits(rate)])
    header = ["milliseconds", *map(str, SIZES), "GFLOPS at 1024"]
    return captioned(header, rows, _hosts(directory).strip())


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _kernel(row: Mapping) -> str:
    """ "02_tiled TILE=16", or "cuBLAS": what a study's row is of, as its title."""
    stem, *macros = row["kernel"].split()
    step = ladder[stem]
    changed = [m for m in macros if m not in [f"{x.name}={x.default}" for x in step.macros]]
    return " ".join([step.title, *changed]) + " *" * studies.stale(row)


_STAGES = (
    ("import CuPy", lambda row: row["import_ms"]["median"]),
    ("CUDA context", lambda row: row["context_ms"]["median"]),
    ("copy A, B, C to the GPU", lambda row: row["arrays_ms"]["median"]),
    ("compile the kernel, or load it", lambda row: row["module_ms"]["median"]),
    ("first launch", lambda row: row["launch_ms"][0]),
    ("– by events", lambda row: row["launch_events_ms"][0]),
    ("second launch", lambda row: row["launch_ms"][1]),
    ("– by events", lambda row: row["launch_events_ms"][1]),
    ("a launch when warm", lambda row: row["steady_ms"]["median"]),
    ("– by events", lambda row: row["steady_events_ms"]["median"]),
)


def starts(gpu: str = "h200", directory: Path = MEASUREMENTS) -> Bundle:
    """What a process goes through before its first product, and how long the first ones take."""
    found = studies.r1(gpu, directory).rows("start")
    words = {"empty": "compiled anew", "filled": "compiled before"}
    header = ["milliseconds", *(f"N = {row['N']}, {words[row['cache']]}" for row in found)]
    rows = [[name, *(digits(value(row)) for row in found)] for name, value in _STAGES]
    caption = (
        f"{short(devices[gpu])}, {_kernel(found[0])}; medians of {found[0]['processes']} new "
        "processes each, by the host's clock where nothing else is said, a launch until its result "
        "is there. Python and NumPy have started already."
    )
    return captioned(header, rows, caption + STALE * any(map(studies.stale, found)))


def tiles(N: int = 2048, directory: Path = MEASUREMENTS) -> Bundle:
    """Tiles of 16 and 32 under Nsight Compute and by events: R1's on its T4, ours on every GPU that
    has a study."""
    rows, stale = [], False
    for tile, run in others.under_nsight(directory).items():
        said, warm = others.R1_NSIGHT[tile], others.reported(2, directory=directory)[N]
        events = warm.ms if warm.macros["TILE"] == tile else None
        moved = said["dram_read_gbs"] * run.ms  # GB/s × ms = MB
        rows.append([f"R1, T4, TILE={tile}", digits(run.ms), digits(events), "–",
                     f"{said['occupancy_pct']:.1f}", digits(said["dram_read_gbs"]),
                     digits(moved)])  # fmt: skip
    for gpu in studies.studied(directory):
        study = studies.r1(gpu, directory)
        for row in study.rows("ncu", dtype="float32", N=N):
            stem, *macros = row["kernel"].split()
            if ladder[stem].number != 2:
                continue
            stale |= studies.stale(row)
            locked = ", clocks locked" * (row["clocks"] == "locked")
            moved = row["dram_read_bytes"]
            megabytes = None if moved is None else moved * 1e-6
            rows.append([
                f"ours, {short(devices[gpu])}, {macros[0]}{locked}", digits(row["ms"]),
                digits(study.ms("gpu", kernel=row["kernel"], dtype="float32", N=N)),
                f"{row['sm_mhz']:.0f}", _percent(row["occupancy_pct"]),
                digits(megabytes and megabytes / row["ms"]), digits(megabytes),
            ])  # fmt: skip
    header = [f"N = {N}", "Nsight, ms", "events, ms", "MHz under Nsight", "occupancy, %",
              "DRAM read, GB/s", "DRAM read, MB"]  # fmt: skip
    caption = (
        "R1's MB are its GB/s times its milliseconds. "
        + "".join(
            f"{short(devices[gpu])}, clocks locked: not measured. "
            for gpu in studies.studied(directory)
            if studies.r1(gpu, directory).record["ncu"]["locked"]
        )
        + _source("R1", directory)
        + STALE * stale
    )
    return captioned(header, rows, caption)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


# ------------------------------------------------------------------------- from chip to chip


def scaling(directory: Path = MEASUREMENTS) -> Bundle:
    """From a T4 to other GPUs: how many times as fast a tiled kernel was (accent), and what each
    thing on the data sheets would predict (grey)."""
    found = others.ratios(directory)
    named = {ratio.gpu for ratio in found} | {"h100", "h200"}
    chips = [device for key, device in devices.items() if key in named]
    rows = [
        (f"{r.size}: {r.on_t4} on T4, {r.on_other} on {short(devices[r.gpu])}", {r.gpu: r.times})
        for r in found
    ]
    for name, measure in others.REASONS.items():
        t4 = measure(devices["t4"])
        rows.append((name, {chip.key: measure(chip) / t4 for chip in chips}))

    def draw(axes: Axes) -> None:
        axes.set_xscale("log")
        axes.set_xlim(1, 42)
        axes.set_xticks((1, 2, 5, 10, 20), [f"×{n}" for n in (1, 2, 5, 10, 20)])
        axes.set_xticks((), minor=True)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.grid(False, axis="y")
        axes.axhline(len(found) - 0.5, color=FAINT, linewidth=1)
        for y, (_, values) in enumerate(rows):
            tone = ACCENT if y < len(found) else MUTED
            for number, chip in reversed(list(enumerate(chips))):
                if chip.key in values:
                    axes.plot(values[chip.key], y, _MARKS[number % 4], color=tone, markersize=7,
                              markerfacecolor=PAPER if number else tone)  # fmt: skip
            words = dict.fromkeys(f"{value:.1f}" for value in values.values())
            axes.annotate(" / ".join(words), (max(values.values()), y), (8, 0), va="center",
                          textcoords="offset points", size=11, color=INK)  # fmt: skip

    alt = "How many times as fast as a T4, tiled kernels: " + "; ".join(
        f"{name} ×{digits(ratio.times)}" for (name, _), ratio in zip(rows, found, strict=False)
    )
    table = [[name, *(digits(values.get(chip.key)) for chip in chips)] for name, values in rows]
    glyphs = (f"{_GLYPHS[number % 4]} {short(chip)}" for number, chip in enumerate(chips))
    caption = (
        f"How many times as fast as a T4, or as much. {', '.join(glyphs)}. Above the line tiled "
        "kernels, N first, as reported and measured; below what the data sheets say. "
        + " ".join(dict.fromkeys(_source(label, directory) for label in ("R1", "R2", "ladder a")))
    )
    drawing, png = plot(draw, 40 + 24 * len(rows), alt)
    header = ["times a T4", *(chip.name for chip in chips)]
    return figure(drawing, alt + ".", header, table, caption, png)


_MARKS, _GLYPHS = "os^D", "●□△◇"


def shares(directory: Path = MEASUREMENTS) -> Bundle:
    """What tiled kernels reached on each chip of what its shared memory allows, and which clock
    would be enough for that."""
    rows, stale = [], False
    for run in others.tiled(directory):
        share, clock = others.share(run, directory=directory), devices[run.gpu].clock_mhz
        at_base = others.share(run, devices["t4"].base_mhz, directory) if run.gpu == "t4" else 2
        who = "measured" if run.kind == "measured" else run.label
        size = str(run.N) if run.M == run.N == run.K else f"{run.M}×{run.N}×{run.K}"
        under = ", under Nsight" * others.profiled(run) + " *" * run.stale
        stale |= run.stale
        rows.append([
            f"{short(devices[run.gpu])}, {who}, {size}{under}", digits(run.gflops),
            digits(others.allowed(run, directory)), f"{100 * share:.0f}", f"{share * clock:.0f}",
            f"{100 * at_base:.0f}" if at_base < 1 else "–",
        ])  # fmt: skip
    header = ["TILE = 32", "GFLOPS", "allowed", "% of it", "MHz that suffice", "% at base clock"]
    caption = (
        "Allowed: by the bound of our kernel at the boost clock, nearly all of it shared memory's; "
        "theirs may cost other wavefronts. MHz that suffice: at a lower clock our kernel could not "
        "be so fast. "
        f"The T4's base clock is {devices['t4'].base_mhz} MHz; a dash where that would not suffice."
        + STALE
        * stale
    )
    return captioned(header, rows, caption)
