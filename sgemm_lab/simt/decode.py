"""PTX instructions → closures over the slots of a register file.

Everything that can be known before a launch is worked out here, once a kernel: which slot an
operand has, as what type it is read, which function computes it. `BUILDERS` is the table of what
the machine knows; a closure takes the running batch (machine.py) and does one instruction for all
its lanes.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from . import opcodes
from .memory import LOCAL_WINDOW, SHARED_WINDOW, UNSIGNED, SeveralArrays, Shifted
from .opcodes import DTYPES
from .ptx import SIZES, Address, Imm, Instruction, Kernel, PtxError, Reg, Symbol, Vector, gathers
from .ptxas import executed

WARP = 32
BOOL = np.dtype(bool)


@dataclass
class Program:
    """A kernel decoded: the register file's initial contents and a closure per instruction."""

    kernel: Kernel
    slots: dict = field(default_factory=dict)  # register, constant or special name → slot
    file: list = field(default_factory=list)  # initial values
    specials: dict[str, int] = field(default_factory=dict)  # "%tid.x" → slot
    params: list = field(default_factory=list)  # (slot, offset, dtype)
    symbols: list = field(default_factory=list)  # (slot, name, offset) of global variables
    layout: dict[str, int] = field(default_factory=dict)  # shared and local variables → offset
    shared_size: int = 0
    local_size: int = 0
    code: list[list[Callable]] = field(default_factory=list)  # per block
    barriers: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    live: list[frozenset[int]] = field(default_factory=list)
    unset: frozenset[int] = frozenset()  # slots that may be read before anything is put there
    exits: list[tuple] = field(default_factory=list)
    classes: list[Counter] = field(default_factory=list)  # per block: opcode class → instructions
    members: list[int | None] = field(default_factory=list)  # per block: slot of lanes it awaits
    meets: list[bool] = field(default_factory=list)  # per block: does it begin with __syncwarp?
    notes: dict = field(default_factory=dict)  # what the sanitizer works out once for a program
    pieces: tuple | None = None  # of the instruction being decoded: see Access.executed

    def new_slot(self, key, value) -> int:
        if key not in self.slots:
            self.slots[key] = len(self.file)
            self.file.append(value)
        return self.slots[key]

    def width(self, name: str) -> int:
        """Bytes of a register; 0 for a predicate."""
        return SIZES.get(self.kernel.registers[name], 0)

    def register(self, name: str) -> int:
        width = self.width(name)
        return self.new_slot(name, np.zeros(1, UNSIGNED[width] if width else BOOL))

    def source(self, operand, dtype: np.dtype) -> int:
        """The slot of an operand that is read as `dtype`."""
        match operand:
            case Reg(name):
                return self.register(name)
            case Imm(value, bits):
                if bits:
                    raw = np.array([value], UNSIGNED[bits // 8])
                elif dtype is BOOL:
                    raw = np.array([bool(value)])
                else:
                    size = 8 * dtype.itemsize
                    raw = np.array([value % (1 << size)], UNSIGNED[dtype.itemsize])
                return self.new_slot((value, bits, raw.dtype), raw)
            case Symbol(name, offset):
                return self.symbol(name, offset, dtype)
        raise PtxError(f"unexpected operand {operand}")

    def symbol(self, name: str, offset: int, dtype: np.dtype) -> int:
        if name.startswith("%") or name == "WARP_SZ":
            slot = self.new_slot(name, None)
            self.specials[name] = slot
            return slot
        if name in self.layout:
            value = np.array([self.layout[name] + offset], UNSIGNED[dtype.itemsize])
            return self.new_slot((name, offset, dtype), value)
        if name in self.kernel.variables:
            slot = self.new_slot((name, offset, dtype), None)
            self.symbols.append((slot, name, offset))
            return slot
        raise PtxError(f"{self.kernel.name}: nothing named {name}")

    def target(self, operand) -> int | None:
        return None if operand is None else self.register(operand.name)


def _place(variables, space: str) -> tuple[dict[str, int], int]:
    """Offsets of the variables of a space in the order of the text, and the bytes they take."""
    layout, end = {}, 0
    for variable in sorted((v for v in variables if v.space == space), key=lambda v: v.size == 0):
        end = (end + variable.align - 1) // variable.align * variable.align
        layout[variable.name] = end
        end += variable.size
    return layout, end


_UNCOUNTED = {"barvote", "barsum"}  # the machine's own, around bar.red
_EXIT_CLASSES = {
    "branch": "branch", "switch": "branch", "jump": "branch", "barrier": "barrier",
}  # fmt: skip


def decode(kernel: Kernel) -> Program:
    """Kernel → Program. Raises PtxError that names an unknown opcode and its line."""
    program = Program(kernel)
    shared, program.shared_size = _place(kernel.variables.values(), "shared")
    local, program.local_size = _place(kernel.variables.values(), "local")
    program.layout = shared | local
    pieces = executed(kernel, shared)
    for number, block in enumerate(kernel.blocks):
        code = []
        for index, ins in enumerate(block.instructions):
            program.pieces = pieces.get((number, index))
            code.append(_closure(program, ins))
        program.code.append(code)
        first = block.instructions[0] if block.instructions else None
        awaits = first is not None and gathers(first)
        mask = program.source(first.operands[-1], DTYPES["u32"]) if awaits else None
        program.members.append(mask)
        program.meets.append(awaits and first.op == "bar")
        program.classes.append(
            Counter(opcode_class(ins) for ins in block.instructions if ins.op not in _UNCOUNTED)
        )
        program.exits.append(_exit(program, block))
        if block.exit[0] in _EXIT_CLASSES:
            program.classes[-1][_EXIT_CLASSES[block.exit[0]]] += 1
    program.live = [
        frozenset(program.slots[name] for name in names if name in program.slots)
        for names in kernel.live_in
    ]
    program.unset = program.live[0] if program.live else frozenset()
    return program


def _exit(program: Program, block) -> tuple:
    match block.exit:
        case ("branch", name, negated, taken, following):
            return ("branch", program.register(name), negated, taken, following, block.exit_line)
        case ("switch", name, targets):
            return ("switch", program.register(name), targets)
        case ("barrier", following):
            barrier = block.barrier
            if not {"sync", "aligned", "cta"}.issuperset(barrier.mods):
                raise _unknown(program, barrier)
            numbers = [program.source(op, DTYPES["u32"]) for op in barrier.operands]
            return ("barrier", following, numbers, block.exit_line)
    return block.exit


def opcode_class(ins: Instruction) -> str:
    """The class an instruction is counted under: ffma, float, integer, load.shared, …"""
    op, mods = ins.op, ins.mods
    if op in ("ld", "st", "atom", "red"):
        space = next(
            (m for m in mods if m in ("global", "shared", "local", "param", "const")), "generic"
        )
        return f"{ {'ld': 'load', 'st': 'store'}.get(op, 'atomic') }.{space}"
    if op == "cp":
        return "cp.async"
    if op == "fma":
        return "ffma" if mods[-1] == "f32" else "float"
    if op in ("mov", "cvta", "selp", "cvt"):
        return "move"
    if op == "setp":
        return "compare"
    if op in ("shfl", "vote", "activemask", "bar", "match", "redux"):
        return "warp"
    return "float" if mods and mods[-1] in ("f16", "f32", "f64") else "integer"


def _unknown(program: Program, ins: Instruction) -> PtxError:
    return PtxError(
        f"{program.kernel.name}: the PTX machine does not know `{ins.opcode}` "
        f"(line {ins.line} of the .cu file)"
    )


def _closure(program: Program, ins: Instruction) -> Callable:
    build = BUILDERS.get(ins.op)
    step = build(program, ins) if build else None
    if step is None:
        raise _unknown(program, ins)
    if ins.guard is None:
        return step
    predicate, negated = program.register(ins.guard[0]), ins.guard[1]

    def guarded(m):
        with m.narrowed(predicate, negated) as any_lane:
            if any_lane:
                step(m)

    return guarded


def _apply(function, dtypes, target: int, sources: list[int]) -> Callable:
    """A closure that reads 1 to 4 slots as the given dtypes and writes function(…) to a slot."""
    if len(sources) == 2:
        (a, b), (ta, tb) = sources, dtypes

        def two(m):
            r = m.registers
            x, y = r[a], r[b]
            if x.dtype is not ta:
                x = x.view(ta)
            if y.dtype is not tb:
                y = y.view(tb)
            m.write(target, function(x, y))

        return two
    if len(sources) == 3:
        (a, b, c), (ta, tb, tc) = sources, dtypes

        def three(m):
            r = m.registers
            x, y, z = r[a], r[b], r[c]
            if x.dtype is not ta:
                x = x.view(ta)
            if y.dtype is not tb:
                y = y.view(tb)
            if z.dtype is not tc:
                z = z.view(tc)
            m.write(target, function(x, y, z))

        return three
    pairs = list(zip(sources, dtypes, strict=True))
    return lambda m: m.write(target, function(*(m.registers[s].view(t) for s, t in pairs)))


def _ruled(program: Program, ins: Instruction, rule):
    """The closure of an instruction by its rule, (function, operand types); None without one."""
    if rule is None:
        return None
    function, dtypes = rule
    target, *operands = ins.operands
    sources = [program.source(op, dtype) for op, dtype in zip(operands, dtypes, strict=True)]
    return _apply(function, dtypes, program.target(target), sources)


def _elementwise(program: Program, ins: Instruction):
    mods, kind = ins.mods[:-1], ins.mods[-1]
    rule = opcodes.rule(ins.op, mods, DTYPES[kind]) if kind in DTYPES else None
    return _ruled(program, ins, rule)


def _two_types(program: Program, ins: Instruction):
    *mods, first, second = ins.mods
    known = first in DTYPES and second in DTYPES
    rule = opcodes.TWO_TYPES[ins.op](tuple(mods), DTYPES[first], DTYPES[second]) if known else None
    return _ruled(program, ins, rule)


def _add(program: Program, ins: Instruction):
    """add and sub: an integer vector moved by a uniform amount stays a Shifted."""
    general = _elementwise(program, ins)
    if general is None or ins.mods[-1][0] == "f" or "sat" in ins.mods:
        return general
    target = program.target(ins.operands[0])
    dtype = UNSIGNED[DTYPES[ins.mods[-1]].itemsize]
    a, b = (program.source(op, dtype) for op in ins.operands[1:])
    sign, modulus = (-1 if ins.op == "sub" else 1), 1 << 8 * dtype.itemsize

    def add(m):
        x, y = m.registers[a], m.registers[b]
        if len(x) == 1 and sign == 1:
            x, y = y, x
        if len(y) > 1 or len(x) == 1:
            return general(m)
        step = sign * int(y.view(dtype)[0])
        if type(x) is Shifted:
            vec, step = x.vec, x.shift + step
        else:
            vec = x.view(dtype)
        m.write(target, Shifted(vec, step % modulus))

    return add


def _mov(program: Program, ins: Instruction):
    target, source = ins.operands
    kind = ins.mods[-1]
    if isinstance(target, Vector) or isinstance(source, Vector):
        return _pack(program, ins)
    slot, to = program.source(source, DTYPES[kind]), program.target(target)
    return lambda m: m.write(to, m.registers[slot])


def _pack(program: Program, ins: Instruction):
    """mov.b64 %rd, {%r1, %r2} and mov.b64 {%r1, %r2}, %rd."""
    target, source = ins.operands
    wide = UNSIGNED[SIZES[ins.mods[-1]]]
    if isinstance(source, Vector):
        narrow = UNSIGNED[wide.itemsize // len(source.parts)]
        parts = [program.source(part, narrow) for part in source.parts]
        to = program.target(target)

        def pack(m):
            total = 0
            for n, part in enumerate(parts):
                value = m.registers[part].view(narrow).astype(wide)
                total = total | value << wide.type(8 * narrow.itemsize * n)
            m.write(to, total)

        return pack
    narrow = UNSIGNED[wide.itemsize // len(target.parts)]
    slot = program.source(source, wide)
    targets = [program.target(part) for part in target.parts]

    def unpack(m):
        value = m.registers[slot].view(wide)
        for n, to in enumerate(targets):
            if to is not None:
                m.write(to, (value >> wide.type(8 * narrow.itemsize * n)).astype(narrow))

    return unpack


def _cvta(program: Program, ins: Instruction):
    """Between a space's own addresses and generic ones; global addresses are generic already."""
    target, source = ins.operands
    slot, to = program.source(source, DTYPES["u64"]), program.target(target)
    base = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(ins.mods[-2], 0)
    step = np.array([-base if "to" in ins.mods else base], "i8").view("u8")
    if not base:
        return lambda m: m.write(to, m.registers[slot])
    return lambda m: m.write(to, m.registers[slot].view(DTYPES["u64"]) + step)


def _cvt(program: Program, ins: Instruction):
    *mods, to_kind, of_kind = ins.mods
    if to_kind not in DTYPES or of_kind not in DTYPES:
        return None
    to, of = DTYPES[to_kind], DTYPES[of_kind]
    function = opcodes.conversion(tuple(mods), to, of)
    if function is None:
        return None
    target, source = ins.operands
    slot, out = program.source(source, of), program.target(target)
    held = (
        UNSIGNED[program.width(source.name)] if isinstance(source, Reg) else UNSIGNED[of.itemsize]
    )
    kept = np.dtype(f"{'i' if to.kind == 'i' else 'u'}{program.width(target.name)}")
    narrow = held.itemsize != of.itemsize

    def cvt(m):
        value = m.registers[slot].view(held)
        if narrow:
            value = value.astype(UNSIGNED[of.itemsize])
        value = function(value.view(of))
        m.write(out, value if to.itemsize == kept.itemsize else _widened(value, kept))

    return cvt


def _widened(value: np.ndarray, kept: np.dtype) -> np.ndarray:
    """A value narrower than its register, sign- or zero-extended by its own type."""
    raw = value if value.dtype.kind in "iu" else value.view(UNSIGNED[value.dtype.itemsize])
    return raw.astype(kept)


def _setp(program: Program, ins: Instruction):
    name, *mods, kind = ins.mods
    combine = next((opcodes.COMBINE[m] for m in mods if m in opcodes.COMBINE), None)
    if kind not in DTYPES or set(mods) - {"ftz"} - set(opcodes.COMBINE):
        return None
    dtype = DTYPES[kind]
    compare = opcodes.comparison(name, dtype, "ftz" in mods)
    if compare is None:
        return None
    target, *operands = ins.operands
    targets = [
        program.target(t) for t in (target.parts if isinstance(target, Vector) else [target])
    ]
    a, b = (program.source(op, dtype) for op in operands[:2])
    if combine is None and len(targets) == 1:
        return _apply(compare, (dtype, dtype), targets[0], [a, b])
    extra = program.source(operands[2], BOOL) if combine else None

    def setp(m):
        r = m.registers
        holds = compare(r[a].view(dtype), r[b].view(dtype))
        for to, value in zip(targets, (holds, ~holds), strict=False):
            if to is not None:
                m.write(to, combine(value, r[extra].view(BOOL)) if combine else value)

    return setp


# --- memory instructions ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Access:
    """One load, store or atomic of a program, as decoded: what the counters are told of."""

    ins: Instruction
    space: str  # global, shared, local, const, generic
    kind: str  # load, store, atomic, copy
    slot: int
    offset: int
    unit: int  # bytes of one component
    count: int  # components: 1, 2, 4
    pieces: tuple[tuple[int, int], ...] | None = None  # (offset, bytes) executed for it: ptxas.py
    aligned: int = 0  # bytes that its address must be a multiple of; 0: its size

    @cached_property
    def executed(self) -> tuple[tuple[int, int], ...]:
        """What the chip does for this instruction; none where another's access covers it."""
        return ((0, self.size),) if self.pieces is None else self.pieces

    @cached_property
    def size(self) -> int:
        return self.unit * self.count

    @cached_property
    def boundary(self) -> int:
        return self.aligned or self.size

    @cached_property
    def line(self) -> int:
        return self.ins.line


def _by_array(step: Callable) -> Callable:
    """An instruction whose lanes address several arrays is done for one array after another."""

    def each(m):
        try:
            step(m)
        except SeveralArrays as several:
            for _ in m.one_by_one(several.groups):
                step(m)

    return each


_SPACES = ("global", "shared", "local", "const", "param")
_MEMORY_MODS = {
    "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "volatile", "relaxed", "weak", "acquire",
    "release", "gpu", "cta", "sys", "v2", "v4", "L2", "evict_last", "evict_first",
} | set(_SPACES)  # fmt: skip


def _access(program: Program, ins: Instruction, kind: str, address: Address) -> Access | None:
    mods = [m for m in ins.mods[:-1] if not m.startswith(("L1", "L2"))]
    if ins.mods[-1] not in SIZES or (kind != "atomic" and not _MEMORY_MODS.issuperset(mods)):
        return None
    space = next((m for m in mods if m in _SPACES), "generic")
    count = next((int(m[1]) for m in mods if m in ("v2", "v4")), 1)
    return Access(
        ins,
        "global" if space == "const" else space,
        kind,
        program.source(address.base, DTYPES["u64"]),
        address.offset,
        SIZES[ins.mods[-1]],
        count,
        program.pieces,
    )


def _ld(program: Program, ins: Instruction):
    target, address = ins.operands
    targets = [
        program.target(t) for t in (target.parts if isinstance(target, Vector) else [target])
    ]
    if "param" in ins.mods:
        return _ld_param(program, ins, targets, address)
    access = _access(program, ins, "load", address)
    if access is None:
        return None
    extend = _extension(program, ins, target)

    def ld(m):
        units, elements = m.locate(access)
        for n, to in enumerate(targets):
            value = (
                units[n:].take(elements, mode="clip") if n else units.take(elements, mode="clip")
            )
            if to is not None:
                m.write(to, extend(value) if extend else value)

    return _by_array(ld)


def _extension(program: Program, ins: Instruction, target):
    """How a loaded value narrower than its register is widened, or None where it fits."""
    dtype = DTYPES[ins.mods[-1]]
    parts = target.parts if isinstance(target, Vector) else [target]
    width = next((program.width(part.name) for part in parts if part), dtype.itemsize)
    if width == dtype.itemsize:
        return None
    kept = np.dtype(f"{'i' if dtype.kind == 'i' else 'u'}{width}")
    return lambda value: value.view(dtype).astype(kept)


def _ld_param(program: Program, ins: Instruction, targets, address: Address):
    param = next((p for p in program.kernel.params if p.name == address.base.name), None)
    if param is None:
        return None
    dtype, steps = DTYPES[ins.mods[-1]], []
    extend = _extension(program, ins, ins.operands[0])
    for n, to in enumerate(targets):
        offset = param.offset + address.offset + n * dtype.itemsize
        slot = program.new_slot(("param", offset, dtype), None)
        if (slot, offset, UNSIGNED[dtype.itemsize]) not in program.params:
            program.params.append((slot, offset, UNSIGNED[dtype.itemsize]))
        steps.append((to, slot))

    def ld_param(m):
        for to, slot in steps:
            value = m.registers[slot]
            m.write(to, extend(value) if extend else value)

    return ld_param


def _st(program: Program, ins: Instruction):
    address, source = ins.operands
    access = _access(program, ins, "store", address)
    if access is None:
        return None
    unit = UNSIGNED[access.unit]
    parts = source.parts if isinstance(source, Vector) else [source]
    slots = [program.source(part, unit) for part in parts]
    held = [UNSIGNED[program.width(part.name)] if isinstance(part, Reg) else unit for part in parts]

    def st(m):
        units, elements = m.locate(access)
        mask = m.mask
        for n, slot in enumerate(slots):
            value = m.registers[slot].view(held[n])
            if held[n] is not unit:
                value = value.astype(unit)
            place = units[n:] if n else units
            if len(elements) == 1 < len(value):  # all lanes write one place: the last one stays
                value = value[-1:] if mask is None else value[mask][-1:]
            if mask is None or len(elements) == 1:
                place[elements] = value
            else:
                lanes = elements[mask] if len(elements) > 1 else elements
                place[lanes] = value[mask] if len(value) > 1 else value

    return _by_array(st)


def _atom(program: Program, ins: Instruction):
    result = ins.op == "atom"
    target, address, *values = ins.operands if result else (None, *ins.operands)
    name = next((m for m in ins.mods if m in opcodes.ATOMIC or m == "cas"), None)
    access = _access(program, ins, "atomic", address)
    if name is None or access is None or ins.mods[-1] not in DTYPES:
        return None
    dtype = DTYPES[ins.mods[-1]]
    slots = [program.source(value, dtype) for value in values]
    to = program.target(target) if result else None

    def atom(m):
        units, elements = m.locate(access)
        places = np.broadcast_to(elements, m.lanes)
        operands = [np.broadcast_to(m.registers[s].view(dtype), m.lanes) for s in slots]
        old = np.zeros(m.lanes, dtype)
        cells = units.view(dtype)
        lanes = range(m.lanes) if m.mask is None else np.flatnonzero(m.mask)
        for lane in lanes:  # one after another, in the order of lanes: as if the hardware chose it
            place = places[lane]
            before = old[lane] = cells[place]
            if name == "cas":
                cells[place] = operands[1][lane] if before == operands[0][lane] else before
            else:
                cells[place] = opcodes.ATOMIC[name](before, operands[0][lane])
        if to is not None:
            m.write(to, old)

    return _by_array(atom)


def _cp(program: Program, ins: Instruction):
    """cp.async: data is fetched at once and lands in shared memory at the wait that covers it."""
    if ins.mods[0] != "async":
        return None
    if ins.mods[1] == "commit_group":
        return lambda m: m.commit_copies()
    if ins.mods[1] == "wait_group":
        keep = ins.operands[0].value
        return lambda m: m.land_copies(keep)
    if ins.mods[1] == "wait_all":
        return lambda m: m.land_copies(None)
    if ins.mods[1] not in ("ca", "cg") or ins.mods[2] not in ("shared", "global"):
        return None
    destination, source, size, *rest = ins.operands
    words = size.value // 4
    put = Access(
        ins,
        "shared",
        "copy",
        program.source(destination.base, DTYPES["u64"]),
        destination.offset,
        4,
        words,
    )
    get = Access(
        ins, "global", "copy", program.source(source.base, DTYPES["u64"]), source.offset, 4, words
    )
    given = program.source(rest[0], DTYPES["u32"]) if rest else None
    if len(rest) > 1 or size.value not in (4, 8, 16):
        return None
    return lambda m: m.start_copy(put, get, given)


# --- warps --------------------------------------------------------------------------------------


def _shfl(program: Program, ins: Instruction):
    if ins.mods[0] != "sync":
        return None
    mode = ins.mods[1]
    target, value, lane, clamp, members = ins.operands
    targets = target.parts if isinstance(target, Vector) else (target, None)
    to, holds = (program.target(t) for t in targets)
    u32 = DTYPES["u32"]
    slots = [program.source(op, u32) for op in (value, lane, clamp, members)]

    def shfl(m):
        values, by, bound, named = (
            np.broadcast_to(m.registers[s].view(u32), m.lanes).reshape(-1, WARP).astype("i8")
            for s in slots
        )
        here, by = np.arange(WARP), by & 31
        segment, limit = bound >> 8 & 31, bound & 31
        last, first = here & segment | limit & ~segment, here & segment
        place = {
            "up": here - by,
            "down": here + by,
            "bfly": here ^ by,
            "idx": first | by & 31 & ~segment,
        }[mode]
        inside = place >= last if mode == "up" else place <= last
        place = np.where(inside, place, here) & 31
        m.meet(named, ins.line, place)
        m.write(to, np.take_along_axis(values, place, axis=1).astype(u32).reshape(-1))
        if holds is not None:
            m.write(holds, np.broadcast_to(inside, values.shape).reshape(-1))

    return shfl


def _vote(program: Program, ins: Instruction):
    if ins.mods[0] != "sync" or ins.mods[1] not in ("all", "any", "uni", "ballot"):
        return None
    target, predicate, members = ins.operands
    to, slot = program.target(target), program.source(predicate, BOOL)
    group = program.source(members, DTYPES["u32"])
    mode = ins.mods[1]

    def vote(m):
        named = np.broadcast_to(m.registers[group].view(DTYPES["u32"]), m.lanes).reshape(-1, WARP)
        m.meet(named, ins.line)
        votes = np.broadcast_to(m.registers[slot].view(BOOL), m.lanes).reshape(-1, WARP)
        voting = m.active_lanes().reshape(-1, WARP)
        weights = np.uint32(1) << np.arange(WARP, dtype="u4")
        yes, no = (  # what each lane hears: the votes of the lanes that its mask names
            (cast * weights).sum(axis=1, dtype="u4")[:, None] & named
            for cast in (votes & voting, ~votes & voting)
        )
        answer = {"ballot": yes, "any": yes != 0, "all": no == 0, "uni": (yes == 0) | (no == 0)}
        m.write(to, answer[mode].reshape(-1))

    return vote


def _redux(program: Program, ins: Instruction):
    _, name, kind = ins.mods
    target, value, members = ins.operands
    ufunc, neutral = opcodes.REDUCE.get(name, (None, None))
    if ufunc is None or kind not in ("u32", "s32", "b32"):
        return None
    dtype = DTYPES[kind]
    to, slot = program.target(target), program.source(value, dtype)
    group = program.source(members, DTYPES["u32"])

    def redux(m):
        named = np.broadcast_to(m.registers[group].view(DTYPES["u32"]), m.lanes).reshape(-1, WARP)
        m.meet(named, ins.line)
        values = np.broadcast_to(m.registers[slot].view(dtype), m.lanes).reshape(-1, 1, WARP)
        heard = named[:, :, None] >> np.arange(WARP, dtype="u4") & 1 != 0
        heard = heard & m.active_lanes().reshape(-1, 1, WARP)
        every = np.broadcast_to(values, heard.shape)
        reduced = ufunc.reduce(every, axis=2, where=heard, initial=neutral(dtype), dtype=dtype)
        m.write(to, reduced.reshape(-1))

    return redux


def _activemask(program: Program, ins: Instruction):
    to = program.target(ins.operands[0])

    def activemask(m):
        weights = np.uint32(1) << np.arange(WARP, dtype="u4")
        bits = (m.active_lanes().reshape(-1, WARP) * weights).sum(axis=1, dtype="u4")
        m.write(to, np.repeat(bits, WARP))

    return activemask


def _warp_barrier(program: Program, ins: Instruction):
    """bar.warp.sync: the lanes are together already; who watches is told that they met."""
    members = program.source(ins.operands[0], DTYPES["u32"])

    def warp_barrier(m):
        named = np.broadcast_to(m.registers[members].view(DTYPES["u32"]), m.lanes)
        m.meet(named.reshape(-1, WARP), ins.line)

    return warp_barrier


def _bar_vote(program: Program, ins: Instruction):
    target, vote = ins.operands
    to, slot = program.target(target), program.source(vote, BOOL)
    return lambda m: m.write(to, m.registers[slot].view(BOOL))


def _bar_sum(program: Program, ins: Instruction):
    """What bar.red says to every thread: how many of its block voted yes, or whether all or any."""
    target, votes = ins.operands
    to, slot = program.target(target), program.source(votes, BOOL)

    def bar_sum(m):
        cast = np.broadcast_to(m.registers[slot].view(BOOL), m.lanes)
        alive = np.ones(m.lanes, bool) if m.alive is None else m.alive
        yes, no = ((side & alive).reshape(-1, m.padded) for side in (cast, ~cast))
        answer = {
            "popc": yes.sum(axis=1, dtype="u4"), "or": yes.any(axis=1), "and": ~no.any(axis=1)
        }  # fmt: skip
        m.write(to, np.repeat(answer[ins.mods[0]], m.padded))

    return bar_sum


def _nothing(program: Program, ins: Instruction):
    return lambda m: None


def _trap(program: Program, ins: Instruction):
    def trap(m):
        raise m.fault("trap", "executes a trap", ins.line, m.first_lane())

    return trap


BUILDERS: dict[str, Callable] = {
    **dict.fromkeys(opcodes.ELEMENTWISE, _elementwise),
    **dict.fromkeys(opcodes.TWO_TYPES, _two_types),
    **dict.fromkeys(("add", "sub"), _add),
    **dict.fromkeys(("atom", "red"), _atom),
    # fences order what this machine does in order anyway
    **dict.fromkeys(("membar", "fence", "prefetch", "nanosleep", "discard"), _nothing),
    "bar": _warp_barrier,
    "barvote": _bar_vote,
    "barsum": _bar_sum,
    "mov": _mov,
    "cvta": _cvta,
    "cvt": _cvt,
    "setp": _setp,
    "ld": _ld,
    "st": _st,
    "cp": _cp,
    "shfl": _shfl,
    "vote": _vote,
    "redux": _redux,
    "activemask": _activemask,
    "trap": _trap,
}
