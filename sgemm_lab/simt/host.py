"""From Python arguments to a launch on the PTX machine.

What CuPy would pass on unseen is checked here against the kernel's own parameters: a Python float
for a `float` (CuPy passes a double), a view (CuPy ignores strides), a float64 array for a `float*`.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from . import names
from .decode import Program, decode
from .machine import Launch
from .memory import POISON, GlobalMemory
from .names import plain
from .ptx import Module, Param, Variable, parse

MAX_THREADS = 1024  # CUDA C++ Programming Guide, technical specifications; all GPUs since 2.0
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)
STATIC_SHARED = 48 * 1024

_SCALARS = {
    "char": "i1", "signed char": "i1", "unsigned char": "u1", "short": "i2", "unsigned short": "u2",
    "int": "i4", "unsigned": "u4", "unsigned int": "u4", "long": "i8", "unsigned long": "u8",
    "long long": "i8", "unsigned long long": "u8", "size_t": "u8", "bool": "?", "half": "f2",
    "__half": "f2", "float": "f4", "double": "f8",
} | {f"{u}int{8 * n}_t": f"{u or 'i'}{n}" for u in ("", "u") for n in (1, 2, 4, 8)}  # fmt: skip
_VECTORS = {
    f"{name}{n}": np.dtype(kind)
    for name, kind in {
        "char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4",
        "longlong": "i8", "ulonglong": "u8", "float": "f4", "double": "f8", "half": "f2",
    }.items()
    for n in (1, 2, 3, 4)
}  # fmt: skip
_COMPLEX = {"float2": np.dtype("c8"), "double2": np.dtype("c16")}  # which CuPy has as numbers


@dataclass(frozen=True)
class Declared:
    """A kernel's parameter in CUDA C++: name, type without qualifiers or `*` ("" where unknown)."""

    name: str
    kind: str = ""
    pointer: bool = False

    @property
    def dtype(self) -> np.dtype | None:
        """The element that a pointer points at, or a scalar's type; None where unknown."""
        return _VECTORS.get(self.kind) or (
            np.dtype(_SCALARS[self.kind]) if self.kind in _SCALARS else None
        )


def signature(source: str, name: str, count: int) -> tuple[Declared, ...]:
    """Read the parameters of kernel `name` from its CUDA C++ source, as far as they can be read.

    Where there are several definitions (under #if), only that is known in which they agree.
    """
    bare = re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.S)
    word = re.escape(plain(name).split("<")[0].split("::")[-1])
    head = rf"__global__[^;{{}}]*?\b{word}\s*\(([^)]*)\)\s*\{{"
    found = [match[1].split(",") for match in re.finditer(head, bare)]
    numbered = [f"argument {n + 1}" for n in range(count)]
    read = {
        tuple(_declared(*pair) for pair in zip(items, numbered, strict=True))
        for items in found
        if len(items) == count
    }
    unknown = tuple(Declared(label) for label in numbered)
    agreed = zip(*read, strict=True) if read else ()
    return tuple(
        same[0] if len(set(same)) == 1 else other
        for same, other in zip(agreed, unknown, strict=True)
    ) if read else unknown  # fmt: skip


def _declared(text: str, label: str) -> Declared:
    """`const float* __restrict__ A` is A, which points at float; an unnamed one is `label`."""
    words = re.sub(r"\b(const|volatile|__restrict__|__restrict|struct)\b", " ", text)
    kind, array, _ = words.partition("[")
    kind, star, name = kind.rpartition("*")
    if not star:
        kind, name = " ".join(name.split()), ""
        if kind not in _SCALARS and kind not in _VECTORS:
            kind, _, name = kind.rpartition(" ")
    kind = " ".join(re.sub(r"\b(long|short) int\b", r"\1", " ".join(kind.split())).split())
    if "*" in kind or (star and array):  # a pointer to pointers
        kind = ""
    return Declared(name.strip() or label, kind, bool(star or array))


