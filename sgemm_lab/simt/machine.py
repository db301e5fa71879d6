"""Runs a PTX kernel, lane for lane, many thread blocks at once.

A register is a NumPy vector over the lanes of a batch of blocks; a value that is the same in every
lane is a vector of length 1, and broadcasting does the rest. Each instruction was decoded once into
a closure over slots of the register file (decode.py); here it costs one or two NumPy calls for
thousands of lanes.

Divergence: the lanes of a batch stand at a set of fronts, one (block of code, mask) each. The front
with the lowest block runs next, and fronts that meet merge: lanes reconverge where the code does.
A write under a partial mask keeps the old value of the other lanes only where a waiting front still
reads that register (its live registers say so): a guard around a whole loop costs nothing.
Lanes park at a barrier and go on when every lane of their block that hasn't returned has arrived.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from math import prod

import numpy as np

from .decode import BOOL, WARP, Access, Program
from .memory import (
    POISON,
    SHARED_WINDOW,
    WINDOW,
    GlobalMemory,
    Reach,
    SeveralArrays,
    Shifted,
    Space,
)
from .names import plain
from .ptx import PtxError

LANES = 1 << 15  # lanes a batch aims for: its vectors then fit in a core's L2 cache
OWN_BYTES = 1 << 28  # shared and local memory that a batch may take
EXIT = -1


class Fault(RuntimeError):
    """What the hardware would call an exception: where, who, and what was touched.

    kind: "out-of-bounds", "misaligned", "deadlock", "warp-mask", "trap", "endless"; line: of the
    .cu file; block, thread: (x, y, z) of the first offender; element: what was touched, such as
    "A[10, 0]"; other_line: of what it has to do with.
    """

    def __init__(self, kind: str, message: str, line: int, block=None, thread=None):
        super().__init__(message)
        self.kind, self.line, self.block, self.thread = kind, line, block, thread
        self.element: str | None = None
        self.other_line: int | None = None


def caught(run: Callable[[], object]) -> Fault | None:
    """The fault in which `run` ends, if it does."""
    try:
        run()
    except Fault as fault:
        return fault
    return None


_allowed: ContextVar[int | None] = ContextVar("allowed", default=None)


@contextmanager
def budget(instructions: int) -> Iterator[None]:
    """Within it, a launch whose threads come to so many instructions ends in Fault "endless". Those
    that some threads execute without the others count like those of all."""
    before = _allowed.set(instructions)
    try:
        yield
    finally:
        _allowed.reset(before)


class Watchers:
    """Hands on what happens in a launch to watchers: objects with any of these methods.

    begin(batch), end(batch): a batch starts, and has run to its last return;
    block(batch, at): it is about to run block `at` of the code;
    access(batch, access, space, reach, start): lanes touch start + reach.relative, all within
    bounds; of a cp.async the destination comes first, then the source;
    issued(batch, copy), landed(batch, copy, lanes): a cp.async was issued; data of lanes arrived;
    barrier(batch, at): lanes arrived at the barrier that ends block `at`;
    released(batch, passed): a barrier lets lanes go on; passed: [(following, mask, name, line)];
    synced(batch, named, line, givers): the active lanes meet in an instruction for the warp's lanes
    whose bits are set in named [warps, 32]; in a shuffle each takes the value of the lane of its
    warp in givers [warps, 32], else None;
    parted(batch, line, lanes): of the active lanes, only `lanes` take a branch.
    """

    HOOKS = ("begin", "end", "block", "access", "issued", "landed", "barrier", "released",
             "synced", "parted")  # fmt: skip

    def __init__(self, watchers: Sequence):
        for hook in self.HOOKS:
            methods = [getattr(w, hook) for w in watchers if hasattr(w, hook)]
            setattr(self, hook, methods[0] if len(methods) == 1 else _all_of(methods))


def _all_of(methods: list[Callable]) -> Callable:
    def call(*args):
        for method in methods:
            method(*args)

    return call


@cache
def _shorter(access: Access, words: int) -> Access:
    """A copy's source of which only some words are read, aligned as the whole."""
    return replace(access, count=words, aligned=access.size)


class Copy:
    """A cp.async on its way: its group, the lanes whose data is still to land, where to."""

    __slots__ = ("fetched", "group", "mask", "places", "to")

    def __init__(self, group, mask, places, to, fetched):
        self.group, self.mask, self.places, self.to, self.fetched = group, mask, places, to, fetched


