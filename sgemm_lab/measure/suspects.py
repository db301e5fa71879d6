"""What else got worse where a kernel got slower: counters, registers, blocks.

A suspect is a quantity that costs time and went the wrong way from one run to the other by more
than `NOTABLE`. It is no proof: several may stand beside each other, and what neither a counter nor
the compiler shows (the order of instructions, the caches) is never among them.

Counters are the PTX machine's at 256×256×256, or at 129×65×97 for sizes that aren't multiples of
four. Registers and spills are what the book's pinned compiler needs, which may not be the one that
compiled what was measured: another version may allocate many more or fewer. Suspects that rest on
them are weak.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from sgemm_lab.devices import Device, devices
from sgemm_lab.ladder import Variant, ladder
from sgemm_lab.measure import records
from sgemm_lab.measure.gains import Gain
from sgemm_lab.measure.records import Run
from sgemm_lab.paths import MEASUREMENTS
from sgemm_lab.run.resources import WARP, Occupancy, occupancy

NOTABLE = 0.01
_EVEN, _ODD = records.SIZES


@dataclass(frozen=True)
class _Facts:
    """All that is known of a run besides its time."""

    device: Device
    variant: Variant
    counters: records.Recorded | None
    used: records.Recorded
    fit: Occupancy
    blocks: int

    def per_ffma(self, *names: str) -> float | None:
        """These counters, for each multiply-add of a warp; None where there are none."""
        if self.counters is None:
            return None
        return WARP * sum(getattr(self.counters, name) for name in names) / self.counters.ffma

    @property
    def most_blocks(self) -> int:
        """Blocks of the SM that gets the most, over the whole launch."""
        return -(-self.blocks // self.device.sms)

    @property
    def resident(self) -> int:
        """Blocks that an SM holds at once, as far as the grid has them."""
        return min(self.fit.blocks, self.most_blocks)


# name → (more is worse, how it is written, what it is)
QUANTITIES: Mapping[str, tuple[bool, str, Callable[[_Facts], float | None]]] = {
    "wavefronts a multiply-add": (True, "{:.3g}", lambda f: f.per_ffma(
        "shared_load_wavefronts", "shared_store_wavefronts")),
    "global sectors a multiply-add": (True, "{:.3g}", lambda f: f.per_ffma("global_load_sectors")),
    "global loads a multiply-add": (True, "{:.3g}", lambda f: f.per_ffma("global_load_requests")),
    "PTX instructions a multiply-add": (True, "{:.3g}", lambda f: f.per_ffma("instructions")),
    "bytes spilled": (True, "{:.0f}", lambda f: f.used.spill_stores + f.used.spill_loads),
    "SMs busy": (False, "{:.0%}", lambda f: f.blocks / (f.device.sms * f.most_blocks)),
    "warps on an SM": (False, "{:.0f}", lambda f: f.resident * -(-f.variant.threads // WARP)),
    "blocks on an SM": (False, "{:.0f}", lambda f: min(f.resident, 2)),  # a second one counts
}  # fmt: skip


def suspects(gain: Gain, directory: Path = MEASUREMENTS) -> dict[str, str]:
    """Quantity → "before → after", for those that got worse. Empty for other people's kernels,
    of which none is known, and where nothing did.

    LookupError where our counters or registers are not recorded.
    """
    if any(run.kind == "reported" for run in (gain.before, gain.after)):
        return {}
    facts = [_facts(run, directory) for run in (gain.before, gain.after)]
    found = {}
    for name, (more_is_worse, written, quantity) in QUANTITIES.items():
        before, after = map(quantity, facts)
        if None in (before, after):
            continue
        worse = after > before * (1 + NOTABLE) if more_is_worse else after < before * (1 - NOTABLE)
        if worse:
            found[name] = f"{written.format(before)} → {written.format(after)}"
    return found


def _facts(run: Run, directory: Path) -> _Facts:
    device, variant = devices[run.gpu], ladder[run.step](**run.macros)
    used = records.resources(variant, device.arch, directory)
    return _Facts(
        device,
        variant,
        _counters(run, variant, directory),
        used,
        occupancy(device, variant.threads, used.registers, used.shared_bytes),
        prod(variant.grid(run.M, run.N)),
    )


def _counters(run: Run, variant: Variant, directory: Path) -> records.Recorded | None:
    """At a size like the run's. Other settings than a default are counted at even sizes only."""
    even = all(size % 4 == 0 for size in (run.M, run.N, run.K))
    if not even and variant != variant.step():
        return None
    return records.counters(variant, *(_EVEN if even else _ODD), directory=directory)
