"""Times kernels on this machine's GPU, each beside cuBLAS, honestly.

How one figure comes about (the same text goes into the record, see `PROTOCOL`):

1. A, B are standard normal float32, the same arrays for cuBLAS and for all kernels at one size;
   β = 0. The result is compared with float64 before anything is timed, so TF32 in cuBLAS would be
   noticed too.
2. Both run until two rounds agree within 3 %.
3. Pairs: kernel and cuBLAS alternate, and so does which goes first, so that a drifting clock hits
   both. Before each measurement a buffer larger than L2 is overwritten: the data come from DRAM.
4. Times are CUDA events in the stream, around one launch. Where cuBLAS takes less than 0.1 ms, one
   launch drowns in the few microseconds between two events, so several are launched back to back
   and divided by their number; after the first of them L2 is warm ("launches" in the record).
   The overwriting goes on for over a millisecond, so that everything is queued by the time the
   first event is reached: a host core that has slept through a slow kernel wakes up too late
   otherwise, and its delay is counted (on an H200, up to 0.17 ms of cuBLAS's 0.34 at N = 2048).
5. Recorded are min, median, max of the times, and the median of the pairs' ratios with its 95 %
   interval from order statistics (no distribution assumed); the SMs' clock meanwhile, and why the
   chip lowered it, if it did.
"""

import argparse
import contextlib
import functools
import math
import operator
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np

from sgemm_lab.devices import device_named
from sgemm_lab.ladder import Step, Variant, as_variant, ladder
from sgemm_lab.measure import records
from sgemm_lab.paths import MEASUREMENTS, ROOT
from sgemm_lab.run.backend import cp, gpu_available
from sgemm_lab.run.launch import prepare

# The squares of the charts; one that no tile divides; a long K and a short one.
# Each step's default is measured at all of these, every other setting at EXPLORED.
SIZES = (256, 512, 1024, 2048, 4095, 4096, 6144, 8192, (8192, 8192, 4096), (4096, 4096, 8192))
EXPLORED = (256, 512, 1024, 2048, 4096)
PROTOCOL = (
    "random normal inputs, alpha 1, beta 0, checked against float64; CUDA events; L2 flushed "
    "before each measurement by overwriting a buffer larger than it; kernel and cuBLAS alternate; "
    "launches > 1: that many back to back, L2 warm after the first"
)
NO_GPU = (
    "There is no NVIDIA GPU here, so nothing was timed. The charts show recorded runs; "
    "on a GPU this call measures."
)
BATCH_MS = 0.1  # what lies between two events should last this long at least
MAX_LAUNCHES = 20
WAKE_MS, QUEUE_MS = 1.0, 0.05  # what the host may need to wake up, and to queue one launch

Size = tuple[int, int, int]
Point = tuple[Size, Variant]


@dataclass(frozen=True)
class Bench:
    """What `bench` measured: `runs` as they go into a record file, the machine and the session.

    Empty where there is no GPU; `message` then says so.
    """

    runs: tuple[dict, ...] = ()
    gpu_name: str = ""
    provenance: dict = field(default_factory=dict)
    session: dict = field(default_factory=dict)
    message: str = ""

    def __str__(self) -> str:
        rows = [f"{'':44}{'N':>6}{'ms':>10}{'GFLOPS':>9}{'% of cuBLAS':>13}"] if self.runs else []
        for run in self.runs:
            M, N, K, ms = run["M"], run["N"], run["K"], run["ms"]["median"]
            size = f"{N}" if M == N == K else f"{M}×{N}×{K}"
            gflops, percent = 2 * M * N * K / ms * 1e-6, 100 * run["ratio"]["median"]
            slowed = f"  clock lowered: {', '.join(why)}" if (why := run.get("throttled")) else ""
            rows.append(
                f"{run['kernel']:44}{size:>6}{ms:10.3f}{gflops:9.0f}{percent:13.1f}{slowed}"
            )
        return "\n".join([*rows, *filter(None, [self.message])])

    __repr__ = __str__

    def record(self) -> dict:
        """The contents of a "measured" file. Raises RecordError for a GPU that devices.py lacks."""
        device = device_named(self.gpu_name)
        if device is None:
            raise records.RecordError(records.unknown_gpu(self.gpu_name))
        return {
            "schema": records.SCHEMA,
            "kind": "measured",
            "gpu": device.key,
            "gpu_name": self.gpu_name,
            "provenance": self.provenance,
            "sessions": [self.session],
            "runs": [run | {"session": 0} for run in self.runs],
        }


