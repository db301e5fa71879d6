"""Measures what R1 tells of beside its kernels: the CPU, float64, cold starts, tiles under Nsight.

    python benchmarks/r1_study.py [--out FILE] [--commit HASH] [--locked]

Under three minutes on an H200. `sgemm_lab/measure/studies.py` says what is in the file, and reads
it.

1. Cold starts first: `cold_start.py` in a new process each time, before this one uses the GPU.
2. On the CPU: `triple_loop.c`, compiled by `cc`, and NumPy on one thread and on all cores.
3. On the GPU, by CUDA events: every kernel once a round, in changing order, L2 flushed before each.
   The float64 kernels are ours with double for float. Every result is checked before it is timed.
4. Under Nsight Compute (`ncu`), clocks left alone. `--locked` does it again with the clocks locked
   to the base clock, as ncu does if it is not told otherwise: ncu then changes the GPU's settings
   while it runs, so ask only where you may. What ncu refuses is recorded as not measured, with why.

It needs CuPy, NumPy, fastjsonschema and a C compiler. Exit code 2: this machine cannot do it.
"""

import argparse
import ctypes
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from types import ModuleType

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
package = ModuleType("sgemm_lab")  # the whole of it looks for a GPU, which the first process of
package.__path__ = [str(ROOT / "sgemm_lab")]  # `start` is to do; and a bare machine lacks parts
sys.modules.setdefault("sgemm_lab", package)

from hardware_counters import Unable, provenance_of, rows_of, unlisted, write  # noqa: E402

from sgemm_lab.devices import device_named  # noqa: E402
from sgemm_lab.ladder import Variant, ladder  # noqa: E402
from sgemm_lab.paths import MEASUREMENTS  # noqa: E402

NAIVE, TILED = ladder[1](), ladder[2]()
TILE_16 = ladder[2](TILE=16)
CUBLAS = ladder[0]()
FLAGS = ("-O2", "-O3 -march=native")
LOOPS = {"ijk": (256, 512, 1024), "ikj": (256, 512, 1024)}
BLAS_SIZES = (256, 512, 1024, 2048, 4096)
GPU_SIZES = (1024, 2048, 4096)
START_SIZES = (256, 2048)
PROCESSES = 4  # for each size, with an empty and with a filled cache
NCU_N, NCU_LAUNCHES = 2048, 3
ROUNDS = 15


def repeats(first_ms: float) -> int:
    """How often to measure what took `first_ms`: a second of it, 3 to 20 times."""
    return max(3, min(20, int(1000 / first_ms)))


def timed(call: Callable[[], object]) -> list[float]:
    """Milliseconds by the host's clock, each call; the first, which may be cold, is left out."""

    def once() -> float:
        began = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - began)

    return [once() for _ in range(repeats(once()))]


def inputs(N: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal((N, N), dtype=np.float32) for _ in range(2)]


def error(found, A, B, truth) -> float:
    """The largest error in some rows, as a share of √K·eps·(|A||B|), eps that of `found`.

    A, found: these rows; B: whole; truth: a wider type, in which the product is formed.
    """
    eps = float(np.finfo(found.dtype).eps)
    a, b = A.astype(truth), B.astype(truth)
    bound = math.sqrt(a.shape[1]) * eps * (np.abs(A).astype(float) @ np.abs(B).astype(float))
    worst = float((np.abs(found.astype(truth) - a @ b) / bound).max())
    if not worst <= 1:  # NaN fails too
        raise RuntimeError(f"a result is wrong: its error is {worst:.3g} times √K·eps·(|A||B|)")
    return worst


# --------------------------------------------------------------------------------- cold starts


