"""Does every kernel compile, with every setting, for every architecture? No GPU is needed."""

import argparse
import sys
from collections.abc import Iterable, Iterator

from tqdm import tqdm

from sgemm_lab.devices import devices
from sgemm_lab.ladder import Variant, ladder
from sgemm_lab.run import nvrtc
from sgemm_lab.run.resources import Resources, resources


def compiled(variants: Iterable[Variant], arch: str) -> Iterator[tuple[Variant, Resources | str]]:
    """Each variant with what it takes on `arch`, or with the compiler's words where it refuses."""
    for variant in variants:
        try:
            yield variant, resources(variant, arch)
        except nvrtc.CompileError as error:
            yield variant, str(error)


def main(argv: list[str] | None = None) -> int:
    """`python -m sgemm_lab compile`: 0 if every setting compiles for every architecture, else 1."""
    parser = argparse.ArgumentParser(prog="python -m sgemm_lab compile", description=main.__doc__)
    ours = sorted({device.arch for device in devices.values()})
    parser.add_argument("--arch", nargs="+", default=ours, help=f"by default {' '.join(ours)}")
    given = parser.parse_args(argv)
    variants = [variant for step in ladder if step.function for variant in step.variants()]
    wrong = 0
    for arch in given.arch:
        shown = tqdm(variants, desc=arch, unit="setting", leave=False, disable=None)
        found = dict(compiled(shown, arch))
        refused = {variant: told for variant, told in found.items() if isinstance(told, str)}
        spilling = [v.key for v in found.keys() - refused.keys() if found[v].spill_stores]
        print(
            f"{arch}: {len(found) - len(refused)} of {len(variants)} settings compile, "
            f"{len(spilling)} of them spill registers"
        )
        for variant, told in refused.items():
            print(f"{variant.key} does not compile for {arch}:\n{told}", file=sys.stderr)
        wrong += len(refused)
    return int(wrong > 0)