class Loaded:
    """A PTX module with its `__device__` and `__constant__` variables in memory."""

    def __init__(self, text: str, source: str, filename: str):
        self.module: Module = parse(text)
        self.text, self.source, self.filename = text, source, filename
        self.variables = {
            v.name: self._array(v)
            for v in self.module.variables.values()
            if v.space in ("global", "const")
        }

    def _array(self, variable: Variable) -> np.ndarray:
        """Its bytes, as elements of the size and in the shape that the source declares."""
        data = np.frombuffer(variable.init.ljust(variable.size, b"\0"), np.uint8).copy()
        known = names.constants(self.source)
        declared = names.shape(
            variable.name, data.size, self.source, known, "__(?:constant|device)__"
        )
        if declared is None:
            return data
        kind, extents = declared
        return data.view(f"V{names.BYTES[kind]}").reshape(extents or [1])

    def program(self, name: str) -> Program:
        return _program(self.text, name)

    def launch(
        self,
        name: str,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence,
        *,
        shown: str | None = None,
        shared_mem: int = 0,
        shared_limit: int = STATIC_SHARED,
        watch=None,
        blocks: np.ndarray | None = None,
        turns: np.ndarray | None = None,
        leftover: int = POISON,
    ) -> Launch:
        """A launch that is checked and ready to run.

        name: as it stands in the PTX; shown: as the reader wrote it; args: NumPy arrays, scalars.
        Raises TypeError or ValueError, naming the argument, its value and the way out.
        """
        program = self.program(name)
        kernel = program.kernel
        grid, block = _shape(name, "grid", grid, MAX_GRID), _shape(name, "block", block, MAX_BLOCK)
        threads = math.prod(block)
        if threads > MAX_THREADS:
            raise ValueError(
                f"{name}: block {block} has {threads} threads; a block may have {MAX_THREADS}"
            )
        if kernel.max_threads and threads > kernel.max_threads:
            raise ValueError(
                f"{name}: block {block} has {threads} threads; its __launch_bounds__ promise at "
                f"most {kernel.max_threads}, and a GPU refuses the launch"
            )
        if not _is_whole(shared_mem) or shared_mem < 0:
            raise ValueError(
                f"{name}: shared_mem = {shared_mem!r}; it must be a whole number of bytes, from 0"
            )
        needed = program.shared_size + shared_mem
        if needed > shared_limit:
            raise ValueError(
                f"{name}: needs {needed} bytes of shared memory; a block may have {shared_limit}"
                + (
                    " unless max_dynamic_shared_size_bytes asks for more"
                    if shared_mem and shared_limit == STATIC_SHARED
                    else ""
                )
            )
        given = signature(self.source, shown or name, len(kernel.params))
        if not isinstance(args, tuple | list):
            raise TypeError(f"{name}: the arguments are no tuple but a {type(args).__name__}")
        if len(args) != len(kernel.params):
            raise TypeError(
                f"{name} takes {len(kernel.params)} arguments "
                f"({', '.join(each.name for each in given)}); {len(args)} were given"
            )
        memory = GlobalMemory()
        params = bytearray(
            kernel.params[-1].offset + kernel.params[-1].size if kernel.params else 0
        )
        for param, declared, value in zip(kernel.params, given, args, strict=True):
            raw = _packed(param, declared, value, memory, name)
            params[param.offset : param.offset + len(raw)] = raw
        symbols = {v: memory.add(v, data) for v, data in self.variables.items() if data.size}
        return Launch(
            program,
            grid,
            block,
            bytes(params),
            memory,
            symbols,
            shared_mem=shared_mem,
            filename=self.filename,
            watch=watch,
            blocks=blocks,
            turns=turns,
            leftover=leftover,
        )


@lru_cache(maxsize=64)
def _program(text: str, name: str) -> Program:
    return decode(parse(text).kernel(name))


def load(text: str, source: str, filename: str) -> Loaded:
    """A module for one PTX text, with variables of its own; a text is parsed and decoded once."""
    return Loaded(text, source, filename)


def _shape(name: str, what: str, extent, limits) -> tuple[int, ...]:
    """A grid or block as Python's whole numbers, whose products don't overflow."""
    if not isinstance(extent, tuple | list) or not 1 <= len(extent) <= 3:
        raise ValueError(f"{name}: {what} {extent!r} is not a tuple of one to three whole numbers")
    for axis, size, limit in zip("xyz", extent, limits, strict=False):
        if not _is_whole(size) or not 1 <= size <= limit:
            raise ValueError(
                f"{name}: {what}.{axis} = {size!r}; it must be a whole number from 1 to {limit}"
            )
    return tuple(map(int, extent))