def start() -> list[dict]:
    """The first launches of new processes; times as lists over the processes."""
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for N in START_SIZES:
            found = {"empty": [], "filled": []}
            for number in range(PROCESSES):
                cache = Path(directory) / f"{N}-{number}"  # empty, then filled by the first process
                for state in found:
                    found[state].append(_process(TILED, N, cache))
            rows += [
                {"part": "start", "kernel": TILED.key, "source_hash": TILED.source_hash, "N": N,
                 "cache": state, "processes": len(each),
                 **{name: [took[name] for took in each] for name in each[0]}}
                for state, each in found.items()
            ]  # fmt: skip
    return rows


def _process(variant: Variant, N: int, cache: Path) -> dict:
    asked = {
        "code": variant.step.source,
        "options": list(variant.options),
        "name": variant.step.function,
        "grid": list(variant.grid(N, N)),
        "block": list(variant.block),
        "N": N,
    }
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "cold_start.py")],
        input=json.dumps(asked), capture_output=True, text=True, timeout=120,
        env=os.environ | {"CUPY_CACHE_DIR": str(cache)},
    )  # fmt: skip
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:]
        raise Unable(f"No kernel could be started on a GPU here: {' '.join(why)}")
    return json.loads(done.stdout)


def summarised(row: Mapping) -> dict:
    """A row of `start` with spreads for its lists, and the medians of the n-th launches."""
    from sgemm_lab.measure.bench import spread

    def short(name: str, values: list):
        if name.startswith("launch_"):
            return [float(f"{median(each):.5g}") for each in zip(*values, strict=True)]
        return spread(values)

    return {n: short(n, value) if n.endswith("_ms") else value for n, value in row.items()}


# ------------------------------------------------------------------------------------- the CPU


def cores() -> int:
    """The cores that this process may use: its affinity, and its share where it is in a box."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(count, int(quota) // int(period)))
    except (OSError, ValueError):
        return count


def model() -> str:
    """The CPU's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(li.partition(":")[2].strip() for li in lines if li.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@contextmanager
def compiled(flags: str) -> Iterator[ctypes.CDLL]:
    """`triple_loop.c` as a library, compiled with these flags."""
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "loops.so"
        source = ROOT / "benchmarks" / "triple_loop.c"
        subprocess.run(
            ["cc", *flags.split(), "-shared", "-fPIC", "-o", str(library), str(source)], check=True
        )
        yield ctypes.CDLL(str(library))


def loops() -> list[dict]:
    """The three loops in C, both orders, with each set of flags; every result is checked."""
    rows = []
    for flags in FLAGS:
        with compiled(flags) as library:
            for name, sizes in LOOPS.items():
                for N in sizes:
                    A, B = inputs(N)
                    C = np.full((N, N), np.nan, np.float32)
                    pointers = [ctypes.c_void_p(X.ctypes.data) for X in (A, B, C)]
                    function = getattr(library, name)
                    ms = timed(lambda f=function, n=N, p=pointers: f(n, n, n, *p))
                    error(C, A, B, np.float64)
                    rows.append(
                        {"part": "cpu", "kernel": name, "flags": flags, "threads": 1, "N": N,
                         "ms": ms}
                    )  # fmt: skip
    return rows


def blas() -> tuple[str, list[dict]]:
    """NumPy's library by name, and its products on one thread and on all cores."""
    name, rows = "", []
    for threads in dict.fromkeys((1, cores())):
        limits = dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads)
        )
        done = subprocess.run(
            [sys.executable, __file__, "--child", "blas"], capture_output=True, text=True,
            check=True, env=os.environ | limits,
        )  # fmt: skip
        said = json.loads(done.stdout)
        name = said["blas"]
        rows += [
            {"part": "cpu", "kernel": "NumPy", "threads": threads, "N": int(N), "ms": ms}
            for N, ms in said["ms"].items()
        ]
    return name, rows


def child_blas() -> None:
    """NumPy's products, in a process whose number of threads was set from outside."""
    used = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    ms = {}
    for N in BLAS_SIZES:
        A, B = inputs(N)
        C = np.empty((N, N), np.float32)
        ms[N] = timed(lambda a=A, b=B, c=C: np.matmul(a, b, out=c))
        error(C[:32], A[:32], B, np.float64)
    print(json.dumps({"blas": f"{used['name']} {used['version']}", "ms": ms}))


