"""Recorded results: what `book/measurements/*.json` holds, checked when it is read.

Four kinds of file, all written by programs and read here:

- `<gpu>.json`, kind "measured": this book's kernels, timed by `python -m sgemm_lab bench`.
- `<gpu>-<source>.json`, kind "reported": figures other people published, with their source. The
  kernel was theirs; `step` and `macros` only say which of ours is closest (`step` may be null).
- `counters.json`, `resources.json`: what the PTX machine counts and what ptxas reports for every
  variant, written by `python -m sgemm_lab record` with the pinned NVRTC, recomputed by the tests.

Times are milliseconds, rates GFLOPS = 2·M·N·K / t · 1e-9.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import fastjsonschema  # jsonschema takes 4 s to import where its format checkers are installed

from sgemm_lab.devices import devices
from sgemm_lab.measure import schema
from sgemm_lab.measure.schema import POSITIVE, SIZE, SPREAD, TEXT
from sgemm_lab.paths import MEASUREMENTS

SCHEMA = 1
ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90")  # resources.json has each of them
SIZES = ((256, 256, 256), (129, 65, 97))  # counters.json: M, N, K; the second for defaults only


class RecordError(ValueError):
    """A measurement file that cannot be trusted; the message names the file, the place and why."""


# ---------------------------------------------------------------------------------- the schema

# Why a chip lowers its clock: bits of nvidia-smi's clocks_event_reasons.active (NVML's manual)
THROTTLES = {"power cap": 0x4, "heat": 0x20 | 0x40, "hardware slowdown": 0x8, "power brake": 0x80}

_RUN = schema.fields(
    ["step", "macros", "M", "N", "K"],
    step={"type": ["integer", "null"], "minimum": 0},
    kernel=TEXT,
    macros={"type": "object", "additionalProperties": {"type": "integer"}},
    source_hash=TEXT,
    M=SIZE,
    N=SIZE,
    K=SIZE,
    ms=SPREAD,
    cublas_ms=SPREAD,
    ratio=schema.fields(["median", "low", "high"], median=POSITIVE, low=POSITIVE, high=POSITIVE),
    repeats=SIZE,  # pairs with cuBLAS
    launches=SIZE,  # back to back between two events; above 1, L2 is warm after the first
    session={"type": "integer", "minimum": 0},  # index into `sessions`
    clock_mhz=POSITIVE,  # of the SMs, median of the samples while this was measured
    throttled={"type": "array", "items": {"enum": list(THROTTLES)}, "uniqueItems": True},
    gflops=POSITIVE,
    note=TEXT,
)
_RULES = {  # what each kind of run must have besides
    "measured": {
        "required": ["ms", "cublas_ms", "ratio", "repeats", "launches", "session"],
        "not": {"required": ["gflops"]},  # derived from ms
    },
    "reported": {"required": ["kernel"], "anyOf": [{"required": ["ms"]}, {"required": ["gflops"]}]},
}


# What all runs of a measured file share, and what belongs to one call of the benchmark
MACHINE = ("gpu_name", "driver", "cuda", "nvrtc", "cublas")
_PROVENANCE = {
    "measured": schema.fields(
        MACHINE[1:],
        cupy=TEXT,
        l2_bytes=SIZE,
        flush_bytes=SIZE,
        **dict.fromkeys(MACHINE[1:], TEXT),
    ),
    "reported": {"type": "object"},
}
_SESSION = schema.fields(
    ["started", "commit", "protocol"],
    started={"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"},
    commit={"type": ["string", "null"]},  # of the kernels
    protocol=TEXT,
    clock_mhz=SPREAD,
    power_w=SPREAD,
    temperature_c=SPREAD,
)


def _schema_of(kind: str) -> dict:
    header = ["schema", "kind", "gpu", "gpu_name", "provenance", "runs"]
    more = {"measured": ["sessions"], "reported": ["source", "label"]}
    return schema.fields(
        header + more[kind],
        schema={"const": SCHEMA},
        kind={"const": kind},
        gpu={"enum": list(devices)},
        gpu_name=TEXT,
        source=TEXT,
        label=TEXT,
        provenance=_PROVENANCE[kind],
        sessions={"type": "array", "items": _SESSION},
        runs={"type": "array", "items": {"allOf": [_RUN, _RULES[kind]]}},
    )


_VALIDATORS = {kind: fastjsonschema.compile(_schema_of(kind)) for kind in _RULES}


def validate(record: Mapping, where: str = "record") -> None:
    """Raises RecordError, naming the place and the way out, unless `record` is a good file."""
    if not isinstance(record, Mapping) or record.get("kind") not in _VALIDATORS:
        raise RecordError(f'{where}: "kind" must be one of {", ".join(_VALIDATORS)}')
    if record.get("gpu") not in devices:
        raise RecordError(f"{where}: {unknown_gpu(repr(record.get('gpu')))}")
    try:
        _VALIDATORS[record["kind"]](record)
    except fastjsonschema.JsonSchemaValueException as error:
        raise RecordError(f"{where}: {error.message.removeprefix('data.')}") from None
    if record["kind"] == "reported":
        return
    seen = set()
    for index, run in enumerate(record["runs"]):
        at = f"{where}: runs[{index}]"
        if run["step"] and "source_hash" not in run:
            raise RecordError(f"{at}: a run of one of our kernels needs its source_hash")
        if run["step"] == 0 and "source_hash" in run:
            raise RecordError(f"{at}: step 0 is cuBLAS, which has no source_hash")
        if run["session"] >= len(record["sessions"]):
            raise RecordError(f"{at}: there is no session {run['session']}")
        for name in ("ms", "cublas_ms"):
            if wrong := schema.disorder(run[name]):
                raise RecordError(f"{at}.{name}: {wrong}")
        if identity(run) in seen:
            raise RecordError(f"{at}: the same kernel and size as an earlier run of this file")
        seen.add(identity(run))


def unknown_gpu(name: str) -> str:
    """What to do about a GPU that the book does not know, in two sentences."""
    return (
        f"unknown GPU {name}. Known are {', '.join(devices)}; add its data sheet to "
        "sgemm_lab/devices.py first."
    )


def identity(run: Mapping) -> tuple:
    """What a run was of: runs of one file differ in it."""
    return (run["step"], tuple(sorted(run["macros"].items())), run["M"], run["N"], run["K"])


def read(path: Path) -> dict:
    """The validated contents of one measured or reported file. Raises RecordError."""
    path = Path(path)
    record = read_json(path)
    validate(record, path.name)
    return record


def read_json(path: Path):
    def finite(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            raise RecordError(f"{path.name}: {text} is not a finite number")
        return value

    try:
        return json.loads(path.read_text("utf-8"), parse_float=finite, parse_constant=finite)
    except json.JSONDecodeError as error:
        raise RecordError(
            f"{path.name}: not complete JSON ({error}). Restore it with git, or measure again."
        ) from None


def write(path: Path, record: Mapping) -> None:
    """Validates `record`, then replaces `path` in one step: a crash leaves the old file whole.

    One run a line, so that a diff shows what changed.
    """
    path = Path(path)
    validate(record, path.name)
    head = {name: value for name, value in record.items() if name != "runs"}
    _replace(path, head, "runs", [json.dumps(run, ensure_ascii=False) for run in record["runs"]])


def _replace(path: Path, head: Mapping, name: str, lines: list[str], brackets: str = "[]") -> None:
    opening = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    body = ",\n  ".join(lines)
    scratch = path.with_suffix(".tmp")
    scratch.write_text(
        f'{opening},\n "{name}": {brackets[0]}\n  {body}\n {brackets[1]}\n}}\n', encoding="utf-8"
    )
    os.replace(scratch, path)


def write_rows(path: Path, rows: Mapping[str, Mapping], **head) -> None:
    """Writes a file of computed rows, a line each, all of it or nothing; `head` stands first."""
    lines = (f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in rows.items())
    _replace(path, {"schema": SCHEMA, **head}, "rows", [*lines], "{}")


def merge(path: Path, record: Mapping) -> None:
    """Adds the runs of `record` to the measured file at `path`; a run of the same kernel and size
    is replaced, and a session of which no run is left goes. Raises RecordError, changing nothing,
    where the two were taken on different hardware or software: one file is one machine state.
    """
    path = Path(path)
    if not path.exists():
        return write(path, record)
    old = read(path)
    validate(record, "the new runs")
    for name in MACHINE:
        was, now = (r.get(name, r["provenance"].get(name)) for r in (old, record))
        if was != now:
            raise RecordError(
                f"{path.name} was measured with {name} {was}, this run with {now}. Nothing was "
                f"changed; measure everything again into a new file (--out), or delete {path.name}."
            )
    runs = {
        identity(run): (run, each["sessions"][run["session"]])
        for each in (old, record)
        for run in each["runs"]
    }
    sessions = {s["started"]: s for _, s in runs.values()}
    starts = sorted(sessions)
    merged = [
        run | {"session": starts.index(s["started"])}
        for _, (run, s) in sorted(runs.items(), key=lambda item: item[0])
    ]
    write(path, {**record, "sessions": [sessions[start] for start in starts], "runs": merged})


# ------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class Run:
    """One kernel at one size on one GPU."""

    gpu: str  # a key of `devices`
    kind: str  # "measured" or "reported"
    label: str  # "measured", or the source's short name: "R3"
    source: str  # who says so
    kernel: str  # "02_tiled TILE=32 …", or the other author's kernel: "R3 step 2"
    step: int | None
    macros: Mapping[str, int] = field(hash=False)
    M: int
    N: int
    K: int
    ms: float | None  # median
    ms_min: float | None
    ms_max: float | None
    repeats: int | None
    published_gflops: float | None
    cublas_gflops: float | None  # cuBLAS in the same session, at the same size
    ratio: tuple[float, float, float] | None  # to cuBLAS: low, median, high of the pairs (95 %)
    source_hash: str | None
    note: str
    throttled: tuple[str, ...] | None  # why the clock was lowered meanwhile; None: not known
    provenance: Mapping = field(hash=False, repr=False)  # of the file, and of the run's session

    @property
    def gflops(self) -> float:
        """The published rate where there is one, else 2·M·N·K / median time."""
        return self.published_gflops or _gflops(self.M, self.N, self.K, self.ms)

    @property
    def pct_of_cublas(self) -> float | None:
        """Per cent of cuBLAS: the median of the pairs where measured, else the quotient of the two
        published rates; None where the source gives no cuBLAS at this size."""
        if self.ratio:
            return 100 * self.ratio[1]
        return 100 * self.gflops / self.cublas_gflops if self.cublas_gflops else None

    @property
    def stale(self) -> bool:
        """Whether the kernel's tokens have changed since this was measured."""
        return stale(self.step, self.source_hash)


