"""What the compiler answered beforehand: where NVRTC is not to be had, the book runs from this.

One compressed file pairs each question, as a hash, with its answer. `python -m sgemm_lab run`
writes it (sgemm_lab/beforehand.py says what is in it); run/nvrtc.py asks it, and keeps what it
compiles in the folder that the environment variable KEEP names, if any.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from sgemm_lab.paths import ARCHIVE

KEEP = "SGEMM_LAB_KEEP"
EMPTY = {"nvrtc": None, "answers": {}}


def key(*asked) -> str:
    """The name of a question to the compiler: strings and tuples of strings."""
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:20]


def find(name: str) -> dict | None:
    """The answer to the question of this name, or None where it was not asked beforehand."""
    return read()["answers"].get(name)


def keep(name: str, answer: Mapping) -> None:
    """Adds an answer to the folder that KEEP names; does nothing where it names none."""
    if folder := os.environ.get(KEEP):
        Path(folder, name).write_text(json.dumps(answer), encoding="utf-8")


def kept(folder: Path) -> dict[str, dict]:
    """The answers in a folder that KEEP named."""
    return {path.name: json.loads(path.read_text("utf-8")) for path in Path(folder).iterdir()}


@cache
def read() -> dict:
    """ "answers" by the names of their questions, and the version of the "nvrtc" that gave them."""
    import lzma  # some builds of Python lack it; who has NVRTC needs it only to write

    return json.loads(lzma.decompress(ARCHIVE.read_bytes())) if ARCHIVE.exists() else EMPTY


def write(answers: Mapping[str, dict], nvrtc: str) -> bool:
    """Writes the archive where it changes, the same bytes for the same answers. Did it?"""
    import lzma

    archive = {"nvrtc": nvrtc, "answers": dict(sorted(answers.items()))}
    if changed := archive != read():
        part = ARCHIVE.with_suffix(".part")
        part.write_bytes(lzma.compress(json.dumps(archive, sort_keys=True).encode(), preset=9))
        part.replace(ARCHIVE)
        read.cache_clear()
    return changed
