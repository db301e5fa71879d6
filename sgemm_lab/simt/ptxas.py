"""What ptxas makes of the memory instructions of PTX: the prediction behind "as executed".

The assembler takes loads apart into the words that are read later and puts them together again, as
wide as alignment allows. The rules below were read from its output for some hundred small programs
(`nvdisasm`), and the tests compare them with the disassembly of every kernel of the book:

- A register is never read later: its load is dropped. A vector load keeps the words that are read.
- Shared loads of one basic block from one base register, with no shared store, atomic, barrier,
  fence or wait between them, share 16-byte windows. A window of which three or four words are read
  becomes one 128-bit load; two words of an aligned half become a 64-bit load; the rest are 32 bits.
- The base must be known to be a multiple of 16 (or 8): from the trailing zeros of its computation,
  the place of the variable in shared memory, or a vector access through the same base.
- Shared stores merge likewise where nothing else touches shared memory in between, but only into
  words that are all written. Global loads and stores are left alone.
"""

from collections import Counter
from collections.abc import Iterator

from .ptx import (
    SIZES,
    Address,
    Imm,
    Instruction,
    Kernel,
    Reg,
    Symbol,
    Vector,
    reads_writes,
    successors,
)

WORD = 4
NEVER = 64  # trailing zeros of zero
Piece = tuple[int, int]  # byte offset from the instruction's own address, bytes

_EFFECTS = {"st", "red", "atom", "bar", "barrier", "cp", "membar", "fence", "trap", "shfl", "vote"}
_PURE = {
    "abs", "add", "and", "bfe", "bfi", "brev", "clz", "cnot", "cvt", "cvta", "div", "fma", "lop3",
    "mad", "max", "min", "mov", "mul", "neg", "not", "or", "popc", "prmt", "rem", "sad", "selp",
    "setp", "shf", "shl", "shr", "sub", "xor",
}  # fmt: skip


def executed(kernel: Kernel, layout: dict[str, int]) -> dict[tuple[int, int], tuple[Piece, ...]]:
    """For each load and shared store, by (block, index): the accesses that the chip makes for it.

    layout: offsets of the kernel's shared variables. An empty tuple: the instruction was dropped,
    or another one's access covers it.
    """
    used = _used(kernel)
    values = _Values(kernel, layout)
    found: dict[tuple[int, int], tuple[Piece, ...]] = {}
    loads, stores = _Open(found), _Open(found)
    goes_on = _continuations(kernel)
    for number, block in enumerate(kernel.blocks):
        if number not in goes_on:
            loads.close()
            stores.close()
            values.enter(number)
        for index, ins in enumerate(block.instructions):
            space, kind = _kind(ins)
            if kind == "load" and (space != "shared" or not _mergeable(ins)):
                found[number, index] = tuple(_own_pieces(ins, _read_words(ins, used)))
            elif kind == "load":
                stores.close()
                loads.add(
                    (number, index), *values.address(ins.operands[1]), _read_words(ins, used), ins
                )
            elif kind == "store" and space == "shared" and _mergeable(ins):
                loads.close()
                base, *address = values.address(ins.operands[0])
                if base not in stores.bases:  # another address: nothing merges across it
                    stores.close()
                stores.add((number, index), base, *address, range(0, _size(ins), WORD), ins)
            elif kind == "fence":
                loads.close()
                stores.close()
            values.define(ins, index)
    loads.close()
    stores.close()
    return found


def _continuations(kernel: Kernel) -> set[int]:
    """Blocks that are entered only from the end of the block before them: ours, not ptxas's."""
    entered = Counter(target for block in kernel.blocks for target in successors(block))
    return {
        number + 1
        for number, block in enumerate(kernel.blocks)
        if block.exit == ("next", number + 1) and entered[number + 1] == 1
    }


# --- which instructions -------------------------------------------------------------------------


def _kind(ins: Instruction) -> tuple[str, str]:
    """(space, "load" | "store" | "fence" | "other") of an instruction, as merging sees it."""
    mods = ins.mods
    space = next((m for m in mods if m in ("shared", "global", "local", "param", "const")), "")
    if ins.op == "ld" and space != "param":
        return space, "load"
    if ins.op == "st" and space:
        return space, "store"
    if ins.op in ("st", "membar", "fence", "bar", "barrier"):
        return space, "fence"  # a generic store may write shared memory
    if ins.op in ("atom", "red") and space != "global":
        return space, "fence"
    if ins.op == "cp" and mods[:2] != ("async", "commit_group"):
        return space, "fence"
    return space, "other"


