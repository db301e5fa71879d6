"""Choose a kernel, an instruction and a warp, and see which banks or sectors the lanes meet.

The PTX machine runs two blocks of a small product and keeps every access of four of their warps,
neighbours merged as the assembler merges them.
"""

from collections.abc import Sequence
from html import escape
from math import prod

from sgemm_lab.ladder import Step, Variant, as_variant
from sgemm_lab.run.profile import executed_accesses
from sgemm_lab.show import sketches
from sgemm_lab.show.bundle import table_text
from sgemm_lab.show.explorer import MOST_PANES, Explorer, assemble, buttons
from sgemm_lab.show.labels import names
from sgemm_lab.simt.accesses import WarpAccess

WARPS = {  # in the order in which they are shown
    "first": "warp 0 of the first block",
    "second": "warp 1 of the first block",
    "last": "the last warp of the first block",
    "edge": "warp 0 of the last block, which reaches beyond C",
}
WANTED = ("first", "edge", "second", "last")

Instruction = tuple[str, str]  # ("load", "As")

_STYLE = """<style>
.lab .line{overflow-x:auto;margin:.3em 0;padding:.3em 0;background:none;border:0;color:var(--i)}
.lab .line b{color:var(--m);font-weight:400;display:inline-block;width:2.5em}
</style>"""


def explore_accesses(*variants: Variant | Step, warps: Sequence[str] = ()) -> Explorer:
    """What one instruction of one warp touches: lane by bank in shared memory, sectors in global.

    A step stands for its default variant. `warps` are of `WARPS`; if none is named, as many as keep
    the explorer small. Raises ValueError for no kernel, for an unknown warp, or where there would
    be more than `MOST_PANES` choices.
    """
    variants = [as_variant(variant) for variant in variants]
    if unknown := [name for name in warps if name not in WARPS]:
        raise ValueError(f"warp {unknown[0]!r} is not known. Choose {', '.join(WARPS)}.")
    if not variants:
        raise ValueError("no kernel to explore: explore_accesses(ladder[4])")
    seen = {variant: _accesses(variant) for variant in variants}
    instructions = _instructions(seen.values())
    room = MOST_PANES // (len(variants) * len(instructions))
    if max(1, len(warps)) > room:
        count = len(variants) * len(instructions) * max(1, len(warps))
        raise ValueError(
            f"{len(variants)} kernels with {len(instructions)} instructions and "
            f"{max(1, len(warps))} warps are {count} choices; {MOST_PANES} fit. Take fewer kernels."
        )
    wanted = warps or WANTED[:room]
    warps = [name for name in WARPS if name in wanted]

    titles = names(variants)
    panes, rows = {}, []
    for variant, title in zip(variants, titles, strict=True):
        for instruction in instructions:
            for warp in warps:
                accesses = seen[variant][warp]
                found = None if accesses is None else accesses.get(instruction, [])
                panes[variant, instruction, warp] = _pane(variant, found)
                if found:
                    rows.append([title, " ".join(instruction), warp, *_row(found)])
    lines = variants[0].step.source.splitlines()
    first = seen[variants[0]]["first"]
    selectors = [
        buttons("kernel", zip(titles, variants, strict=True), variants[0]),
        buttons(
            "instruction",
            [(" ".join(each), each) for each in instructions],
            _costliest(first),
            [lines[first[i][0].line - 1].strip() if i in first else "" for i in instructions],
        ),
        buttons("warp", [(w, w) for w in warps], warps[0], [WARPS[w] for w in warps]),
    ]
    title = "Explorer of accesses: choose kernel, instruction, warp."
    note = "As the chip executes them: neighbours that the assembler merges are one access."
    header = ["kernel", "instruction", "warp", "line", "times", "bits a lane", "lanes",
              "wavefronts or sectors each"]  # fmt: skip
    head = (
        f"{sketches.STYLE}{_STYLE}<div class=lab><b>What a warp touches</b>"
        f"<p class=note>{note} {_LEGEND}</p></div>"
    )
    text = f"{title} {note}\n\n{table_text(header, rows)}"
    return assemble(head, selectors, panes, text)


