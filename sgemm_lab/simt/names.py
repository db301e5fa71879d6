"""Shared memory by the names of the .cu file: byte 1056 of a block's is `Bs[0][8]`.

PTX knows a variable's name, offset and size, not its shape. The shape is read from the source, with
the macros of the compiler's options, and is used only where it fits the size.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence

from .decode import Program

BYTES = {"char": 1, "short": 2, "half": 2, "__half": 2, "int": 4, "unsigned": 4, "float": 4,
          "double": 8, "float2": 8, "int2": 8, "float4": 16, "int4": 16}  # fmt: skip
_PARTS = {"float2": "xy", "int2": "xy", "float4": "xyzw", "int4": "xyzw"}
_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.floordiv, ast.Mod: operator.mod,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift,
}  # fmt: skip


def plain(name: str) -> str:
    """The name of a function as it was written, without namespaces: f of _Z1fi, of _ZN1n1fEi."""
    rest, found = re.match(r"(?:_ZN?)?(.*)", name)[1], name
    while name.startswith("_Z") and (length := re.match(r"\d+", rest)):
        rest = rest[length.end() :]
        found, rest = rest[: int(length[0])], rest[int(length[0]) :]
    return found


def constants(source: str, options: Sequence[str] = ()) -> dict[str, str]:
    """Names that stand for a number: macros of the options, then #define and const of the text."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.S)
    found = dict(option[2:].split("=", 1) for option in options if re.match("-D.*=", option))
    for name, value in (
        *re.findall(r"^\s*#\s*define\s+(\w+)\s+(.+?)\s*$", text, re.M),
        *(
            pair
            for declared in re.findall(r"\bconst(?:expr)?\s+\w[\w ]*?(\w+\s*=[^;{]+);", text)
            for pair in re.findall(r"(\w+)\s*=\s*([^,]+)", declared)
        ),
    ):
        found.setdefault(name, value)
    return found


def number(expression: str, known: Mapping[str, str]) -> int | None:
    """The value of a constant integer expression of C, as far as it uses + - * / % << >>."""

    def value(node, depth: int) -> int:
        match node:
            case ast.Constant(int() as number):
                return number
            case ast.Name(name) if name in known and depth:
                return value(ast.parse(known[name].strip(), mode="eval").body, depth - 1)
            case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left, depth), value(right, depth))
        raise ValueError(expression)

    try:
        return value(ast.parse(expression.strip(), mode="eval").body, 8)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def bare(name: str) -> str:
    """`As` for a variable of a kernel, whose name in PTX is `_ZZ5tiledE2As`."""
    match = re.match(r"_ZZ.*E(\d+)(\w+)$", name)
    return match[2][: int(match[1])] if match else name


def shape(
    name: str, size: int, source: str, known, space: str = "__shared__"
) -> tuple[str, list[int]] | None:
    """(type, extents) of a variable of a space, where its declaration fits its size in bytes."""
    for declaration in re.findall(rf"{space}([^;]*);", source):
        found = re.search(rf"\b{re.escape(name)}\s*((?:\[[^\]]*\]\s*)*)", declaration)
        kind = re.search(rf"\b({'|'.join(BYTES)})\b", declaration)
        if not found or not kind:
            continue
        extents = [number(text, known) for text in re.findall(r"\[([^\]]*)\]", found[1])]
        total = BYTES[kind[1]]
        for extent in extents:
            total *= extent or 1
        if extents.count(None) == 1:
            extents[extents.index(None)] = size // total
            total *= size // total
        if size == total or (size == 0 and len(extents) == 1):
            return kind[1], extents
    return None


def shared_names(
    program: Program, source: str, options: Sequence[str] = ()
) -> Callable[[int], str]:
    """A function from an address in shared memory to what the source calls that element."""
    known = constants(source, options)
    variables = []
    for variable in program.kernel.variables.values():
        if variable.space == "shared":
            name = bare(variable.name)
            extents = shape(name, variable.size, source, known)
            variables.append((program.layout[variable.name], variable.size, name, extents))
    variables.sort(key=lambda variable: variable[0])

    def name(address: int) -> str:
        inside = [v for v in variables if v[0] <= address and (address < v[0] + v[1] or not v[1])]
        if not inside:
            return f"byte {address} of shared memory"
        first, _, label, declared = inside[-1]
        if declared is None:
            return f"byte {address - first} of {label}"
        kind, extents = declared
        index, within = divmod(address - first, BYTES[kind])
        indices = []
        for extent in reversed(extents[1:]):
            index, inner = divmod(index, extent)
            indices.append(inner)
        part = f".{_PARTS[kind][within // 4]}" if kind in _PARTS else ""
        places = "".join(f"[{i}]" for i in [index, *reversed(indices)]) if extents else ""
        return f"{label}{places}{part}"

    return name
