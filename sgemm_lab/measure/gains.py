"""How many times as fast one recorded run is as another, and whether that can be told at all.

Each run stands for three speeds, one in the middle of its two ends. Where both are of one session
in which the sampled clock never moved, that is 1 / time: of the median, and of the greatest and the
least time. Elsewhere it is the ratio to cuBLAS and its 95 % interval: pairs cancel the clock, but
bring in what cuBLAS itself wobbles. Reported figures have a rate, and no ends.

The gain is the quotient of the two middles; its interval goes from the worst quotient of the ends
to the best. What else sets two runs apart, two runs of one program show: cuBLAS beside itself, and
step 3 beside step 2, whose machine code is the same. `floor` is the furthest that these are from 1
at that size: the middles, and of ratios the ends as well, which are nearer to each other than those
of times. A gain counts where its whole interval lies further away from 1 than that.

`where` is a directory of records, or one measured file: `AGAIN` is the H200's whole record taken
before, from another start of the machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

from sgemm_lab.ladder import Step, Variant, as_variant, ladder
from sgemm_lab.measure import records
from sgemm_lab.measure.records import Run
from sgemm_lab.paths import MEASUREMENTS

# R3's steps 2 and 3, one program in all likelihood, differ by up to 5 % on its RTX 2080 Super, and
# so did its kernels from run to run on an H200 (book/measurements/h200-r3.json).
REPORTED = 0.05
AGAIN = MEASUREMENTS / "repeat_h200.json"
VERDICTS = SLOWER, LEVEL, FASTER = "slower", "level", "faster"
_TWINS = 2, 3  # the steps of one machine code

Size = int | tuple[int, int, int]


@dataclass(frozen=True)
class Gain:
    """`after` beside `before`, runs of one size on one GPU; `floor`: see above."""

    before: Run
    after: Run
    floor: float

    @property
    def ratio(self) -> float:
        """How many times as fast `after` is."""
        return self._quotient(1, 1)

    @property
    def low(self) -> float:
        return self._quotient(0, 2)

    @property
    def high(self) -> float:
        return self._quotient(2, 0)

    def _quotient(self, after: int, before: int) -> float:
        runs = self.after, self.before
        if _one_clock(*runs):
            fast, slow = ((1 / run.ms_max, 1 / run.ms, 1 / run.ms_min) for run in runs)
        elif all(run.ratio for run in runs):
            fast, slow = (run.ratio for run in runs)
        else:
            fast, slow = ((run.gflops,) * 3 for run in runs)
        return fast[after] / slow[before]

    @property
    def verdict(self) -> str:
        """SLOWER or FASTER where that can be told, else LEVEL."""
        if self.high < 1 - self.floor:
            return SLOWER
        return FASTER if self.low > 1 + self.floor else LEVEL

    @property
    def size(self) -> tuple[int, int, int]:
        return self.after.M, self.after.N, self.after.K

    @property
    def stale(self) -> bool:
        return self.before.stale or self.after.stale

    def __str__(self) -> str:
        return f"×{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f}), {self.verdict}"


def _one_clock(one: Run, other: Run) -> bool:
    """Whether both are of one session, and the sampled clock was the same from its first sample to
    its last."""
    clock = one.provenance.get("clock_mhz", {})
    same = one.kind == "measured" and one.provenance == other.provenance
    return same and "min" in clock and clock["min"] == clock.get("max")


def between(
    after: Variant | Step,
    before: Variant | Step,
    size: Size,
    gpu: str = "h200",
    where: Path = MEASUREMENTS,
) -> Gain:
    """What this book measured of `after` over `before`. LookupError where either has no run."""
    shape = (size,) * 3 if isinstance(size, int) else tuple(size)
    ours = _measured(gpu, where)
    for variant in map(as_variant, (before, after)):
        if (*_key(variant), *shape) not in ours:
            raise LookupError(f"{variant.key} at {'×'.join(map(str, shape))} has no run on {gpu}")
    return _gain(ours, *(ours[*_key(as_variant(each)), *shape] for each in (before, after)))


def series(
    after: Variant | Step, before: Variant | Step, gpu: str = "h200", where: Path = MEASUREMENTS
) -> list[Gain]:
    """`between` at every N at which both were measured with M = N = K = N."""
    ours = _measured(gpu, where)
    first, second = (
        {N for *key, M, N, K in ours if tuple(key) == _key(as_variant(each)) and M == N == K}
        for each in (before, after)
    )
    return [between(after, before, N, gpu, where) for N in sorted(first & second)]


def floor(gpu: str, shape: tuple[int, int, int], where: Path = MEASUREMENTS) -> float:
    """How far from 1 two runs of one program are on this GPU at this size; `REPORTED` where no such
    runs are recorded."""
    return _floor(_measured(gpu, where), shape)


def steps(gpu: str = "h200", where: Path = MEASUREMENTS) -> list[Gain]:
    """Every step's default over the default of the step before it that has a run, size by size."""
    ours = _measured(gpu, where)
    found = []
    for shape in dict.fromkeys(key[2:] for key in ours):
        runs = [ours.get((*_key(step()), *shape)) for step in ladder if step.function]
        found += [_gain(ours, *two) for two in pairwise(filter(None, runs))]
    return found


