"""Finds what a sanitizer finds: races, reads of memory nobody wrote, barriers that not all reach.

A `Sanitizer` watches a launch (machine.py, Watchers) and collects findings.

**Races.** All lanes of a batch pass a block's barrier together, so a launch falls into epochs, and
two accesses of one block can be simultaneous only within one epoch. An epoch's accesses to shared
memory, and to global arrays that the kernel writes, are kept until it ends. Then each store is held
against every access that reaches into the same bytes: first as intervals, then lane by lane. Two
different threads, of which at least one writes, and not both atomically, race, unless an
instruction that synchronises the warp (`__syncwarp`, a shuffle, a vote) or a barrier of some
threads lies between them. That lanes of a warp run in step is an accident of the hardware and
orders nothing. Threads that write the same bits to one place are let pass, as compute-sanitizer
does by default.

**Copies.** `cp.async` writes at some moment between its issue and its wait. Whoever touches the
place in between, the thread itself included, makes a finding. When the data lands, that is a write
by the thread that waited, and the rules above decide who may see it.

**Blocks** run in any order. Every element of an array that the kernel writes remembers the last
block that wrote it and the last that read it. A kernel with a device-wide fence may hand data from
block to block, and is not held to that.

**The order of warps** cannot change a result where there are none of these findings, no atomics
but those whose order makes no difference (whole numbers, result unused), no fences, no acquire or
release: between two barriers nobody then reads what another writes, so each thread computes the
same from the same values in any order. For other kernels `order_sensitive` names the instruction,
and profile runs the launch again in other orders.

**Variables nobody set** are registers and local memory, and hold what was left there. That such a
register is read proves nothing: compilers copy them about where the value is not needed. So if
there is a path on which one is read (`unset`), profile runs the launch again with other leftovers.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from .decode import WARP, Access, Program
from .machine import Batch, Copy, Fault, Launch, short, unravel
from .memory import UNSIGNED, WINDOW, Reach, Region, Space
from .names import shared_names
from .ptx import Address, Instruction, Kernel, Reg, Symbol, reads_writes

RECORDS = 1 << 14  # accesses, and address vectors, that an epoch keeps: in a longer one, accesses
REACHES = 256  # further apart are not held against each other
ENOUGH = 32  # pairs of accesses at two lines that are looked at once a finding names these lines
FEW = 8  # pairs of accesses that an epoch looks at without a sweep before
_GLOBAL = Space("global")
_LOW = (1 << 32) - 1
_MANY = _LOW  # more than one block
_ALL = 0xFFFFFFFF
_STRONG = {"relaxed", "acquire", "release"}
_READS = {"load": "reads", "store": "writes", "atomic": "updates", "copy": "copies to"}
_READ = {"load": "read", "store": "wrote", "atomic": "updated", "copy": "copied to"}


@dataclass(frozen=True)
class Finding:
    """One mistake of a kernel, however often it happens.

    kind: "read-write-race", "write-write-race", "unfinished-copy", "uninitialised-read",
    "two-blocks-write", "cross-block-read", "divergent-barrier", "exit-before-barrier",
    "order-dependent", or that of a Fault: "out-of-bounds", "misaligned", "deadlock", "warp-mask",
    "trap", "endless".
    line: of the .cu file, where it goes wrong; other_line: of what it collides with, if anything.
    message: a sentence about the first occurrence, to which block, threads (one or two, (x, y, z)),
    element ("As[3][5]", "C[0, 17]") and address (bytes; in shared memory, of the block's) belong.
    count: occurrences seen, in threads; of a mistake made all the time, not all are looked at.
    """

    kind: str
    line: int
    other_line: int | None
    message: str
    block: tuple[int, int, int] | None = None
    threads: tuple[tuple[int, int, int], ...] = ()
    element: str | None = None
    address: int | None = None
    count: int = 1

    def __str__(self) -> str:
        return self.message


def of_fault(fault: Fault, where: str = "") -> Finding:
    """A launch's fault as a finding; where: added to its sentence."""
    threads = (fault.thread,) if fault.thread else ()
    message = f"{fault}{where}"
    return Finding(
        fault.kind, fault.line, fault.other_line, message, fault.block, threads, fault.element
    )


# --- arrays nobody wrote -------------------------------------------------------------------------

_empty: WeakValueDictionary[int, np.ndarray] = WeakValueDictionary()


def never_written(array: np.ndarray) -> np.ndarray:
    """Remember that an array comes full of POISON from cp.empty. Returns it."""
    _empty[id(array)] = array
    return array


def _unwritten(region: Region) -> np.ndarray | None:
    """Bool per byte: those of an array from cp.empty that still hold what it was filled with.

    The host's writes are not seen; they show in the bits. All ones are a NaN that no arithmetic
    makes; but as an integer they are −1, so an array of integers counts only while all of it is so.
    """
    owner = region.data
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if _empty.get(id(owner)) is not owner:
        return None
    unit = region.item if region.item in UNSIGNED else 1
    poisoned = region.units(unit) == np.iinfo(UNSIGNED[unit]).max
    if not (poisoned.any() if owner.dtype.kind == "f" else poisoned.all()):
        return None
    return np.repeat(poisoned, unit)


class _Shadow:
    """Which bytes of a memory have been written."""

    def __init__(self, written: np.ndarray):
        self.bytes = np.where(written, np.uint8(0xFF), np.uint8(0))

    def _places(self, access: Access, first: int):
        units = self.bytes[: len(self.bytes) // access.unit * access.unit].view(
            UNSIGNED[access.unit]
        )
        return [units[first // access.unit + n :] for n in range(access.count)]

    def mark(self, access: Access, first: int, elements: np.ndarray, mask) -> None:
        if mask is not None and len(elements) > 1:
            elements = elements[mask]
        for place in self._places(access, first):
            place[elements] = np.iinfo(place.dtype).max

    def missing(self, access: Access, first: int, elements: np.ndarray, mask) -> np.ndarray:
        """Bool per lane: it reads something unwritten."""
        found = np.zeros(len(elements), bool)
        for place in self._places(access, first):
            found |= place.take(elements, mode="clip") != np.iinfo(place.dtype).max
        return found if mask is None else found & mask


# --- what can be told from the program -----------------------------------------------------------


def _instructions(kernel: Kernel):
    return (ins for block in kernel.blocks for ins in block.instructions)


def _strong(ins: Instruction) -> bool:
    """Whether it may meet others of its kind at one place: an atomic, or a .relaxed access."""
    return ins.op in ("atom", "red") or not _STRONG.isdisjoint(ins.mods)


def _fence(ins: Instruction) -> bool:
    """A fence beyond the block."""
    return ins.op in ("membar", "fence") and not {"gl", "gpu", "sys"}.isdisjoint(ins.mods)


def order_sensitive(program: Program) -> int | None:
    """The line of an instruction that lets the order of warps reach the result; None: none does."""
    if "order" not in program.notes:
        program.notes["order"] = _order_sensitive(program)
    return program.notes["order"]


def _order_sensitive(program: Program) -> int | None:
    instructions = list(_instructions(program.kernel))
    used = {name for ins in instructions for name in reads_writes(ins)[0]}
    used |= {block.exit[1] for block in program.kernel.blocks if block.exit[0] == "branch"}
    for ins in instructions:
        if ins.op in ("atom", "red"):
            result = ins.op == "atom" and getattr(ins.operands[0], "name", None) in used
            if result or ins.mods[-1][0] == "f" or {"exch", "cas"} & set(ins.mods):
                return ins.line
        elif _fence(ins) or _strong(ins):
            return ins.line
    return None


def unset(program: Program) -> int | None:
    """The line of the first instruction that may read a register, or a thread's own array, before
    anything is put there; None: none does."""
    if "unset" not in program.notes:
        program.notes["unset"] = next(_unset(program), None)
    return program.notes["unset"]


def _unset(program: Program) -> Iterator[int]:
    if program.unset or program.local_size:
        for ins in _instructions(program.kernel):
            slots = {program.slots.get(name) for name in reads_writes(ins)[0]}
            if slots & program.unset or (program.local_size and _own(ins)):
                yield ins.line


def _own(ins: Instruction) -> bool:
    """Whether it may load from local memory."""
    return ins.op == "ld" and {"param", "global", "shared", "const"}.isdisjoint(ins.mods)


def _origins(kernel: Kernel) -> dict[str, set[str]]:
    """For each register, the 8-byte parameters and the variables its value may come from; "?" is
    anything read from memory."""
    pointers = {p.name for p in kernel.params if p.size == 8}
    origin: dict[str, set[str]] = {}

    def sources(operand) -> set[str]:
        match operand:
            case Reg(name):
                return origin.get(name, set())
            case Symbol(name):
                return {name} if name in kernel.variables else set()
            case Address(base):
                return sources(base)
        return set()

    changed = True
    while changed:
        changed = False
        for ins in _instructions(kernel):
            _, written = reads_writes(ins)
            if ins.op == "ld" and "param" in ins.mods:
                name = ins.operands[1].base.name
                found = {name} & pointers
                if any(p.name == name and p.type == "b8" for p in kernel.params):
                    found = {"?"}  # a struct may hold pointers
            elif ins.op in ("ld", "atom"):
                found = {"?"} if ins.mods[-1] in ("u64", "b64", "s64") else set()
            else:
                found = set().union(*(sources(op) for op in ins.operands[1:]))
            for name in written:
                if not found <= origin.get(name, set()):
                    origin[name] = origin.get(name, set()) | found
                    changed = True
    return origin


def _stored(launch: Launch) -> set[int]:
    """Windows of the arrays that the kernel may store to."""
    program = launch.program
    kernel = program.kernel
    everything = set(launch.memory.regions)
    if "origins" not in program.notes:
        program.notes["origins"] = _origins(kernel)
    origin = program.notes["origins"]
    places: dict[str, int] = {}
    offsets = {p.offset: p.name for p in kernel.params}
    for slot, offset, dtype in program.params:
        if dtype.itemsize == 8 and offset in offsets:
            places[offsets[offset]] = int(launch.file[slot][0]) // WINDOW
    for slot, name, _ in program.symbols:
        places[name] = int(launch.file[slot][0]) // WINDOW
    windows = set()
    for ins in _instructions(kernel):
        if ins.op not in ("st", "atom", "red") or not {"shared", "local"}.isdisjoint(ins.mods):
            continue
        base = next(op.base for op in ins.operands if isinstance(op, Address))
        found = origin.get(base.name, set()) if isinstance(base, Reg) else {base.name}
        if not found or "?" in found:
            return everything
        windows |= {places[name] for name in found if name in places}
    return windows & everything


# --- what is remembered --------------------------------------------------------------------------


class _Record(NamedTuple):
    """One access of an epoch."""

    access: Access
    shared: bool
    reach: Reach
    start: int
    mask: np.ndarray | None  # active lanes
    whole: bool  # they are those of the reach
    writes: bool
    strong: bool
    event: int  # synchronising events before it
    turn: np.ndarray  # per warp: how often all of its lanes have met before it
    values: tuple  # of a store: registers with the bits written

    @property
    def end(self) -> int:
        return self.start + self.reach.span + self.access.size


class _WarpSync(NamedTuple):
    """Lanes met in a warp-level instruction."""

    named: np.ndarray  # [warps, 32]
    active: np.ndarray
    full: np.ndarray  # per warp: all of its lanes met


class _Facts(NamedTuple):
    """What is known of an access before it runs."""

    access: Access  # kept, so that its id stays its own
    strong: bool
    reads: bool
    stored: tuple[int, ...]  # slots of the values of a store


def _facts(program: Program, access: Access) -> _Facts:
    ins, stored = access.ins, ()
    if access.kind == "store":
        source = ins.operands[1]
        parts = getattr(source, "parts", (source,))
        stored = tuple(program.source(part, UNSIGNED[access.unit]) for part in parts)
    reads = access.kind != "store" and "exch" not in ins.mods
    return _Facts(access, _strong(ins), reads, stored)


@dataclass
class _Array:
    """A global array whose accesses are looked at."""

    region: Region
    stored: bool  # the kernel may write it
    unwritten: _Shadow | None
    cell: int = 0
    # per cell: (number of the access << 32) + (block + 1) of the last to write and to read it
    writer: np.ndarray | None = None
    reader: np.ndarray | None = None
    accesses: list[Access] = field(default_factory=list)

    def tag(self, access: Access) -> int:
        """The access's number, shifted into place; makes cells fine enough for it."""
        if self.writer is None:
            item = self.region.item
            self.cell = min(item if item in UNSIGNED else 4 if item % 4 == 0 else 1, access.unit)
            cells = self.region.nbytes // self.cell
            self.writer, self.reader = np.zeros(cells, np.int64), np.zeros(cells, np.int64)
        elif access.unit < self.cell:
            times, self.cell = self.cell // access.unit, access.unit
            self.writer, self.reader = (np.repeat(x, times) for x in (self.writer, self.reader))
        for number, known in enumerate(self.accesses):
            if known is access:
                return number << 32
        self.accesses.append(access)
        return len(self.accesses) - 1 << 32


class Sanitizer:
    """Watches launches and collects findings. source, options: to call shared arrays by name."""

    def __init__(self, source: str = "", options: Sequence[str] = ()):
        self.source, self.options = source, options
        self._found: dict[tuple, Finding] = {}
        self._looks: dict[tuple, int] = {}
        self._launch: Launch | None = None
        self.batch: Batch | None = None
        self._table = np.zeros(0, np.int32)  # scratch: who touched a place last
        self._facts: dict[int, _Facts] = {}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """In the order in which they were found."""
        return tuple(self._found.values())

    def fault(self, fault: Fault) -> None:
        """A launch ended with this fault: add it, after what was seen until then."""
        if self.batch is not None:
            self._settle()
        self._found[fault.kind, fault.line, fault.other_line] = of_fault(fault)

    # hooks of the machine

    def begin(self, batch: Batch) -> None:
        launch = batch.launch
        if launch is not self._launch:
            self._open(launch)
        self.batch = batch
        self._shadow = _Shadow(np.zeros(batch.spaces["shared"].data.size, bool))
        self._full = False
        self._block_of = np.repeat(np.asarray(batch.numbers, np.int64) + 1, batch.padded)
        self._flight: dict[int, tuple[Copy, _Record]] = {}
        self._copying: tuple | None = None
        self._meetings: dict[tuple, tuple] = {}
        self._branches: deque = deque(maxlen=256)
        self._new_epoch()

    def end(self, batch: Batch) -> None:
        self._settle()
        self._meetings.clear()

    def access(self, batch: Batch, access: Access, space: str, reach: Reach, start: int) -> None:
        if space == "shared":
            if access.kind == "copy":
                self._copying = access, reach, start
            else:
                self._shared(access, reach, start)
        elif space == "global" and (array := self._arrays.get(start // WINDOW)):
            self._global(access, reach, start, array)

    def issued(self, batch: Batch, copy: Copy) -> None:
        access, reach, start = self._copying
        record = self._record(access, True, reach, start, writes=True)
        self._against_flight(record)
        self._flight[id(copy)] = copy, record

    def landed(self, batch: Batch, copy: Copy, lanes: np.ndarray) -> None:
        _, sent = self._flight.pop(id(copy))
        access, reach, start = sent.access, sent.reach, sent.start
        elements = reach.elements(access.unit, batch.spaces["shared"])
        self._shadow.mark(access, start, elements, lanes)
        rest = ~lanes if sent.mask is None else sent.mask & ~lanes
        partly = bool(rest.any())
        if partly:
            self._flight[id(copy)] = copy, sent._replace(mask=rest, whole=False)
        whole = sent.whole and not partly
        self._keep(sent._replace(mask=lanes, whole=whole, event=len(self._events), turn=self._turn))

    def synced(self, batch: Batch, named: np.ndarray, line: int, givers: np.ndarray | None) -> None:
        active = batch.active_lanes().reshape(-1, WARP)
        full = (active & (named == _ALL)).all(axis=1)
        self._events.append(_WarpSync(named.astype(np.uint32), active, full))
        self._turn = self._turn + full
        own = named >> np.arange(WARP) & 1 == 1
        if not (own | ~active).all():
            lane = int(np.argmax(active & ~own))
            what = "calls a warp-level function with a mask that does not name the thread itself"
            self._report("warp-mask", line, None, int((active & ~own).sum()), lambda: (lane, what))
        if givers is None:
            return
        lost = active & ~np.take_along_axis(active, givers, axis=1)
        if lost.any():
            lane = int(np.argmax(lost))
            what = (
                f"takes the value of lane {givers.flat[lane]} of its warp, which is not there (it "
                "has returned, or is elsewhere): what it gets is undefined"
            )
            self._report("warp-mask", line, None, int(lost.sum()), lambda: (lane, what))

    def parted(self, batch: Batch, line: int, lanes: np.ndarray) -> None:
        self._branches.append((line, lanes, batch.mask))

    def released(self, batch: Batch, passed: list) -> None:
        self._arrivals(passed)
        going = (batch.lanes if mask is None else int(mask.sum()) for _, mask, *_ in passed)
        if sum(going) == batch.living and len({name for _, _, name, _ in passed}) == 1:
            return self._settle()
        groups: dict[tuple, np.ndarray] = {}
        for _, mask, name, _ in passed:
            groups[name] = groups[name] | mask if name in groups else mask
        self._events.extend(groups.values())

    # findings

    def _report(self, kind: str, line: int, other: int | None, count: int, describe) -> None:
        """Count a finding; the first time, describe() gives its lane, what it did, and more."""
        key = kind, line, other
        if known := self._found.get(key):
            self._found[key] = replace(known, count=known.count + count)
            return
        lane, what, *more = describe()
        fault = self.batch.fault(kind, what, line, lane)
        lanes, element, address = more or ((), None, None)
        threads = (fault.thread, *(self._thread(other) for other in lanes))
        self._found[key] = Finding(
            kind, line, other, str(fault), fault.block, threads, element, address, count
        )

    def _looked_enough(self, *key) -> bool:
        """Whether what these lines do to each other is known well enough."""
        if key in self._found:
            self._looks[key] = self._looks.get(key, 0) + 1
        return self._looks.get(key, 0) > ENOUGH

    def _thread(self, lane: int) -> tuple[int, int, int]:
        return unravel(lane % self.batch.padded, self._launch.block)

    def _who(self, lane: int) -> str:
        return f"thread {short(self._thread(lane), self._launch.block)}"

    def _block(self, number: int) -> str:
        return f"block {short(unravel(number, self._launch.grid), self._launch.grid)}"

    def _element(self, record: _Record, lane: int, low: int = 0) -> tuple[str, int]:
        """Name and address of what a lane touches, from byte `low` on."""
        relative = record.reach.relative
        address = record.start + int(relative[lane if len(relative) > 1 else 0])
        address = max(address, low)
        if record.shared:
            return self._names(address), address
        return self._launch.memory.find(address).element(address), address

    # epochs

    def _open(self, launch: Launch) -> None:
        self._launch = launch
        program = launch.program
        self._names = shared_names(program, self.source, self.options)
        self._fenced = any(map(_fence, _instructions(program.kernel)))
        stored = _stored(launch)
        self._arrays: dict[int, _Array] = {}
        for window, region in launch.memory.regions.items():
            unwritten = _unwritten(region)
            if window in stored or unwritten is not None:
                shadow = None if unwritten is None else _Shadow(~unwritten)
                self._arrays[window] = _Array(region, window in stored, shadow)

    def _new_epoch(self) -> None:
        self._records: list[_Record] = []
        self._reaches: set[int] = set()
        self._events: list[_WarpSync | np.ndarray] = []
        self._turn = np.zeros(self.batch.lanes // WARP, int)
        self._full = self._full or bool(self._shadow.bytes.all())

    def _about(self, access: Access) -> "_Facts":
        found = self._facts.get(id(access))
        if found is None:
            found = self._facts[id(access)] = _facts(self._launch.program, access)
        return found

    def _record(self, access, shared, reach, start, writes) -> _Record:
        facts, registers = self._about(access), self.batch.registers
        values = tuple([registers[slot] for slot in facts.stored])
        record = _Record(
            access, shared, reach, start, reach.mask, True, writes,
            facts.strong, len(self._events), self._turn, values,
        )  # fmt: skip
        self._keep(record)
        if writes:
            self._within(record)
        return record

    def _keep(self, record: _Record) -> None:
        self._records.append(record)
        self._reaches.add(id(record.reach))
        if len(self._records) > RECORDS or len(self._reaches) > REACHES:
            self._settle()

    def _settle(self) -> None:
        """An epoch ends: hold its stores against its other accesses."""
        records = self._records
        writes = np.array([record.writes for record in records], bool)
        if writes.any() and len(records) > 1:
            first = np.array([record.start for record in records])
            last = np.array([record.end for record in records])
            near: dict[int, np.ndarray] = {}  # by writer: accesses that reach into its bytes
            for n in np.flatnonzero(writes).tolist():
                others = (first < last[n]) & (last > first[n])
                others[: n + 1] &= ~writes[: n + 1]  # two writers are a pair once
                if others.any():
                    near[n] = np.flatnonzero(others)
            if sum(map(len, near.values())) > FEW:
                near = self._suspects(records, near)
            for n, others in near.items():
                for other in others.tolist():
                    self._pair(records[min(n, other)], records[max(n, other)])
        self._new_epoch()

    def _suspects(self, records: list[_Record], near: dict) -> dict:
        """Of many pairs of accesses, those in which threads may meet: one sweep over the accesses
        finds where a thread touches what another writes last, and where another warp does."""
        involved = sorted(set(near).union(*(others.tolist() for others in near.values())))
        foreign = np.zeros((2, len(records)), bool)  # another lane; of another warp
        for shared in (True, False):
            some = [n for n in involved if records[n].shared == shared]
            if some:
                foreign[:, some] = self._sweep([records[n] for n in some])
        lane, warp = foreign
        turns = np.array([record.turn for record in records])
        on = np.array([self._warps(record) for record in records])
        suspects = {}
        for n, others in near.items():
            together = ((turns[others] == turns[n]) & on[others] & on[n]).any(axis=1)
            kept = (lane[n] | lane[others]) & (together | warp[n] | warp[others])
            if kept.any():
                suspects[n] = others[kept]
        return suspects

    def _warps(self, record: _Record) -> np.ndarray:
        """Bool per warp: one of its lanes is active."""
        if record.mask is None:
            return np.ones(self.batch.lanes // WARP, bool)
        return record.mask.reshape(-1, WARP).any(axis=1)

    def _sweep(self, records: list[_Record]) -> np.ndarray:
        """Bool [2, accesses]: it touches a place last written by another lane of its block; by
        one of another warp."""
        batch, padded = self.batch, self.batch.padded
        space = batch.spaces["shared"] if records[0].shared else _GLOBAL
        unit = min(record.access.unit for record in records)
        base = min(record.start for record in records) // 16 * 16
        places, needed = [], 0
        for record in records:
            lanes = self._lanes(record)
            cells = np.broadcast_to(record.reach.elements(unit, space), batch.lanes)[lanes]
            cells = (cells + (record.start - base) // unit).astype(np.int32)
            count = record.access.size // unit
            places.append((lanes.astype(np.int32), cells, count))
            needed = max(needed, int(cells.max()) + count)
        table = self._scratch(needed)
        for _, cells, count in places:
            for n in range(count):
                table[cells + n] = -1
        for record, (lanes, cells, count) in zip(records, places, strict=True):
            if record.writes:
                for n in range(count):
                    table[cells + n] = lanes
        foreign = np.zeros((2, len(records)), bool)
        for number, (lanes, cells, count) in enumerate(places):
            for n in range(count):
                writer = table[cells + n]
                other = (writer != lanes) & (writer >= 0)
                if other.any():
                    other &= writer // padded == lanes // padded
                    foreign[0, number] |= other.any()
                    foreign[1, number] |= (other & (writer // WARP != lanes // WARP)).any()
        return foreign

    def _scratch(self, needed: int) -> np.ndarray:
        """A table for lane numbers, with anything in it."""
        if len(self._table) < needed:
            self._table = np.zeros(2 * needed, np.int32)
        return self._table

    def _pair(self, x: _Record, y: _Record) -> None:
        """Two accesses of one epoch, x before y on this machine, that reach into the same bytes."""
        size = x.access.size
        if x.strong and y.strong:
            return
        same = x.reach is y.reach and x.start == y.start and size == y.access.size
        if same and x.whole and y.whole and self._twice(x) is None:
            return  # each thread meets itself only
        kind = "write-write-race" if x.writes and y.writes else "read-write-race"
        line, other = y.access.line, x.access.line
        if self._looked_enough(kind, line, other):
            return
        a, b = self._meeting(x, y)
        if len(a) and y.event > x.event:
            apart = ~self._ordered(a, b, self._events[x.event : y.event])
            a, b = a[apart], b[apart]
        if len(a) and x.values and y.values and size == y.access.size:
            differ = self._differ(x, a, y, b)
            a, b = a[differ], b[differ]
        if not len(a):
            return
        if ("unfinished-copy", line, other) in self._found:
            return

        def describe():
            warps = a // WARP == b // WARP
            n = int(np.lexsort((b, warps))[0])  # two warps, if possible: no __syncwarp() helps them
            lane, them, warp = int(b[n]), int(a[n]), bool(warps[n])
            element, address = self._element(y, lane, self._element(x, them)[1])
            verb = _READS[y.access.kind]
            theirs = f"{_READS[x.access.kind]} at line {other}"
            if line < other:  # told as it went, since the text has it the other way round
                before = ", a round before" if self._back(x, y) else " before that"
                theirs = f"{_READ[x.access.kind]} at line {other}{before}"
            if x.access.kind == "copy" and not y.writes:
                what = (
                    f"reads {element}, which {self._who(them)} copies with cp.async at line "
                    f"{other}: after the wait the data is there for the thread that waited, and "
                    "for others only after a barrier. Put a __syncthreads() between the wait and "
                    f"line {line}"
                )
            else:
                none = "no __syncwarp() or __syncthreads()" if warp else "no __syncthreads()"
                what = (
                    f"{verb} {element}, which {self._who(them)} {theirs}, and {none} lies between: "
                    "either may come first"
                )
            return lane, what, (them,), element, address

        self._report(kind, line, other, len(a), describe)

    def _back(self, x: _Record, y: _Record) -> bool:
        """Whether y, which came after x, stands before it: a loop led back."""
        order = [id(ins) for ins in _instructions(self._launch.program.kernel)]
        return order.index(id(y.access.ins)) < order.index(id(x.access.ins))

    def _lanes(self, record: _Record) -> np.ndarray:
        if record.mask is None:
            return np.arange(self.batch.lanes)
        return np.flatnonzero(record.mask)

    def _cells(self, record: _Record, size: int, base: int) -> np.ndarray:
        """Per lane: the number of the `size` bytes it touches, counted from `base` on; in shared
        memory blocks are kept apart."""
        cells = record.reach.relative.astype(np.int64) + (record.start - base)
        if record.shared:
            cells = cells + self.batch.spaces["shared"].lane_bytes
        return np.broadcast_to(cells, self.batch.lanes) // size

    def _meeting(self, x: _Record, y: _Record, own: bool = False) -> tuple:
        """(lanes of x, lanes of y), pair by pair: threads of one block that touch the same bytes.

        own: also a thread that meets itself. Where more than two lanes of x touch a place, the
        first and the last stand for them.
        """
        key = (x.reach, y.reach, y.start - x.start, x.start % 16, x.access.size, y.access.size, own)
        keep = x.whole and y.whole
        if keep and key in self._meetings:
            return self._meetings[key]
        size = max(x.access.size, y.access.size)  # accesses are aligned to their sizes
        base = min(x.start, y.start) // 16 * 16
        of_x, of_y = self._cells(x, size, base), self._cells(y, size, base)
        on, asking = self._lanes(x), self._lanes(y)
        active = np.zeros(self.batch.lanes, bool)
        active[on] = True
        places = of_y[asking]
        table = self._scratch(int(max(of_x[on].max(), places.max())) + 1)
        pairs = []
        for order in (on, on[::-1]) if x.writes and self._twice(x) is not None else (on,):
            table[of_x[order]] = order  # the last one stays
            found = np.clip(table[places], 0, self.batch.lanes - 1)  # or what was there
            met = active[found] & (of_x[found] == places)
            met &= found // self.batch.padded == asking // self.batch.padded
            if not own:
                met &= found != asking
            pairs.append((found[met], asking[met]))
        result = tuple(np.concatenate(lanes) for lanes in zip(*pairs, strict=True))
        if keep:
            if len(self._meetings) > 64:
                self._meetings.clear()
            self._meetings[key] = result
        return result

    def _twice(self, record: _Record) -> tuple | None:
        """(lane, lane) pairs of one block that touch the same place in one instruction, or None."""
        key = "twice", record.access.size, record.shared
        if record.whole and key in record.reach.notes:
            return record.reach.notes[key]
        size = record.access.size
        cells, on = self._cells(record, size, record.start // 16 * 16), self._lanes(record)
        cells = cells[on]
        table = self._scratch(int(cells.max()) + 1)
        table[cells] = on
        last = table[cells]
        double = (last != on) & (last // self.batch.padded == on // self.batch.padded)
        found = (on[double], last[double]) if double.any() else None
        if record.whole:
            record.reach.notes[key] = found
        return found

    def _within(self, record: _Record) -> None:
        """One instruction with which two threads of a block write different bits to one place."""
        if record.strong or (pairs := self._twice(record)) is None:
            return
        a, b = pairs
        if record.values:
            differ = self._differ(record, a, record, b)
            a, b = a[differ], b[differ]
        if not len(a):
            return
        line = record.access.line

        def describe():
            element, address = self._element(record, int(a[0]))
            what = (
                f"{_READS[record.access.kind]} {element}, and so does {self._who(int(b[0]))} at "
                "the same line, in no order: which of the two values stays is undefined"
            )
            return int(a[0]), what, (int(b[0]),), element, address

        self._report("write-write-race", line, line, len(a), describe)

    def _differ(self, x: _Record, a: np.ndarray, y: _Record, b: np.ndarray) -> np.ndarray:
        unit = UNSIGNED[x.access.unit]
        differ = np.zeros(len(a), bool)
        for first, second in zip(x.values, y.values, strict=True):
            bits = []
            for value, lanes in ((first, a), (second, b)):
                whole = value.view(UNSIGNED[value.dtype.itemsize] if value.dtype else unit)
                bits.append(np.broadcast_to(whole.astype(unit), self.batch.lanes)[lanes])
            differ |= bits[0] != bits[1]
        return differ

    def _ordered(self, a: np.ndarray, b: np.ndarray, events: list) -> np.ndarray:
        """Per pair: these events let lane b know what lane a did before them."""
        padded = self.batch.padded
        together = np.zeros(len(a), bool)
        for event in events:
            if isinstance(event, _WarpSync):
                together |= event.full[a // WARP]
        together &= a // WARP == b // WARP
        for first in range(0, len(a), 1024):
            some = slice(first, first + 1024)
            if together[some].all():
                continue
            blocks = a[some] // padded
            knows = np.zeros((len(blocks), padded), bool)
            knows[np.arange(len(blocks)), a[some] % padded] = True
            for event in events:
                if isinstance(event, _WarpSync):
                    shape = (-1, padded // WARP, WARP)
                    told = (knows.reshape(shape) * (1 << np.arange(WARP))).sum(axis=2)[:, :, None]
                    named, active = (e.reshape(shape)[blocks] for e in (event.named, event.active))
                    knows |= (active & (named & told != 0)).reshape(knows.shape)
                else:
                    there = event.reshape(-1, padded)[blocks]
                    knows |= there & (there & knows).any(axis=1)[:, None]
            together[some] |= knows[np.arange(len(blocks)), b[some] % padded]
        return together

    # shared memory

    def _shared(self, access: Access, reach: Reach, start: int) -> None:
        record = self._record(access, True, reach, start, writes=access.kind != "load")
        if self._flight:
            self._against_flight(record)
        if self._full:
            return
        elements = reach.elements(access.unit, self.batch.spaces["shared"])
        if self._about(access).reads:
            key = "read", start, access.size
            if key not in reach.notes:
                missing = self._shadow.missing(access, start, elements, reach.mask)
                if missing.any():
                    self._uninitialised(record, missing, "which no thread of the block has written")
                else:
                    reach.notes[key] = True
        if access.kind != "load":
            key = "wrote", start, access.size
            if key not in reach.notes:
                self._shadow.mark(access, start, elements, reach.mask)
                reach.notes[key] = True

    def _uninitialised(self, record: _Record, missing: np.ndarray, why: str) -> None:
        missing = np.broadcast_to(missing, self.batch.lanes)
        line = record.access.line

        def describe():
            lane = int(np.argmax(missing))
            element, address = self._element(record, lane)
            return lane, f"reads {element}, {why}", (), element, address

        self._report("uninitialised-read", line, None, int(missing.sum()), describe)

    def _against_flight(self, record: _Record) -> None:
        """An access to shared memory, held against the copies that are on their way."""
        for _, sent in self._flight.values():
            if record.start >= sent.end or sent.start >= record.end:
                continue
            if self._looked_enough("unfinished-copy", record.access.line, sent.access.line):
                continue
            a, b = self._meeting(sent, record, own=True)
            if not len(a):
                continue
            line, other = record.access.line, sent.access.line

            def describe(a=a, b=b, sent=sent, other=other):
                lane, them = int(b[0]), int(a[0])
                element, address = self._element(record, lane, self._element(sent, them)[1])
                whose = "its own" if lane == them else f"{self._who(them)}'s"
                what = (
                    f"{_READS[record.access.kind]} {element} while {whose} cp.async of line "
                    f"{other} to that place may still be on its way: the data is there after the "
                    "cp.async.wait_group that covers it and, for other threads, a __syncthreads()"
                )
                return lane, what, (them,), element, address

            self._report("unfinished-copy", line, other, len(a), describe)

    # global memory

    def _global(self, access: Access, reach: Reach, start: int, array: _Array) -> None:
        writes = access.kind in ("store", "atomic")
        first = start - array.region.base
        record = None
        if array.stored:
            record = self._record(access, False, reach, start, writes)
        if array.unwritten is not None:
            elements = reach.elements(access.unit, _GLOBAL)
            if self._about(access).reads:
                missing = array.unwritten.missing(access, first, elements, reach.mask)
                if missing.any():
                    record = record or _Record(
                        access, False, reach, start, reach.mask, True, False, False, 0, None, ()
                    )
                    why = "which nobody has written: the array comes from cp.empty"
                    self._uninitialised(record, missing, why)
            if writes:
                array.unwritten.mark(access, first, elements, reach.mask)
        if record is not None and array.stored:
            self._between_blocks(record, array, first)

    def _between_blocks(self, record: _Record, array: _Array, first: int) -> None:
        """Who else wrote or read these elements in this launch."""
        access, lanes = record.access, self._lanes(record)
        tag = array.tag(access)
        cells = np.broadcast_to(record.reach.relative, self.batch.lanes)[lanes].astype(np.int64)
        cells = (cells + first) // array.cell
        mine = self._block_of[lanes]
        for n in range(access.size // array.cell):
            at = cells + n
            writer, reader = array.writer[at], array.reader[at]
            self._clash(record, array, lanes, writer, mine, written=True)
            if record.writes:
                if access.kind != "atomic":
                    self._clash(record, array, lanes, reader, mine, written=False)
                array.writer[at] = mine + tag
                self._clash(record, array, lanes, array.writer[at], mine, written=True)
            if not record.writes or access.kind == "atomic":
                alone = (reader == 0) | (reader & _LOW == mine)
                array.reader[at] = np.where(alone, mine, _MANY) + tag
                lost = array.reader[at] & _LOW != mine
                array.reader[at[lost]] = _MANY + tag

    def _clash(self, record, array, lanes, seen, mine, written: bool) -> None:
        """Cells last touched by another block; written: it wrote them, else it read them."""
        other = (seen != 0) & (seen & _LOW != mine)
        if not other.any():
            return
        if record.strong:
            strong = np.array([self._about(access).strong for access in array.accesses])
            other &= ~strong[seen >> 32]
        both = written and record.writes
        if not other.any() or (self._fenced and not both):
            return
        n = int(np.argmax(other))
        theirs, block = array.accesses[int(seen[n]) >> 32], int(seen[n]) & _LOW
        line, there = record.access.line, theirs.line

        def describe():
            lane = int(lanes[n])
            element, address = self._element(record, lane)
            whose = "another block" if block == _MANY else self._block(block - 1)
            does, did = ("writes" if w else "reads" for w in (record.writes, written))
            where = "" if line == there else f" at line {there}"
            also = " too" if both else ""
            what = (
                f"{does} {element}, which {whose} {did}{also}{where} in the same launch: "
                "blocks run in any order"
            )
            return lane, what, (), element, address

        kind = "two-blocks-write" if both else "cross-block-read"
        self._report(kind, line, there, int(other.sum()), describe)

    # barriers

    def _arrivals(self, passed: list) -> None:
        """A barrier lets lanes go on: did all threads of their block come, and to one place?"""
        batch = self.batch
        whole = [entry for entry in passed if len(entry[2]) == 1]  # no count: all of the block
        if batch.living < len(batch.numbers) * self._launch.threads:
            gone = ~batch.alive.reshape(-1, batch.padded)
            gone[:, self._launch.threads :] = False
            for _, mask, _, line in whole:
                here = batch.active_lanes() if mask is None else mask
                self._absent(here.reshape(gone.shape), gone, line)
        for n, (following, mask, name, line) in enumerate(whole):
            for elsewhere, others, other_name, other_line in whole[n + 1 :]:
                if other_name == name and elsewhere != following:
                    self._two_places(mask, others, line, other_line)

    def _absent(self, here: np.ndarray, gone: np.ndarray, line: int) -> None:
        block = here.any(axis=1) & gone.any(axis=1)
        if not block.any():
            return
        row = int(np.argmax(block))
        lane = row * self.batch.padded + int(np.argmax(here[row]))
        missing = row * self.batch.padded + int(np.argmax(gone[row]))
        branch = self._parting(lane, missing)

        def describe():
            parted = f" (the two part at line {branch})" if branch else ""
            what = (
                f"waits at a barrier that {self._who(missing)} never reaches, since that one has "
                f"returned{parted}. Every thread of a block must come to every __syncthreads()"
            )
            return lane, what, (missing,), None, None

        count = int(gone[block].sum())
        self._report("exit-before-barrier", line, branch, count, describe)

    def _parting(self, lane: int, other: int) -> int | None:
        """The line of the last branch at which two lanes went different ways."""
        for line, taken, active in reversed(self._branches):
            together = active is None or (active[lane] and active[other])
            if together and taken[lane] != taken[other]:
                return line
        return None

    def _two_places(self, mask: np.ndarray, others: np.ndarray, line: int, other: int) -> None:
        shape = (-1, self.batch.padded)
        both = mask.reshape(shape).any(axis=1) & others.reshape(shape).any(axis=1)
        if not both.any():
            return
        row = int(np.argmax(both))
        first = row * self.batch.padded
        lane, them = (first + int(np.argmax(lanes.reshape(shape)[row])) for lanes in (mask, others))

        def describe():
            what = (
                f"waits at a barrier while {self._who(them)} waits at another, at line {other}: "
                "all threads of a block must come to the same __syncthreads()"
            )
            return lane, what, (them,), None, None

        count = int(mask.reshape(shape)[both].sum())
        self._report("divergent-barrier", line, other, count, describe)


# --- the order of warps --------------------------------------------------------------------------


def other_orders(threads: int) -> tuple[np.ndarray, ...]:
    """`turns` of a Launch: of a block's warps, the odd ones first; the second half first."""
    warps = np.arange(-(-threads // WARP))
    return 1 - warps % 2, (warps < (len(warps) + 1) // 2).astype(int)


def order_finding(launch: Launch, line: int, element: str) -> Finding:
    message = (
        f"{launch.at_line(line)}: {element} comes out differently depending on which warps and "
        "blocks run first"
    )
    return Finding("order-dependent", line, None, message, element=element)


def unset_finding(launch: Launch, line: int, element: str | None) -> Finding:
    depends = f"what {element} becomes depends" if element else "what happens depends"
    message = (
        f"{launch.at_line(line)}: reads a variable before anything is put there, and {depends} on "
        "it: give it a value where it is declared"
    )
    return Finding("uninitialised-read", line, None, message, element=element)


def differing(launch: Launch, after: dict[str, np.ndarray]) -> str | None:
    """The first element that differs from the bytes that it held after another run."""
    for region in launch.memory.regions.values():
        differ = region.data != after[region.name]
        if differ.any():
            return region.element(region.base + int(np.argmax(differ)))
    return None