def bench(
    variants: Variant | Step | Iterable[Variant | Step],
    sizes: Iterable[int | Size] = (1024, 2048, 4096),
    *,
    seconds: float = 0.3,
    progress: Callable[[Sequence], Iterable] = iter,
) -> Bench:
    """Times each variant at each size (N, or M, N, K), paired with cuBLAS; about `seconds` a point.

    A step stands for its default variant; step 0 paired with itself shows what the method cannot
    tell apart. Ctrl-C ends the measuring and keeps what is there. Without a GPU nothing is timed
    and the result says so. Raises RuntimeError where a result is wrong, or cuBLAS would use TF32.
    """
    several = isinstance(variants, Iterable) and not isinstance(variants, str)
    given = [as_variant(each) for each in (variants if several else [variants])]
    return measure([(s, v) for s in map(_shape, sizes) for v in given], seconds, progress)


def book() -> list[Point]:
    """All that the pages show, the most wanted first: every step's default at SIZES, every other
    setting of its macros at EXPLORED."""
    defaults = [step() for step in ladder]
    others = [v for step in ladder if step.function for v in step.variants() if v not in defaults]
    wanted = (SIZES, defaults), (EXPLORED, others)
    return [(_shape(size), v) for sizes, variants in wanted for size in sizes for v in variants]


def measure(
    points: Sequence[Point],
    seconds: float = 0.3,
    progress: Callable[[Sequence], Iterable] = iter,
    minutes: float = math.inf,
    keep: Callable[[Bench], None] = lambda so_far: None,
) -> Bench:
    """`bench` for any points (size, variant), for `minutes` at most.

    `keep` is given what there is so far after each size, and at the end, whatever ended it.
    """
    if not gpu_available():
        return Bench(message=NO_GPU)
    end = time.monotonic() + 60 * minutes
    taken, message, last = [], "", None
    # Arrays stay where they are: made anew at a size, cuBLAS took 2 % more or less on an H200
    problems: dict[Size, Problem] = {}
    stand = Stand()
    provenance, started = stand.provenance(), datetime.now(UTC)
    stand.heat_up()
    with Monitor(stand.bus_id) as monitor:

        def so_far(message: str = "") -> Bench:
            samples = monitor.samples()
            done = [run | during(samples, *span) for run, span in taken]
            session = {"started": f"{started:%Y-%m-%dT%H:%M:%SZ}", "commit": commit_here(),
                       "protocol": PROTOCOL} | summary(samples)  # fmt: skip
            return Bench(tuple(done), stand.gpu_name, provenance, session, message)

        try:
            for size, variant in progress(points):
                if time.monotonic() > end:
                    message = f"Stopped after {minutes:g} minutes and {_of(taken, points)}"
                    break
                if taken and size != last:
                    keep(so_far())
                if size not in problems:
                    problems[size] = stand.problem(size)
                begun, last = time.time(), size
                run = stand.measure(variant, problems[size], seconds)
                taken.append((run, (begun, time.time())))
        except KeyboardInterrupt:
            message = f"Stopped after {_of(taken, points)}"
        finally:
            result = so_far(message)
            if taken:
                keep(result)
    return result


def _of(taken: Sequence, points: Sequence) -> str:
    return f"{len(taken)} of {len(points)} measurements; these are kept."


