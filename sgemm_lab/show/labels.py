"""What lines, columns and panels are called, and how numbers are written."""

import math
from collections.abc import Sequence

from sgemm_lab.devices import Device
from sgemm_lab.ladder import Variant


def short(device: Device) -> str:
    """A GPU's name where there is little room: "2080S", "A100"."""
    name = device.name.removeprefix("RTX ").split(" SXM")[0].removesuffix(" 40GB")
    return name.replace(" Super", "S")


def line_name(variant: Variant, variants: Sequence[Variant], label: str) -> str:
    """What tells this line from the others: the step, its macros, or who reported it. Macros are
    preceded by the step's number where there are several steps: "5: TM=4"."""
    same_step = [v for v in variants if v.step == variant.step]
    differing = [
        f"{macro}={value}"
        for macro, value in variant.items
        if len({v.macros[macro] for v in same_step}) > 1
    ]
    name = " ".join(differing) or variant.step.title
    if differing and len(same_step) < len(variants):
        name = f"{variant.step.number}: {name}"
    return name if label == "measured" else f"{name}, {label}"


def names(things: Sequence) -> list[str]:
    """Of variants the step and what is not its default, or only what differs where all are of one
    step; other things are called what they are."""
    variants = [thing for thing in things if isinstance(thing, Variant)]
    one_step = len(variants) > 1 and len({variant.step.number for variant in variants}) == 1

    def name(each) -> str:
        if not isinstance(each, Variant):
            return str(each)
        if one_step:
            return line_name(each, variants, "measured")
        extra = "" if each.label == "default" else f", {each.label}"
        return f"{each.step.number} {each.step.title}{extra}"

    return [name(thing) for thing in things]


def size(shape: tuple[int, int, int]) -> str:
    """ "4096", or "8192×8192 ×4096", which may break."""
    M, N, K = shape
    return str(M) if M == N == K else f"{M}×{N} ×{K}"


def spaced(value: float, decimals: int = 0) -> str:
    """ "8 388 608"."""
    return f"{value:,.{decimals}f}".replace(",", " ")


def digits(value: float | None) -> str:
    """Three significant digits, at least the whole part; a dash for None."""
    if value is None:
        return "–"
    decimals = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return spaced(value, decimals)
