"""What one SM of this machine's GPU does in a cycle, and how long it waits.

    python benchmarks/throughput.py [--out FILE] [--commit HASH]

Loops of one kind of instruction (throughput.cu), timed by the SM's own clock, so that the figures
are cycles and hold at any clock: multiply-adds; shared and global loads and stores by width and by
the pattern of a warp's addresses; L2 and DRAM bandwidth; the latencies of a chain of dependent
operations; barriers. `sgemm_lab.measure.limits` computes with them.

It needs a GPU and CuPy, and takes under a minute. Exit code 2: no GPU here.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from sgemm_lab.devices import device_named  # noqa: E402
from sgemm_lab.measure.bench import NO_GPU, Stand, commit_here  # noqa: E402
from sgemm_lab.measure.limits import validate  # noqa: E402
from sgemm_lab.paths import MEASUREMENTS  # noqa: E402
from sgemm_lab.run.backend import cp, gpu_available  # noqa: E402
from sgemm_lab.simt.counters import shared_wavefronts  # noqa: E402

SOURCE = Path(__file__).with_suffix(".cu")
PROTOCOL = (
    "one block of 1024 threads and the SM's clock for what an SM does a cycle; one warp for the "
    "latencies of instructions, one thread for those of loads from global memory, blocks of 32 to "
    "1024 threads for barriers; every SM and CUDA events for bandwidths; the best of several runs"
)
REPEATS = 5
THREADS = 1024
WARPS = THREADS // 32
FFMA = 256  # multiply-adds of a thread in a turn of the loop
WIDTHS = (1, 2, 4)  # words of 4 bytes a lane
LINE = 128  # bytes
BLOCKS = (32, 64, 128, 256, 512, 1024)  # threads that meet at a barrier
READS = 8 * 16  # bytes of a thread that a block reads at a time, `stream`'s chunk
DRAM_BYTES = 1 << 31
LANE = np.arange(32)

# Name → which of a row of places each lane takes. A place is as wide as what a lane moves.
PATTERNS = {
    "own": LANE,
    "one": 0 * LANE,
    "2 halves": LANE // 16,
    "4 quarters": LANE // 8,
    "8 by fours": LANE // 4,
    "16 by pairs": LANE // 2,
    "8 repeated": LANE % 8,
    "16 repeated": LANE % 16,
}
# The same for global memory: lines of 128 bytes that the lanes' places lie in.
LINES = {
    "own": None,  # neighbours, as many lines as they fill
    "1 line": 0 * LANE,
    "2 lines": LANE // 16,
    "4 lines": LANE // 8,
    "8 lines": LANE // 4,
    "16 lines": LANE // 2,
    "32 lines": LANE,
    "4 lines, mixed": LANE % 4,
}


class Unit:
    """The GPU, with the kernels of throughput.cu compiled for each width."""

    def __init__(self):
        self.stand = Stand()
        code = SOURCE.read_text()
        self.modules = {w: cp.RawModule(code=code, options=(f"-DWORDS={w}",)) for w in WIDTHS}
        self.sms = cp.cuda.Device().attributes["MultiProcessorCount"]
        self.out = cp.zeros(1, np.uint32)

    def run(
        self,
        kernel: str,
        n: int,
        *more,
        words: int = 4,
        blocks: int = 1,
        threads: int = THREADS,
        cold: bool = False,
    ) -> tuple[float, float, float]:
        """(cycles, milliseconds, clock in MHz), each the best of several runs; the cycles are the
        median of the blocks'. `cold`: what L2 held is overwritten before each."""
        function = self.modules[words].get_function(kernel)
        spent = cp.zeros((blocks, 2), np.int64)
        given = (np.int32(n), spent, self.out, *more)
        runs = []
        for _ in range(REPEATS):
            if cold:
                self.stand.flush()
            ms = self.stand._time(lambda: function((blocks,), (threads,), given))
            cycles, ns = (float(x) for x in np.median(cp.asnumpy(spent), axis=0))
            runs.append((cycles, ms, 1e3 * cycles / max(ns, 1)))
        cycles, times, clocks = zip(*runs, strict=True)
        return min(cycles), min(times), max(clocks)

    def ring(self, size: int, stride: int, steps: int):
        """`steps` places at random in `size` bytes, at least `stride` bytes apart, each with the
        address of the next; the first one."""
        places = np.random.default_rng(0).permutation(size // stride)[:steps] * (stride // 8)
        array = cp.empty(size // 8, np.int64)
        array[cp.asarray(places)] = cp.asarray(array.data.ptr + 8 * np.roll(places, -1))
        return array[int(places[0]) :]


def measure(unit: Unit, progress: Callable[[Sequence], Sequence] = iter) -> dict:
    """All of it: the record's "rates", "latencies" and the rows of its three tables."""
    parts = (_arithmetic, _shared, _mixed, _global, _bandwidths, _latencies)
    found: dict = {"rates": {}, "latencies": {}}
    for part in progress(parts):
        for name, value in part(unit).items():
            found[name] = found.get(name, {}) | value if isinstance(value, dict) else value
    return found


def _arithmetic(unit: Unit) -> dict:
    n = 200
    cycles, *_ = unit.run("ffma_independent", n)
    chain, *_ = unit.run("ffma_dependent", n, threads=32)
    # long enough for the clock to settle under this load
    *_, clock = unit.run("ffma_independent", 50_000, blocks=unit.sms)
    return {
        "rates": {"ffma_lanes": _round(FFMA * THREADS * n / cycles), "clock_mhz": round(clock)},
        "latencies": {"ffma": _round(chain / (FFMA * n))},
    }


def _rows(unit: Unit, kernel: str, op: str, loads: int, n: int = 100) -> list[dict]:
    """A row for each width and pattern: cycles that an SM takes for one instruction of a warp."""
    rows = []
    for words in WIDTHS:
        for pattern, place in PATTERNS.items():
            lanes = cp.asarray((4 * words * place).astype(np.int32))
            cycles, *_ = unit.run(kernel, n, lanes, words=words)
            wavefronts = shared_wavefronts(
                words * place, np.ones(32, bool), 32 * words, op == "store"
            )
            rows.append({
                "op": op, "bits": 32 * words, "pattern": pattern,
                "cycles": _round(cycles / (loads * n * WARPS)), "wavefronts": wavefronts,
            })  # fmt: skip
    return rows


def _shared(unit: Unit) -> dict:
    loads, stores = (_rows(unit, f"shared_{op}", op, 32) for op in ("load", "store"))
    return {"shared": loads + stores}


def _mixed(unit: Unit) -> dict:
    return {"mixed": _rows(unit, "shared_load_ffma", "load", 16)}


def _global(unit: Unit) -> dict:
    rows, n = [], 200
    data = cp.zeros(1 << 20, np.uint8)
    for words in WIDTHS:
        for pattern, line in LINES.items():
            place = 4 * words * LANE if line is None else LINE * line
            lanes = cp.asarray(place.astype(np.int32))
            cycles, *_ = unit.run("global_load", n, lanes, data, np.int32(0), words=words)
            rows.append({
                "op": "load", "bits": 32 * words, "pattern": pattern,
                "cycles": _round(cycles / (8 * n * WARPS)),
                "lines": len(np.unique(place // LINE)),
            })  # fmt: skip
    return {"global": rows}


def _bandwidths(unit: Unit) -> dict:
    data = cp.zeros(DRAM_BYTES, np.uint8)

    def read(size: int, spread: int, step: int, n: int, blocks: int, threads: int) -> float:
        """10⁹ bytes a second."""
        chunk = threads * READS
        more = (data, np.int32(size // chunk), np.int32(spread), np.int32(step))
        _, ms, _ = unit.run("stream", n, *more, blocks=blocks, threads=threads)
        return _round(1e-6 * blocks * n * chunk / ms)

    # well inside L2; one block an SM, each at a chunk of its own, so that no two of them share
    # lines on their way
    most, threads = unit.stand.l2 // 3, THREADS
    while most < unit.sms * threads * READS:
        threads //= 2
    chunks = most // (threads * READS) // unit.sms * unit.sms
    l2 = chunks * threads * READS
    one = {"n": 4 * chunks, "blocks": unit.sms, "threads": threads}
    many = 2 * unit.sms
    turns = DRAM_BYTES // (THREADS * READS) // many
    return {
        "rates": {
            "l2_bytes": l2,
            "l2_gbs": read(l2, chunks, 1, **one),
            "l2_same_gbs": read(l2, 0, 1, **one),
            "dram_gbs": read(DRAM_BYTES, many, many, turns, many, THREADS),
        }
    }


def _latencies(unit: Unit) -> dict:
    found = {"shared": unit.run("shared_chase", 100, threads=32)[0] / 6400}
    rings = {  # the kernel; bytes, stride, steps; whether the ring is run through once before
        "l1": ("chase_l1", (8 << 10, LINE, 64), True),
        "l2": ("chase_l2", (1 << 20, LINE, 8192), True),
        "dram": ("chase_l2", (1 << 30, 4096, 8192), False),
    }
    for name, (kernel, ring, warm) in rings.items():
        more = unit.ring(*ring), np.int32(warm)
        found[name] = unit.run(kernel, ring[-1], *more, threads=1, cold=not warm)[0] / ring[-1]
    for name, inner in (("barrier", 64), ("handoff", 16)):
        for threads in BLOCKS:
            cycles, *_ = unit.run(name, 100, threads=threads)
            found[f"{name}_{threads}"] = cycles / (100 * inner)
    return {"latencies": {name: _round(value) for name, value in found.items()}}


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def record(unit: Unit, commit: str | None, progress: Callable = iter) -> dict:
    """The contents of the file."""
    device = device_named(unit.stand.gpu_name)
    provenance = unit.stand.provenance() | {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit or commit_here(),
        "protocol": PROTOCOL,
    }
    return {
        "schema": 1,
        "kind": "rates",
        "gpu": device.key if device else unit.stand.gpu_name,
        "gpu_name": unit.stand.gpu_name,
        "provenance": provenance,
        **measure(unit, progress),
    }


def write(path: Path, made: dict) -> None:
    """The record as JSON, one row a line."""
    tables = [name for name, value in made.items() if isinstance(value, list)]
    parts = [json.dumps({k: v for k, v in made.items() if k not in tables}, indent=1)[:-2]]
    for name in tables:
        rows = ",\n  ".join(json.dumps(row) for row in made[name])
        parts.append(f' "{name}": [\n  {rows}\n ]')
    path.write_text(",\n".join(parts) + "\n}\n", encoding="utf-8")


def table(made: dict) -> str:
    """What was measured, as text: a line for each row of the tables, then the single figures."""
    lines = [f"{'':8}{'bits':>6}  {'pattern':16}{'cycles':>8}{'wavefronts or lines':>22}"]
    for name in ("shared", "mixed", "global"):
        for row in made[name]:
            ideal = row.get("wavefronts", row.get("lines"))
            lines.append(
                f"{name:8}{row['bits']:6}  {row['op']} {row['pattern']:14}{row['cycles']:6.3f}"
                f"{ideal:12}"
            )
    for part in ("rates", "latencies"):
        lines += [f"{part:10} {name:14} {value}" for name, value in made[part].items()]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="default: book/measurements/rates_<gpu>.json")
    parser.add_argument("--commit", help="where this copy came from, if it is no git checkout")
    given = parser.parse_args(argv)
    if not gpu_available():
        print(NO_GPU, file=sys.stderr)
        return 2
    from tqdm import tqdm

    made = record(Unit(), given.commit, tqdm)
    validate(made, "the new record")
    path = given.out or MEASUREMENTS / f"rates_{made['gpu']}.json"
    write(path, made)
    print(table(made))
    print(f"Recorded in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
