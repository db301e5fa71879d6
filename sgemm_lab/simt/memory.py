"""Where a kernel's arrays live, and what one access of many lanes touches.

Every array has an address window of its own, 2^40 bytes, and begins in the middle of it: an
address computed from it stays in its window if it overruns by less than 2^39 bytes. So it never
lands in a neighbour, and an error can name the array that was meant. A view begins as far from a
multiple of 256 as from the start of the array that it is part of, as CuPy's do. Accesses are
resolved for all lanes at once: `Reach` keeps what is known of one vector of addresses (lowest,
spread, alignment, element numbers), so that the many accesses that a kernel makes at constant
distances from one vector (`[%rd6+128]`, `[%rd6+256]`, …) cost one bounds check of two integers and
one `take` each.
"""

from dataclasses import dataclass, field

import numpy as np

from .ptx import PtxError

WINDOW = 1 << 40
ALIGNMENT = 256  # of an allocation: CUDA C++ Programming Guide, device memory accesses
SHARED_WINDOW = 1 << 60  # where generic addresses of shared memory begin
LOCAL_WINDOW = 1 << 61  # and those of local memory
POISON = 0xFF  # bytes of memory nobody wrote: NaN as a float, −1 as an int

UNSIGNED = {1: np.dtype("u1"), 2: np.dtype("u2"), 4: np.dtype("u4"), 8: np.dtype("u8")}
SIGNED = {1: np.dtype("i1"), 2: np.dtype("i2"), 4: np.dtype("i4"), 8: np.dtype("i8")}


class Shifted:
    """A register that holds `vec + shift`: a vector of lanes plus one number, added when asked for.

    Loops move their pointers by a uniform step. Kept apart, the vector stays the same object, and
    everything known about it stays valid.
    """

    __slots__ = ("shift", "vec", "whole")
    dtype = None  # so that `x.dtype is wanted` fails and `view` is called

    def __init__(self, vec: np.ndarray, shift: int):
        self.vec, self.shift, self.whole = vec, shift, None

    def view(self, dtype) -> np.ndarray:
        if self.whole is None:
            modulus = 1 << 8 * self.vec.itemsize
            self.whole = self.vec + self.vec.dtype.type(self.shift % modulus)
        return self.whole.view(dtype)

    def __len__(self) -> int:
        return len(self.vec)


class Reach:
    """What is known of one vector of addresses under one mask of active lanes."""

    __slots__ = ("low_bits", "lowest", "mask", "notes", "relative", "span", "vec")

    def __init__(self, vec: np.ndarray, mask: np.ndarray | None):
        self.vec, self.mask = vec, mask
        signed = vec.view(SIGNED[vec.itemsize])
        active = signed if mask is None or len(vec) == 1 else signed[mask]
        self.lowest = int(active.min())
        self.span = int(active.max()) - self.lowest
        relative = (signed - signed.dtype.type(self.lowest)).view(vec.dtype)
        if active is not signed:
            relative = np.where(mask, relative, vec.dtype.type(0))
        self.relative = relative  # bytes above the lowest active address; 0 in inactive lanes
        self.low_bits = int(np.bitwise_or.reduce(relative)) & 15
        self.notes: dict = {}  # element numbers per space, and what the counters worked out

    def elements(self, unit: int, space: "Space") -> np.ndarray:
        """Distance from the lowest address in units of `unit` bytes, as indices for `take`."""
        key = (space.name, unit)
        found = self.notes.get(key)
        if found is None:
            found = (self.relative // self.vec.dtype.type(unit)).astype(np.intp)
            if space.lane_bytes is not None:
                found = found + space.lane_bytes // unit
            self.notes[key] = found
        return found


class SeveralArrays(PtxError):
    """The lanes of one access address several arrays; groups: a mask of lanes for each."""

    def __init__(self, message: str, groups: list[np.ndarray]):
        super().__init__(message)
        self.groups = groups


@dataclass
class Region:
    """One allocation. `data` is flat bytes; `shape` and `item` serve error messages."""

    name: str
    base: int
    data: np.ndarray
    shape: tuple[int, ...]
    item: int = 4
    writeable: bool = True
    views: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return self.data.size

    def units(self, unit: int) -> np.ndarray:
        """The allocation as unsigned integers of `unit` bytes (a view), from the first address on
        that is a multiple of `unit`."""
        if unit not in self.views:
            data = self.data[-self.base % unit :]
            self.views[unit] = data[: data.size // unit * unit].view(UNSIGNED[unit])
        return self.views[unit]

    def element(self, address: int) -> str:
        """`A[3, 17]` for an address in this window, also where it lies outside the array."""
        number = (address - self.base) // self.item
        index = []
        for extent in reversed(self.shape[1:]):
            number, inner = divmod(number, extent) if extent else (number, 0)
            index.append(inner)
        return f"{self.name}[{', '.join(map(str, [number, *reversed(index)]))}]"

    def beyond(self, address: int) -> str:
        """ " (or A[9, 20], the same place)": a place in the row after the last one of a matrix
        may have been meant as one too far in the last row. "" elsewhere."""
        if len(self.shape) != 2 or 0 in self.shape:
            return ""
        rows, columns = self.shape
        row, column = divmod((address - self.base) // self.item, columns)
        if row != rows:
            return ""
        return f" (or {self.name}[{rows - 1}, {columns + column}], the same place)"

    @property
    def extent(self) -> str:
        """ "shape (10, 20)" or "200 elements", for error messages."""
        if len(self.shape) != 1:
            return f"shape {self.shape}"
        return f"{self.shape[0]} element{'s' * (self.shape[0] != 1)}"


def region_of(name: str, array: np.ndarray, base: int) -> Region:
    """The region of a C-contiguous array: a view of it, so stores reach the array itself."""
    data = array.reshape(-1).view(np.uint8)
    return Region(name, base, data, array.shape, array.itemsize, array.flags.writeable)


def _offset(array: np.ndarray) -> int:
    """Bytes from the start of the array that owns the memory of this one."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return array.ctypes.data - owner.ctypes.data


@dataclass
class Space:
    """A state space as all lanes of a batch see it.

    lane_bytes: for shared and local memory, the byte offset of each lane's own copy in `data`.
    """

    name: str
    data: np.ndarray | None = None
    size: int = 0  # bytes each block (shared) or lane (local) may address
    lane_bytes: np.ndarray | None = None
    views: dict[int, np.ndarray] = field(default_factory=dict)

    def units(self, unit: int) -> np.ndarray:
        if unit not in self.views:
            self.views[unit] = self.data.view(UNSIGNED[unit])
        return self.views[unit]


class GlobalMemory:
    """Arrays and module variables by window."""

    def __init__(self):
        self.regions: dict[int, Region] = {}

    def add(self, name: str, array: np.ndarray) -> int:
        """Place an array; returns its address. The same memory placed twice gets one window."""
        for region in self.regions.values():
            place = region.data.ctypes.data, region.nbytes
            if array.nbytes and place == (array.ctypes.data, array.nbytes):
                if array.flags.writeable and not region.writeable:  # a read-only view came first
                    region.data, region.writeable = array.reshape(-1).view(np.uint8), True
                return region.base
        window = len(self.regions) + 1
        base = window * WINDOW + WINDOW // 2 + _offset(array) % ALIGNMENT
        self.regions[window] = region_of(name, array, base)
        return base

    def find(self, address: int) -> Region | None:
        """The region whose window holds the address."""
        return self.regions.get(address // WINDOW)
