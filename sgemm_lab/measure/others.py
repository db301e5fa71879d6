"""What R1 and R2 reported, and what follows from it: from chip to chip, and against the bounds.

Their figures are in `book/measurements/`, in t4-r1.json, t4-r2.json and h100-r2.json.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from sgemm_lab.devices import Device, devices
from sgemm_lab.ladder import ladder
from sgemm_lab.measure import records
from sgemm_lab.measure.limits import limits
from sgemm_lab.measure.records import Run
from sgemm_lab.paths import MEASUREMENTS

# What R1 read off Nsight Compute for its tiled kernel on a T4 at N = 2048, by TILE; conflicts 0 at
# both. The times are in t4-r1.json.
R1_NSIGHT = {
    16: {"occupancy_pct": 99.63, "dram_read_gbs": 92.49},
    32: {"occupancy_pct": 99.97, "dram_read_gbs": 39.43},
}

R2 = ladder[2](ACCUMULATORS=4)  # R2's tiled kernel, of ours the nearest

REASONS: dict[str, Callable[[Device], float]] = {
    "SMs": lambda d: d.sms,
    "threads that an SM holds": lambda d: d.threads_per_sm,
    "DRAM bandwidth": lambda d: d.dram_gbs,
    "L2 size": lambda d: d.l2_mib,
    "FP32: SMs × clock × units": lambda d: d.fp32_tflops,
    "shared memory: SMs × clock × bytes a cycle": lambda d: (
        d.sms * d.clock_mhz * d.shared_bytes_per_cycle
    ),
}


def reported(
    step: int | None, label: str = "R1", gpu: str = "t4", directory: Path = MEASUREMENTS
) -> dict[int, Run]:
    """Another author's runs of a step by N, those under a profiler left out; None: on the CPU."""
    runs = records.runs(gpu, label=label, directory=directory)
    return {run.N: run for run in runs if run.step == step and not profiled(run)}


def profiled(run: Run) -> bool:
    """Whether a reported time was taken under Nsight Compute."""
    return "Nsight" in run.kernel


def under_nsight(directory: Path = MEASUREMENTS) -> dict[int, Run]:
    """R1's runs under Nsight Compute, by TILE; `R1_NSIGHT` has what else it read off."""
    runs = records.runs("t4", label="R1", directory=directory)
    return {run.macros["TILE"]: run for run in runs if profiled(run)}


def ours(directory: Path = MEASUREMENTS) -> dict[str, list[Run]]:
    """What this book measured of the kernel nearest to R2's tiled one, at square sizes, by GPU."""
    found: dict[str, list[Run]] = {}
    for run in records.runs(step=2, macros=R2.macros, kind="measured", directory=directory):
        if run.M == run.N == run.K:
            found.setdefault(run.gpu, []).append(run)
    return found


@dataclass(frozen=True)
class Ratio:
    """How many times as fast a tiled kernel was on another GPU than one on a T4, and whose they
    were; `size` in words."""

    size: str
    on_t4: str
    on_other: str
    gpu: str
    times: float


def ratios(directory: Path = MEASUREMENTS) -> list[Ratio]:
    """R2's own comparison, then those at M = N = K = 4096: of what others reported, and of what
    this book measured, on a T4 if it has."""
    h100 = records.runs("h100", label="R2", directory=directory)
    times = mean(run.gflops for run in h100) / reported(2, "R2", directory=directory)[2048].gflops
    found = [Ratio("2048, mean of four", "R2", "R2", "h100", times)]
    t4 = {label: reported(2, label, directory=directory)[4096] for label in ("R1", "ladder a")}
    (theirs,) = (run for run in h100 if run.M == run.N == run.K == 4096)
    mine = {gpu: run for gpu, runs in ours(directory).items() for run in runs if run.N == 4096}
    if "t4" in mine:
        t4["ours"] = mine.pop("t4")
    for label, run in t4.items():
        found.append(Ratio("4096", label, "R2", "h100", theirs.gflops / run.gflops))
    label = "ours" if "ours" in t4 else "R1"
    for gpu, run in mine.items():
        found.append(Ratio("4096", label, "ours", gpu, run.gflops / t4[label].gflops))
    return found


def allowed(run: Run, directory: Path = MEASUREMENTS) -> float:
    """GFLOPS that `limits` allows our kernel with this tiled run's macros, at its size and on its
    GPU, at the boost clock."""
    return limits(ladder[2](**run.macros), run.gpu, run.M, run.N, run.K, directory).gflops


def share(run: Run, mhz: float | None = None, directory: Path = MEASUREMENTS) -> float:
    """The part of `allowed` that a tiled run reached; of what is allowed at `mhz`, if given, as
    what binds these kernels is counted in cycles."""
    boost = devices[run.gpu].clock_mhz
    return run.gflops / allowed(run, directory) * boost / (mhz or boost)


def tiled(directory: Path = MEASUREMENTS) -> list[Run]:
    """Runs of tiled kernels with TILE = 32 from N = 2048 on: what others reported, then ours."""
    others = (("t4", "R2"), ("t4", "R1"), ("t4", "ladder a"), ("h100", "R2"))
    runs = [
        run for gpu, label in others
        for run in records.runs(gpu, 2, label=label, directory=directory)
        if run.macros.get("TILE", 32) == 32
    ]  # fmt: skip
    runs += [run for of_one in ours(directory).values() for run in of_one]
    return [run for run in runs if run.N >= 2048]
