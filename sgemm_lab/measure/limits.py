"""The time that each resource of a GPU would need for a product, if nothing else took any.

Every such time is a lower bound, so the largest is one too: a bound, no prediction. It comes from
the counters of the PTX machine (counters.json), what ptxas reports (resources.json), the data sheet
at the boost clock (devices.py), and rates that this book measured (rates_<gpu>.json, written by
benchmarks/throughput.py) or others did. Where no source gives a rate, the limit is left out and
says so.

The bounds are as good as these rates. Multiply-adds, issue slots, wavefronts and DRAM have limits
by design, from a data sheet or a manual. For L1, L2 and all latencies the best that anybody
measured is taken; a cleverer loop might do better.

Assumed, not measured: that a wavefront that is not full needs Turing's shared memory, which moves
64 bytes a cycle, two cycles like a full one; that lanes pair up on other architectures as they do
on sm_90; that L2 holds nothing of A and B before the launch (else DRAM's time is no bound).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, prod, sqrt
from pathlib import Path

import fastjsonschema

from sgemm_lab.devices import Device, devices
from sgemm_lab.ladder import Step, Variant, as_shape, as_variant
from sgemm_lab.measure import records
from sgemm_lab.paths import MEASUREMENTS
from sgemm_lab.run.resources import occupancy
from sgemm_lab.simt.counters import SECTOR, WARP, WAVEFRONT

FLOAT = 4  # bytes
LINE = 128  # bytes of L1
SCHEDULERS = 4  # of an SM; each starts one instruction of a warp a cycle
COUNTED = 256, 256, 256  # the product of the recorded counters, which all steps' tiles divide
_NO_SOURCE = "no source that we could check"
PREFETCHING = "10_prefetch", "11_double_buffer"  # compute while the next tile is on its way


@dataclass(frozen=True)
class Limit:
    """The time that one resource needs at least; None where no rate is known. `how`: in words;
    `busy`: what a latency is made of besides waiting, "98 % shared memory"."""

    name: str
    seconds: float | None
    how: str
    busy: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.busy})" if self.busy else self.name


@dataclass(frozen=True)
class Limits:
    """What `limits` found. `uneven` is no limit of its own but a part of the binding one: what that
    would take less if every SM had equally many blocks; None where no resource of an SM binds.
    `left_out`: limits and waits for which no source gives a rate."""

    rows: tuple[Limit, ...]
    uneven: Limit | None
    left_out: tuple[str, ...]
    flops: int

    @property
    def known(self) -> tuple[Limit, ...]:
        """The limits that are not left out."""
        return tuple(limit for limit in self.rows if limit.seconds is not None)

    @property
    def binding(self) -> Limit:
        """The largest."""
        return max(self.known, key=lambda limit: limit.seconds)

    @property
    def gflops(self) -> float:
        """The rate that the binding limit leaves possible."""
        return self.flops / self.binding.seconds * 1e-9


# --------------------------------------------------------------------------------- the rates


@dataclass(frozen=True)
class Rates:
    """What the data sheet doesn't say. Latencies in cycles; 0: no source, and left out.

    `shared`: of a load. `handoff`: from a store to shared memory, through a barrier, to a load's
    result, for one warp. `lines`: lines of global memory that an SM's L1 serves a cycle.
    """

    source: str
    ffma: float = 4
    shared: float = 0
    l1: float = 0
    l2: float = 0
    barrier: float = 0
    handoff: float = 0
    l2_gbs: float | None = None
    lines: float | None = None


_GUIDE = "a multiply-add's 4 cycles: CUDA C++ Programming Guide"
_CITED = {
    "t4": Rates(
        f"{_GUIDE}; the rest: Jia et al., “Dissecting the NVidia Turing T4 GPU via "
        "Microbenchmarking” (2019)",
        shared=19, l1=32, l2=188, l2_gbs=1270,
    ),
    "a100": Rates(
        f"{_GUIDE}; L2, 5120 bytes a cycle: NVIDIA A100 whitepaper; other latencies: Luo et al., "
        "“Benchmarking and Dissecting the Nvidia Hopper GPU Architecture” (2024)",
        shared=29, l2=261.5, l2_gbs=5120 * 1.41,
    ),
}  # fmt: skip

_NUMBERS = {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}}
_ROWS = {"type": "array", "minItems": 1, "items": {"type": "object"}}
_check = fastjsonschema.compile({
    "type": "object",
    "required": ["schema", "kind", "gpu", "gpu_name", "provenance", "rates", "latencies",
                 "shared", "mixed", "global"],
    "properties": {
        "schema": {"const": records.SCHEMA},
        "kind": {"const": "rates"},
        "gpu": {"enum": list(devices)},
        "rates": _NUMBERS | {"required": ["ffma_lanes", "clock_mhz", "l2_gbs", "l2_same_gbs"]},
        "latencies": _NUMBERS | {"required": ["ffma", "shared", "l1", "l2", "barrier_32",
                                              "handoff_32"]},
        "shared": _ROWS,
        "mixed": _ROWS,
        "global": _ROWS,
    },
})  # fmt: skip


def validate(record: object, where: str) -> None:
    """Raises RecordError unless `record` is what benchmarks/throughput.py writes."""
    try:
        _check(record)
    except fastjsonschema.JsonSchemaValueException as error:
        raise records.RecordError(f"{where}: {error.message.removeprefix('data.')}") from None


def measured(device: Device | str, directory: Path = MEASUREMENTS) -> dict | None:
    """What benchmarks/throughput.py recorded of a GPU; None if nothing. Raises RecordError."""
    path = Path(directory) / f"rates_{_device(device).key}.json"
    return _file(path, path.stat().st_mtime_ns) if path.exists() else None


@lru_cache(maxsize=8)
def _file(path: Path, changed: int) -> dict:
    record = records.read_json(path)
    validate(record, path.name)
    return record


def rates(device: Device | str, directory: Path = MEASUREMENTS) -> Rates:
    """The rates of a GPU: measured by this book, else cited, else what holds for all."""
    device = _device(device)
    record = measured(device, directory)
    if record is None:
        return _CITED.get(device.key, Rates(_GUIDE))
    speed = record["rates"]
    # whole cycles: the loop that measured took some time of its own
    took = {name: int(cycles) for name, cycles in record["latencies"].items()}
    return Rates(
        source=f"measured on {record['gpu_name']}; of L2 what all SMs received that read the same "
        f"lines, {_spaced(speed['l2_same_gbs'])} GB a second, or different ones, "
        f"{_spaced(speed['l2_gbs'])}",
        ffma=took["ffma"],
        shared=took["shared"],
        l1=took["l1"],
        l2=took["l2"],
        barrier=took["barrier_32"],
        handoff=took["handoff_32"],
        l2_gbs=max(speed["l2_gbs"], speed["l2_same_gbs"]),
        lines=max(row["lines"] / row["cycles"] for row in record["global"]),
    )


def load_slots(
    device: Device | str, bits: int, wavefronts: int, directory: Path = MEASUREMENTS
) -> tuple[float, float]:
    """The time that a shared load of so many bits a lane and so many wavefronts takes from the
    multiply-adds around it, in slots, the cycles of one scheduler: least and most over the patterns
    of addresses, measured with 16 multiply-adds a load. What the loop itself takes is in it.

    No limit: some other order of instructions may take less. LookupError where no such load is
    recorded.
    """
    record, key = measured(device, directory), _device(device).key
    if record is None:
        raise LookupError(f"no rates_{key}.json: run benchmarks/throughput.py there")
    ffma = 16  # for each load, one of a warp a slot
    slots = [
        SCHEDULERS * row["cycles"] - ffma
        for row in record["mixed"]
        if (row["bits"], row["wavefronts"]) == (bits, wavefronts)
    ]
    if not slots:
        raise LookupError(
            f"rates_{key}.json has no load of {bits} bits and {wavefronts} wavefronts"
        )
    return min(slots), max(slots)


def _device(device: Device | str) -> Device:
    if isinstance(device, Device):
        return device
    if device not in devices:
        raise ValueError(f"{device!r} is not known; known are {', '.join(devices)}.")
    return devices[device]


# -------------------------------------------------------------------------------- the limits


def limits(
    variant: Variant | Step, device: Device | str, M: int, N: int, K: int,
    directory: Path = MEASUREMENTS,
) -> Limits:  # fmt: skip
    """What each resource of `device` needs at least for C = A·B (M×K, K×N) by `variant`.

    Of a size that the tile doesn't divide only the whole tiles are counted, which is less than the
    kernel does; so are no stores to C. Raises ValueError where not one tile is whole, LookupError
    where counters or resources are not recorded.
    """
    variant, device = as_variant(variant), _device(device)
    M, N, K = as_shape((M, N, K))
    BM, BN, BK = variant.tile
    blocks, tiles = (M // BM) * (N // BN), K // BK
    if not blocks * tiles:
        raise ValueError(f"{M}×{N}×{K} has no whole tile of {BM}×{BN}×{BK}: nothing to bound.")
    known, tile = rates(device, directory), _tile(variant, directory)
    used = records.resources(variant, device.arch, directory)
    fit = occupancy(device, variant.threads, used.registers, used.shared_bytes).blocks
    hertz = device.clock_mhz * 1e6

    busiest, evenly = ceil(blocks / device.sms), blocks / device.sms
    rows = []
    for name, unit, amount, rate in _of_an_sm(tile, device, known):
        if rate is None:
            rows.append(Limit(name, None, f"{_NO_SOURCE} says how many {unit} a cycle"))
            continue
        how = f"{_spaced(amount)} {unit} a tile and block, {rate:.3g} a cycle"
        how += ", measured" * (name == "L1")
        rows.append(Limit(name, amount / rate * tiles * busiest / hertz, how))
    of_an_sm = list(rows)
    rows.append(_l2(known, blocks, fit, tiles * BK, BM * BN))
    size = FLOAT * (M * K + K * N + max(0, M * N - device.l2_mib * 2**20 // FLOAT))
    how = f"{_megabytes(size)}: A and B once, and of C what L2 can't hold"
    rows.append(Limit("DRAM", size / device.dram_gbs * 1e-9, how))
    left_out = [limit.name for limit in rows if limit.seconds is None]

    rounds = ceil(blocks / (device.sms * fit))
    # what another block of this SM has fetched may still be in L1
    fetch = known.l2 if blocks <= device.sms else known.l1
    parts, unknown = _alone(variant, tile, device, known, fetch)
    if unknown:
        left_out.append(f"waiting for {', '.join(unknown)}")
    rows.append(_latency(parts, unknown, rounds, tiles, hertz))

    found = Limits(tuple(rows), None, tuple(left_out), 2 * M * N * K)
    if found.binding not in of_an_sm:
        return found
    count = f"{busiest} block{'s' * (busiest > 1)}, {evenly:.4g} on average"
    more = found.binding.seconds * (1 - evenly / busiest)
    part = Limit("uneven share", more, f"of {found.binding.name}: the busiest SM has {count}")
    return replace(found, uneven=part)


def _latency(
    parts: Counter[str], unknown: list[str], rounds: int, tiles: int, hertz: float
) -> Limit:
    """`rounds` of blocks, one after the other, each with so many tiles, each with these `parts`."""
    cycles, most = parts.total(), max(parts, key=parts.get)
    what = ", ".join(f"{_spaced(part)} {name}" for name, part in parts.items())
    left = f"; waiting for {', '.join(unknown)} left out: no source" if unknown else ""
    how = (
        f"{rounds} round{'s' * (rounds > 1)} of blocks × {tiles} tiles × {_spaced(cycles)} cycles: "
        f"{what}{left}"
    )
    busy = f"{100 * parts[most] / cycles:.0f} % {most}"
    return Limit("latency", rounds * tiles * cycles / hertz, how, busy)


def _spaced(value: float) -> str:
    return f"{value:,.0f}".replace(",", "\N{NO-BREAK SPACE}")


def _megabytes(size: float) -> str:
    return f"{_spaced(size / 1e6) if size > 1e7 else round(size / 1e6, 1)} MB"


@dataclass(frozen=True)
class _Tile:
    """What a block does for one tile: instructions of warps, wavefronts, lines of global memory,
    and barriers that each warp meets at. Stores to C are not among them."""

    ffma: float
    requests: float  # global loads
    lines: float
    loads: float  # of shared memory
    stores: float
    load_wavefronts: float
    store_wavefronts: float
    barriers: float


def _tile(variant: Variant, directory: Path) -> _Tile:
    """These counts grow with M·N·K (tests/test_limits.py), so one product has them all."""
    count = records.counters(variant, *COUNTED, directory)
    whole = (
        count.ffma / WARP,
        count.global_load_requests,
        _lines(variant, count),
        count.shared_load_instructions,
        count.shared_store_instructions,
        count.shared_load_wavefronts,
        count.shared_store_wavefronts,
        count.barriers / (variant.threads // WARP),
    )
    part = prod(variant.tile) / prod(COUNTED)
    return _Tile(*(each * part for each in whole))


def _of_an_sm(
    tile: _Tile, device: Device, known: Rates
) -> Iterator[tuple[str, str, float, float | None]]:
    """(resource, what is counted, how much of it for one tile of one block, how much a cycle)."""
    yield "multiply-adds", "FFMA of warps", tile.ffma, device.fp32_lanes / WARP
    issued = tile.ffma + tile.loads + tile.stores + tile.requests
    yield "issue slots", "FFMA, loads and stores", issued, SCHEDULERS
    if wavefronts := tile.load_wavefronts + tile.store_wavefronts:
        yield "shared memory", "wavefronts", wavefronts, device.shared_bytes_per_cycle / WAVEFRONT
    yield "L1", "lines", tile.lines, known.lines


def _lines(variant: Variant, count: records.Recorded) -> float:
    """Lines of global memory that all loads touch, at least: one a request, and one for every four
    sectors. A warp of the naive kernel touches one for each row of C that it works on, and one of
    B."""
    if variant.shared_bytes:
        return max(count.global_load_requests, count.global_load_sectors * SECTOR / LINE)
    x = min(variant.block[0], WARP)
    rows = x if variant.step.x_walks_rows(variant.macros) else WARP // x
    return (rows + 1) * count.ffma / WARP


def _l2(known: Rates, blocks: int, fit: int, K: int, outputs: int) -> Limit:
    """`fit` blocks of an SM may share what they fetch. Together they compute fit × `outputs`
    elements of C, of h rows and w columns: they need h + w ≥ 2·√(h·w) rows and columns. Assumed:
    that L1 keeps nothing for blocks that come later."""
    if known.l2_gbs is None:
        return Limit("L2", None, f"{_NO_SOURCE} says its bandwidth")
    size = FLOAT * K * 2 * sqrt(fit * outputs) * blocks / fit
    shared = f", shared by the {fit} of an SM" if fit > 1 else ""
    how = f"{_megabytes(size)}: each block's rows of A and columns of B{shared}"
    return Limit("L2", size / known.l2_gbs * 1e-9, f"{how}; {_spaced(known.l2_gbs)} GB a second")


def _alone(
    variant: Variant, tile: _Tile, device: Device, known: Rates, fetch: float
) -> tuple[Counter[str], list[str]]:
    """One tile of a block that has an SM to itself: cycles by what takes them, one after the other,
    and the waits that no source gives.

    A thread's sum is a chain, and a scheduler has whole warps. From step 2 on barriers keep an
    order, in the machine code for sm_90, too: fetch, barrier, store, barrier, load, compute. Warps
    that are done with the last tile go ahead. So of the fetch, the first barrier and all stores
    only the longest is sure to lie between the last warp's arithmetic and its last store. Steps 10
    and 11 compute while they fetch; in step 11 others may store while the last warp computes.
    """
    warps = variant.threads // WARP
    whole = ceil(warps / SCHEDULERS) * SCHEDULERS / warps
    moves = device.shared_bytes_per_cycle / WAVEFRONT  # wavefronts a cycle
    work = {
        "multiply-adds": whole * tile.ffma * WARP / device.fp32_lanes,
        # the first loads are issued before any has its result, which `handoff` contains
        "issue slots": whole * (tile.ffma + tile.loads) / SCHEDULERS - known.shared,
        "shared memory": tile.load_wavefronts / moves,
        "a thread's sum": known.ffma * variant.tile[2] / variant.macros.get("ACCUMULATORS", 1),
    }
    most = max(work, key=work.get)
    parts = Counter({most: work[most]})
    if not tile.barriers:
        return parts, []

    waits = [Counter()]
    if tile.barriers > 1:
        stores = tile.store_wavefronts / moves
        waits = [Counter({"shared memory": stores}), Counter({"barrier": known.barrier})]
    if variant.step.stem in PREFETCHING:
        parts += max(waits, key=Counter.total)
        parts = max(parts, Counter({"fetch": fetch - known.shared}), key=Counter.total)
    else:
        parts += max(*waits, Counter({"fetch": fetch}), key=Counter.total)
    handoff = {"from store to load": known.handoff} if known.handoff else {"load": known.shared}
    waited = {"a fetch": fetch, "a barrier": known.handoff, "a load": known.shared}
    return parts + Counter(handoff), [name for name, cycles in waited.items() if not cycles]
