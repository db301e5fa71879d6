"""What is compiled beforehand: the steps as readers launch them, and all that a notebook compiles.

The questions about the steps are the table below; those of the notebooks are recorded while
`python -m sgemm_lab run` executes them, so that nobody keeps a list. `run --check` says which of
those the archive lacks. An answer that it has from the same NVRTC is not asked for again.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from sgemm_lab.devices import devices
from sgemm_lab.ladder import Step, ladder
from sgemm_lab.paths import ARCHIVE
from sgemm_lab.run import archive, nvrtc
from sgemm_lab.run.backend import ARCH

Question = tuple[str, str, tuple[str, ...], str]  # kind, source, options, arch

LACKING = (
    f"{ARCHIVE.name}: what these notebooks compile is not all in it ({{}} of {{}} are missing or "
    "differ), so they don't run where NVRTC is not to be had: python -m sgemm_lab run"
)


def questions(step: Step) -> Iterator[Question]:
    """Every legal setting, all macros named, one or none; what an audit of the step asks, too."""
    source, plain = step.source, step().options
    settings = ((macro.name, choice) for macro in step.macros for choice in macro.choices)
    single = ((f"-D{name}={n}",) for name, n in settings if not step.problem(**{name: n}))
    for options in ((), *single, *(variant.options for variant in step.variants())):
        yield "ptx", source, options, ARCH
    for arch in sorted({d.arch for d in devices.values() if d.capability >= step.min_capability}):
        yield "ptx", source, plain, arch.replace("sm", "compute")
        yield "report", source, plain, arch
    for macro in step.macros:
        for illegal in (-1, *macro.shown):
            yield "ptx", source, (f"-D{macro.name}={illegal}",), ARCH


@contextmanager
def recorded() -> Iterator[dict[str, dict]]:
    """All that is compiled meanwhile, in this process and in those that it starts: filled in when
    the context ends."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        with mock.patch.dict(os.environ, {archive.KEEP: folder}):
            yield found
        found.update(archive.kept(Path(folder)))


def keep_up(compiled: dict[str, dict], whole: bool, check: bool) -> list[str]:
    """Puts what notebooks compiled into the archive, or with `check` says what it lacks.

    `whole`: these were all notebooks, so that what else the archive has of them is dropped.
    """
    old, version = archive.read(), nvrtc.version() or archive.read()["nvrtc"]
    same = old["nvrtc"] == version
    if check:
        lacking = [
            name
            for name, answer in compiled.items()
            if (old["answers"].get(name) != answer if same else name not in old["answers"])
        ]
        return [LACKING.format(len(lacking), len(compiled))] if lacking else []
    if same or whole:  # a part of an archive by another NVRTC would be of no use
        rest = {} if whole else old["answers"]
        if archive.write(rest | compiled | of_the_steps(old["answers"] if same else {}), version):
            print(f"wrote {ARCHIVE.name}")
    return []


def of_the_steps(known: Mapping[str, dict]) -> dict[str, dict]:
    """The answers to the questions about the steps, those that are `known` taken from there."""
    asked = (each for step in ladder if step.function for each in questions(step))
    return {(name := nvrtc.key(*each)): known.get(name) or nvrtc.ask(*each) for each in asked}