# ------------------------------------------------------------------------------------- the GPU


def gpu(stand) -> list[dict]:
    """Each kernel in float32 and float64, one after the other in every round."""
    return [row for N in GPU_SIZES for row in _rounds(stand, N)]


def _rounds(stand, N: int) -> list[dict]:
    from sgemm_lab.measure.bench import _round, median_interval, spread

    problem = stand.problem((N, N, N))
    A, B = _host(problem.A), _host(problem.B)
    calls, errors, some = {}, {}, slice(0, 8)
    for variant in (CUBLAS, NAIVE, TILED, TILE_16):
        for dtype, truth in (("float32", np.float64), ("float64", np.longdouble)):
            call, C = product(variant, problem, dtype)
            C.fill(np.nan)
            call()
            errors[variant, dtype] = error(_host(C)[some], A[some], B, truth)
            calls[variant, dtype] = call
    for call in calls.values():
        stand.time(call, 1)  # warm
    order, times = list(calls), {key: [] for key in calls}
    for number in range(ROUNDS):
        for key in order[number % len(order) :] + order[: number % len(order)]:
            times[key].append(stand.time(calls[key], 1))
    rows = []
    for (variant, dtype), ms in times.items():
        row = {
            "part": "gpu", "kernel": variant.key, **_hash(variant), "dtype": dtype, "N": N,
            "ms": spread(ms), "repeats": len(ms), "error": _round(errors[variant, dtype]),
        }  # fmt: skip
        if dtype == "float64":
            ratios = [a / b for a, b in zip(ms, times[variant, "float32"], strict=True)]
            low, high = median_interval(ratios)
            row["ratio"] = {"low": _round(low), "median": _round(median(ratios)),
                            "high": _round(high)}  # fmt: skip
        rows.append(row)
    return rows


def _hash(variant: Variant) -> dict:
    return {"source_hash": variant.source_hash} if variant.step.function else {}


def _host(array) -> np.ndarray:
    from sgemm_lab.run.backend import cp

    return cp.asnumpy(array)


def product(variant: Variant, problem, dtype: str) -> tuple[Callable[[], object], object]:
    """A call that queues the product of the problem's matrices in this type, and its result."""
    from sgemm_lab.run.backend import cp

    if dtype == "float32":
        return problem.call(variant), problem.C
    A, B = problem.A.astype(np.float64), problem.B.astype(np.float64)
    C = cp.empty(problem.C.shape, np.float64)
    if variant.step.function is None:
        return lambda: cp.matmul(A, B, out=C), C
    M, N, K = problem.size
    function, grid = kernel64(variant), variant.grid(M, N)
    args = (np.int32(M), np.int32(N), np.int32(K), np.float64(1), A, B, np.float64(0), C)
    return lambda: function(grid, variant.block, args), C


def kernel64(variant: Variant):
    """The variant's kernel with double for float, compiled."""
    from sgemm_lab.measure.studies import float64_text
    from sgemm_lab.run.backend import cp
    from sgemm_lab.run.launch import kernel

    step = variant.step
    return kernel(float64_text(step.source), variant.options, step.function, step.filename, cp)


# -------------------------------------------------------------------------------- under Nsight

METRICS = {  # field of a row → Nsight Compute's name; sums and averages in base units
    "ms": "gpu__time_duration.sum",
    "sm_mhz": "smsp__cycles_elapsed.max",
    "registers": "launch__registers_per_thread",
    "occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "dram_read_bytes": "dram__bytes_read.sum",
    "shared_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "fp64_pct": "sm__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_active",
    "fma_pct": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "lsu_pct": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
}
NEEDED = ("ms", "sm_mhz", "registers")
CLOCKS = {"free": "none", "locked": "base"}  # our word → ncu's
NOT_ASKED = "not asked for: --locked lets ncu lock the clocks while it runs"