def _shape(size: int | Size) -> Size:
    return (size, size, size) if isinstance(size, int | np.integer) else tuple(size)


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """A confidence interval for the median, from order statistics (the sign test inverted).

    With fewer than six values no such interval reaches 95 %: then it is the whole range.
    """
    ordered, n = sorted(values), len(values)
    tail, cut = 0.0, 0
    for below in range(n // 2):
        tail += math.comb(n, below) / 2**n
        if tail > (1 - confidence) / 2:
            break
        cut = below
    return ordered[cut], ordered[n - 1 - cut]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Min, median and max, rounded to 5 significant digits, as records hold them."""
    return {n: _round(f(values)) for n, f in (("min", min), ("median", median), ("max", max))}


def _round(value: float) -> float:
    return float(f"{value:.5g}")


@dataclass
class Problem:
    """The arrays of one size, on the GPU, and what the rows `rows` of C must be."""

    size: Size
    A: object
    B: object
    C: object
    rows: object
    expected: object
    bound: object

    def call(self, variant: Variant) -> Callable[[], object]:
        """A function that queues one product C = A·B and returns at once.

        Raises RuntimeError for cuBLAS where CuPy was told to use TF32.
        """
        return prepare(variant, self.A, self.B, self.C)


def gpu_name() -> str:
    """This machine's GPU, as the driver calls it."""
    name = cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)["name"]
    return name.decode() if isinstance(name, bytes) else name