def same_settings(gpu: str = "h200", where: Path = MEASUREMENTS) -> list[Gain]:
    """Every variant over the one of the step before whose macros mean and are the same."""
    ours = _measured(gpu, where)
    found = []
    for first, second in pairwise(step for step in ladder if step.function):
        if [m.meaning for m in first.macros] == [m.meaning for m in second.macros]:
            for (number, macros, *shape), after in ours.items():
                before = ours.get((first.number, macros, *shape))
                if number == second.number and before:
                    found.append(_gain(ours, before, after))
    return found


def pairs(gpu: str = "h200", where: Path = MEASUREMENTS) -> list[Gain]:
    """All of `steps`, then all of `settings`."""
    return steps(gpu, where) + [gain for _, gain in settings(gpu, where)]


def twins(gpu: str = "h200", where: Path = MEASUREMENTS) -> list[Gain]:
    """Step 3's default over step 2's, one machine code, at every size that both have."""
    first, second = _TWINS
    return [
        gain for gain in steps(gpu, where) if (gain.before.step, gain.after.step) == (first, second)
    ]


def settings(gpu: str = "h200", where: Path = MEASUREMENTS) -> list[tuple[str, Gain]]:
    """Every pair of variants of a step that differ in one macro, by one choice: its name, and the
    larger value over the smaller."""
    ours = _measured(gpu, where)
    found = []
    for (number, macros, *shape), before in ours.items():
        for macro in ladder[number].macros if number in ladder else ():
            larger = [choice for choice in macro.choices if choice > before.macros[macro.name]]
            changed = dict(macros) | {macro.name: min(larger, default=None)}
            if after := ours.get((number, tuple(changed.items()), *shape)):
                found.append((macro.name, _gain(ours, before, after)))
    return found


def apart(first: Path = MEASUREMENTS / "h200.json", second: Path = AGAIN) -> dict[tuple, float]:
    """`records.identity` of each run that both records have → by how many per cent its median
    time in `second` differs from that in `first`."""
    one, two = (
        {records.identity(run): run["ms"]["median"] for run in records.read(path)["runs"]}
        for path in (first, second)
    )
    return {key: 100 * abs(two[key] / one[key] - 1) for key in one if key in two}


def reported(where: Path = MEASUREMENTS) -> list[Gain]:
    """Every reported kernel over the one before it in its file, at one size."""
    found = []
    runs = [run for run in records.runs(kind="reported", directory=where) if _comparable(run)]
    for _, group in groupby(runs, key=lambda run: (run.gpu, run.label)):
        group = list(group)
        kernels = list(dict.fromkeys(run.kernel for run in group))
        by = {(run.kernel, run.M, run.N, run.K): run for run in group}
        for first, second in pairwise(kernels):
            shapes = [key[1:] for key in by if key[0] == second]
            found += [
                Gain(by[first, *shape], by[second, *shape], REPORTED)
                for shape in shapes
                if (first, *shape) in by
            ]
    return found


def _comparable(run: Run) -> bool:
    """Whether it is a step of a ladder, timed like the others: no library, no CPU, no profiler."""
    return run.step != 0 and not any(word in run.kernel for word in ("CPU", "Nsight"))


Runs = Mapping[tuple, Run]  # by step, macros, M, N, K


def _measured(gpu: str, where: Path) -> Runs:
    of_a_file = where.suffix == ".json"
    runs = records.runs_of(records.read(where)) if of_a_file else records.load(where)
    return {
        (run.step, tuple(run.macros.items()), run.M, run.N, run.K): run
        for run in runs
        if run.gpu == gpu and run.kind == "measured"
    }


def _key(variant: Variant) -> tuple:
    return variant.step.number, tuple(variant.items)


def _gain(ours: Runs, before: Run, after: Run) -> Gain:
    return Gain(before, after, _floor(ours, (after.M, after.N, after.K)))


def _floor(ours: Runs, shape: tuple[int, int, int]) -> float:
    cublas, *twins = (ours.get((*_key(ladder[step]()), *shape)) for step in (0, *_TWINS))
    found = [cublas.ratio] if cublas else []
    steady = all(twins) and _one_clock(*twins)
    if all(twins):
        same = Gain(*twins, 0)
        found.append((same.low, same.ratio, same.high))
    apart = (abs(end - 1) for ends in found for end in (ends[1:2] if steady else ends))
    return max(apart, default=REPORTED)
