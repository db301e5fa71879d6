"""What `benchmarks/r1_study.py` measured beside the ladder, checked when it is read.

One file a GPU, `book/measurements/r1_<gpu>.json`, with what R1 tells of and the ladder's records
lack. Its rows have four parts:

- "cpu": the product on the host: three loops in C (`benchmarks/triple_loop.c`), NumPy.
- "gpu": naive, tiled and cuBLAS in float32 and in float64, timed in turns by CUDA events.
- "start": the first launches of a process that has never used the GPU (`benchmarks/cold_start.py`).
- "ncu": what Nsight Compute says, with the clocks left alone ("free") or locked to the base clock
  ("locked"), which is its default. Where it was not run, the file's "ncu" says why.

Times are milliseconds.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import fastjsonschema

from sgemm_lab.devices import devices
from sgemm_lab.measure import records, schema
from sgemm_lab.measure.records import SCHEMA, RecordError, read_json, unknown_gpu
from sgemm_lab.measure.schema import POSITIVE, SIZE, SPREAD, TEXT
from sgemm_lab.paths import MEASUREMENTS


def float64_text(source: str) -> str:
    """A kernel's text with double for float, and nothing else changed."""
    return re.sub(r"\b0\.0f\b", "0.0", re.sub(r"\bfloat\b", "double", source))


# ---------------------------------------------------------------------------------- the schema

_COUNT = {"type": ["number", "null"], "minimum": 0}  # null: this ncu does not have it
_PERCENT = {"type": ["number", "null"], "minimum": 0, "maximum": 105}
_TIMES = {"type": "array", "items": POSITIVE, "minItems": 1}
_KERNEL = {"kernel": TEXT, "source_hash": TEXT, "N": SIZE}  # cuBLAS has no hash
_DTYPE = {"dtype": {"enum": ["float32", "float64"]}}
_STEPS = ("import_ms", "context_ms", "arrays_ms", "module_ms", "steady_ms", "steady_events_ms")


def _row(part: str, optional: tuple[str, ...] = (), **properties) -> dict:
    required = ["part", *(name for name in properties if name not in optional)]
    return schema.fields(required, part={"const": part}, **properties)


_PARTS = {
    "cpu": _row("cpu", ("flags",), kernel=TEXT, flags=TEXT, threads=SIZE, N=SIZE, ms=SPREAD,
                repeats=SIZE),
    "gpu": _row("gpu", ("source_hash", "ratio"), **_KERNEL, **_DTYPE, ms=SPREAD, repeats=SIZE,
                error={"type": "number", "minimum": 0, "maximum": 1},  # as a share of its bound
                ratio=schema.fields(["low", "median", "high"], low=POSITIVE, median=POSITIVE,
                              high=POSITIVE)),  # float64's time to float32's, of the pairs
    "start": _row("start", **_KERNEL, cache={"enum": ["empty", "filled"]}, processes=SIZE,
                  **dict.fromkeys(_STEPS, SPREAD),
                  launch_ms=_TIMES, launch_events_ms=_TIMES),  # medians of the n-th launches
    "ncu": _row("ncu", **_KERNEL, **_DTYPE, clocks={"enum": ["free", "locked"]}, launches=SIZE,
                ms=POSITIVE, sm_mhz={"type": "number", "minimum": 100, "maximum": 4000},
                registers=SIZE, occupancy_pct=_PERCENT, dram_read_bytes=_COUNT,
                shared_conflicts=_COUNT, fp64_pct=_PERCENT,
                fma_pct=_PERCENT, lsu_pct=_PERCENT),
}  # fmt: skip
_WHY_NOT = {"type": ["string", "null"], "minLength": 1}
_SCHEMA = schema.fields(
    ["schema", "kind", "gpu", "gpu_name", "provenance", "cpu", "ncu", "rows"],
    schema={"const": SCHEMA},
    kind={"const": "r1"},
    gpu={"enum": list(devices)},
    gpu_name=TEXT,
    provenance={"type": "object", "required": ["driver", "cuda", "nvrtc", "cublas", "date",
                                               "commit"]},
    cpu=schema.fields(["model", "cores", "compiler", "blas"], model=TEXT, cores=SIZE, compiler=TEXT,
                blas=TEXT),
    ncu=schema.fields(["free", "locked"], free=_WHY_NOT, locked=_WHY_NOT),  # null: it was run
    rows={"type": "array", "items": {"type": "object", "required": ["part"],
                                     "properties": {"part": {"enum": list(_PARTS)}}}},
)  # fmt: skip
_validate = fastjsonschema.compile(_SCHEMA)
_validate_row = {part: fastjsonschema.compile(row) for part, row in _PARTS.items()}