def _gflops(M: int, N: int, K: int, ms: float) -> float:
    return 2 * M * N * K / ms * 1e-6


def stale(step: int | str | None, source_hash: str | None) -> bool:
    """Whether the tokens of a step's kernel, by number or stem, are no longer those of the hash."""
    from sgemm_lab.ladder import ladder

    if not source_hash or step not in ladder:
        return False  # someone else's kernel, or a step that is not here
    return ladder[step]().source_hash != source_hash


def runs_of(record: Mapping) -> list[Run]:
    """The runs of the contents of one file, which must be valid."""
    cublas = {
        (run["M"], run["N"], run["K"]): run.get("gflops") or _gflops(
            run["M"], run["N"], run["K"], run["ms"]["median"])
        for run in record["runs"] if run["step"] == 0
    }  # fmt: skip

    def one(run: Mapping) -> Run:
        size = run["M"], run["N"], run["K"]
        session = record["sessions"][run["session"]] if "session" in run else {}
        ms, ratio, reference = run.get("ms", {}), run.get("ratio"), run.get("cublas_ms")
        return Run(
            gpu=record["gpu"],
            kind=record["kind"],
            label=record.get("label", "measured"),
            source=record.get("source", f"measured on {record['gpu_name']}"),
            kernel=run.get("kernel") or f"step {run['step']}",
            step=run["step"],
            macros=MappingProxyType(run["macros"]),
            M=size[0],
            N=size[1],
            K=size[2],
            ms=ms.get("median"),
            ms_min=ms.get("min"),
            ms_max=ms.get("max"),
            repeats=run.get("repeats"),
            published_gflops=run.get("gflops") if record["kind"] == "reported" else None,
            cublas_gflops=_gflops(*size, reference["median"]) if reference else cublas.get(size),
            ratio=(ratio["low"], ratio["median"], ratio["high"]) if ratio else None,
            source_hash=run.get("source_hash"),
            note=run.get("note", ""),
            throttled=tuple(run["throttled"]) if "throttled" in run else None,
            provenance=MappingProxyType(record["provenance"] | session),
        )

    return [one(run) for run in record["runs"]]


