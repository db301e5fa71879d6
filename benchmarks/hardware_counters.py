"""What a GPU counts for the book's kernels, read by Nsight Compute (`ncu`), for tests to compare.

    python benchmarks/hardware_counters.py [--out FILE] [--commit HASH] [--raw DIR [--reread]]
    python benchmarks/hardware_counters.py --dry          the launches, on any machine

One ncu process watches one Python process that makes every launch once, in the order of `--dry`:
the settings of every step that differ from the default in at most one macro at the small shapes,
and the defaults at 1024³. CuPy compiles the .cu files for the GPU that is there. Only what the
hardware said is recorded, nothing of the PTX machine.

It needs CuPy, NumPy and tqdm, and permission to read the counters (as root, or see NVIDIA's page
on ERR_NVGPUCTRPERM). `--raw DIR` keeps what ncu and the launcher wrote; `--reread` makes the record
from a DIR kept earlier. Exit code 2: this machine cannot do it.
"""

import argparse
import csv
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]

try:
    import sgemm_lab  # noqa: F401
except ImportError:  # a bare GPU machine has not installed what only the notebooks need
    sys.modules["sgemm_lab"] = ModuleType("sgemm_lab")
    sys.modules["sgemm_lab"].__path__ = [str(ROOT / "sgemm_lab")]

from sgemm_lab.devices import device_named  # noqa: E402
from sgemm_lab.ladder import Step, Variant, ladder  # noqa: E402
from sgemm_lab.paths import MEASUREMENTS  # noqa: E402

METRICS = {  # field of Counters → Nsight Compute's name for the same count
    "ffma": "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "global_load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global_store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "global_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "shared_load_instructions": "smsp__sass_inst_executed_op_shared_ld.sum",
    "shared_load_wavefronts": "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_store_instructions": "smsp__sass_inst_executed_op_shared_st.sum",
    "shared_store_wavefronts": "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
}
SMALL = (256, 256, 256), (129, 65, 97), (200, 136, 72)  # M, N, K
LARGE = 1024, 1024, 1024
LOG, MADE = "ncu.csv", "launches.json"  # in the raw directory: ncu's file, and the launcher's


class Unable(RuntimeError):
    """This machine cannot do it, or what ncu wrote cannot be read; the message says why."""


# ------------------------------------------------------------------------------ the launches


@dataclass(frozen=True)
class Launch:
    """One product of M×K and K×N by one variant; α = 1, β = 0."""

    variant: Variant
    M: int
    N: int
    K: int

    def row(self) -> dict:
        """What the record says of it besides the counters."""
        variant = self.variant
        return {
            "step": variant.step.number,
            "kernel": variant.key,
            "macros": dict(variant.macros),
            "source_hash": variant.source_hash,
            "function": variant.step.function,
            "M": self.M,
            "N": self.N,
            "K": self.K,
            "grid": _three(variant.grid(self.M, self.N)),
            "block": _three(variant.block),
        }


def spread(step: Step) -> list[Variant]:
    """The variants that differ from the default in one macro at most."""
    default = step().macros
    return [
        variant
        for variant in step.variants()
        if sum(value != default[name] for name, value in variant.items) <= 1
    ]


def launches() -> list[Launch]:
    """Every launch, in the order in which they are made."""
    steps = [step for step in ladder if step.function]
    small = [Launch(v, *size) for size in SMALL for step in steps for v in spread(step)]
    return small + [Launch(step(), *LARGE) for step in steps]


def _three(sizes: Sequence[int]) -> list[int]:
    return [*sizes, 1, 1][:3]


def table(made: Sequence[Launch]) -> str:
    """The launches as text: number, kernel, sizes, grid and block."""
    lines = [f"{'':5}{'kernel':46}{'M×N×K':>16}{'grid':>16}{'block':>12}"]
    for number, launch in enumerate(made):
        row = launch.row()
        size, grid, block = (
            "×".join(map(str, sizes))
            for sizes in ([row[n] for n in "MNK"], row["grid"], row["block"])
        )
        lines.append(f"{number:<5}{row['kernel']:46}{size:>16}{grid:>16}{block:>12}")
    return "\n".join([*lines, f"{len(made)} launches, {len(METRICS)} metrics each"])