class _Everything:
    def __contains__(self, _) -> bool:
        return True

    def __bool__(self) -> bool:
        return True


class _Narrowed:
    """Within it only the lanes whose predicate holds are active; all others keep their values."""

    def __init__(self, batch: "Batch", predicate: int, negated: bool):
        self.batch, self.predicate, self.negated = batch, predicate, negated

    def __enter__(self) -> bool:
        m = self.batch
        self.saved = m.mask, m.count, m.kept
        holds = np.broadcast_to(m.registers[self.predicate].view(BOOL) ^ self.negated, m.lanes)
        lanes = holds if m.mask is None else holds & m.mask
        m.count = int(np.count_nonzero(lanes))
        if m.count < m.lanes:
            m.mask, m.kept = lanes, _Everything()
        return m.count > 0

    def __exit__(self, *_):
        self.batch.mask, self.batch.count, self.batch.kept = self.saved


class Batch:
    """The lanes of some thread blocks while they run one kernel."""

    def __init__(self, launch: "Launch", numbers: np.ndarray):
        program, threads = launch.program, launch.threads
        padded = -(-threads // WARP) * WARP
        self.launch, self.program, self.numbers = launch, program, numbers
        self.lanes, self.padded = len(numbers) * padded, padded
        self.registers = list(launch.file)
        self.through = np.zeros(self.lanes, bool)  # may pass the __syncwarp at which they stand
        self.reaches: dict[int, Reach] = {}
        self.watch = launch.watch
        for name, slot in program.specials.items():
            self.registers[slot] = self.special(name)
        for slot, value in enumerate(self.registers):
            if value is None:
                self.registers[slot] = np.zeros(1, "u8")
        self.mask = None
        self.alive = None  # lanes that have not returned; None while that is all of them
        if padded != threads:
            lane = np.tile(np.arange(padded), len(numbers))
            self.mask = self.alive = lane < threads
        self.count = self.living = len(numbers) * threads
        self.repeated = 0  # active warps whose access was counted already: see one_by_one
        self.kept: frozenset[int] | _Everything = frozenset()
        self.spaces = {
            "shared": self.own("shared", launch.shared_size, len(numbers), padded),
            "local": self.own("local", program.local_size, self.lanes, 1, launch.leftover),
        }
        self.copies: list[Copy] = []
        self.commits = np.zeros(1, "i8")
        self.turns = None
        if launch.turns is not None:
            self.turns = np.tile(np.repeat(launch.turns, WARP), len(numbers))

    def own(self, name: str, size: int, copies: int, lanes_each: int, leftover=POISON) -> Space:
        """A space of which each block or lane has its own copy, full of what was left there."""
        stride = -(-size // 16) * 16
        data = np.full(copies * stride, leftover, np.uint8)
        starts = np.repeat(np.arange(copies, dtype=np.intp) * stride, lanes_each)
        return Space(name, data, size, starts)

    def special(self, name: str) -> np.ndarray:
        launch = self.launch
        base, _, axis = name[1:].partition(".")
        n = "xyz".find(axis) if axis else 0
        (bx, by, _), (gx, gy, _) = launch.block, launch.grid
        thread = np.arange(self.padded)
        one_block = {
            "tid": (thread % bx, thread // bx % by, thread // (bx * by))[n],
            "laneid": thread % WARP,
            "warpid": thread // WARP,
        }
        if base in one_block:
            return np.tile(one_block[base].astype("u4"), len(self.numbers))
        if base == "ctaid":
            number = self.numbers
            index = (number % gx, number // gx % gy, number // (gx * gy))[n]
            return np.repeat(index.astype("u4"), self.padded)
        uniform = {
            "ntid": launch.block[n],
            "nctaid": launch.grid[n],
            "nwarpid": self.padded // WARP,
        }
        if name == "WARP_SZ":
            return np.array([WARP], "u4")
        if base.startswith("lanemask_"):
            lane = np.arange(self.padded) % WARP
            below = (1 << lane) - 1
            mask = {"lt": below, "le": below | 1 << lane, "eq": 1 << lane,
                    "ge": ~below, "gt": ~(below | 1 << lane)}[base[9:]]  # fmt: skip
            return np.tile((mask & 0xFFFFFFFF).astype("u4"), len(self.numbers))
        if base not in uniform:
            raise PtxError(
                f"{self.program.kernel.name}: no special register {name} on the PTX machine"
            )
        return np.array([uniform[base]], "u4")

    # registers and masks

    def write(self, slot: int, value) -> None:
        if self.kept and slot in self.kept:
            old = self.registers[slot]
            if type(value) is Shifted:
                value = value.view(value.vec.dtype)
            value = np.where(self.mask, value, old.view(value.dtype))
        self.registers[slot] = value

    def active_lanes(self) -> np.ndarray:
        return np.ones(self.lanes, bool) if self.mask is None else self.mask

    def first_lane(self) -> int:
        return 0 if self.mask is None else int(np.argmax(self.mask))

    def narrowed(self, predicate: int, negated: bool) -> _Narrowed:
        return _Narrowed(self, predicate, negated)

    def meet(self, named: np.ndarray, line: int, givers: np.ndarray | None = None) -> None:
        """The active lanes synchronise with those of their warp that `named` [warps, 32] names;
        givers: whose values they take, if any."""
        if self.watch is not None:
            self.watch.synced(self, named, line, givers)

    # memory

    def locate(self, access: Access) -> tuple[np.ndarray, np.ndarray]:
        """(memory as unsigned integers of access.unit bytes from the lowest address on, indices).

        Raises Fault where an active lane would leave its array or is misaligned.
        """
        value = self.registers[access.slot]
        if type(value) is Shifted:
            vec, shift = value.vec, value.shift
        else:
            vec, shift = value, 0
        reach = self.reaches.get(access.slot)
        if reach is None or reach.vec is not vec or reach.mask is not self.mask:
            reach = self.reaches[access.slot] = Reach(vec, self.mask)
        start = (reach.lowest + shift + access.offset) % (1 << 8 * vec.itemsize)
        space, name = access.space, access.space
        if space == "generic":
            name = "shared" if start >> 60 == 1 else "local" if start >> 60 == 2 else "global"
            start &= SHARED_WINDOW - 1
        if name == "global":
            region = self.launch.memory.find(start)
            home = _GLOBAL
            position = start - region.base if region else -1
            size = region.nbytes if region else 0
        else:
            region = home = self.spaces[name]
            position, size = start, home.size
        if (
            position < 0
            or position + reach.span + access.size > size
            or (start | reach.low_bits) & (access.boundary - 1)
            or (
                access.kind != "load"
                and name == "global"
                and not region.writeable
                and access.kind != "copy"
            )
        ):
            return self.scattered(access, reach, shift)
        if self.watch is not None:
            self.watch.access(self, access, name, reach, start)
        units = region.units(access.unit)
        return units[position // access.unit :], reach.elements(access.unit, home)

    def scattered(self, access: Access, reach: Reach, shift: int):
        """The slow path: lanes that fault, or that address several arrays at once."""
        addresses = np.broadcast_to(reach.vec, self.lanes).astype("u8")
        addresses = addresses + np.uint64((shift + access.offset) % (1 << 64))
        if reach.vec.itemsize == 4:
            addresses = addresses & np.uint64(0xFFFFFFFF)
        active = np.flatnonzero(self.active_lanes())
        windows, first = np.unique(addresses[active] // np.uint64(WINDOW), return_index=True)
        if len(windows) > 1:
            here = addresses // np.uint64(WINDOW)
            groups = [(here == windows[n]) & self.active_lanes() for n in np.argsort(first)]
            raise self.several(access, sorted(active[first]), groups)
        for lane in active:
            self.check_lane(access, int(lane), int(addresses[lane]))
        raise AssertionError(f"line {access.line}: an access that no lane is to blame for")

    def several(self, access: Access, lanes: list, groups: list) -> SeveralArrays:
        """The exception for lanes that address several arrays; `lanes`: the first of each."""
        one, other = (self.thread_of(int(lane)) for lane in lanes[:2])
        return SeveralArrays(
            f"{self.launch.at_line(access.line)}: thread {one[0]} of block {one[1]} and thread "
            f"{other[0]} of block {other[1]} address different arrays in one {access.ins.opcode}, "
            "which is not covered by the PTX machine",
            groups,
        )

    def one_by_one(self, groups: list[np.ndarray]) -> Iterator[np.ndarray]:
        """Make one group of lanes after another the active ones. Whoever counts is told, by
        `repeated`, how many of a group's warps an earlier one had."""
        saved = self.mask, self.count, self.kept
        seen = np.zeros(self.lanes // WARP, bool)
        try:
            for lanes in groups:
                warps = lanes.reshape(-1, WARP).any(axis=1)
                self.repeated = int(np.count_nonzero(warps & seen))
                seen |= warps
                self.mask, self.count, self.kept = lanes, int(lanes.sum()), _Everything()
                yield lanes
        finally:
            self.mask, self.count, self.kept = saved
            self.repeated = 0

    def check_lane(self, access: Access, lane: int, address: int) -> None:
        """Raise the Fault of this lane's access, if it has one."""
        verb = {"load": "reads", "store": "writes", "atomic": "updates", "copy": "copies"}[
            access.kind
        ]
        name = access.space
        if name == "generic":
            name = "shared" if address >> 60 == 1 else "local" if address >> 60 == 2 else "global"
            address &= SHARED_WINDOW - 1
        if name == "global":
            region = self.launch.memory.find(address)
            if region is None:
                what = f"{verb} address {address:#x}, which belongs to no array"
                raise self.fault("out-of-bounds", what, access.line, lane)
            position, size = address - region.base, region.nbytes
            element = region.element(address)
            whole = f"{region.name} has {region.extent}"
        else:
            position, size, region = address, self.spaces[name].size, None
            bits = 64 if position >> 32 else 32
            position -= (position >> bits - 1) << bits  # an address below zero
            element = f"byte {position} of {name} memory"
            owner = "the block" if name == "shared" else "a thread"
            whole = f"{owner} has {size} bytes of it"
        kind = "out-of-bounds"
        side, end = ("first", "before its beginning") if position < 0 else ("last", "past its end")
        outside = -position if position < 0 else position + access.size - size  # bytes
        if outside >= access.size:
            also = region.beyond(address) if region else ""
            what = f"{verb} {element}{also}, {end}: {whole}"
        elif outside > 0:
            what = (
                f"{verb} {access.size} bytes at {element}, of which the {side} {outside} lie "
                f"{end}: {whole}"
            )
        elif address % access.boundary:
            size, kind = access.boundary, "misaligned"
            what = f"{verb} {size} bytes at {element}, which is not a multiple of {size} bytes"
        elif region is not None and not region.writeable and access.kind in ("store", "atomic"):
            what = f"{verb} {element}, but {region.name} is read-only: its flags.writeable is off"
        else:
            return
        fault = self.fault(kind, what, access.line, lane)
        fault.element = element
        raise fault

    def thread_of(self, lane: int) -> tuple[tuple, tuple]:
        """(thread, block) of a lane, with as many coordinates as the launch uses."""
        launch = self.launch
        number, t = int(self.numbers[lane // self.padded]), lane % self.padded
        block, thread = unravel(number, launch.grid), unravel(t, launch.block)
        return short(thread, launch.block), short(block, launch.grid)

    def fault(self, kind: str, what: str, line: int, lane: int) -> Fault:
        launch = self.launch
        number, t = int(self.numbers[lane // self.padded]), lane % self.padded
        block, thread = unravel(number, launch.grid), unravel(t, launch.block)
        who = f"thread {short(thread, launch.block)} of block {short(block, launch.grid)}"
        return Fault(kind, f"{launch.at_line(line)}: {who} {what}", line, block, thread)

    # asynchronous copies

    def start_copy(self, put: Access, get: Access, given: int | None) -> None:
        places, to = self.locate(put)
        fetched = np.zeros((put.count, self.lanes), "u4")
        groups = {put.count: None}
        if given is not None:  # a source shorter than the copy: the rest is zero
            size = np.broadcast_to(self.registers[given].view("u4"), self.lanes)
            active = self.active_lanes()
            sizes = np.unique(size[active])
            if (sizes % 4).any() or (sizes > put.size).any():
                raise PtxError(
                    f"{self.launch.at_line(put.line)}: cp.async of {put.size} bytes with a source "
                    f"size of {', '.join(map(str, sizes))}; it must be a multiple of 4 up to that"
                )
            groups = {int(n) // 4: active & (size == n) for n in sizes[::-1] if n}
        masks = [None] if given is None else self.one_by_one([*groups.values()])
        for words, lanes in zip(groups, masks, strict=True):
            part = get if words == get.count else _shorter(get, words)
            units, elements = self.locate(part)
            here = True if lanes is None else lanes
            for n in range(words):
                np.copyto(fetched[n], units[n:].take(elements, mode="clip"), where=here)
        copy = Copy(self.commits, self.mask, places, to, fetched)
        self.copies.append(copy)
        if self.watch is not None:
            self.watch.issued(self, copy)

    def commit_copies(self) -> None:
        more = self.commits + 1
        self.commits = more if self.mask is None else np.where(self.mask, more, self.commits)

    def land_copies(self, keep: int | None) -> None:
        """Write what the wait covers: all groups but the latest `keep`; None: everything."""
        waiting = []
        active = self.active_lanes()
        for copy in self.copies:
            landed = active if copy.mask is None else active & copy.mask
            if keep is not None:
                landed = landed & (copy.group < self.commits - keep)
            for n, words in enumerate(copy.fetched):
                copy.places[n:][copy.to[landed]] = words[landed]
            if self.watch is not None and landed.any():
                self.watch.landed(self, copy, landed)
            copy.mask = ~landed if copy.mask is None else copy.mask & ~landed
            if copy.mask.any():
                waiting.append(copy)
        self.copies = waiting

    # control

    def run(self) -> None:
        """Run every lane to its return."""
        fronts, *later = self.in_turns({0: (self.mask, self.count)})
        parked: list[tuple] = []
        code, exits, watch = self.program.code, self.program.exits, self.watch
        executed, allowed = 0, _allowed.get()
        if watch is not None:
            watch.begin(self)
        while fronts or later or parked:
            if not fronts and later:
                fronts = later.pop(0)
            elif not fronts:
                self.release(fronts, parked)
                fronts, *later = self.in_turns(fronts)
            at = self.next_front(fronts)
            self.kept = frozenset()
            if self.count < self.living:
                self.kept = self.still_read([*fronts, *(b for each in later for b in each)], parked)
            if watch is not None:
                watch.block(self, at)
            executed += len(code[at]) + 1
            if allowed is not None and executed > allowed:
                raise self.endless(at, allowed)
            for step in code[at]:
                step(self)
            self.leave(exits[at], at, fronts, parked)
        if watch is not None:
            watch.end(self)

    def endless(self, at: int, allowed: int) -> Fault:
        before = self.program.kernel.blocks[at::-1]  # an empty loop has no instruction, and no line
        lines = (ins.line for block in before for ins in block.instructions[::-1])
        line = next(filter(None, lines), 0)
        what = f"is still running after {allowed:,} instructions; does its loop ever end?"
        return self.fault("endless", what, line, self.first_lane())

    def next_front(self, fronts: dict) -> int:
        """Make the first front active whose lanes need not wait; returns its block of code.

        At a shuffle, vote or __syncwarp a warp waits until every lane that its mask names is there
        or has returned; warps that are complete go on without the others. Lanes may meet at
        different __syncwarps: those left behind are let `through` when their turn comes.
        """
        members, meets = self.program.members, self.program.meets
        for at in sorted(fronts):
            self.mask, self.count = fronts.pop(at)
            if members[at] is None or self.count == self.living:
                return at
            others = [fronts[b][0] for b in fronts if meets[at] and meets[b]]
            active = self.active_lanes()
            together = np.logical_or.reduce([active, *others])
            waiting = active & self.missing(members[at], together) & ~self.through
            behind = int(np.count_nonzero(waiting))
            if behind:
                fronts[at] = waiting, behind
                self.mask, self.count = active & ~waiting, self.count - behind
            if self.count:
                warps = np.repeat(self.active_lanes().reshape(-1, WARP).any(axis=1), WARP)
                self.through = (self.through | together & warps) & ~self.active_lanes()
                return at
        at = min(fronts)
        lane = int(np.argmax(fronts[at][0]))
        ins = self.program.kernel.blocks[at].instructions[0]
        what = f"waits for ever at {ins.opcode} for lanes that its mask names and that never arrive"
        raise self.fault("warp-mask", what, ins.line, lane)

    def missing(self, slot: int, here: np.ndarray) -> np.ndarray:
        """Lanes whose mask (in `slot`) names lanes of their warp neither `here` nor returned."""
        if self.alive is not None:
            here = here | ~self.alive
        weights = 1 << np.arange(WARP, dtype="i8")
        present = (here.reshape(-1, WARP) * weights).sum(axis=1)
        named = np.broadcast_to(self.registers[slot].view("u4"), self.lanes).reshape(-1, WARP)
        return (named & ~present[:, None] & 0xFFFFFFFF != 0).reshape(-1)

    def in_turns(self, fronts: dict) -> list[dict]:
        """The fronts of the warps that go first, of those that go next, …: one after another they
        run as far as the next barrier."""
        if self.turns is None:
            return [fronts]
        groups = []
        for turn in np.unique(self.turns):
            group = {}
            for at, (mask, _) in fronts.items():
                lanes = self.turns == turn if mask is None else mask & (self.turns == turn)
                if some := int(np.count_nonzero(lanes)):
                    group[at] = (lanes, some)
            if group:
                groups.append(group)
        return groups

    def still_read(self, fronts, parked) -> frozenset[int]:
        live = self.program.live
        return frozenset().union(*(live[b] for b in fronts), *(live[entry[0]] for entry in parked))

    def leave(self, exit: tuple, at: int, fronts: dict, parked: list) -> None:
        match exit[0]:
            case "next" | "jump":
                self.go(exit[1], self.mask, self.count, fronts)
            case "branch":
                _, slot, negated, taken, following, _ = exit
                holds = self.registers[slot].view(BOOL)
                if len(holds) == 1:
                    target = taken if holds[0] != negated else following
                    return self.go(target, self.mask, self.count, fronts)
                lanes = ~holds if negated else holds
                if self.mask is not None:
                    lanes = lanes & self.mask
                some = int(np.count_nonzero(lanes))
                if some == self.count:
                    self.go(taken, self.mask, some, fronts)
                elif some == 0:
                    self.go(following, self.mask, self.count, fronts)
                else:
                    others = ~lanes if self.mask is None else self.mask & ~lanes
                    rest = self.count - some
                    if self.watch is not None:
                        self.watch.parted(self, exit[5], lanes)
                    self.go(taken, lanes, some, fronts)
                    self.go(following, others, rest, fronts)
            case "barrier":
                _, following, numbers, line = exit
                if self.watch is not None:
                    self.watch.barrier(self, at)
                names = self.barrier_names(numbers, line)
                if self.count == self.living and len(names) == 1 and len(numbers) == 1:
                    if self.watch is not None:
                        self.watch.released(self, [(following, self.mask, *names, line)])
                    return self.go(following, self.mask, self.count, fronts)
                parked += [(following, lanes, name, line) for name, lanes in names.items()]
            case "switch":
                choice = np.broadcast_to(self.registers[exit[1]].view("u4"), self.lanes)
                for number, target in enumerate(exit[2]):
                    lanes = self.active_lanes() & (choice == number)
                    if some := int(np.count_nonzero(lanes)):
                        self.go(target, lanes, some, fronts)
            case "return":
                self.go(EXIT, self.mask, self.count, fronts)

    def barrier_names(self, numbers: list[int], line: int) -> dict[tuple, np.ndarray]:
        """{(barrier, threads if given): lanes that arrive there}. Raises PtxError where the lanes
        of a warp do not agree."""
        values = [self.registers[slot].view("u4") for slot in numbers]
        active = self.active_lanes()
        if all(len(value) == 1 for value in values):
            return {tuple(int(value[0]) for value in values): active}
        rows = np.stack([np.broadcast_to(value, self.lanes) for value in values], axis=1)
        warps, on = rows.reshape(-1, WARP, len(values)), active.reshape(-1, WARP)
        leader = warps[np.arange(len(warps)), on.argmax(axis=1)]
        if (on & (warps != leader[:, None]).any(axis=2)).any():
            raise PtxError(
                f"{self.launch.at_line(line)}: threads of one warp are at different barriers"
            )
        return {
            tuple(map(int, row)): active & (rows == row).all(axis=1)
            for row in np.unique(rows[active], axis=0)
        }

    def go(self, target: int, mask, count: int, fronts: dict) -> None:
        if target == EXIT:
            self.living -= count
            if self.living:
                alive = np.ones(self.lanes, bool) if self.alive is None else self.alive
                self.alive = alive & ~mask
            return
        if target in fronts:
            other, more = fronts[target]
            count += more
            mask = None if count == self.lanes else mask | other
        fronts[target] = (mask, count)

    def release(self, fronts: dict, parked: list) -> None:
        """No lane can run: let the blocks go whose lanes have all arrived at one barrier."""
        shape = (-1, self.padded)
        alive = np.ones(self.lanes, bool) if self.alive is None else self.alive
        living = alive.reshape(shape).sum(axis=1)
        arrived: dict[tuple, np.ndarray] = {}
        for _, mask, name, _ in parked:
            arrived[name] = arrived.get(name, 0) + mask.reshape(shape).sum(axis=1)
        waiting, passed = list(parked), []
        parked.clear()
        for following, mask, name, line in waiting:
            expected = name[1] if len(name) > 1 else living
            ready = np.repeat(arrived[name] >= expected, self.padded)
            going, staying = mask & ready, mask & ~ready
            if some := int(np.count_nonzero(going)):
                self.go(following, None if some == self.lanes else going, some, fronts)
                passed.append((following, going, name, line))
            if staying.any():
                parked.append((following, staying, name, line))
        if not fronts:
            _, mask, name, line = parked[0]
            lane = int(np.argmax(mask))
            block = lane // self.padded
            here, there = int(arrived[name][block]), int(living[block])
            fault = self.fault(
                "deadlock",
                f"waits for ever at barrier {name[0]}: {here} of {there} threads arrive",
                line,
                lane,
            )
            elsewhere = (
                entry[3] for entry in parked if entry[1].reshape(shape)[block].any()
                and entry[2] != name
            )  # fmt: skip
            fault.other_line = next(elsewhere, None)
            raise fault
        if self.watch is not None:
            self.watch.released(self, passed)


_GLOBAL = Space("global")


def unravel(number: int, extent) -> tuple[int, int, int]:
    """(x, y, z) of a thread or block, given its number."""
    x, y, _ = extent
    return number % x, number // x % y, number // (x * y)


def short(index, extent) -> tuple:
    """(x, y) or (x, y, z): as many coordinates as the launch uses, at least two."""
    return index if extent[2] > 1 else index[:2]


class Launch:
    """One launch of a program. `blocks` restricts it to some linear block numbers.

    watch: an object, or a tuple of objects, told what happens: see Watchers.
    turns: an int for each warp of a block; between two barriers the warps with the lowest number
    run first. None: all together.
    leftover: the byte that fills registers and local memory to which nothing was written.
    """

    def __init__(
        self,
        program: Program,
        grid: Sequence[int],
        block: Sequence[int],
        params: bytes,
        memory: GlobalMemory,
        symbols: dict[str, int],
        *,
        shared_mem: int = 0,
        filename: str = "kernel.cu",
        watch=None,
        blocks: np.ndarray | None = None,
        lanes: int = LANES,
        turns: np.ndarray | None = None,
        leftover: int = POISON,
    ):
        self.program, self.memory, self.filename, self.turns = program, memory, filename, turns
        self.leftover = leftover
        watch = watch if isinstance(watch, tuple | None) else (watch,)
        self.watch = Watchers(watch) if watch else None
        self.grid, self.block = ((*extent, 1, 1)[:3] for extent in (grid, block))
        self.threads = prod(self.block)
        self.shared_size = program.shared_size + shared_mem
        self.file = list(program.file)
        for slot in program.unset:
            dtype = self.file[slot].dtype
            full = np.full(dtype.itemsize, leftover, np.uint8)
            self.file[slot] = full != 0 if dtype == BOOL else full.view(dtype)
        for slot, offset, dtype in program.params:
            self.file[slot] = np.frombuffer(params, dtype, 1, offset).copy()
        for slot, name, offset in program.symbols:
            self.file[slot] = np.array([symbols[name] + offset], "u8")
        self.numbers = range(prod(self.grid)) if blocks is None else blocks
        padded = -(-self.threads // WARP) * WARP
        own = self.shared_size + program.local_size * padded  # bytes of a block
        self.batch = max(1, min(lanes // padded, OWN_BYTES // max(own, 1)))

    def at_line(self, line: int) -> str:
        """ "tiled, line 57 of kernels/02_tiled.cu", for messages."""
        where = f"line {line} of {self.filename}" if line else self.filename
        return f"{plain(self.program.kernel.name)}, {where}"

    def run(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Run all blocks, some at a time; `progress(done, total)` after each batch."""
        with np.errstate(all="ignore"):
            for first in range(0, len(self.numbers), self.batch):
                numbers = np.asarray(self.numbers[first : first + self.batch])
                Batch(self, numbers).run()
                if progress:
                    progress(first + len(numbers), len(self.numbers))