_LEGEND = (
    "Filled: what the lanes use; shaded: a word that another lane takes, too, or the rest of a "
    "sector."
)


def product(variant: Variant) -> tuple[int, int, int]:
    """M, N, K of a product that reaches a quarter of a tile beyond one tile, and two along K."""
    BM, BN, BK = variant.tile
    return BM + max(1, BM // 4), BN + max(1, BN // 4), max(2 * BK, 32)


def _accesses(variant: Variant) -> dict[str, dict[Instruction, list[WarpAccess]] | None]:
    """Warp → instruction → its accesses, in order; None for a warp that a block doesn't have."""
    M, N, K = product(variant)
    last = prod(variant.grid(M, N)) - 1
    count = -(-variant.threads // 32)
    places = {"first": (0, 0), "second": (0, 1), "last": (0, count - 1), "edge": (last, 0)}
    places = {name: (block, warp) for name, (block, warp) in places.items() if warp < count}
    found = dict.fromkeys(WARPS)
    for name, accesses in zip(
        places, executed_accesses(variant, M, N, K, list(places.values())), strict=True
    ):
        found[name] = {}
        for access in accesses:
            found[name].setdefault((access.kind, access.array), []).append(access)
    return found


def _instructions(seen) -> list[Instruction]:
    """Every instruction of any kernel: in the order of the kernel that has the most."""
    each = [dict.fromkeys(i for warp in found.values() for i in warp or ()) for found in seen]
    each.sort(key=len, reverse=True)
    return list(dict.fromkeys(instruction for kernel in each for instruction in kernel))


def _cost(access: WarpAccess) -> int:
    return access.sectors if access.space == "global" else access.wavefronts


def _costliest(accesses: dict[Instruction, list[WarpAccess]]) -> Instruction:
    """The instruction that an explorer opens at: of shared memory, a load, if there is one."""

    def rank(instruction: Instruction) -> tuple:
        first = accesses[instruction][0]
        return first.space == "shared", first.kind == "load", _cost(first)

    return max(accesses, key=rank)


def _pane(variant: Variant, found: list[WarpAccess] | None) -> str:
    if not found:
        what = "A block has no such warp" if found is None else "This warp has no such instruction"
        return f"<div class=lab><p>{what} here.</p></div>"
    worst = max(found, key=_cost)
    lines = variant.step.source.splitlines()
    code = "\n".join(
        f"<b>{number}</b>{escape(lines[number - 1].strip(), quote=False)}"
        for number in sorted({access.line for access in found})
    )
    M, N, K = product(variant)
    if worst.space == "shared":
        told, picture = sketches.banks_told(worst), sketches.bank_map(worst)
    else:
        shape = {"A": (M, K), "B": (K, N), "C": (M, N)}[worst.array]
        told, picture = sketches.sectors_told(worst), sketches.sector_map(worst, shape)
    times = f"{len(found)} time{'s' * (len(found) > 1)}"
    costs = sorted({_cost(access) for access in found})
    each = f", {costs[0]} to {costs[-1]} each" if len(costs) > 1 else ""
    return (
        f"<div class=lab><pre class=line>{code}</pre><p>{8 * worst.size} bits a lane. {told} "
        f"In a {M}×{N}×{K} product the warp does it {times}{each}.</p>{picture}</div>"
    )


def _row(found: list[WarpAccess]) -> list:
    def span(values) -> str:
        values = sorted(set(values))
        return str(values[0]) if len(values) == 1 else f"{values[0]}–{values[-1]}"

    return [
        span(access.line for access in found),
        len(found),
        span(8 * access.size for access in found),
        span(int(access.active.sum()) for access in found),
        span(_cost(access) for access in found),
    ]