def launch_all(directory: Path, provenance: Mapping) -> None:
    """Makes every launch on this machine's GPU, checks each result, and writes down what was made
    and where, added to the provenance given. Runs under ncu, so it starts no other program."""
    import numpy as np
    from tqdm import tqdm

    from sgemm_lab.run import nvrtc
    from sgemm_lab.run.backend import cp, gpu_available
    from sgemm_lab.run.launch import launch

    if not gpu_available():
        raise Unable("There is no NVIDIA GPU here that CuPy can use. --dry shows the launches.")
    rng = np.random.default_rng(0)
    made = launches()
    for each in tqdm(made, unit="launch"):
        M, N, K = each.M, each.N, each.K
        A, B = (rng.standard_normal(shape, dtype=np.float32) for shape in ((M, K), (K, N)))
        C = cp.asnumpy(launch(each.variant, cp.asarray(A), cp.asarray(B)))
        if not np.allclose(C, A @ B, rtol=0, atol=1e-2):  # what a wrong kernel does is no truth
            raise Unable(f"{each.variant.key} is wrong at {M}×{N}×{K}; nothing was recorded.")
    name = cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)["name"]
    name = name.decode() if isinstance(name, bytes) else name
    device = device_named(name)
    record = {
        "schema": 1,
        "kind": "counted",
        "gpu": device.key if device else name,
        "gpu_name": name,
        "provenance": {
            **provenance,
            "nvrtc": nvrtc.version(),
            "arch": f"sm_{cp.cuda.Device().compute_capability}",
            "cupy": cp.__version__,
            "date": datetime.now(UTC).date().isoformat(),
        },
        "rows": [each.row() for each in made],
    }
    (directory / MADE).write_text(json.dumps(record))


def provenance_of(commit: str | None) -> dict[str, str | None]:
    """What other programs know about this machine and this copy; None for what they don't."""
    return {
        "driver": _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "ncu": _said("ncu", "--version"),
        "commit": commit or _said("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"),
    }


def _said(*command: str) -> str | None:
    """The last line that a command prints; None where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else None


# ----------------------------------------------------------------------------------- ncu


def unlisted(metrics: Sequence[str]) -> list[str]:
    """Those of `metrics` that `ncu --query-metrics` does not list for this GPU."""
    done = subprocess.run(["ncu", "--query-metrics"], capture_output=True, text=True)
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.split()}
    return [metric for metric in metrics if metric.rpartition(".")[0] not in listed]


def command(metrics: Sequence[str], directory: Path, provenance: Mapping) -> list[str]:
    """The ncu call that counts `metrics` for every launch of this script."""
    functions = "|".join(sorted({each.variant.step.function for each in launches()}))
    return [
        "ncu", "--clock-control", "none", "--target-processes", "all",
        "--kernel-name", f"regex:^({functions})$", "--metrics", ",".join(metrics),
        "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(directory / LOG),
        sys.executable, str(Path(__file__).resolve()),
        "--raw", str(directory), "--launch", json.dumps(provenance),
    ]  # fmt: skip


def count(directory: Path, commit: str | None) -> None:
    """Runs ncu, which leaves its log and the launcher's in `directory`.

    A metric that ncu does not list is asked for all the same, since its list is not complete; only
    if that fails is it left out. Raises Unable.
    """
    if not shutil.which("ncu"):
        raise Unable("Nsight Compute's `ncu` is not on the path; it comes with the CUDA toolkit.")
    metrics, provenance = list(METRICS.values()), provenance_of(commit)
    missing = unlisted(metrics)
    print(f"not in ncu --query-metrics: {', '.join(missing) or 'none'}", flush=True)
    attempts = [metrics]
    if missing and len(missing) < len(metrics):
        attempts.append([metric for metric in metrics if metric not in missing])
    for attempt in attempts:
        for name in (LOG, MADE):
            (directory / name).unlink(missing_ok=True)
        done = subprocess.run(command(attempt, directory, provenance), cwd=ROOT)
        if done.returncode == 0:
            return
    log = directory / LOG
    tail = log.read_text(errors="replace")[-2000:] if log.exists() else "it wrote nothing"
    raise Unable(f"ncu ended with exit code {done.returncode}:\n{tail}")


# ------------------------------------------------------------------------------ the record


def rows_of(log: str) -> Iterator[dict[str, str]]:
    """The kernels in ncu's CSV (one wide row each, `--page raw`), as dicts by column."""
    lines = [line for line in log.splitlines() if not line.startswith("==")]
    first = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        raise Unable(f"ncu's log holds no table. It begins:\n{log[:1000]}")
    return (row for row in csv.DictReader(lines[first:]) if row["ID"])  # no ID: the row of units