class Stand:
    """One GPU set up for timing: its stream, a buffer to flush L2 with, and cuBLAS."""

    def __init__(self):
        self.device = cp.cuda.Device()
        self.gpu_name = gpu_name()
        self.l2 = int(cp.cuda.runtime.getDeviceProperties(self.device.id)["l2CacheSize"])
        self.flush_bytes = max(4 * self.l2, 64 << 20)
        self.buffer = cp.empty(self.flush_bytes, np.uint8)
        self.cublas = ladder[0]()
        self.flush_ms = min(self._time(self.flush) for _ in range(5))

    # -- timing

    def flush(self) -> None:
        self.buffer.data.memset_async(0, self.flush_bytes)

    def _time(self, call: Callable[[], None], launches: int = 1) -> float:
        """Milliseconds on the GPU for one of `launches` calls back to back."""
        start, stop = cp.cuda.Event(), cp.cuda.Event()
        start.record()
        for _ in range(launches):
            call()
        stop.record()
        stop.synchronize()
        return cp.cuda.get_elapsed_time(start, stop) / launches

    def time(self, call: Callable[[], None], launches: int) -> float:
        """`_time` after L2 was flushed, for long enough that all is queued by then."""
        for _ in range(math.ceil((WAKE_MS + QUEUE_MS * launches) / max(self.flush_ms, 0.01))):
            self.flush()
        return self._time(call, launches)

    def heat_up(self, ms: float = 1000) -> None:
        """Brings the clocks to where they stay under load."""
        problem = self.problem((4096, 4096, 4096))
        call = problem.call(self.cublas)
        spent = 0.0
        while spent < ms:
            spent += 10 * self._time(call, 10)

    # -- what is timed

    def problem(self, size: Size) -> Problem:
        M, N, K = size
        random = np.random.default_rng(0)
        a, b = (random.standard_normal(s, dtype=np.float32) for s in ((M, K), (K, N)))
        cp.get_default_memory_pool().free_all_blocks()
        rows = cp.asarray(np.unique([0, M - 1, *random.integers(0, M, 30)]))
        A, B, C = cp.asarray(a), cp.asarray(b), cp.empty((M, N), np.float32)
        exact, wide = A[rows].astype(np.float64), B.astype(np.float64)
        expected = exact @ wide
        bound = math.sqrt(K) * float(np.finfo(np.float32).eps) * (cp.abs(exact) @ cp.abs(wide))
        return Problem(size, A, B, C, rows, expected, bound)

    def check(self, variant: Variant, problem: Problem) -> None:
        """Raises RuntimeError unless C is right, in 32 of its rows, element by element."""
        problem.C.fill(np.nan)
        problem.call(variant)()
        found = problem.C[problem.rows].astype(np.float64)
        error = cp.abs(found - problem.expected) / problem.bound
        worst = float(error.max())
        if not worst <= 1:  # NaN fails too
            raise RuntimeError(
                f"{variant.key} is wrong at {'×'.join(map(str, problem.size))}: its largest error "
                f"is {worst:.3g} times √K·eps·(|A||B|). Nothing was timed."
            )

    def measure(self, variant: Variant, problem: Problem, seconds: float) -> dict:
        """One entry of a record: `variant` at the problem's size, paired with cuBLAS."""
        for each in (variant, self.cublas):
            self.check(each, problem)
        calls = [problem.call(each) for each in (variant, self.cublas)]
        now = [self.time(call, 1) for call in calls]
        for _ in range(10):
            if sum(now) > 1000 * seconds:  # so slow that the check has warmed it up
                break
            before, now = now, [self.time(call, 1) for call in calls]
            if all(abs(a - b) <= 0.03 * b for a, b in zip(before, now, strict=True)):
                break
        launches = max(1, min(MAX_LAUNCHES, math.ceil(BATCH_MS / now[1])))
        pairs = [
            self._pair(calls, launches, swapped=bool(index % 2))
            for index in range(repeats(sum(now) * launches, 1000 * seconds))
        ]
        mine, theirs = zip(*pairs, strict=True)
        ratios = [b / a for a, b in pairs]
        low, high = median_interval(ratios)
        M, N, K = problem.size
        source = {"source_hash": variant.source_hash} if variant.step.function else {}
        return {
            "step": variant.step.number,
            "kernel": variant.key,
            "macros": dict(variant.macros),
            **source,
            "M": M,
            "N": N,
            "K": K,
            "ms": spread(mine),
            "cublas_ms": spread(theirs),
            "ratio": {"low": _round(low), "median": _round(median(ratios)), "high": _round(high)},
            "repeats": len(pairs),
            "launches": launches,
        }

    def _pair(self, calls: list[Callable], launches: int, swapped: bool) -> tuple[float, float]:
        order = (1, 0) if swapped else (0, 1)
        times = {which: self.time(calls[which], launches) for which in order}
        return times[0], times[1]

    # -- where

    def provenance(self) -> dict:
        """The machine: what all runs of one file have in common."""
        runtime = cp.cuda.runtime
        from cupy.cuda import cublas, device, nvrtc

        return {
            "driver": smi(self.bus_id, "driver_version")[0] or f"CUDA {runtime.driverGetVersion()}",
            "cuda": _dotted(runtime.runtimeGetVersion()),
            "nvrtc": ".".join(map(str, nvrtc.getVersion())),
            "cublas": str(cublas.getVersion(device.get_cublas_handle())),
            "cupy": cp.__version__,
            "l2_bytes": self.l2,
            "flush_bytes": self.flush_bytes,
        }

    @property
    def bus_id(self) -> str:
        return cp.cuda.runtime.deviceGetPCIBusId(self.device.id)


def repeats(pair_ms: float, budget_ms: float) -> int:
    """How many pairs: 7 to 50 by the budget; fewer, but 3, where 7 would take over ten budgets."""
    affordable = int(budget_ms / pair_ms)
    if 7 * pair_ms > 10 * budget_ms:
        return max(3, int(10 * budget_ms / pair_ms))
    return max(7, min(50, affordable))


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def commit_here() -> str | None:
    """The commit of the kernels, "+changes" where files differ from it; None where unknown."""

    def git(*arguments: str) -> str:
        return subprocess.check_output(
            ["git", "-C", str(ROOT), *arguments], text=True, stderr=subprocess.DEVNULL
        ).strip()

    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return git("rev-parse", "--short=12", "HEAD") + "+changes" * bool(
            git("status", "--porcelain", "kernels")
        )
    return None