def _is_whole(value) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _packed(param: Param, declared: Declared, value, memory: GlobalMemory, kernel: str) -> bytes:
    """The bytes of one argument, after every check that its value allows."""
    label = f"{kernel}: {declared.name}"
    points = declared.pointer or (param.type in ("u64", "b64", "s64") and declared.dtype is None)
    if isinstance(value, np.ndarray) and (value.ndim or declared.pointer):
        return _address(label, declared, points and param.size == 8, value, memory)
    given = f"{value!r} ({type(value).__name__})"
    if isinstance(value, list | tuple):
        raise TypeError(
            f"{label} was given a {type(value).__name__}; pass an array: "
            f"cp.asarray({declared.name}, dtype=cp.{declared.dtype or 'float32'})"
        )
    if param.type in ("f32", "f64"):
        return _float(label, param.size, value, given)
    struct = param.type == "b8" and param.size > 1
    if isinstance(value, bool | int | np.integer | np.bool_) and not struct:
        return _whole(label, declared, param.size, value)
    half = isinstance(value, np.float16) and param.size == 2
    if not struct or (isinstance(value, float | int | np.floating | np.integer) and not half):
        what = "a pointer" if points else "a struct" if struct else "a whole number"
        raise TypeError(f"{label} is {what} and was given {given}{_instead(points, value)}")
    raw = getattr(value, "tobytes", lambda: b"")()
    if len(raw) != param.size:
        raise TypeError(f"{label} takes {param.size} bytes; {given} doesn't fit")
    return raw


def _instead(pointer: bool, value) -> str:
    """The way out of an argument of another kind."""
    if value is None:  # CuPy passes −1: cupy/cupy#9046
        return ". For a null pointer write 0"
    if isinstance(value, float | np.floating):
        return ". Pass an array" if pointer else ". Write np.int32(…) or the like"
    return ""


def _address(label: str, declared, pointer: bool, array: np.ndarray, memory) -> bytes:
    if not pointer:
        raise TypeError(
            f"{label} is a scalar parameter; it was given an array of shape {array.shape}"
        )
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{label} is a masked array, and a kernel sees no mask. Pass a.filled(…)")
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{label} is not C-contiguous (shape {array.shape}, strides "
            f"{array.strides}); a kernel sees only a pointer and would read it as contiguous. "
            "Pass cp.ascontiguousarray(…)"
        )
    dtype = declared.dtype
    if array.dtype.hasobject or not array.dtype.isnative or (
        dtype is not None and array.dtype not in (dtype, _COMPLEX.get(declared.kind, dtype))
    ):  # fmt: skip
        raise TypeError(
            f"{label} points at {dtype or 'numbers'} and was given an array of {array.dtype}"
        )
    return memory.add(declared.name, array).to_bytes(8, "little")


def _float(label: str, size: int, value, given: str) -> bytes:
    wanted = np.float32 if size == 4 else np.float64
    if not isinstance(value, wanted) and not (size == 8 and isinstance(value, float)):
        raise TypeError(
            f"{label} is a {'float' if size == 4 else 'double'} and was given {given}, whose bytes "
            f"CuPy would pass as they are. Write np.{wanted.__name__}({value!r})"
        )
    return wanted(value).tobytes()


def _whole(label: str, declared: Declared, size: int, value) -> bytes:
    if isinstance(value, np.generic) and value.itemsize < size:
        raise TypeError(f"{label} has {size} bytes and was given {value!r} of {value.itemsize}")
    dtype = None if declared.pointer else declared.dtype
    low, high = -(1 << 8 * size - 1), (1 << 8 * size) - 1
    if dtype is not None and dtype.kind in "iu":
        low, high = (int(end) for end in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    if not low <= int(value) <= high:
        kind = f", {declared.kind}: {low} to {high}" if dtype is not None else ""
        raise ValueError(
            f"{label} = {int(value)} does not fit the {8 * size} bits of this parameter{kind}"
        )
    return (int(value) % (1 << 8 * size)).to_bytes(size, "little")
