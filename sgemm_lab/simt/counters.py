"""What a profiler counts for memory, worked out from the addresses of a warp's lanes.

The rules were fitted to an H200 (sm_90) and reproduce every row of tests/hardware/*.csv; on other
architectures they are the documented behaviour, not a measurement.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from .decode import Access
from .machine import Batch
from .memory import SIGNED, Reach

WARP = 32
BANKS = 32  # of 4 bytes each
WAVEFRONT = 4 * BANKS  # bytes that a full one moves
SECTOR = 32  # bytes
WORD = 4


def _rows(numbers, active) -> tuple[np.ndarray, np.ndarray]:
    """Both as [n, 32]; a lone warp is one row."""
    numbers = np.atleast_2d(np.asarray(numbers, np.int64))
    active = np.broadcast_to(np.atleast_2d(np.asarray(active, bool)), numbers.shape)
    if numbers.shape[1] != WARP:
        raise ValueError(f"a warp has {WARP} lanes; got arrays of shape {numbers.shape}")
    return numbers, active


def _distinct(values: np.ndarray, counted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(row, value) of each distinct counted value in each row of [rows, columns] arrays."""
    values = np.where(counted, values, np.iinfo(np.int64).max)
    ordered = np.sort(values, axis=1)
    first = np.ones(ordered.shape, bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first &= ordered != np.iinfo(np.int64).max
    rows, columns = np.nonzero(first)
    return rows, ordered[rows, columns]


def _pairs_agree(words: np.ndarray, active: np.ndarray, step: int) -> np.ndarray:
    """Per row: does every lane n agree with lane n ^ step (an inactive lane agrees with any)?"""
    partner = np.arange(WARP) ^ step
    return ((words == words[:, partner]) | ~active | ~active[:, partner]).all(axis=1)


def shared_wavefronts(words, active, width: int, store: bool) -> np.ndarray | int:
    """Wavefronts of one shared-memory instruction of a warp.

    words: first 4-byte word that each lane accesses, int array [32] or [n, 32] for n warps;
    active: bool, the same shape; width: 32, 64 or 128 bits a lane; store: a store, not a load.
    Returns an int, or an int array [n].

    The warp is cut into groups of 32, 16 or 8 lanes; a group costs the largest number of distinct
    words that fall in one bank. A load of 64 or 128 bits doubles its groups when all lanes n and
    n ^ 1, or all n and n ^ 2, have equal addresses.
    """
    wavefronts, _ = _passes(words, active, width, store)
    return int(wavefronts[0]) if np.ndim(words) == 1 else wavefronts


def shared_conflicts(words, active, width: int, store: bool) -> np.ndarray | int:
    """Bank conflicts of one shared-memory instruction of a warp: the wavefronts that a group of
    lanes takes beyond its first. Arguments and result as for `shared_wavefronts`.
    """
    wavefronts, groups = _passes(words, active, width, store)
    conflicts = wavefronts - groups
    return int(conflicts[0]) if np.ndim(words) == 1 else conflicts


def _passes(words, active, width: int, store: bool) -> tuple[np.ndarray, np.ndarray]:
    """Per warp: wavefronts, and groups of lanes of which at least one is active."""
    words, active = _rows(words, active)
    if width not in (32, 64, 128):
        raise ValueError(f"width is {width} bits; a shared access has 32, 64 or 128")
    parts = width // 32
    cost, groups = np.zeros((2, len(words)), np.int64)
    paired = _paired(words, active, parts, store)
    for double in (False, True):
        chosen = np.flatnonzero(paired == double)
        if len(chosen):
            lanes = WARP // parts * (2 if double else 1)
            cost[chosen] = _group_costs(words[chosen], active[chosen], lanes, parts)
            groups[chosen] = active[chosen].reshape(len(chosen), -1, lanes).any(axis=2).sum(axis=1)
    return cost, groups


def _paired(words: np.ndarray, active: np.ndarray, parts: int, store: bool) -> np.ndarray:
    """Per row: is the warp served in groups of twice as many lanes?"""
    if parts == 1 or store:
        return np.zeros(len(words), bool)
    return _pairs_agree(words, active, 1) | _pairs_agree(words, active, 2)


def lanes_together(words, active, width: int, store: bool) -> int:
    """How many lanes of a warp are served together: 32, 16 or 8. Arguments as for
    `shared_wavefronts`, of one warp."""
    parts = width // 32
    return WARP // parts * (1 + int(_paired(*_rows(words, active), parts, store)[0]))


def _group_costs(words, active, lanes: int, parts: int) -> np.ndarray:
    """Sum over groups of `lanes` lanes of the fullest bank's distinct words; one sum a warp."""
    groups = WARP // lanes
    each = (words[:, :, None] + np.arange(parts)).reshape(len(words) * groups, lanes * parts)
    counted = np.repeat(active, parts, axis=1).reshape(each.shape)
    rows, found = _distinct(each, counted)
    full = np.bincount(rows * BANKS + found % BANKS, minlength=len(each) * BANKS)
    return full.reshape(len(words), groups, BANKS).max(axis=2).sum(axis=1)


def global_sectors(addresses, active, width: int) -> np.ndarray | int:
    """32-byte sectors that one global-memory instruction of a warp touches.

    addresses: byte address of each lane, int array [32] or [n, 32]; active: bool, the same shape;
    width: bits a lane (8 to 128; an access is aligned, so a lane touches one sector).
    Returns an int, or an int array [n]. The same for loads, stores and cp.async.ca.
    """
    lone = np.ndim(addresses) == 1
    addresses, active = _rows(addresses, active)
    if width not in (8, 16, 32, 64, 128):
        raise ValueError(f"width is {width} bits; a global access has 8, 16, 32, 64 or 128")
    rows, _ = _distinct(addresses // SECTOR, active)
    count = np.bincount(rows, minlength=len(addresses))
    return int(count[0]) if lone else count


def copy_sectors(addresses, destinations, active) -> np.ndarray | int:
    """Sectors that one cp.async.cg (16 bytes a lane) of a warp counts.

    addresses: byte addresses in global memory; destinations: byte addresses in shared memory;
    both [32] or [n, 32]. Distinct 16-byte destinations count one each; the two halves of an
    aligned 32-byte block of shared memory count once when their sources are contiguous too.
    """
    lone = np.ndim(addresses) == 1
    addresses, active = _rows(addresses, active)
    destinations, _ = _rows(destinations, active)
    totals = []
    for source, to, on in zip(addresses, destinations, active, strict=True):
        packets = {int(d): int(s) for s, d, lane in zip(source, to, on, strict=True) if lane}
        merged = sum(1 for d, s in packets.items() if d % 32 == 0 and packets.get(d + 16) == s + 16)
        totals.append(len(packets) - merged)
    return totals[0] if lone else np.array(totals)


@dataclass(frozen=True)
class Counters:
    """What one launch did, exact. Instructions and requests are per warp, as profilers count them.

    ffma: fused multiply-adds per thread, summed over threads; sectors have 32 bytes; wavefronts
    are the passes that shared memory needed; by_class: warp instructions of each class.
    """

    instructions: int = 0
    ffma: int = 0
    global_load_requests: int = 0
    global_load_sectors: int = 0
    global_store_requests: int = 0
    global_store_sectors: int = 0
    copy_requests: int = 0
    copy_sectors: int = 0
    shared_load_instructions: int = 0
    shared_load_wavefronts: int = 0
    shared_load_conflicts: int = 0
    shared_store_instructions: int = 0
    shared_store_wavefronts: int = 0
    shared_store_conflicts: int = 0
    barriers: int = 0
    by_class: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def flops(self) -> int:
        return 2 * self.ffma

    @property
    def global_load_bytes(self) -> int:
        return SECTOR * (self.global_load_sectors + self.copy_sectors)

    @property
    def sectors_per_load(self) -> float:
        """Sectors a global load request fetches; 4 is what 32 neighbouring floats need."""
        return (
            self.global_load_sectors / self.global_load_requests
            if self.global_load_requests
            else 0.0
        )

    @property
    def wavefronts_per_load(self) -> float:
        """Wavefronts a shared load takes; 1 is free of conflicts for 32-bit loads."""
        loads = self.shared_load_instructions
        return self.shared_load_wavefronts / loads if loads else 0.0


class Tally:
    """Watches a launch and counts. One may watch several launches: their counts add up."""

    def __init__(self):
        self.warps: Counter = Counter()  # block of code → warps that ran it
        self.lanes: Counter = Counter()  # → lanes that ran it
        self._counted: list[list] = []  # [amounts of one execution of an access, how often, line]
        self._mask, self._active = None, 0
        self._destination = None  # of the cp.async whose source comes next

    def active_warps(self, batch: Batch) -> int:
        if batch.mask is None:
            return batch.lanes // WARP
        if batch.mask is not self._mask:
            self._mask = batch.mask
            self._active = int(np.count_nonzero(batch.mask.reshape(-1, WARP).any(axis=1)))
        return self._active

    def block(self, batch: Batch, at: int) -> None:
        """A batch is about to run block `at` of the code."""
        self.warps[at] += self.active_warps(batch)
        self.lanes[at] += batch.count

    def barrier(self, batch: Batch, at: int) -> None:
        """The barrier that ends block `at` was reached."""

    def access(self, batch: Batch, access: Access, space: str, reach: Reach, start: int) -> None:
        """A memory instruction passed its checks; lanes touch start + reach.relative."""
        if access.kind == "copy" and space == "shared":
            self._destination = reach, start
        if (space, access.kind) not in _MEASURES:
            return
        key = (self, access, start % SECTOR)
        if access.kind == "copy":
            key = (*key, self._destination[0], self._destination[1] % SECTOR)
        entry = reach.notes.get(key)  # the same lanes and pattern count the same again
        if entry is None:
            amounts = self._amounts(batch, access, space, reach, start)
            entry = reach.notes[key] = [amounts, 0, access.line]
            self._counted.append(entry)
        entry[1] += 1

    def _amounts(self, batch: Batch, access: Access, space: str, reach: Reach, start: int) -> list:
        """(as written?, counter, amount) of one execution of a memory instruction."""
        name, cost = _MEASURES[space, access.kind]
        active = batch.active_lanes().reshape(-1, WARP)
        warps = self.active_warps(batch) - batch.repeated
        amounts: Counter = Counter()
        for written, pieces in ((True, ((0, access.size),)), (False, access.executed)):
            for offset, size in pieces:
                first = start + offset
                key = (name, size, first % (SECTOR if space == "global" else WORD))
                if access.kind == "copy" and "cg" in access.ins.mods:
                    to = _by_warp(batch, *self._destination)
                    sectors = copy_sectors(_by_warp(batch, reach, first), to, active)
                    found = (("sectors", int(np.sum(sectors))),)
                elif key in reach.notes:
                    found = reach.notes[key]
                else:
                    found = reach.notes[key] = _cost(batch, reach, first, active, 8 * size, cost)
                amounts[written, name] += warps
                for unit, amount in found:
                    amounts[written, (name, unit)] += amount
        return [(written, name, amount) for (written, name), amount in amounts.items()]

    def lines(self) -> dict[tuple[str, int], Counter]:
        """What each line of the .cu file did, as executed: by ("shared_store", line) and the like,
        its "instructions", and their "sectors" or "wavefronts"."""
        found: dict[tuple[str, int], Counter] = {}
        for amounts, times, line in self._counted:
            for written, name, amount in amounts:
                if not written:
                    kind, unit = name if isinstance(name, tuple) else (name, "instructions")
                    found.setdefault((kind, line), Counter())[unit] += amount * times
        return found

    def result(self, program, written: bool = False) -> Counters:
        """The counts as Counters, given the program that was watched; memory as executed, or as
        `written` in the PTX."""
        by_class: Counter = Counter()
        ffma = 0
        for at, warps in self.warps.items():
            for name, number in program.classes[at].items():
                by_class[name] += warps * number
            ffma += self.lanes[at] * program.classes[at]["ffma"]
        count: Counter = Counter()
        for amounts, times, _ in self._counted:
            for as_written, name, amount in amounts:
                if as_written == written:
                    count[name] += amount * times
        return Counters(
            instructions=sum(by_class.values()),
            ffma=ffma,
            global_load_requests=count["global_load"],
            global_load_sectors=count["global_load", "sectors"],
            global_store_requests=count["global_store"],
            global_store_sectors=count["global_store", "sectors"],
            copy_requests=count["copy"],
            copy_sectors=count["copy", "sectors"],
            shared_load_instructions=count["shared_load"],
            shared_load_wavefronts=count["shared_load", "wavefronts"],
            shared_load_conflicts=count["shared_load", "conflicts"],
            shared_store_instructions=count["shared_store"],
            shared_store_wavefronts=count["shared_store", "wavefronts"],
            shared_store_conflicts=count["shared_store", "conflicts"],
            barriers=by_class["barrier"],
            by_class=MappingProxyType(dict(sorted(by_class.items()))),
        )


def _cost(batch: Batch, reach: Reach, start: int, active: np.ndarray, width: int, cost) -> tuple:
    """`cost` of all warps. Where all touch the same pattern at different places, which is the rule,
    one warp for each phase of the pattern within a sector is enough: banks and sectors repeat.
    """
    if batch.mask is None and len(reach.relative) > WARP:
        relative = reach.relative.reshape(-1, WARP)
        pattern = relative[0] - relative[0, 0]
        if (relative == relative[:, :1] + pattern).all():
            phases = (relative[:, 0].astype(np.int64) + start) % SECTOR
            pattern = pattern.view(SIGNED[pattern.itemsize]).astype(np.int64)
            total: Counter = Counter()
            for phase, times in Counter(phases.tolist()).items():
                for unit, amount in _cost_of_one(cost, width, phase, pattern.tobytes()):
                    total[unit] += amount * times
            return tuple(total.items())
    return cost(_by_warp(batch, reach, start), active, width)


@lru_cache(maxsize=4096)
def _cost_of_one(cost, width: int, phase: int, pattern: bytes) -> tuple:
    """`cost` of one full warp whose lanes lie at `pattern` (int64 bytes) from its first lane."""
    lanes = np.frombuffer(pattern, np.int64)
    first = phase - int(lanes.min()) // SECTOR * SECTOR  # no address below zero
    return cost((lanes + first)[None], np.ones((1, WARP), bool), width)


def _by_warp(batch: Batch, reach: Reach, start: int) -> np.ndarray:
    """Each lane's address as int64 [warps, 32]."""
    relative = np.broadcast_to(reach.relative, batch.lanes).reshape(-1, WARP)
    return relative.astype(np.int64) + start


def _sectors(addresses, active, width):
    return (("sectors", int(np.sum(global_sectors(addresses, active, width)))),)


def _wavefronts(store):
    def cost(addresses, active, width):
        width = max(width, 32)  # narrower accesses still move words
        wavefronts, groups = _passes(addresses >> 2, active, width, store)
        total = int(wavefronts.sum())
        return ("wavefronts", total), ("conflicts", total - int(groups.sum()))

    return cost


_MEASURES = {
    ("global", "load"): ("global_load", _sectors),
    ("global", "store"): ("global_store", _sectors),
    ("global", "copy"): ("copy", _sectors),
    ("shared", "load"): ("shared_load", _wavefronts(False)),
    ("shared", "store"): ("shared_store", _wavefronts(True)),
}