def validate(record: Mapping, where: str = "record") -> None:
    """Raises RecordError, naming the place, unless `record` is a good file of this kind."""
    if isinstance(record, Mapping) and record.get("gpu") not in devices:
        raise RecordError(f"{where}: {unknown_gpu(repr(record.get('gpu')))}")
    at, seen = where, set()
    try:
        _validate(record)
        for index, row in enumerate(record["rows"]):
            at = f"{where}: rows[{index}]"
            _validate_row[row["part"]](row)
            for name in (n for n, value in row.items() if isinstance(value, dict) and n != "ratio"):
                if wrong := schema.disorder(row[name]):
                    raise RecordError(f"{at}.{name}: {wrong}")
            identity = tuple(row.get(name) for name in _IDENTITY)
            if identity in seen:
                raise RecordError(f"{at}: the same measurement as an earlier row of this file")
            seen.add(identity)
    except fastjsonschema.JsonSchemaValueException as error:
        raise RecordError(f"{at}: {error.message.removeprefix('data.')}") from None


_IDENTITY = ("part", "kernel", "flags", "threads", "dtype", "cache", "clocks", "N")


# ---------------------------------------------------------------------------------- the reader


@dataclass(frozen=True)
class Study:
    """One file: the GPU's key, and the record as its schema describes it."""

    gpu: str
    record: Mapping = field(hash=False, repr=False)

    def rows(self, part: str, **wanted) -> list[dict]:
        """The rows of a part that have these values, in the file's order."""
        return [
            row for row in self.record["rows"]
            if row["part"] == part and all(row.get(name) == v for name, v in wanted.items())
        ]  # fmt: skip

    def row(self, part: str, **wanted) -> dict:
        """The one row that has these values. LookupError unless there is exactly one."""
        found = self.rows(part, **wanted)
        if len(found) != 1:
            what = ", ".join(f"{name}={value!r}" for name, value in wanted.items())
            raise LookupError(f"r1_{self.gpu}.json has {len(found)} rows of {part!r} with {what}")
        return found[0]

    def ms(self, part: str, **wanted) -> float:
        """That row's time: the median."""
        ms = self.row(part, **wanted)["ms"]
        return ms["median"] if isinstance(ms, Mapping) else ms


def r1(gpu: str = "h200", directory: Path = MEASUREMENTS) -> Study:
    """The study of one GPU. LookupError, with the command to run, where there is none; RecordError
    for a file that is not whole and valid."""
    path = Path(directory) / f"r1_{gpu}.json"
    if not path.exists():
        raise LookupError(f"no {path.name}: on that GPU run `python benchmarks/r1_study.py`")
    record = read_json(path)
    validate(record, path.name)
    return Study(gpu, record)


def studied(directory: Path = MEASUREMENTS) -> list[str]:
    """The GPUs that have a file, in the order of `devices`."""
    return [gpu for gpu in devices if (Path(directory) / f"r1_{gpu}.json").exists()]


def stale(row: Mapping) -> bool:
    """Whether the kernel's tokens have changed since this row was measured."""
    return records.stale(row["kernel"].partition(" ")[0], row.get("source_hash"))
