"""From Python arguments to a launch on the PTX machine.

What CuPy would pass on unseen is checked here against the kernel's own parameters: a Python float
for a `float` (CuPy passes a double), a view (CuPy ignores strides), a float64 array for a `float*`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .decode import Program, decode
from .machine import Launch
from .memory import GlobalMemory
from .ptx import SIZES, Module, Param, parse

MAX_THREADS = 1024  # CUDA C++ Programming Guide, technical specifications; all GPUs since 2.0
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)
STATIC_SHARED = 48 * 1024

_POINTERS = {"float": "f4", "double": "f8", "int": "i4", "unsigned": "u4", "unsigned int": "u4",
             "float2": "f4", "float4": "f4"}  # fmt: skip


@dataclass(frozen=True)
class Signature:
    """Names of a kernel's parameters and, for pointers, the dtype they point at (None: unknown)."""

    names: tuple[str, ...]
    dtypes: tuple[np.dtype | None, ...]


def signature(source: str, name: str, count: int) -> Signature:
    """Read the parameters of kernel `name` from its CUDA C++ source, as far as they can be read."""
    bare = re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.S)
    match = re.search(rf"\b{re.escape(name.split('<')[0])}\s*\(([^)]*)\)\s*\{{", bare)
    items = [item.strip() for item in match[1].split(",")] if match else []
    if len(items) != count:
        return Signature(tuple(f"argument {n + 1}" for n in range(count)), (None,) * count)
    names = tuple(re.search(r"(\w+)\s*$", item)[1] for item in items)
    dtypes = []
    for item in items:
        kind = re.sub(r"\b(const|volatile|__restrict__|__restrict)\b", " ", item.split("*")[0])
        found = _POINTERS.get(" ".join(kind.split())) if "*" in item else None
        dtypes.append(np.dtype(found) if found else None)
    return Signature(names, tuple(dtypes))


class Loaded:
    """A PTX module with its `__device__` and `__constant__` variables in memory."""

    def __init__(self, text: str, source: str, filename: str):
        self.module: Module = parse(text)
        self.source, self.filename = source, filename
        self.variables = {
            v.name: np.frombuffer(v.init.ljust(v.size, b"\0"), np.uint8).copy()
            for v in self.module.variables.values()
            if v.space in ("global", "const")
        }
        self.program = lru_cache(lambda name: decode(self.module.kernel(name)))

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
    ) -> Launch:
        """A launch that is checked and ready to run.

        name: as it stands in the PTX; shown: as the reader wrote it; args: NumPy arrays, scalars.
        Raises TypeError or ValueError, naming the argument, its value and the way out.
        """
        program: Program = self.program(name)
        kernel = program.kernel
        _check_shape(name, "grid", grid, MAX_GRID)
        _check_shape(name, "block", block, MAX_BLOCK)
        threads = int(np.prod(block))
        if threads > MAX_THREADS:
            raise ValueError(
                f"{name}: block {tuple(block)} has {threads} threads; "
                f"a block may have {MAX_THREADS}"
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
        if len(args) != len(kernel.params):
            raise TypeError(
                f"{name} takes {len(kernel.params)} arguments ({', '.join(given.names)}); "
                f"{len(args)} were given"
            )
        memory = GlobalMemory()
        params = bytearray(
            kernel.params[-1].offset + kernel.params[-1].size if kernel.params else 0
        )
        for param, label, dtype, value in zip(
            kernel.params, given.names, given.dtypes, args, strict=True
        ):
            raw = _packed(param, label, dtype, value, memory, name)
            params[param.offset : param.offset + len(raw)] = raw
        symbols = {v: memory.add(v, data) for v, data in self.variables.items() if data.size}
        return Launch(
            program,
            tuple(grid),
            tuple(block),
            bytes(params),
            memory,
            symbols,
            shared_mem=shared_mem,
            filename=self.filename,
            watch=watch,
            blocks=blocks,
            turns=turns,
        )


@lru_cache(maxsize=64)
def load(text: str, source: str, filename: str) -> Loaded:
    """A module for one PTX text; the same text is parsed and decoded once."""
    return Loaded(text, source, filename)


def _check_shape(name: str, what: str, extent, limits) -> None:
    if not isinstance(extent, tuple | list) or not 1 <= len(extent) <= 3:
        raise ValueError(f"{name}: {what} {extent!r} is not a tuple of one to three whole numbers")
    for axis, size, limit in zip("xyz", extent, limits, strict=False):
        if not isinstance(size, int | np.integer) or not 1 <= size <= limit:
            raise ValueError(
                f"{name}: {what}.{axis} = {size!r}; it must be a whole number from 1 to {limit}"
            )


def _packed(param: Param, label: str, dtype, value, memory: GlobalMemory, kernel: str) -> bytes:
    """The bytes of one argument, after every check that its value allows."""
    if isinstance(value, np.ndarray) and value.ndim:
        if param.type not in ("u64", "b64", "s64"):
            raise TypeError(
                f"{kernel}: {label} is a scalar parameter; "
                f"it was given an array of shape {value.shape}"
            )
        if not value.flags.c_contiguous:
            raise ValueError(
                f"{kernel}: {label} is not C-contiguous (shape {value.shape}, strides "
                f"{value.strides}); a kernel sees only a pointer and would read it as contiguous. "
                "Pass cp.ascontiguousarray(…)"
            )
        if dtype is not None and value.dtype != dtype:
            raise TypeError(
                f"{kernel}: {label} points at {dtype} and was given an array of {value.dtype}"
            )
        return memory.add(label, value).to_bytes(8, "little")
    if isinstance(value, list | tuple) and param.type in ("u64", "b64", "s64"):
        raise TypeError(
            f"{kernel}: {label} was given a {type(value).__name__}; pass an array: "
            f"cp.asarray({label}, dtype=cp.{dtype or 'float32'})"
        )
    size = param.size
    if param.type in ("f32", "f64"):
        wanted = np.float32 if param.type == "f32" else np.float64
        if not isinstance(value, wanted):
            kind = "float" if size == 4 else "double"
            raise TypeError(
                f"{kernel}: {label} is a {kind} and was given {value!r} "
                f"({type(value).__name__}), whose bytes CuPy would pass as they are. "
                f"Write np.{wanted.__name__}({value!r})"
            )
        return value.tobytes()
    if isinstance(value, bool | int | np.integer | np.bool_) and param.type in SIZES:
        number = int(value)
        if isinstance(value, np.integer) and value.itemsize < size:
            raise TypeError(
                f"{kernel}: {label} has {size} bytes and was given {value!r} of {value.itemsize}"
            )
        if not -(1 << 8 * size - 1) <= number < 1 << 8 * size:
            raise ValueError(
                f"{kernel}: {label} = {number} does not fit the {8 * size} bits of this parameter"
            )
        return (number % (1 << 8 * size)).to_bytes(size, "little")
    raw = getattr(value, "tobytes", lambda: b"")()
    if len(raw) != size:
        raise TypeError(
            f"{kernel}: {label} takes {size} bytes; {value!r} ({type(value).__name__}) doesn't fit"
        )
    return raw