def _mergeable(ins: Instruction) -> bool:
    return ins.guard is None and "volatile" not in ins.mods and SIZES[ins.mods[-1]] >= WORD


def _size(ins: Instruction) -> int:
    count = next((int(m[1]) for m in ins.mods if m in ("v2", "v4")), 1)
    return SIZES[ins.mods[-1]] * count


def _read_words(ins: Instruction, used: set[str]) -> list[int]:
    """Byte offsets of the words of a load that somebody reads."""
    target = ins.operands[0]
    parts = target.parts if isinstance(target, Vector) else (target,)
    size = SIZES[ins.mods[-1]]
    step = min(size, WORD)
    return [
        n * size + byte
        for n, part in enumerate(parts)
        if part is not None and part.name in used
        for byte in range(0, size, step)
    ]


def _own_pieces(ins: Instruction, words: list[int]) -> Iterator[Piece]:
    """The accesses of a load that doesn't merge with others: its own words, put together."""
    if not words or SIZES[ins.mods[-1]] < WORD:
        yield from ((word, SIZES[ins.mods[-1]]) for word in words)
    else:
        yield from _pieces(words, _size(ins), 0, gaps=True)


def _pieces(words, modulus: int, phase: int, gaps: bool) -> Iterator[Piece]:
    """Word offsets → accesses, where offset ≡ phase is a multiple of `modulus` bytes.

    gaps: a 128-bit access may take a word that nobody asked for (a load may, a store may not).
    """
    left = sorted(set(words))
    for width, enough in ((16, 3 if gaps else 4), (8, 2)):
        if modulus < width:
            continue
        rest = []
        for start in sorted({(w - phase) // width * width + phase for w in left}):
            inside = [w for w in left if start <= w < start + width]
            if len(inside) >= enough:
                yield start, width
            else:
                rest += inside
        left = rest
    yield from ((word, WORD) for word in left)


class _Open:
    """Accesses that may still merge, per base address."""

    def __init__(self, found: dict):
        self.found, self.bases = found, {}

    def add(self, place, base, offset: int, zeros: int, words, ins: Instruction) -> None:
        """`base + offset` is the address; the base is a multiple of 2^zeros."""
        size = _size(ins)
        members, known = self.bases.get(base, ([], (1 << min(zeros, 4), 0)))
        if size > known[0]:  # a vector access is aligned, or it faults: so the base is known
            known = size, offset % size
        self.bases[base] = [*members, (place, offset, [offset + w for w in words])], known
        self.gaps = ins.op == "ld"

    def close(self) -> None:
        for members, (modulus, phase) in self.bases.values():
            self.found.update((place, ()) for place, *_ in members)
            wanted = [word for *_, words in members for word in words]
            for start, width in _pieces(wanted, modulus, phase, self.gaps):
                inside = range(start, start + width)
                place, offset = next(
                    (place, offset)
                    for place, offset, words in members
                    if any(word in inside for word in words)
                )
                self.found[place] += ((start - offset, width),)
        self.bases = {}


# --- what is known of registers -----------------------------------------------------------------


def _used(kernel: Kernel) -> set[str]:
    """Registers that something with an effect depends on."""
    sources: dict[str, set[str]] = {}
    wanted: list[str] = []
    for block in kernel.blocks:
        for ins in (*block.instructions, *([block.barrier] if block.barrier else [])):
            reads, writes = reads_writes(ins)
            if ins.op in _EFFECTS or "volatile" in ins.mods:
                wanted += reads
            for name in writes:
                sources.setdefault(name, set()).update(reads)
        if block.exit[0] in ("branch", "switch"):
            wanted.append(block.exit[1])
    used: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name not in used:
            used.add(name)
            wanted += sources.get(name, ())
    return used


class _Values:
    """Which registers hold the same address, as (base, offset), and how a base is aligned.

    A register that is written once is what its instruction says, in every block; one that a loop
    moves is known from its last write in the block at hand.
    """

    def __init__(self, kernel: Kernel, layout: dict[str, int]):
        self.layout = layout
        self.writers: dict[str, list[Instruction]] = {}
        for block in kernel.blocks:
            for ins in block.instructions:
                for name in reads_writes(ins)[1]:
                    self.writers.setdefault(name, []).append(ins)
        self.zeros = _trailing_zeros(self.writers, layout)
        self.base_zeros: dict[tuple, int] = {CONSTANT: NEVER}
        self.once: dict[str, tuple] = {}  # values of registers written once
        self.numbers: dict[tuple, int] = {}  # of results; a result of results would grow with each

    def enter(self, block: int) -> None:
        """Go on with another block."""
        self.block, self.here = block, {}

    def define(self, ins: Instruction, index: int) -> None:
        """Go past an instruction of the block."""
        for name in reads_writes(ins)[1]:
            if len(self.writers[name]) > 1:
                self.here[name] = self._result(ins, name, ("at", self.block, index, name))

    def address(self, address: Address) -> tuple[tuple, int, int]:
        """(base, offset from it, trailing zeros of the base) of a memory operand."""
        base, offset = self._value(address.base)
        return base, offset + address.offset, self.base_zeros[base]

    def _value(self, operand) -> tuple[tuple, int]:
        match operand:
            case Imm(value):
                return CONSTANT, value
            case Symbol(name, offset) if name in self.layout:
                return CONSTANT, self.layout[name] + offset
            case Reg(name) if name in self.here:
                return self.here[name]
            case Reg(name) if len(self.writers.get(name, ())) == 1:
                if name not in self.once:
                    self.once[name] = self._opaque(("loop", name), name)  # should it need itself
                    self.once[name] = self._result(self.writers[name][0], name, ("once", name))
                return self.once[name]
            case Reg(name):
                return self._opaque(("in", self.block, name), name)
        return self._opaque(("symbol", str(operand)), None)

    def _opaque(self, base: tuple, name: str | None) -> tuple[tuple, int]:
        self.base_zeros[base] = self.zeros.get(name, 0)
        return base, 0

    def _result(self, ins: Instruction, name: str, unknown: tuple) -> tuple[tuple, int]:
        """What an instruction writes to register `name`; `unknown` if that can't be told."""
        if ins.op not in _PURE or ins.guard or not isinstance(ins.operands[0], Reg):
            return self._opaque(unknown, name)
        values = [self._value(operand) for operand in ins.operands[1:]]
        if ins.op in ("mov", "cvta"):
            return values[0]
        if ins.op in ("add", "sub") and isinstance(ins.operands[2], Imm) and ins.mods[-1][0] != "f":
            (base, offset), (_, step) = values
            return base, offset + (step if ins.op == "add" else -step)
        number = self.numbers.setdefault((ins.opcode, *values), len(self.numbers))
        return self._opaque(("result", number), name)


CONSTANT = ("constant",)


def _trailing_zeros(
    writers: dict[str, list[Instruction]], layout: dict[str, int]
) -> dict[str, int]:
    """For each register, how many low bits are zero whichever of its instructions wrote it."""
    zeros = dict.fromkeys(writers, NEVER)

    def of(operand) -> int:
        match operand:
            case Imm(value):
                return (value & -value).bit_length() - 1 if value else NEVER
            case Symbol(name, offset) if name in layout:
                return of(Imm(layout[name] + offset))
            case Reg(name):
                return zeros.get(name, 0)
        return 0

    changed = True
    while changed:
        changed = False
        for name, instructions in writers.items():
            low = min(_zeros_of_result(ins, of) for ins in instructions)
            if low < zeros[name]:
                zeros[name], changed = low, True
    return zeros


def _zeros_of_result(ins: Instruction, of) -> int:
    rule = _ZEROS.get(ins.op)
    if rule is None or ins.mods[-1][0] == "f" or not isinstance(ins.operands[0], Reg):
        return 0
    return min(NEVER, rule(of, *ins.operands[1:]))


def _shifted(sign: int):
    def rule(of, value, by) -> int:
        if isinstance(by, Imm):
            return max(0, of(value) + sign * by.value)
        return of(value) if sign > 0 else 0

    return rule


_ZEROS = {
    **dict.fromkeys(("mov", "cvta", "cvt", "neg"), lambda of, a: of(a)),
    **dict.fromkeys(("add", "sub", "or", "xor", "min", "max"), lambda of, a, b: min(of(a), of(b))),
    "selp": lambda of, a, b, p: min(of(a), of(b)),
    "and": lambda of, a, b: max(of(a), of(b)),
    "mul": lambda of, a, b: of(a) + of(b),
    "mad": lambda of, a, b, c: min(of(a) + of(b), of(c)),
    "shl": _shifted(+1),
    "shr": _shifted(-1),
}
