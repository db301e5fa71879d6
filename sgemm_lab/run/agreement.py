"""The PTX machine against NVIDIA's tools on a GPU: its counters, and what its sanitizer finds."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from sgemm_lab.ladder import ladder
from sgemm_lab.paths import MEASUREMENTS
from sgemm_lab.run.backend import ARCH
from sgemm_lab.run.sample import sample

COUNTED = MEASUREMENTS / "ncu_h200.json"  # written by benchmarks/hardware_counters.py
SANITIZERS = MEASUREMENTS / "sanitizers.json"  # written by benchmarks/compute_sanitizer.py


@dataclass(frozen=True)
class Agreement:
    """`equal` of `total` numbers per counter, over `launches`; `differences` are sentences."""

    gpu: str
    launches: int
    equal: Counter
    total: Counter
    differences: tuple[str, ...]

    def __repr__(self) -> str:
        wide = max(map(len, self.total))
        lines = [f"{self.launches} launches on {self.gpu}, numbers that are equal:"]
        lines += [f"  {n:<{wide}}  {self.equal[n]:>4} of {self.total[n]}" for n in self.total]
        return "\n".join([*lines, *(f"  differs: {each}" for each in self.differences)])


def agreement(sizes: Iterable[tuple[int, int, int]] | None = None, arch: str = ARCH) -> Agreement:
    """Count every launch that was counted on the GPU (of these sizes M, N, K) and compare.

    Launches of an older version of a kernel are left out.
    """
    wanted = None if sizes is None else set(map(tuple, sizes))
    record = json.loads(COUNTED.read_text(encoding="utf-8"))
    equal, total, differences, launches = Counter(), Counter(), [], 0
    for row in record["rows"]:
        size = row["M"], row["N"], row["K"]
        variant = ladder[row["step"]](**row["macros"])
        if row["source_hash"] != variant.source_hash or (wanted and size not in wanted):
            continue
        launches += 1
        ours = sample(variant, *size, arch).counters
        for name, theirs in row["counters"].items():
            total[name] += 1
            if getattr(ours, name) == theirs:
                equal[name] += 1
            else:
                where = f"{variant.key} at {size}: {name} is {getattr(ours, name)}, not {theirs}"
                differences.append(where)
    return Agreement(record["gpu_name"], launches, equal, total, tuple(differences))


@dataclass(frozen=True)
class Comparison:
    """`found`: finder → planted mistakes it found; `false`: → right kernels it complained about;
    `rows`: for each mistake its name and what each tool and the PTX machine called it."""

    gpu: str
    mutants: int
    right: int
    found: Counter
    false: Counter
    rows: tuple[tuple[str, ...], ...]

    def _repr_html_(self) -> str:
        head = ("planted mistake", *COLUMNS)
        cells = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows
        )
        table = f"<tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>{cells}"
        return (
            f"<pre>{escape(repr(self))}</pre><details><summary>Who found what</summary>"
            f'<div style="overflow-x:auto"><table>{table}</table></div></details>'
        )

    def __repr__(self) -> str:
        lines = [f"{self.mutants} planted mistakes and {self.right} right kernels, {self.gpu}:"]
        for finder in self.found:
            found, false = self.found[finder], self.false[finder]
            lines.append(f"  {finder:<28} {found:>3} found, {false} false alarms")
        return "\n".join(lines)


def comparison() -> Comparison:
    """Who found which planted mistake: compute-sanitizer's tools on a GPU, and the PTX machine."""
    record = json.loads(SANITIZERS.read_text(encoding="utf-8"))
    tools = list(record["tools"])
    found, false = Counter(), Counter()
    for row in record["rows"]:
        seen = [tool for tool in tools if row[tool]["found"]]
        names = [f"compute-sanitizer {tool}" for tool in seen]
        names += ["any of its tools"] * bool(seen) + ["the PTX machine"] * bool(row["ours"])
        (false if row["planted"] is None else found).update(names)
    order = [*(f"compute-sanitizer {tool}" for tool in tools), "any of its tools"]
    order += ["the PTX machine"]
    right = sum(row["planted"] is None for row in record["rows"])
    return Comparison(
        record["gpu_name"],
        len(record["rows"]) - right,
        right,
        Counter({name: found[name] for name in order}),
        false,
        tuple(_row(row) for row in record["rows"] if row["planted"] is not None),
    )


COLUMNS = ("memcheck", "racecheck", "initcheck", "synccheck", "the PTX machine")


def _row(row: dict) -> tuple[str, ...]:
    """A mistake's name, and a yes or a kind for each finder."""
    tools = ("yes" if row[tool]["found"] else "–" for tool in COLUMNS[:-1])
    return row["name"], *tools, ", ".join(dict.fromkeys(f["kind"] for f in row["ours"])) or "–"
