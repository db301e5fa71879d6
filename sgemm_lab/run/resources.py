"""What a kernel asks of an SM, as ptxas reports it, and how many of its blocks fit there."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sgemm_lab.devices import Device
from sgemm_lab.ladder import THREADS_PER_BLOCK, Variant
from sgemm_lab.run.nvrtc import report

WARP = 32
REGISTER_UNIT = 256  # registers are given to a warp in this unit
SUB_PARTITIONS = 4  # of an SM; each holds a quarter of the registers, and whole warps
REGISTERS_PER_THREAD = 255

_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)' for ")
_FIELDS = {
    "registers": re.compile(r"Used (\d+) registers"),
    "shared_bytes": re.compile(r"(\d+) bytes smem"),
    "stack": re.compile(r"(\d+) bytes stack frame"),
    "spill_stores": re.compile(r"(\d+) bytes spill stores"),
    "spill_loads": re.compile(r"(\d+) bytes spill loads"),
}


@dataclass(frozen=True)
class Resources:
    """What ptxas allocated: registers a thread, static shared bytes a block; the rest in bytes a
    thread."""

    registers: int
    shared_bytes: int
    stack: int
    spill_stores: int
    spill_loads: int


@dataclass(frozen=True)
class Occupancy:
    """Resident blocks and warps of an SM, their fraction of the most warps it can hold, and what
    limits them: "threads", "blocks", "registers" or "shared memory"."""

    blocks: int
    warps: int
    fraction: float
    limiter: str


def resources(variant: Variant, arch: str) -> Resources:
    """Registers, shared memory and spills of a variant on one architecture, such as "sm_75".

    The figures depend on NVRTC's version. Raises what `report` raises, and ValueError for
    step 0, which has no source.
    """
    step = variant.step
    return parse(report(step.source, variant.options, arch, step.filename))[step.function]


def parse(log: str) -> Mapping[str, Resources]:
    """The report of ptxas -v: entry function → its resources."""
    _, *sections = _ENTRY.split(log)
    found = dict(zip(sections[::2], sections[1::2], strict=True))
    return {name: Resources(**_read(text)) for name, text in found.items()}


def occupancy(device: Device, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """How many blocks of a kernel fit on an SM at once.

    `threads` a block, `registers` a thread, `shared_bytes` a block (static and dynamic). The rules
    are those of NVIDIA's cuda_occupancy.h: registers go to whole warps in units of 256, each
    quarter of the SM on its own; shared memory goes to blocks in units of 256 bytes up to compute
    capability 7, of 128 after that, with what the driver reserves for a block added. The largest
    shared-memory carve-out is assumed. Numbers that no block may have raise ValueError; a
    block of legal ones that needs more registers than there are has an occupancy of 0.
    """
    if not 1 <= threads <= THREADS_PER_BLOCK:
        raise ValueError(f"threads={threads}: a block has 1 to {THREADS_PER_BLOCK} threads.")
    if not 0 <= registers <= REGISTERS_PER_THREAD:
        raise ValueError(f"registers={registers}: a thread has 0 to {REGISTERS_PER_THREAD}.")
    if not 0 <= shared_bytes <= device.shared_per_block_optin:
        raise ValueError(
            f"shared_bytes={shared_bytes}: a block on {device.name} may have up to "
            f"{device.shared_per_block_optin}."
        )
    warps = -(-threads // WARP)
    per_warp = _round_up(max(registers, 1) * WARP, REGISTER_UNIT)
    warps_by_registers = device.registers_per_sm // SUB_PARTITIONS // per_warp * SUB_PARTITIONS
    unit = 256 if device.capability < (8, 0) else 128
    per_block = _round_up(shared_bytes + device.shared_reserved_per_block, unit)
    limits = {
        "threads": device.warps_per_sm // warps,
        "blocks": device.blocks_per_sm,
        "registers": warps_by_registers // warps,
        "shared memory": device.shared_per_sm // per_block if per_block else device.blocks_per_sm,
    }
    limiter = min(limits, key=limits.get)  # on a tie the first: an SM full of threads is full
    blocks = limits[limiter]
    return Occupancy(blocks, blocks * warps, blocks * warps / device.warps_per_sm, limiter)


def _read(section: str) -> dict[str, int]:
    values = {name: pattern.search(section) for name, pattern in _FIELDS.items()}
    if values["registers"] is None:
        raise ValueError(f"ptxas reported no registers:\n{section}")
    return {name: int(found[1]) if found else 0 for name, found in values.items()}


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


@dataclass(frozen=True)
class Reported:
    """What others say that a kernel of theirs takes; None where they don't. `said`: what they
    measured of its occupancy."""

    step: int  # of ours, the nearest
    kernel: str
    gpu: str
    threads: int
    registers: int
    shared_bytes: int | None
    spill_stores: int | None
    spill_loads: int | None
    source: str
    said: str = ""


_R1 = "R1: “CUDA GEMM kernel that hits 932.9 GFLOPS”, tiled kernel, Nsight Compute"
_R2 = "R2: “CUDA SGEMM optimization: naive vs shared-memory tiled”, ptxas -v, sm_75"
REPORTED = (
    Reported(1, "R2 naive", "t4", 1024, 58, 0, 0, 0, _R2),
    Reported(2, "R1 tiled", "t4", 1024, 42, None, None, None, _R1, "99.97 % measured"),
    Reported(2, "R2 tiled, 4 sums", "t4", 1024, 62, 8192, 0, 0, _R2),
)