def profiled() -> list[tuple[Variant, str]]:
    """What ncu watches, in the order in which it is launched, each `NCU_LAUNCHES` times."""
    return [(NAIVE, "float32"), (TILE_16, "float32"), (TILED, "float32"),
            (NAIVE, "float64"), (TILED, "float64")]  # fmt: skip


def nsight(locked: bool) -> tuple[dict[str, str | None], list[dict]]:
    """For each state of the clocks why it was not measured, or None; and the rows."""
    why, rows = {}, []
    for clocks in CLOCKS:
        try:
            if clocks == "locked" and not locked:
                raise Unable(NOT_ASKED)
            rows += parse(_ncu(CLOCKS[clocks]), clocks)
            why[clocks] = None
        except Unable as problem:
            why[clocks] = str(problem)
    return why, rows


def _ncu(control: str) -> str:
    """What ncu writes with this --clock-control. A metric that it does not list is asked for all
    the same, since its list is not complete; only if that fails is it left out. Raises Unable."""
    if not shutil.which("ncu"):
        raise Unable("Nsight Compute's `ncu` is not on the path; it comes with the CUDA toolkit")
    metrics = list(METRICS.values())
    missing = unlisted(metrics)
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "ncu.csv"
        for asked in (metrics, [m for m in metrics if m not in missing or "launch__" in m]):
            log.unlink(missing_ok=True)
            command = [
                "ncu", "--clock-control", control, "--target-processes", "all",
                "--kernel-name", "regex:^(naive|tiled)$", "--metrics", ",".join(asked),
                "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log),
                sys.executable, __file__, "--child", "ncu",
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
            said = log.read_text(errors="replace") if log.exists() else ""
            if done.returncode == 0 and '"ID"' in said:
                return said
    lines = [line for line in (said + done.stderr).splitlines() if line.strip()]
    raise Unable(f"ncu ended with exit code {done.returncode}: {' '.join(lines[-3:])[-300:]}")


def parse(log: str, clocks: str) -> list[dict]:
    """The rows in ncu's table: of each kernel the median of its launches, metric by metric."""
    seen, made = list(rows_of(log)), profiled()
    if len(seen) != NCU_LAUNCHES * len(made):
        raise Unable(f"ncu saw {len(seen)} launches; {NCU_LAUNCHES * len(made)} were made")
    rows = []
    for number, (variant, dtype) in enumerate(made):
        launches = seen[number * NCU_LAUNCHES : (number + 1) * NCU_LAUNCHES]
        names = {found["Kernel Name"].partition("(")[0] for found in launches}
        if names != {variant.step.function}:
            raise Unable(f"ncu saw {', '.join(names)}; {variant.key} was launched")
        values = {name: _median(launches, metric) for name, metric in METRICS.items()}
        if lacking := [METRICS[name] for name in NEEDED if values[name] is None]:
            raise Unable(f"ncu did not give {', '.join(lacking)}")
        values["sm_mhz"] = 1e3 * values["sm_mhz"] / values["ms"]  # cycles in nanoseconds
        values["ms"] *= 1e-6
        values = {n: v if v is None else float(f"{v:.5g}") for n, v in values.items()}
        rows.append({
            "part": "ncu", "clocks": clocks, "kernel": variant.key, **_hash(variant),
            "dtype": dtype, "N": NCU_N, "launches": NCU_LAUNCHES, **values,
            "registers": int(values["registers"]),
        })  # fmt: skip
    return rows


def _median(launches: Sequence[Mapping], metric: str) -> float | None:
    try:
        return median(float(found[metric].replace(",", "")) for found in launches)
    except (KeyError, ValueError):  # not measured, or "n/a"
        return None


def child_ncu() -> None:
    """The launches that ncu watches."""
    from sgemm_lab.measure.bench import Stand

    stand = Stand()
    problem = stand.problem((NCU_N, NCU_N, NCU_N))
    for variant, dtype in profiled():
        call, _ = product(variant, problem, dtype)
        for _ in range(NCU_LAUNCHES):
            call()
    stand.device.synchronize()


# -------------------------------------------------------------------------------------- all of it


def study(commit: str | None, locked: bool) -> dict:
    """The record. Raises Unable."""
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:4.0f} s  {what}", flush=True)

    say("cold starts")
    started = start()
    say("the CPU")
    library, products = blas()
    host = loops() + products
    say("the GPU")
    from sgemm_lab.measure import bench, records, studies

    stand = bench.Stand()
    device = device_named(stand.gpu_name)
    if device is None:
        raise Unable(records.unknown_gpu(stand.gpu_name))
    stand.heat_up()
    with bench.Monitor(stand.bus_id) as monitor:
        rows = gpu(stand)
        sampled = bench.summary(monitor.samples())
    say("Nsight Compute")
    why, counted = nsight(locked)
    known = provenance_of(commit)
    record = {
        "schema": records.SCHEMA,
        "kind": "r1",
        "gpu": device.key,
        "gpu_name": stand.gpu_name,
        "provenance": {
            **stand.provenance(),
            **sampled,
            "persistence": bench.smi(stand.bus_id, "persistence_mode")[0] or None,
            "numpy": np.__version__,
            "ncu": known["ncu"],
            "date": datetime.now(UTC).date().isoformat(),
            "commit": known["commit"],
        },
        "cpu": {"model": model(), "cores": cores(), "compiler": compiler(), "blas": library},
        "ncu": why,
        "rows": [
            *({**row, "ms": bench.spread(row["ms"]), "repeats": len(row["ms"])} for row in host),
            *rows,
            *map(summarised, started),
            *counted,
        ],
    }
    studies.validate(record, "the record")
    say("done")
    return record


