"""The ladder: one Step per kernel, from cuBLAS (0) and the naive kernel (1) upwards.

A step says which macros its .cu file takes, which values are legal, and how block, grid and tiles
follow from them. A Variant is a step with every macro chosen.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from operator import index
from pathlib import Path
from types import MappingProxyType

import numpy as np

from sgemm_lab.paths import KERNELS

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; the same since 5.0.
THREADS_PER_BLOCK = 1024
STATIC_SHARED_PER_BLOCK = 48 * 1024  # bytes
INT_MAX = 2**31 - 1
GRID_LIMITS = (2**31 - 1, 65535, 65535)  # blocks along x, y, z

# What every kernel of the ladder takes, in this order.
INTERFACE = ("M", "N", "K", "alpha", "A", "B", "beta", "C")

Macros = Mapping[str, int]


@dataclass(frozen=True)
class Macro:
    """A macro of a kernel: its default, its legal values, and what it means.

    `shown` are further values that an explorer shows and refuses, with the reason.
    """

    name: str
    default: int
    choices: tuple[int, ...]
    meaning: str
    shown: tuple[int, ...] = ()

    @property
    def settings(self) -> tuple[str, ...]:
        """The choices as a command line has them: ("TILE=8", ...)."""
        return tuple(f"{self.name}={choice}" for choice in self.choices)


@dataclass(frozen=True)
class Step:
    """One kernel. Step 0 is cuBLAS: no source, no macros, and `function` is None.

    `block`, `tile`, `shared_bytes` and `x_walks_rows` are functions of the macros' values: threads
    (x, y); block tile (BM, BN, BK) in elements; static shared memory of a block in bytes; whether
    the x axis of the grid walks down the rows of C (else along its columns). `fetches`: all threads
    of a block fetch equally many times this many neighbours of A's tile; 0 if they need not.
    `strip`: the grid is cut into strips this many tiles wide, counted by z; 0 if it is not.
    `text` stands in for the file, for a kernel that is not in kernels/. Such a kernel may also take
    other `parameters` than INTERFACE, some of these names in any order; a grid, `blocks` of M and
    N, that doesn't follow from its tile; and `dynamic_bytes` of shared memory.
    """

    number: int
    stem: str
    title: str
    summary: str
    function: str | None = None
    macros: tuple[Macro, ...] = ()
    block: Callable[[Macros], tuple[int, int]] = lambda m: (0, 0)
    tile: Callable[[Macros], tuple[int, int, int]] = lambda m: (0, 0, 0)
    shared_bytes: Callable[[Macros], int] = lambda m: 0
    x_walks_rows: Callable[[Macros], bool] = lambda m: False
    fetches: int = 0
    strip: int = 0
    min_capability: tuple[int, int] = (7, 5)
    text: str | None = None
    parameters: tuple[str, ...] = INTERFACE
    blocks: Callable[[int, int], tuple[int, ...]] | None = None
    dynamic_bytes: int = 0

    def __call__(self, **macros: int) -> "Variant":
        """The variant with these macros, the others at their defaults. ValueError says why not."""
        if problem := self.problem(**macros):
            raise ValueError(problem)
        return Variant(self, tuple(self._values(macros).items()))

    def edited(self, old: str, new: str) -> "Step":
        """This step with `new` in place of the text `old` of its source, where `old` must stand
        once: ValueError where it doesn't."""
        if (often := self.source.count(old)) != 1:
            raise ValueError(
                f"{old!r} stands {often} times in {self.filename}; it must stand once."
            )
        return replace(self, text=self.source.replace(old, new))

    def problem(self, **macros: int) -> str | None:
        """Why these macros are refused, in one sentence or two; None if they are legal."""
        known = {macro.name: macro for macro in self.macros}
        for name, value in macros.items():
            if name not in known:
                takes = f"It takes {_join(known, 'and')}." if known else "It takes none."
                return f"{self.stem} has no macro {name}. {takes}"
            if not _is_whole(value):
                return f"{name}={value!r} is not a whole number. {_choose(known[name].choices)}"

        for name, value in macros.items():
            if value not in known[name].choices:
                excess = self._excess(self._values({name: value}))
                why = excess or f"{'is negative' if value < 0 else 'is not a choice'}."
                return f"{name}={value} {why} {_choose(self._legal(known[name], {}))}"

        values = self._values(macros)
        if excess := self._excess(values):
            named = [m for m in self.macros if m.name in macros and self._matters(m, values)]
            setting = " ".join(f"{m.name}={values[m.name]}" for m in named)
            for macro in named[::-1]:
                if fitting := self._legal(macro, macros):
                    return f"{setting} {excess} {_choose(fitting, macro.name if named[1:] else '')}"
            return f"{setting} {excess} Choose other values."
        return None

    def variants(self) -> tuple["Variant", ...]:
        """Every legal variant, the last macro varying fastest."""
        names = [macro.name for macro in self.macros]
        combinations = product(*(macro.choices for macro in self.macros))
        settings = (dict(zip(names, values, strict=True)) for values in combinations)
        return tuple(self(**macros) for macros in settings if not self.problem(**macros))

    @property
    def path(self) -> Path | None:
        """The .cu file; None for step 0."""
        return KERNELS / f"{self.stem}.cu" if self.function else None

    @property
    def filename(self) -> str:
        """The name that stands in PTX and in compiler messages."""
        return f"{self.stem}.cu" if self.text else f"kernels/{self.stem}.cu"

    @property
    def source(self) -> str:
        """The text of the .cu file, read anew each time. ValueError for step 0."""
        if self.function is None:
            raise ValueError(f"{self.stem} is a library call; it has no source here.")
        return self.path.read_text(encoding="utf-8") if self.text is None else self.text

    def _values(self, macros: Macros) -> dict[str, int]:
        return {m.name: index(macros.get(m.name, m.default)) for m in self.macros}

    def _excess(self, values: Macros) -> str | None:
        """What these values need more of than a block may have, or can't share out."""
        (x, y), shared = self.block(values), self.shared_bytes(values)
        if x * y > THREADS_PER_BLOCK:
            return f"needs {x}×{y} = {x * y} threads; a block may have {THREADS_PER_BLOCK}."
        if shared > STATIC_SHARED_PER_BLOCK:
            return (
                f"needs {shared} bytes of shared memory; a block may have "
                f"{STATIC_SHARED_PER_BLOCK}."
            )
        BM, _, BK = self.tile(values)
        if self.fetches and BM * BK % (x * y * self.fetches):
            each = f"{self.fetches} at a time" if self.fetches > 1 else "one at a time"
            return (
                f"leaves a tile of A of {BM}×{BK} = {BM * BK} elements to {x * y} threads, {each}; "
                "all must fetch equally often."
            )
        return None

    def _legal(self, macro: Macro, others: Macros) -> list[int]:
        """The macro's choices that fit a block, given the other values."""
        values = self._values(others)
        return [c for c in macro.choices if not self._excess({**values, macro.name: c})]

    def _matters(self, macro: Macro, values: Macros) -> bool:
        """Whether another choice of the macro changes what a block needs, or has to share out."""
        needs = {
            (self.block(v), self.shared_bytes(v), self.tile(v) if self.fetches else None)
            for v in ({**values, macro.name: c} for c in macro.choices)
        }
        return len(needs) > 1

    def __repr__(self) -> str:
        return f"<step {self.number}: {self.title}>"