@lru_cache(maxsize=64)
def _file(path: Path, changed: int) -> tuple[Run, ...]:
    return tuple(runs_of(read(path)))


def load(directory: Path = MEASUREMENTS) -> tuple[Run, ...]:
    """Every run of every measured and reported file, file by file in the order of their names.

    Raises RecordError for a file that is not whole and valid.
    """
    paths = sorted(p for p in Path(directory).glob("*.json") if p.stem.split("_")[0] not in _OTHERS)
    return tuple(run for path in paths for run in _file(path, path.stat().st_mtime_ns))


def runs(
    gpu: str | None = None,
    step: int | None = None,
    macros: Mapping[str, int] | None = None,
    N: int | None = None,
    kind: str | None = None,
    label: str | None = None,
    directory: Path = MEASUREMENTS,
) -> list[Run]:
    """The runs that match everything given. `N` means the square M = N = K; `macros` may name only
    some: those must be equal."""
    wanted = {"gpu": gpu, "step": step, "kind": kind, "label": label}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    return [
        run
        for run in load(directory)
        if all(getattr(run, name) == value for name, value in wanted.items())
        and (N is None or run.M == run.N == run.K == N)
        and all(run.macros.get(name) == value for name, value in dict(macros or {}).items())
    ]


# ------------------------------------------------------------------- counters and resources

