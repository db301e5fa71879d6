"""Where the recorded runs come from, and how much they wobble."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import median

from sgemm_lab.devices import devices
from sgemm_lab.ladder import ladder
from sgemm_lab.measure import records
from sgemm_lab.measure.gains import AGAIN, apart
from sgemm_lab.measure.records import Run
from sgemm_lab.measure.validate import throttled
from sgemm_lab.paths import MEASUREMENTS
from sgemm_lab.show.bundle import Bundle, Cell
from sgemm_lab.show.labels import short, size
from sgemm_lab.show.tables import captioned


def origins(directory: Path = MEASUREMENTS) -> Bundle:
    """Every source of runs: the GPU, who measured when and with what, how many runs, how many of
    kernels that have changed since, and whether the chip lowered its clock. Measured ones first."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in records.load(directory):
        groups.setdefault((run.kind, run.gpu, run.label), []).append(run)
    order = list(devices)
    rows = []
    for kind, gpu, label in sorted(groups, key=lambda k: (k[0], order.index(k[1]), k[2])):
        runs = groups[kind, gpu, label]
        measured = kind == "measured"
        rows.append(
            [short(devices[gpu]), "this book" if measured else label,
             *((_days(runs), _software(runs)) if measured else ("–", "–")),
             len(runs), sum(run.stale for run in runs),
             throttled(runs) if measured else "–"]
        )  # fmt: skip
    header = ["GPU", "measured by", "on", "with", "runs", "stale", "clock lowered"]
    named = dict.fromkeys(run.source for run in records.load(directory) if run.kind == "reported")
    caption = "Stale: of kernels that have changed since. " + " ".join(f"{each}." for each in named)
    return captioned(header, rows, caption)


def _days(runs: Sequence[Run]) -> str:
    days = sorted({run.provenance["started"][:10] for run in runs})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def _software(runs: Sequence[Run]) -> Cell:
    told = "driver {driver}, CUDA {cuda}, cuBLAS {cublas}".format(**runs[0].provenance)
    return Cell(told, escape(told).replace(", ", "<br>"))


def two_starts(first: Path = MEASUREMENTS / "h200.json", second: Path = AGAIN) -> Bundle:
    """How far the median times of two records of one GPU are apart, size by size. By default the
    H200's, from two starts of the machine."""
    groups: dict[tuple, list[float]] = {}
    for key, percent in apart(first, second).items():
        *_, M, N, K = key
        groups.setdefault((M * N * K, M, N, K), []).append(percent)
    rows = []
    for (_, M, N, K), found in sorted(groups.items()):
        label = size((M, N, K)).replace(" ", "")
        rows.append([label, len(found), f"{median(found):.2f} %", f"{max(found):.1f} %"])
    caption = (
        "How far the median times of one kernel are apart in two records, each from a start of the "
        "machine of its own."
    )
    return captioned(["N, or M×N×K", "kernels", "half of them within", "all within"], rows, caption)


def wobble(N: int = 4096, gpu: str = "h200", directory: Path = MEASUREMENTS) -> Bundle:
    """Of every step's default at M = N = K = `N`: the least, middle and greatest time, how far
    apart they are, and the interval of the ratio to cuBLAS. ValueError where nothing is there."""
    rows = []
    for step in ladder:
        for run in records.runs(gpu, step.number, dict(step().macros), N, "measured",
                                directory=directory):  # fmt: skip
            low, middle, high = run.ratio
            rows.append(
                [f"{step.number} {step.title}", *(f"{t:#.5g}" for t in _times(run)),
                 f"{(run.ms_max - run.ms_min) / run.ms:.1%}", run.repeats,
                 f"{middle:.4f}", f"{low:.4f}–{high:.4f}", f"{(high - low) / middle:.2%}"]
            )  # fmt: skip
    if not rows:
        raise ValueError(f"nothing is recorded on {gpu} at N = {N}")
    header = [f"N = {N}, {short(devices[gpu])}", "min ms", "median", "max", "apart", "pairs",
              "of cuBLAS", "95 %", "wide"]  # fmt: skip
    caption = (
        "Apart: from the least to the greatest time, over the median. Wide: the 95 % interval of "
        "the median ratio, over that ratio."
    )
    return captioned(header, rows, caption)


def _times(run: Run) -> tuple[float, float, float]:
    return run.ms_min, run.ms, run.ms_max