def merge(record: Mapping, log: str) -> dict:
    """The launcher's record with each row's counters, read from ncu's log.

    Raises Unable where the two disagree about number, order, names, grids or blocks, or a count is
    no whole number.
    """
    seen = list(rows_of(log))
    if len(seen) != len(record["rows"]):
        raise Unable(f"ncu saw {len(seen)} launches; {len(record['rows'])} were made.")
    absent = [field for field, metric in METRICS.items() if metric not in (seen or [{}])[0]]
    rows = []
    for number, (row, found) in enumerate(zip(record["rows"], seen, strict=True)):
        made = row["function"], row["grid"], row["block"]
        shapes = (
            [int(n) for n in re.findall(r"\d+", found[f"{w} Size"])] for w in ("Grid", "Block")
        )
        profiled = found["Kernel Name"].partition("(")[0], *shapes
        if profiled != made:
            raise Unable(f"launch {number}: ncu saw {profiled}; {made} was made.")
        counters = {
            field: _whole(found[metric], f"launch {number}, {row['kernel']}: {metric}")
            for field, metric in METRICS.items()
            if field not in absent
        }
        rows.append({**row, "counters": counters})
    return {**record, "metrics": METRICS, "missing": absent, "rows": rows}


def _whole(text: str, where: str) -> int:
    try:
        number = float(text.replace(",", ""))
        if number != int(number) or number < 0:
            raise ValueError
    except (ValueError, OverflowError):
        raise Unable(f"{where} is {text!r}, not a count.") from None
    return int(number)


def write(record: Mapping, path: Path) -> None:
    """The record as JSON, one row a line."""
    head = json.dumps({name: value for name, value in record.items() if name != "rows"}, indent=1)
    rows = ",\n".join(json.dumps(row) for row in record["rows"])
    path.write_text(f'{head[:-2]},\n "rows": [\n{rows}\n]}}\n', encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry", action="store_true", help="print the launches, make none")
    parser.add_argument("--out", type=Path, help="default: book/measurements/ncu_<gpu>.json")
    parser.add_argument("--commit", help="where this copy came from, if it is no git checkout")
    parser.add_argument("--raw", type=Path, help="directory that keeps what ncu wrote")
    parser.add_argument("--reread", action="store_true", help="launch nothing, read --raw")
    parser.add_argument("--launch", type=json.loads, help=argparse.SUPPRESS)  # under ncu
    given = parser.parse_args(argv)
    if given.dry:
        print(table(launches()))
        return 0
    if given.reread and not given.raw:
        parser.error("--reread needs --raw DIR")
    with tempfile.TemporaryDirectory() as temporary:
        raw = (given.raw or Path(temporary)).resolve()
        raw.mkdir(parents=True, exist_ok=True)
        try:
            if given.launch is not None:
                launch_all(raw, given.launch)
                return 0
            if not given.reread:
                count(raw, given.commit)
            record = merge(json.loads((raw / MADE).read_text()), (raw / LOG).read_text())
        except (Unable, FileNotFoundError) as problem:
            print(problem, file=sys.stderr)
            return 2
    out = given.out or MEASUREMENTS / f"ncu_{record['gpu']}.json"
    write(record, out)
    print(f"{out}: {len(record['rows'])} launches on {record['gpu_name']}", end="; ")
    print(f"not counted: {', '.join(record['missing']) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