def compiler() -> str:
    """The first line of `cc --version`."""
    done = subprocess.run(["cc", "--version"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0]


def table(record: Mapping) -> str:
    """The record in short, a line a row."""
    lines = [f"{record['gpu_name']}; {record['cpu']['model']}, {record['cpu']['cores']} cores"]
    for row in record["rows"]:
        named = ("kernel", "flags", "dtype", "cache", "clocks")
        what = " ".join(str(row[name]) for name in named if name in row)
        threads = f", {row['threads']} threads" if row.get("threads", 1) > 1 else ""
        if row["part"] == "start":
            ms = f"first {row['launch_ms'][0]:.3g}, then {row['steady_ms']['median']:.3g}"
        else:
            ms = f"{row['ms']['median'] if isinstance(row['ms'], dict) else row['ms']:.4g}"
        more = f"  {row['sm_mhz']:.0f} MHz" if "sm_mhz" in row else ""
        lines.append(f"{row['part']:6}{what + threads:66}{row['N']:>5}  {ms} ms{more}")
    lines += [f"ncu, clocks {clocks}: {why}" for clocks, why in record["ncu"].items() if why]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="default: book/measurements/r1_<gpu>.json")
    parser.add_argument("--commit", help="where this copy came from, if it is no git checkout")
    parser.add_argument("--locked", action="store_true", help="also let ncu lock the clocks")
    parser.add_argument("--child", choices=("blas", "ncu"), help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.child:
        {"blas": child_blas, "ncu": child_ncu}[given.child]()
        return 0
    try:
        record = study(given.commit, given.locked)
    except (Unable, OSError, subprocess.CalledProcessError) as problem:
        print(problem, file=sys.stderr)
        return 2
    except RuntimeError as problem:  # a wrong result
        print(f"{problem} Nothing was recorded.", file=sys.stderr)
        return 1
    out = given.out or MEASUREMENTS / f"r1_{record['gpu']}.json"
    write(record, out)
    print(f"{table(record)}\n{out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
