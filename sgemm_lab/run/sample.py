"""Counters of large products from a few of their blocks.

All blocks of a ladder kernel run the same code; what one counts depends only on how much of C its
tile holds and on how its rows and columns lie relative to sectors. So blocks fall into a few kinds
(interior, right edge, bottom edge, corner, times the phases of their addresses), one block of each
kind is run, and its counts are taken as often as there are blocks of the kind. That is exact for
kernels whose control flow does not depend on the data, which holds for every step of the ladder.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from types import MappingProxyType

import numpy as np

from sgemm_lab.ladder import Step, Variant
from sgemm_lab.run import nvrtc
from sgemm_lab.run.backend import ARCH
from sgemm_lab.run.check import EPS
from sgemm_lab.run.launch import bind
from sgemm_lab.run.profile import arguments
from sgemm_lab.simt import host
from sgemm_lab.simt.counters import SECTOR, Counters, Tally

FLOAT = 4  # bytes


@dataclass(frozen=True)
class Sample:
    """Counters of a whole product, worked out from `ran` of its `blocks`.

    worst: the largest error of the elements that were computed, as a fraction of
    √K·eps·(|A||B|), against float64.
    """

    counters: Counters
    blocks: int
    ran: int
    worst: float


def sample(variant: Variant | Step, M: int, N: int, K: int, arch: str = ARCH) -> Sample:
    """Count C = A·B of M×K and K×N random matrices from one block of each kind.

    Raises ValueError for an empty product and for a kernel with a grid of its own, MemoryError
    where the matrices do not fit.
    """
    variant = variant() if isinstance(variant, Step) else variant
    if not (M and N):
        raise ValueError(f"a product of {M}×{N} has no blocks to count")
    if variant.step.blocks:
        raise ValueError(
            f"{variant.key} has a grid of its own, and which of its blocks are alike is not known. "
            "profile counts all of them."
        )
    step, given = variant.step, arguments(M, N, K)
    *_, A, B, _, C = given
    args = bind(step, *given)
    ptx = nvrtc.compile_ptx(step.source, variant.options, arch, step.filename).text
    loaded, grid = host.load(ptx, step.source, step.filename), variant.grid(M, N)
    firsts, counts = kinds(variant, M, N, K)
    total, worst = [], 0.0
    for number, times in zip(firsts, counts, strict=True):
        tally = Tally()
        launch = loaded.launch(
            step.function, grid, variant.block, args, shared_mem=step.dynamic_bytes, watch=tally,
            blocks=np.array([number]),
        )  # fmt: skip
        launch.run()
        total.append((tally.result(launch.program), int(times)))
        worst = max(worst, _error(variant, int(number), A, B, C))
    return Sample(add(total), int(counts.sum()), len(firsts), worst)


def kinds(variant: Variant, M: int, N: int, K: int) -> tuple[np.ndarray, np.ndarray]:
    """One block number of each kind, and how many blocks are of it."""
    row, column = variant.corner(np.arange(int(np.prod(variant.grid(M, N)))), M, N)
    BM, BN, _ = variant.tile
    sector = SECTOR // FLOAT
    features = (
        np.clip(M - row, 0, BM),
        np.clip(N - column, 0, BN),
        row * K % sector,
        row * N % sector,
        column % sector,
    )
    _, first, count = np.unique(np.stack(features), axis=1, return_index=True, return_counts=True)
    return first, count


def _error(variant: Variant, number: int, A, B, C) -> float:
    """The largest error of one block's elements, as a fraction of its bound."""
    (M, K), N = A.shape, B.shape[1]
    row, column = variant.corner(number, M, N)
    BM, BN, _ = variant.tile
    rows, columns = slice(row, row + BM), slice(column, column + BN)
    a, b = A[rows].astype(np.float64), B[:, columns].astype(np.float64)
    error = np.abs(C[rows, columns] - a @ b)
    bound = np.sqrt(K) * EPS * (np.abs(a) @ np.abs(b))
    ratio = np.where(error == 0, 0.0, np.inf)  # what it is where the bound is 0
    np.divide(error, bound, out=ratio, where=bound > 0)
    return float(np.nan_to_num(ratio, nan=np.inf).max(initial=0.0))


def add(parts: Iterable[tuple[Counters, int]]) -> Counters:
    """The sum of counters, each taken a number of times."""
    parts = list(parts)
    names = [f.name for f in fields(Counters) if f.name != "by_class"]
    total = {name: sum(getattr(c, name) * times for c, times in parts) for name in names}
    classes: dict[str, int] = {}
    for counters, times in parts:
        for name, amount in counters.by_class.items():
            classes[name] = classes.get(name, 0) + amount * times
    return Counters(**total, by_class=MappingProxyType(dict(sorted(classes.items()))))