@dataclass(frozen=True)
class Variant:
    """A step with every macro chosen; hashable. Made by calling a step: ladder[2](TILE=16)."""

    step: Step
    items: tuple[tuple[str, int], ...]

    @cached_property
    def macros(self) -> Macros:
        """Every macro's value, in the order of the file."""
        return MappingProxyType(dict(self.items))

    @property
    def options(self) -> tuple[str, ...]:
        """The compiler's options, one per macro: ("-DTILE=16", ...)."""
        return tuple(f"-D{name}={value}" for name, value in self.items)

    @property
    def label(self) -> str:
        """What differs from the defaults, such as "TILE=16"; else "default"."""
        changed = (
            f"{m.name}={self.macros[m.name]}"
            for m in self.step.macros
            if self.macros[m.name] != m.default
        )
        return " ".join(changed) or "default"

    @property
    def key(self) -> str:
        """The step and every macro, as records name it."""
        return " ".join([self.step.stem, *(f"{name}={value}" for name, value in self.items)])

    @property
    def block(self) -> tuple[int, int]:
        """Threads of a block along x and y."""
        return self.step.block(self.macros)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return prod(self.block)

    @property
    def tile(self) -> tuple[int, int, int]:
        """The block tile (BM, BN, BK): BM×BN elements of C, BK elements along K at a time."""
        return self.step.tile(self.macros)

    @property
    def shared_bytes(self) -> int:
        """Static shared memory of a block, in bytes."""
        return self.step.shared_bytes(self.macros)

    @property
    def source_hash(self) -> str:
        """A hash of the .cu file's tokens: comments and blanks don't count."""
        return source_hash(self.step.source)

    def grid(self, M: int, N: int) -> tuple[int, ...]:
        """Blocks along x and y for an M×N result; (x, y, z) where z counts the step's strips or
        goes on where y alone would pass its limit.

        M or N may reach 2**31 - 1. An empty result has no blocks.
        """
        if self.step.blocks:
            return tuple(self.step.blocks(M, N))
        BM, BN, _ = self.tile
        rows, columns = -(-M // BM), -(-N // BN)
        x, y = (rows, columns) if self.step.x_walks_rows(self.macros) else (columns, rows)
        if y > GRID_LIMITS[1]:
            z = -(-y // GRID_LIMITS[1])
            return x, -(-y // z), z
        strips = min(-(-x // self.step.strip), GRID_LIMITS[2]) if self.step.strip else 1
        return (-(-x // strips), y, strips) if strips > 1 else (x, y)

    def corner(self, numbers: np.ndarray, M: int, N: int) -> tuple[np.ndarray, np.ndarray]:
        """(row, column) of the first element of C that each of these blocks computes."""
        gx, gy, _ = (*self.grid(M, N), 1)[:3]
        BM, BN, _ = self.tile
        by_rows = self.step.x_walks_rows(self.macros)
        length, tile = (M, BM) if by_rows else (N, BN)
        strips = -(-length // (gx * tile))
        z, y, x = numbers // (gx * gy), numbers // gx % gy, numbers % gx
        x, y = z % strips * gx + x, z // strips * gy + y
        return (x * BM, y * BN) if by_rows else (y * BM, x * BN)

    def __repr__(self) -> str:
        return f"<{self.key}>"


class Ladder:
    """The steps by number or stem: ladder[2] is ladder["02_tiled"]. Iterating gives the steps."""

    def __init__(self, *steps: Step):
        self._steps = {step.number: step for step in steps}

    def __getitem__(self, key: int | str) -> Step:
        for step in self:
            if key in (step.number, step.stem):
                return step
        known = ", ".join(f"{step.number} ({step.stem})" for step in self)
        raise KeyError(f"there is no step {key!r}; the steps are {known}")

    def asked(self, words: Iterable[str], every: bool = False) -> list["Variant"]:
        """The variants that words of a command line name: steps ("2", "02_tiled"; none: all steps)
        and macros ("TILE=16"). `every`: all legal variants that agree with the macros."""
        macros, names = {}, []
        for word in words:
            name, equals, value = word.partition("=")
            if equals and value:
                macros[name] = int(value) if _is_number(value) else value
            elif macro := next((m for step in self for m in step.macros if m.name == name), None):
                raise ValueError(f"{name} needs a value: {_join(macro.settings, 'or')}.")
            else:
                names.append(int(name) if _is_number(name) else name)
        if macros and not names:
            raise ValueError(f"{word} of which step? Name it, too: 2 {word}.")
        steps = [self[name] for name in names] or list(self)
        asked = [step(**macros) for step in steps]
        if not every:
            return asked
        return [v for step in steps for v in step.variants() if macros.items() <= v.macros.items()]

    def __contains__(self, key: object) -> bool:
        return any(key in (step.number, step.stem, step) for step in self)

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps.values())

    def __len__(self) -> int:
        return len(self._steps)

    def __repr__(self) -> str:
        return "\n".join(f"{step.number:2}  {step.title}" for step in self)


def own(
    code: str, function: str, block: tuple[int, int], tile: tuple[int, int, int], **more
) -> Variant:
    """A kernel that is not in kernels/ as a variant: `code`, CUDA C++, is launched in blocks of
    `block` threads (x, y), one for each `tile` (BM, BN, BK) of C. `more`: `parameters`, `blocks`
    and `dynamic_bytes` of Step."""
    shape = {"block": lambda m: block, "tile": lambda m: tile}
    return Step(-1, "your kernel", "yours", "", function, text=code, **shape, **more)()


def as_variant(what: Variant | Step) -> Variant:
    """A variant as it is, a step as its default variant. TypeError for anything else."""
    if isinstance(what, Step):
        return what()
    if isinstance(what, Variant):
        return what
    known = isinstance(what, int | str) and what in ladder
    step = f"ladder[{what!r}]" if known else "ladder[2]"
    kind = f"{type(what).__module__}.{type(what).__name__}".removeprefix("builtins.")
    told = f"{what!r} ({kind})" if isinstance(what, int | float | str) else f"{kind}"
    raise TypeError(
        f"{told} is no variant of a step. Use {step}, or ladder[2](TILE=16) for another than the "
        "default."
    )


def as_shape(shape: Iterable[int]) -> tuple[int, int, int]:
    """(M, N, K) as ints. TypeError or ValueError, in words, for what cannot be a product's size."""
    if isinstance(shape, str) or not isinstance(shape, Iterable) or len(sizes := tuple(shape)) != 3:
        raise TypeError(
            f"{shape!r} is no shape: three whole numbers (M, N, K), such as (33, 65, 97)."
        )
    for name, size in zip("MNK", sizes, strict=True):
        if not _is_whole(size):
            raise TypeError(f"{name}={size!r} is not a whole number.")
        if not 0 <= size <= INT_MAX:
            raise ValueError(f"{name}={size}: a kernel's int holds sizes from 0 to {INT_MAX}.")
    return tuple(map(index, sizes))


_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[.\d][\w.]*|\w+|.""",
    re.DOTALL,
)


@lru_cache(maxsize=256)
def source_hash(source: str) -> str:
    """16 hex digits that change with the tokens of a .cu text, not with comments or blanks."""
    tokens = (found[0] for found in _TOKEN.finditer(source) if not found["skip"])
    return hashlib.sha256("\n".join(tokens).encode()).hexdigest()[:16]


def _is_whole(value: object) -> bool:
    try:
        index(value)
    except TypeError:
        return False
    return True


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _choose(choices: Iterable[int], name: str = "") -> str:
    return f"Choose {name + ' ' if name else ''}{_join(choices, 'or')}."


def _join(words: Iterable, last: str) -> str:
    *first, final = map(str, words)
    return f"{', '.join(first)} {last} {final}" if first else final


# What several steps have in common. PAD of steps 5 and up is 4: their As is [BK][BM + PAD].
_TILE = Macro("TILE", 32, (8, 16, 32), "rows and columns of a tile", shown=(64,))
_ACCUMULATORS = Macro("ACCUMULATORS", 1, (1, 2, 4), "independent partial sums of a thread")
_LAYOUT = Macro("LAYOUT", 0, (0, 1), "Bs in shared memory: 0: [k][col]; 1: [col][k]")
_TILED = {
    "block": lambda m: (m["TILE"], m["TILE"]),
    "tile": lambda m: (m["TILE"], m["TILE"], m["TILE"]),
    # On an H200 at N = 4096, step 2's share of cuBLAS: 0.178 without strips; 0.181, 0.183, 0.185,
    # 0.186, 0.181 with 4, 8, 16, 32, 64. A smaller chip runs fewer blocks at a time: 16, not 32.
    "strip": 16,
}
_BLOCK_TILE = "rows and columns of a block's tile of C"
_DEPTH = "how far the tiles of A and B reach along K"
_COLUMN = (
    Macro("TILE", 64, (32, 64), _BLOCK_TILE),
    Macro("BK", 16, (16, 32), _DEPTH),
    Macro("TM", 16, (2, 4, 8, 16), "rows of C that a thread computes"),
)


def _square(depths: tuple[int, ...], **defaults: int) -> tuple[Macro, ...]:
    return (
        Macro("TILE", defaults["TILE"], (64, 128), _BLOCK_TILE),
        Macro("BK", defaults["BK"], depths, _DEPTH),
        Macro("TM", defaults["TM"], (4, 8), "rows of C that a thread computes, and columns"),
    )


def _padded_bytes(m: Macros) -> int:
    return 4 * m["BK"] * (2 * m["TILE"] + 4)


_COLUMN_OF_OUTPUTS = {
    "block": lambda m: (m["TILE"], m["TILE"] // m["TM"]),
    "tile": lambda m: (m["TILE"], m["TILE"], m["BK"]),
    "shared_bytes": _padded_bytes,
}
_SQUARE_OF_OUTPUTS = {
    "block": lambda m: (m["TILE"] // m["TM"], m["TILE"] // m["TM"]),
    "tile": lambda m: (m["TILE"], m["TILE"], m["BK"]),
    "shared_bytes": _padded_bytes,
    "fetches": 4,
}
_WARP_TILES = _SQUARE_OF_OUTPUTS | {"block": lambda m: ((m["TILE"] // m["TM"]) ** 2, 1)}

ladder = Ladder(
    Step(
        number=0,
        stem="00_cublas",
        title="cuBLAS",
        summary="NVIDIA's library through cp.matmul: the yardstick.",
    ),
    Step(
        number=1,
        stem="01_naive",
        title="Naive",
        summary="One thread per element; nothing is shared.",
        function="naive",
        macros=(
            Macro("COALESCED", 1, (0, 1), "1: x walks along the columns of C; 0: down its rows"),
            Macro("BLOCK_X", 32, (8, 16, 32, 64), "threads of a block along x"),
            Macro("BLOCK_Y", 32, (4, 8, 16, 32), "threads of a block along y"),
        ),
        block=lambda m: (m["BLOCK_X"], m["BLOCK_Y"]),
        tile=lambda m: (
            (m["BLOCK_Y"], m["BLOCK_X"], 1) if m["COALESCED"] else (m["BLOCK_X"], m["BLOCK_Y"], 1)
        ),
        x_walks_rows=lambda m: not m["COALESCED"],
    ),
    Step(
        number=2,
        stem="02_tiled",
        title="Shared-memory tiles",
        summary="A block loads tiles of A and B once and uses each element TILE times.",
        function="tiled",
        macros=(_TILE, _ACCUMULATORS, _LAYOUT),
        **_TILED,
        shared_bytes=lambda m: 2 * 4 * m["TILE"] ** 2,
    ),
    Step(
        number=3,
        stem="03_index_in_register",
        title="The index in a register",
        summary="threadIdx is put into variables; the machine code stays the same.",
        function="index_in_register",
        macros=(_TILE, _ACCUMULATORS, _LAYOUT),
        **_TILED,
        shared_bytes=lambda m: 2 * 4 * m["TILE"] ** 2,
    ),
    Step(
        number=4,
        stem="04_bank_conflicts",
        title="No bank conflicts",
        summary="Bs packed as it lies in B, or its rows padded: a warp meets each bank once.",
        function="bank_conflicts",
        macros=(
            _TILE,
            replace(_LAYOUT, default=1),
            Macro("PAD", 1, (0, 1, 4), "words that fill up every row of Bs"),
        ),
        **_TILED,
        shared_bytes=lambda m: 4 * m["TILE"] * (2 * m["TILE"] + m["PAD"]),
    ),
    Step(
        number=5,
        stem="05_thread_tile_1d",
        title="A column of outputs a thread",
        summary="A thread computes TM outputs and takes each element of Bs once for all of them.",
        function="thread_tile_1d",
        macros=_COLUMN,
        **_COLUMN_OF_OUTPUTS,
        fetches=1,
    ),
    Step(
        number=6,
        stem="06_vectorized",
        title="128-bit loads and stores",
        summary="A thread fetches four neighbours with one instruction.",
        function="vectorized",
        macros=_COLUMN,
        **_COLUMN_OF_OUTPUTS,
        fetches=4,
    ),
    Step(
        number=7,
        stem="07_thread_tile_4x4",
        title="4×4 outputs a thread",
        summary="A square of outputs a thread: 8 loads from shared memory for 16 multiply-adds.",
        function="thread_tile_4x4",
        macros=_square((8, 16, 32), TILE=64, BK=16, TM=4),
        **_SQUARE_OF_OUTPUTS,
    ),
    Step(
        number=8,
        stem="08_thread_tile_8x8",
        title="8×8 outputs a thread",
        summary="16 loads for 64 multiply-adds, in fours that meet each bank once.",
        function="thread_tile_8x8",
        macros=_square((8, 16, 32), TILE=128, BK=8, TM=8),
        **_SQUARE_OF_OUTPUTS,
    ),
    Step(
        number=9,
        stem="09_warp_tile",
        title="A tile for each warp",
        summary="The 32 lanes stand 4×8 and share what they read.",
        function="warp_tile",
        macros=_square((8, 16), TILE=128, BK=16, TM=8),
        **_WARP_TILES,
    ),
    Step(
        number=10,
        stem="10_prefetch",
        title="Prefetch",
        summary="The next tiles are fetched into registers while these are computed with.",
        function="prefetch",
        macros=_square((8, 16), TILE=128, BK=8, TM=8),
        **_WARP_TILES,
    ),
    Step(
        number=11,
        stem="11_double_buffer",
        title="Double buffer",
        summary="Two pairs of tiles in shared memory: one barrier a tile instead of two.",
        function="double_buffer",
        macros=_square((8, 16), TILE=128, BK=8, TM=8),
        **_WARP_TILES | {"shared_bytes": lambda m: 2 * _padded_bytes(m)},
    ),
)
