"""Is everything that the pages show of these very kernels? `python -m sgemm_lab release`.

A page draws what was taken of another version of a kernel in grey; only a release refuses it.
"""

import argparse
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from sgemm_lab.ladder import ladder
from sgemm_lab.measure import records
from sgemm_lab.paths import MEASUREMENTS

# What makes a file anew, by the first word of its name; what measures times is called by its GPU.
_MAKES = {
    "audits": "python -m sgemm_lab audit --record{gpu}",
    "counters": "python -m sgemm_lab record --missing",
    "resources": "python -m sgemm_lab record --missing",
    "ncu": "python benchmarks/hardware_counters.py",
    "r1": "python benchmarks/r1_study.py",
    "rates": "python benchmarks/throughput.py",
    "repeat": "python -m sgemm_lab bench --out book/measurements/{name}",
    "sanitizers": "python benchmarks/compute_sanitizer.py",
}
_MEASURE = "python -m sgemm_lab bench --missing"
_EVERY_STEP = (
    "counters",
    "resources",
    "ncu",
    "h200",
)  # by first words, what must hold each of them
COMMIT = re.compile(r"[0-9a-f]{7,40}")


def outdated(directory: Path = MEASUREMENTS) -> list[str]:
    """One sentence for each file of `directory` that this version of the kernels has outrun, that
    lacks a step or that does not say where its kernels came from, with the command that makes it
    anew. Raises RecordError for a file that is not whole."""
    told = []
    for path in sorted(Path(directory).glob("*.json")):
        record = records.read_json(path)
        if record.get("kind") == "reported":
            continue
        where = f" on {record['gpu_name']}" if "gpu_name" in record else ""
        first = path.stem.split("_")[0]
        gpu = " --gpu" if "gpu" in record else ""
        command = _MAKES.get(first, _MEASURE).format(name=path.name, gpu=gpu)
        held = {stem for stem, _ in _kernels(record)}
        lacks = [s.stem for s in ladder if s.function and s.stem not in held]
        if first in _EVERY_STEP and lacks:
            told.append(f"{path.name} has nothing of {', '.join(lacks)}. Run{where}: {command}")
        if stale := sorted({stem for stem, fresh in _kernels(record) if not fresh}):
            told.append(
                f"{path.name} was made with another version of {', '.join(stale)}. "
                f"Run{where}: {command}"
            )
        for commit in {str(commit) for commit in _commits(record)}:
            if not COMMIT.fullmatch(commit):
                told.append(
                    f"{path.name} names no commit that its kernels can be found in, but {commit}. "
                    f"Commit the kernels, then run{where}: {command}"
                )
    return told


def _kernels(record: Mapping) -> Iterator[tuple[str, bool]]:
    """(stem, whether it is of this version) of each row that is of a step's kernel."""
    rows = record.get("rows", record.get("runs", []))
    named = rows.items() if isinstance(rows, Mapping) else (
        (row.get("kernel", row.get("name", "")), row) for row in rows
    )  # fmt: skip
    for name, row in named:
        stem = name.partition(" ")[0]
        if "source_hash" in row and stem in ladder:
            yield stem, not records.stale(stem, row["source_hash"])


def _commits(record: Mapping) -> Iterator[object]:
    for part in [record.get("provenance", {}), *record.get("sessions", [])]:
        if "commit" in part:
            yield part["commit"]


def main(argv: list[str] | None = None) -> int:
    """`python -m sgemm_lab release`: 0 if all that is recorded is of these kernels, else 1."""
    argparse.ArgumentParser(
        prog="python -m sgemm_lab release", description=main.__doc__
    ).parse_args(argv)
    told = outdated()
    print("\n".join(told) or "Everything recorded is of these kernels.")
    return int(bool(told))