_TABLES = ("counters", "resources")
_OTHERS = (
    *_TABLES,
    "audits",
    "ncu",
    "r1",
    "rates",
    "repeat",
    "sanitizers",
)  # files of `load`'s directory with no runs


@dataclass(frozen=True)
class Recorded:
    """One row of counters.json or resources.json."""

    values: Mapping[str, object] = field(hash=False)
    source_hash: str
    nvrtc: str
    stale: bool

    def __getattr__(self, name: str):
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(
                f"{name!r} was not recorded; there are {', '.join(self.values)}"
            ) from None


def counters(variant, M: int = 256, N: int = 256, K: int = 256, directory: Path = MEASUREMENTS):
    """What the PTX machine counted for `variant` at M×N×K: a Recorded whose attributes are those of
    `profile(...).counters`. Raises LookupError with the command to run where none is recorded."""
    return _lookup("counters", variant, f"{M}x{N}x{K}", directory)


def resources(variant, arch: str, directory: Path = MEASUREMENTS) -> Recorded:
    """What ptxas reported for `variant` on `arch` ("sm_75"): registers, shared_bytes, stack,
    spill_stores, spill_loads. Raises LookupError as `counters` does."""
    return _lookup("resources", variant, arch, directory)


def _lookup(table: str, variant, column: str, directory: Path) -> Recorded:
    path = Path(directory) / f"{table}.json"
    key = f"{variant.key} {column}"
    rows = _table(path, path.stat().st_mtime_ns) if path.exists() else {}
    if key not in rows:
        raise LookupError(f"no {table} recorded for {key}: run `python -m sgemm_lab record`")
    row = dict(rows[key])
    source_hash = row.pop("source_hash")
    return Recorded(
        nvrtc=row.pop("nvrtc"),
        source_hash=source_hash,
        stale=source_hash != variant.source_hash,
        values=MappingProxyType(row),
    )


@lru_cache(maxsize=8)
def _table(path: Path, changed: int) -> dict:
    return read_json(path)["rows"]


def count(variant, M: int, N: int, K: int) -> dict:
    """What the PTX machine counts for `variant` at M×N×K, α = 1, β = 0, from one block of each
    kind."""
    from sgemm_lab.run.sample import sample

    return _plain(sample(variant, M, N, K).counters)


def compile_report(variant, arch: str) -> dict:
    """What ptxas reports for `variant` on `arch`, as a plain dict."""
    from sgemm_lab.run.resources import resources as measure

    return _plain(measure(variant, arch))


def _plain(value):
    """A dataclass or mapping of numbers as JSON holds it."""
    if is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return value.item() if hasattr(value, "item") else value


def record(
    directory: Path = MEASUREMENTS, missing: bool = False, progress: Callable = iter
) -> None:
    """Writes counters.json and resources.json for every variant of every step that has a kernel.

    Both are written after each variant, so that nothing is lost when this is stopped. `missing`:
    rows of this very kernel and compiler stay as they are; without it all are computed again.
    """
    from sgemm_lab.ladder import ladder
    from sgemm_lab.run.nvrtc import version

    paths = {name: Path(directory) / f"{name}.json" for name in _TABLES}
    old = {name: read_json(p)["rows"] if p.exists() else {} for name, p in paths.items()}
    new = {name: {} for name in _TABLES}

    def row(table: str, variant, column: str, compute: Callable, *given) -> None:
        key, origin = f"{variant.key} {column}", {"source_hash": variant.source_hash}
        origin["nvrtc"] = version()
        kept = old[table].get(key, {}) if missing else {}
        fresh = origin.items() <= kept.items()
        new[table][key] = kept if fresh else compute(variant, *given) | origin

    def save(rest: Mapping = MappingProxyType({})) -> None:
        for name, path in paths.items():
            rows = new[name] | {k: r for k, r in rest.get(name, {}).items() if k not in new[name]}
            write_rows(path, rows)

    for variant in progress([v for step in ladder if step.function for v in step.variants()]):
        for size in SIZES if variant == variant.step() else SIZES[:1]:
            row("counters", variant, "{}x{}x{}".format(*size), count, *size)
        for arch in ARCHS:
            row("resources", variant, arch, compile_report, arch)
        save(old)  # with the old rows of those that come next
    save()


def main(argv: list[str] | None = None) -> int:
    """`python -m sgemm_lab record`: recompute what the pages show of counters and resources."""
    import argparse

    from tqdm import tqdm

    parser = argparse.ArgumentParser(prog="python -m sgemm_lab record", description=main.__doc__)
    parser.add_argument("--missing", action="store_true",
                        help="keep what was recorded of the same kernel with the same compiler; "
                        "goes on where a stopped run ended")  # fmt: skip
    given = parser.parse_args(argv)
    record(missing=given.missing, progress=lambda variants: tqdm(variants, unit="variant"))
    return 0
