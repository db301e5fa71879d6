"""PTX text → instructions in basic blocks, with their control flow and the registers still needed.

The subset is what NVRTC emits for kernels without calls. What the instructions *do* is not known
here: see machine.py. Grammar: NVIDIA, "Parallel Thread Execution ISA".
"""

import re
from collections import ChainMap
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod

SIZES = {
    f"{kind}{bits}": bits // 8
    for kind in "busf"
    for bits in (8, 16, 32, 64)
    if kind + str(bits) != "f8"
}  # bytes of a PTX type


class PtxError(ValueError):
    """PTX that this machine cannot read or run; the message names the construct and its line."""


@dataclass(frozen=True, slots=True)
class Reg:
    name: str


@dataclass(frozen=True, slots=True)
class Imm:
    """A literal: an int, or a float kept as the bit pattern of `bits` bits (0f…, 0d…)."""

    value: int
    bits: int = 0


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable (and bytes beyond it), the name of a parameter, a special register
    or a label."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """[base + offset]; the base is a Reg, a Symbol or an Imm."""

    base: Reg | Symbol | Imm
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    parts: tuple


@dataclass(frozen=True, slots=True)
class Instruction:
    opcode: str  # "ld.shared.v4.f32"
    operands: tuple
    guard: tuple[str, bool] | None  # predicate register, negated?
    line: int  # of the .cu file; 0 where the compiler named none

    @property
    def op(self) -> str:
        return self.opcode.split(".", 1)[0]

    @property
    def mods(self) -> tuple[str, ...]:
        return tuple(self.opcode.split(".")[1:])


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions that run one after another, and where control goes then.

    exit is one of ("next", b), ("jump", b), ("branch", register, negated, b_taken, b_next),
    ("barrier", b_next), ("return",), ("switch", register, (b, …)); b are block numbers, and
    blocks are numbered in the order of the text.
    """

    instructions: tuple[Instruction, ...]
    exit: tuple
    exit_line: int = 0
    barrier: Instruction | None = None


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    space: str  # global, const, shared, local
    size: int  # bytes; 0 for `extern __shared__`
    align: int
    init: bytes = b""


@dataclass(frozen=True, slots=True)
class Param:
    name: str
    type: str  # "u64", "f32", "b8" for a struct
    offset: int
    size: int


@dataclass(frozen=True)
class Kernel:
    name: str
    params: tuple[Param, ...]
    registers: dict[str, str]  # name → declared type
    variables: dict[str, Variable]  # its own and the module's
    blocks: tuple[Block, ...]
    live_in: tuple[frozenset[str], ...] = field(
        repr=False
    )  # per block: registers it may still read
    max_threads: int | None = None  # of a block, by __launch_bounds__, if there are any


@dataclass(frozen=True)
class Module:
    kernels: dict[str, Kernel]
    variables: dict[str, Variable]

    def kernel(self, name: str) -> Kernel:
        if name not in self.kernels:
            have = ", ".join(self.kernels) or "none"
            mangled = any(f"{len(name)}{name}" in other for other in self.kernels)
            raise PtxError(
                f"no kernel named {name!r} in this module; it has: {have}"
                + mangled * '. Kernel names are mangled: put extern "C" before __global__'
            )
        return self.kernels[name]