def smi(bus_id: str, *fields: str) -> list[str]:
    """What nvidia-smi says about one GPU; empty strings where it is missing."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        line = subprocess.check_output(
            ["nvidia-smi", f"--id={bus_id}", f"--query-gpu={','.join(fields)}",
             "--format=csv,noheader,nounits"], text=True, timeout=20)  # fmt: skip
        return [value.strip() for value in line.strip().split(",")]
    return [""] * len(fields)


_SAMPLED = {"clock_mhz": "clocks.sm", "power_w": "power.draw", "temperature_c": "temperature.gpu"}
_REASONS = "clocks_event_reasons.active", "clocks_throttle_reasons.active"  # new and old drivers


@dataclass(frozen=True)
class Sample:
    """What nvidia-smi said at `at` (seconds since the epoch): floats by the names of `_SAMPLED`,
    None where it could not be read, and the bits of the reasons for a lowered clock."""

    at: float
    values: dict[str, float | None]
    reasons: int | None


class Monitor:
    """Samples the GPU in the background, by nvidia-smi where there is one."""

    def __init__(self, bus_id: str):
        known = (name for name in _REASONS if smi(bus_id, name)[0].startswith("0x"))
        fields = ["timestamp", *_SAMPLED.values(), next(known, "pstate")]
        self.command = ["nvidia-smi", f"--id={bus_id}", f"--query-gpu={','.join(fields)}",
                        "--format=csv,noheader,nounits", "--loop-ms=100"]  # fmt: skip

    def __enter__(self):
        self.file = tempfile.NamedTemporaryFile("w")
        self.process = None
        if shutil.which(self.command[0]):  # in its own session: Ctrl-C is for the benchmark
            self.process = subprocess.Popen(
                self.command, stdout=self.file, stderr=subprocess.DEVNULL, start_new_session=True
            )
        return self

    def __exit__(self, *exception):
        if self.process:
            self.process.terminate()
            self.process.wait()
        self.file.close()

    def samples(self) -> list[Sample]:
        """All samples so far; lines that are not whole are left out."""
        return parse_samples(Path(self.file.name).read_text())


def parse_samples(text: str) -> list[Sample]:
    """The samples in nvidia-smi's lines "time, clock, power, temperature, reasons"."""
    found = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            at, *values, reasons = (value.strip() for value in line.split(","))
            seconds = datetime.strptime(at, "%Y/%m/%d %H:%M:%S.%f").timestamp()
            values = dict(zip(_SAMPLED, map(_number, values), strict=True))
            found.append(Sample(seconds, values, _number(reasons, lambda bits: int(bits, 16))))
    return found


def _number(text: str, read: Callable[[str], float] = float) -> float | None:
    with contextlib.suppress(ValueError):  # "[N/A]"
        return read(text)
    return None


def summary(samples: Sequence[Sample]) -> dict:
    """Min, median, max of what was sampled; what could not be read is left out."""
    columns = {name: [s.values[name] for s in samples] for name in _SAMPLED}
    known = {name: [v for v in column if v is not None] for name, column in columns.items()}
    return {name: spread(column) for name, column in known.items() if column}


def during(samples: Sequence[Sample], begun: float, ended: float) -> dict:
    """What a run says of its samples: the SMs' clock, and why it was lowered, if it was."""
    here = [s for s in samples if begun <= s.at <= ended]
    clock, reasons = summary(here).get("clock_mhz"), [s.reasons for s in here]
    found = {"clock_mhz": clock["median"]} if clock else {}
    if reasons and None not in reasons:
        bits = functools.reduce(operator.or_, reasons)
        found["throttled"] = [name for name, mask in records.THROTTLES.items() if bits & mask]
    return found


def _size(text: str) -> int | Size:
    """A size of a command line: "4096" or "8192x8192x4096"."""
    numbers = text.split("x")
    if len(numbers) not in (1, 3) or not all(n.isdecimal() and int(n) for n in numbers):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size: give N, or MxNxK such as 8192x8192x4096"
        )
    sizes = tuple(map(int, numbers))
    return sizes if sizes[1:] else sizes[0]


