"""What one warp touches and executes, instruction by instruction: data for pictures."""

from dataclasses import dataclass

import numpy as np

from .counters import (
    BANKS,
    WARP,
    global_sectors,
    lanes_together,
    shared_conflicts,
    shared_wavefronts,
)  # fmt: skip
from .decode import Access, Program, opcode_class
from .machine import Batch
from .memory import Reach
from .names import bare


@dataclass(frozen=True)
class WarpAccess:
    """One memory instruction of one warp.

    space: "global" or "shared"; kind: "load", "store", "atomic" or "copy"; line: of the .cu file;
    array: the name of the global array or the shared variable, or ""; addresses: int64 [32], bytes
    from the beginning of the array or of the block's shared memory; active: bool [32]; size: bytes
    a lane.
    """

    space: str
    kind: str
    line: int
    array: str
    addresses: np.ndarray
    active: np.ndarray
    size: int

    @property
    def words(self) -> np.ndarray:
        """First 4-byte word of each lane."""
        return self.addresses >> 2

    @property
    def banks(self) -> np.ndarray:
        """Bank of each lane's first word."""
        return self.words % BANKS

    @property
    def sectors(self) -> int:
        """Sectors of a global access."""
        return global_sectors(self.addresses, self.active, 8 * self.size)

    @property
    def wavefronts(self) -> int:
        """Wavefronts of a shared access."""
        width = max(32, 8 * self.size)
        return shared_wavefronts(self.words, self.active, width, self.kind == "store")

    @property
    def conflicts(self) -> int:
        """Wavefronts of a shared access beyond the first of each group of lanes."""
        width = max(32, 8 * self.size)
        return shared_conflicts(self.words, self.active, width, self.kind == "store")

    @property
    def together(self) -> int:
        """Lanes of a shared access that are served together."""
        width = max(32, 8 * self.size)
        return lanes_together(self.words, self.active, width, self.kind == "store")

    def elements(self, columns: int) -> tuple[np.ndarray, np.ndarray]:
        """(row, column) of each lane's float in a row-major array of `columns` columns."""
        return np.divmod(self.addresses // 4, columns)


class Recorder:
    """Watches a launch and keeps what one warp of one block touches, up to `limit` accesses: as the
    PTX has them, or as the chip executes them, neighbours merged (`executed`)."""

    def __init__(self, block: int = 0, warp: int = 0, limit: int = 1000, executed: bool = False):
        self.where, self.limit, self.executed = (block, warp), limit, executed
        self.found: list[WarpAccess] = []

    def access(self, batch: Batch, access: Access, space: str, reach: Reach, start: int) -> None:
        number, warp = self.where
        position = np.flatnonzero(batch.numbers == number)
        if not len(position) or len(self.found) >= self.limit or space == "local":
            return
        first = int(position[0]) * batch.padded + warp * WARP
        lanes = slice(first, first + WARP)
        active = batch.active_lanes()[lanes]
        if not active.any():
            return
        region = batch.launch.memory.find(start) if space == "global" else None
        relative = np.broadcast_to(reach.relative, batch.lanes)[lanes].astype(np.int64)
        addresses = relative + (start - region.base if region else start)
        name = region.name if region else _variable(batch.program, int(addresses[active][0]))
        for offset, size in access.executed if self.executed else ((0, access.size),):
            self.found.append(
                WarpAccess(
                    space, access.kind, access.line, name, addresses + offset, active.copy(), size
                )
            )


def _variable(program: Program, address: int) -> str:
    """The shared variable that an address of shared memory lies in, as the source calls it."""
    shared = (name for name, v in program.kernel.variables.items() if v.space == "shared")
    begun = [name for name in shared if program.layout[name] <= address]
    return bare(max(begun, key=program.layout.get)) if begun else ""


class Order:
    """Watches a launch and keeps what one warp of one block executes: the class of each PTX
    instruction, as `opcode_class` has it, and "barrier", in order."""

    def __init__(self, block: int = 0, warp: int = 0):
        self.where = block, warp
        self.found: list[str] = []

    def block(self, batch: Batch, at: int) -> None:
        number, warp = self.where
        position = np.flatnonzero(batch.numbers == number)
        if not len(position):
            return
        first = int(position[0]) * batch.padded + warp * WARP
        if batch.active_lanes()[first : first + WARP].any():
            block = batch.program.kernel.blocks[at]
            self.found += map(opcode_class, block.instructions)
            self.found += ["barrier"] * (block.exit[0] == "barrier")