# --- reading the text --------------------------------------------------------------------------

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_LOC = re.compile(r"\.loc\s+\d+\s+(\d+)")
_LABEL = re.compile(r"([$%\w]+):(?!:)\s*")
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)([^{;]*)\{", re.S)
_BOUNDS = re.compile(r"\.(?:max|req)ntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")
_FUNC = re.compile(r"(?:\.visible|\.weak|\.extern)?\s*\.func\b")
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)(?:\s+\.ptr[^,\n]*?)?\s+([\w$]+)(?:\[(\d+)\])?\s*$"
)
_VARIABLE = re.compile(
    r"\.(global|const|shared|local)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)"
    r"((?:\[\d*\])*)\s*(?:=\s*(.*))?$",
    re.S,
)
_REGS = re.compile(r"\.reg\s+\.(\w+)\s+(.*)$", re.S)
_INSTRUCTION = re.compile(r"(?:@(!?)([%$\w]+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.S)
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*")
_MOVED = re.compile(r"([A-Za-z_$][\w$]*)\s*([+-])\s*(\d\w*)$")  # name+4
_NUMBER = re.compile(r"-?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9]\d*)U?$")


def _literal(text: str) -> Imm:
    if text[:2] in ("0f", "0F"):
        return Imm(int(text[2:], 16), 32)
    if text[:2] in ("0d", "0D"):
        return Imm(int(text[2:], 16), 64)
    if not _NUMBER.match(text):
        raise PtxError(
            f"cannot read the number {text}: write whole numbers as 12 or 0xC, floats as the bits "
            "of 1.5f, 0f3FC00000"
        )
    digits = text.rstrip("U")
    octal = re.match(r"-?0\d", digits)
    return Imm(int(digits, 8 if octal else 0))


def _operand(text: str, scope):
    """scope: name → the Reg or the label's Symbol that it stands for."""
    text = text.strip()
    if text.startswith("{"):
        return Vector(tuple(_operand(part, scope) for part in text[1:-1].split(",")))
    if text.startswith("["):
        base, sign, offset = re.match(
            r"\[\s*([^+\s\]-]+|-?\d+)\s*([+-]?)\s*(-?\w*)\s*\]", text
        ).groups()
        step = int(offset, 0) if offset else 0
        return Address(_operand(base, scope), -step if sign == "-" else step)
    if "|" in text:
        return Vector(tuple(_operand(part, scope) for part in text.split("|")))
    if text in scope:
        return scope[text]
    if text[0] == "!":
        raise PtxError(f"a negated operand, {text}, is not supported: not.pred comes before it")
    if moved := _MOVED.match(text):
        return Symbol(moved[1], int(moved[2] + moved[3], 0))
    if text == "_":
        return None
    if text[0].isdigit() or text[0] == "-":
        return _literal(text)
    return Symbol(text)


def _variable(text: str) -> Variable | None:
    match = _VARIABLE.search(text)
    if not match:
        return None
    space, align, kind, name, dims, init = match.groups()
    count = 1
    for extent in re.findall(r"\[(\d*)\]", dims):
        count *= int(extent or 0)
    width = SIZES[kind]
    data = b""
    if init:
        items = re.findall(r"0[fFdD][0-9a-fA-F]+|-?\w+", init)
        if any(not re.match(r"-?\d", item) for item in items):
            raise PtxError(f"{name}: an initial value that is an address is not supported")
        values = [_literal(item).value for item in items]
        data = b"".join((v % (1 << 8 * width)).to_bytes(width, "little") for v in values)
    return Variable(name, space, count * width, int(align or width), data)


def _params(text: str) -> tuple[Param, ...]:
    params, offset = [], 0
    for item in filter(str.strip, text.split(",")):
        align, kind, name, count = _PARAM.search(item.strip()).groups()
        width = SIZES[kind]
        align = int(align or width)
        offset = (offset + align - 1) // align * align
        params.append(Param(name, kind, offset, width * int(count or 1)))
        offset += params[-1].size
    return tuple(params)


@lru_cache(maxsize=256)
def parse(text: str) -> Module:
    """A whole PTX module. Raises PtxError with the line of the PTX where it isn't understood."""
    text = _COMMENT.sub("", text)
    kernels, variables, outside, end = {}, {}, [], 0
    entries = []
    for match in _ENTRY.finditer(text):
        if match.start() < end:
            continue
        outside.append(text[end : match.start()])
        depth, end = 1, match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        bounds = _BOUNDS.search(match[3])
        most = {"max_threads": prod(int(n or 1) for n in bounds.groups())} if bounds else {}
        entries.append((match[1], match[2], text[match.end() : end - 1], most))
    outside.append(text[end:])
    if any("vprintf" in part for part in outside):
        raise PtxError(
            "printf is not covered by the PTX machine: write to an array what you want to see"
        )
    if _FUNC.search("".join(outside)):
        raise PtxError("a device function that was not inlined (.func): add __forceinline__ to it")
    for statement in "".join(outside).split(";"):
        if variable := _variable(statement):
            variables[variable.name] = variable
    for name, params, body, most in entries:
        kernels[name] = replace(_kernel(name, _params(params), body, variables), **most)
    return Module(kernels, variables)


def _kernel(name: str, params, body: str, module_variables) -> Kernel:
    registers = {VOTES.name: "pred"}
    words = set(re.findall(r"[\w$]+", body))
    variables = {
        v.name: v for v in module_variables.values() if v.space != "shared" or v.name in words
    }
    code: list[Instruction | str] = []  # labels stand between the instructions as plain strings
    tables: dict[str, tuple[str, ...]] = {}
    statements = _statements(name, body, registers)
    labels = {statement for statement, _, _ in statements if isinstance(statement, Symbol)}
    for statement, line, scope in statements:
        if statement in labels:
            code.append(statement.name)
            continue
        try:
            _statement(statement, line, scope, labels, variables, code, tables)
        except PtxError as error:
            raise PtxError(f"{name}: {error} (line {line} of the .cu file)") from None
    blocks = _blocks(name, code, tables)
    return Kernel(name, params, registers, variables, blocks, _liveness(blocks))


def _statements(name: str, body: str, registers: dict[str, str]) -> list[tuple]:
    """(text or label, line of the .cu file, scope) in order; declared registers in `registers`.

    A scope { } may declare names that exist outside it: within, they get others of their own.
    """
    found, scope, line, pending, taken = [], ChainMap(), 0, "", set()

    def fresh(wanted: str) -> str:
        unique, number = wanted, 0
        while unique in taken:
            number += 1
            unique = f"{wanted}.{number}"
        taken.add(unique)
        return unique

    for row in body.splitlines():
        if loc := _LOC.match(row.strip()):
            line = int(loc[1]) or line
            continue
        if row.lstrip().startswith((".file", ".section")):
            continue
        pending = f"{pending} {row.strip()}" if pending else row.strip()
        while pending := pending.lstrip():
            if pending[0] in "{}":  # where a statement could begin a brace is a scope's
                scope = scope.new_child() if pending[0] == "{" else scope.parents
                pending = pending[1:]
            elif label := _LABEL.match(pending):
                scope[label[1]] = Symbol(fresh(label[1]))
                found.append((scope[label[1]], line, scope))
                pending = pending[label.end() :]
            else:
                statement, ended, rest = pending.partition(";")
                if not ended:
                    break
                pending = rest
                if regs := _REGS.match(statement):
                    for register in _declared(name, *regs.groups()):
                        scope[register] = Reg(fresh(register))
                        registers[scope[register].name] = regs[1]
                else:
                    found.append((statement.strip(), line, scope))
    return found


def _declared(name: str, kind: str, items: str) -> list[str]:
    """The registers of one .reg statement: `%r<3>` declares %r0, %r1, %r2."""
    if kind not in SIZES and kind != "pred":
        raise PtxError(f"{name}: registers of type .{kind} are not covered by the PTX machine")
    names = []
    for item in items.split(","):
        prefix, ranged, count = item.strip().partition("<")
        names += [f"{prefix}{n}" for n in range(int(count[:-1]))] if ranged else [prefix]
    return names


def _statement(text, line, scope, labels, variables, code, tables) -> None:
    if text.startswith(".branchtargets"):
        targets = [_operand(part, scope) for part in text.split(None, 1)[1].split(",")]
        tables[code.pop()] = tuple(_label(target, labels) for target in targets)
    elif text.startswith("."):
        if variable := _variable(text):
            variables[variable.name] = variable
    elif match := _INSTRUCTION.match(text):
        negated, guard, opcode, rest = match.groups()
        opcode = opcode.replace("::cta", "")  # shared::cta is what plain shared means
        operands = tuple(_operand(part, scope) for part in _OPERAND.findall(rest))
        if guard:
            guard = _operand(guard, scope).name, negated == "!"
        code.append(Instruction(opcode, operands, guard, line))
        if code[-1].op == "bra":
            _label(operands[0], labels)
        if code[-1].op == "brx" and guard:
            raise PtxError("a jump through a table (brx) under a predicate is not supported")
        if code[-1].op in ("bar", "barrier") and "red" in code[-1].mods:
            code[-1:] = _voting_barrier(code[-1])
    elif text:
        raise PtxError(f"cannot read the PTX statement {text!r}")


VOTES = Reg("%bar.red")


def _voting_barrier(ins: Instruction) -> list[Instruction]:
    """bar.red as the barrier it is, between two steps that no program counts: each thread's vote is
    noted before, and those of the block are summed after it."""
    target, *number, vote = ins.operands
    if ins.guard or len(number) != 1:
        raise PtxError(f"{ins.opcode} under a predicate, or of some threads, is not supported")
    how, kind = next(m for m in ins.mods if m in ("popc", "and", "or")), ins.mods[-1]
    plain = ".".join(word for word in ins.opcode.split(".") if word not in ("red", how, kind))
    return [
        Instruction("barvote.pred", (VOTES, vote), None, ins.line),
        Instruction(f"{plain}.sync", tuple(number), None, ins.line),
        Instruction(f"barsum.{how}", (target, VOTES), None, ins.line),
    ]


def _label(operand, labels) -> str:
    if operand not in labels:
        raise PtxError(f"no label named {getattr(operand, 'name', operand)}")
    return operand.name


# --- control flow --------------------------------------------------------------------------------

_ENDS = {"bra", "brx", "ret", "exit", "bar", "barrier", "trap"}


def _ends_block(instruction: Instruction) -> bool:
    if instruction.op == "trap" and instruction.guard:
        return False  # lanes whose guard is false go on
    return instruction.op in _ENDS and "warp" not in instruction.mods


def gathers(instruction: Instruction) -> bool:
    """Does it wait for the lanes of its warp that its mask names? It then begins a block."""
    mods = instruction.mods
    return "sync" in mods and (
        instruction.op in ("shfl", "vote", "match", "redux") or "warp" in mods
    )


def _blocks(name: str, code, tables) -> tuple[Block, ...]:
    bodies: list[list[Instruction]] = [[]]
    labels: dict[str, int] = {}
    for item in code:
        if isinstance(item, str):
            if bodies[-1]:
                bodies.append([])
            labels[item] = len(bodies) - 1
        else:
            if gathers(item) and bodies[-1]:
                bodies.append([])
            bodies[-1].append(item)
            if _ends_block(item):
                bodies.append([])
    if not bodies[-1] and len(bodies) - 1 not in labels.values():
        bodies.pop()
    if not bodies[-1]:
        bodies[-1].append(Instruction("ret", (), None, 0))
    return tuple(_block(name, number, body, labels, tables) for number, body in enumerate(bodies))


def _block(name, number, body, labels, tables) -> Block:
    last, following = body[-1], number + 1
    if not _ends_block(last):
        return Block(tuple(body), ("next", following), last.line)
    before = tuple(body[:-1])
    match last.op:
        case "bra":
            target = labels[last.operands[0].name]
            if last.guard is None:
                return Block(before, ("jump", target), last.line)
            return Block(before, ("branch", *last.guard, target, following), last.line)
        case "brx":
            targets = tuple(labels[label] for label in tables[last.operands[1].name])
            return Block(before, ("switch", last.operands[0].name, targets), last.line)
        case "bar" | "barrier":
            if last.guard is not None:
                raise PtxError(
                    f"{name}: a barrier under a predicate (line {last.line} of the .cu file)"
                )
            return Block(before, ("barrier", following), last.line, last)
        case "ret" | "exit" if last.guard is not None:
            return Block(before, ("branch", *last.guard, -1, following), last.line)
        case "trap":
            return Block((*before, last), ("return",), last.line)
    return Block(before, ("return",), last.line)


def successors(block: Block) -> tuple[int, ...]:
    """Block numbers that control may go to; −1 (a return) left out."""
    match block.exit:
        case ("next" | "jump" | "barrier", target):
            return (target,)
        case ("branch", _, _, taken, following):
            return tuple(n for n in (taken, following) if n >= 0)
        case ("switch", _, targets):
            return targets
    return ()


def _names(operand) -> list[str]:
    match operand:
        case Reg(name):
            return [name]
        case Vector(parts):
            return [name for part in parts for name in _names(part)]
        case Address(base):
            return _names(base)
    return []


_NO_RESULT = {
    "st",
    "red",
    "bar",
    "barrier",
    "cp",
    "membar",
    "fence",
    "trap",
    "prefetch",
    "discard",
    "nanosleep",
}


def reads_writes(instruction: Instruction) -> tuple[list[str], list[str]]:
    """Register names that an instruction reads, and those that it writes."""
    if instruction.op in _NO_RESULT or not instruction.operands:
        reads, writes = [n for operand in instruction.operands for n in _names(operand)], []
    else:
        writes = _names(instruction.operands[0])
        reads = [n for operand in instruction.operands[1:] for n in _names(operand)]
    if instruction.guard:
        reads.append(instruction.guard[0])
        reads += writes  # where the guard is false the old value lives on
    return reads, writes


def _liveness(blocks) -> tuple[frozenset[str], ...]:
    gen, kill = [], []
    for block in blocks:
        needed, written = set(), set()
        for instruction in (*block.instructions, *([block.barrier] if block.barrier else [])):
            reads, writes = reads_writes(instruction)
            needed.update(name for name in reads if name not in written)
            written.update(writes)
        if block.exit[0] in ("branch", "switch") and block.exit[1] not in written:
            needed.add(block.exit[1])
        gen.append(needed)
        kill.append(written)
    live = [set(needed) for needed in gen]
    changed = True
    while changed:
        changed = False
        for n in range(len(blocks) - 1, -1, -1):
            after = set().union(*(live[s] for s in successors(blocks[n])))
            grown = gen[n] | (after - kill[n])
            if grown != live[n]:
                live[n], changed = grown, True
    return tuple(frozenset(names) for names in live)