def _varied(variant: Variant, vary: Iterable[str]) -> list[Variant]:
    """The variants of its step that differ from `variant` in the macros `vary` only."""
    kept = {name: value for name, value in variant.items if name not in vary}
    return [v for v in variant.step.variants() if kept.items() <= v.macros.items()]


def _asked(given: argparse.Namespace) -> list[Point]:
    """The points that a command line asks for. Raises KeyError or ValueError in words."""
    if not (given.what or given.sizes or given.vary or given.all_variants):
        return book()
    asked = ladder.asked(given.what, given.all_variants)
    known = {macro.name for v in asked for macro in v.step.macros}
    if unknown := [name for name in given.vary if name not in known]:
        raise ValueError(
            f"--vary {unknown[0]}: no such macro here. There are {', '.join(sorted(known))}."
        )
    chosen = list(dict.fromkeys(v for each in asked for v in _varied(each, given.vary)))
    return [(_shape(size), v) for size in given.sizes or SIZES for v in chosen]


def _missing(points: Sequence[Point], path: Path) -> list[Point]:
    """The points of which the file at `path` has no run with this version of the kernel."""
    if not path.exists():
        return list(points)
    known = {(r["kernel"], r.get("source_hash"), r["M"], r["N"], r["K"])
             for r in records.read(path)["runs"]}  # fmt: skip
    return [
        (size, v)
        for size, v in points
        if (v.key, v.source_hash if v.step.function else None, *size) not in known
    ]


def main(argv: list[str] | None = None) -> int:
    """`python -m sgemm_lab bench 2 TILE=16`: 0 when something was measured, 2 without a GPU."""
    parser = argparse.ArgumentParser(
        prog="python -m sgemm_lab bench",
        description="Time kernels on this machine's GPU, each paired with cuBLAS, and record it. "
        "With nothing named: all that the book shows, the most wanted first.",
    )
    parser.add_argument(
        "what", nargs="*", help="steps (2 or 02_tiled) and macros (TILE=16); default: every step"
    )
    parser.add_argument("--sizes", type=_size, nargs="+", metavar="N", help="N, or MxNxK")
    parser.add_argument("--vary", nargs="+", default=[], metavar="MACRO",
                        help="every legal value of these macros, e.g. COALESCED TILE")  # fmt: skip
    parser.add_argument("--all-variants", action="store_true", help="every legal macro setting")
    parser.add_argument("--seconds", type=float, default=0.3, help="about this long a point")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after this long")
    parser.add_argument("--missing", action="store_true",
                        help="only what the file lacks: goes on where a run ended")  # fmt: skip
    parser.add_argument("--out", type=Path, help="file to add to; default book/measurements/")
    parser.add_argument("--commit", help="where this copy came from, if it is no git checkout")
    given = parser.parse_args(argv)

    from tqdm import tqdm

    try:
        points = _asked(given)
    except (KeyError, ValueError) as error:
        print(error.args[0], file=sys.stderr)
        return 2
    if not gpu_available():
        print(NO_GPU)
        return 2
    device = device_named(gpu_name())
    path = given.out or (device and MEASUREMENTS / f"{device.key}.json")
    if path is None:
        print(f"{records.unknown_gpu(gpu_name())} Until then nothing is recorded.", file=sys.stderr)

    def keep(result: Bench) -> None:
        if path:
            record = result.record()
            record["sessions"][0]["commit"] = given.commit or record["sessions"][0]["commit"]
            records.merge(path, record)

    try:
        points = _missing(points, path) if given.missing and path else points
        result = measure(points, given.seconds, tqdm, given.minutes, keep)
    except records.RecordError as error:
        print(f"Not recorded: {error}", file=sys.stderr)
        return 1
    except RuntimeError as error:
        print(f"Stopped: {error} What was measured before is kept.", file=sys.stderr)
        return 1
    print(result)
    if path and result.runs:
        print(f"Recorded in {path}")
    return 0 if path or result.runs else 1
