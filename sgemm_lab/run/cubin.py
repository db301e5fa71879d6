"""The machine code of a kernel: what is left when names, line numbers and comments are gone."""

import struct
from collections.abc import Iterable, Iterator

from sgemm_lab.ladder import Step, Variant, as_variant
from sgemm_lab.run.nvrtc import compile_cubin

# A 64-bit little-endian ELF file, as `man 5 elf` has it: of the header, where the table of sections
# begins, how long an entry is, how many there are, and which one holds the names; of a section, the
# offset of its name, and where it lies in the file.
_HEADER = struct.Struct("<40xQ10xHHH")
_SECTION = struct.Struct("<I20xQQ")


def machine_code(
    variant: Variant | Step, arch: str = "sm_75", options: Iterable[str] = ()
) -> bytes:
    """The instructions of a variant's kernel on one architecture, such as "sm_90".

    Two kernels with the same bytes are the same program, whatever their sources look like. Neither
    names nor line numbers are among them. `options` are added to the compiler's. Raises what
    `compile_cubin` raises, and ValueError for step 0, which has no source.
    """
    variant = as_variant(variant)
    step = variant.step
    image = compile_cubin(step.source, (*variant.options, *options), arch, step.filename).image
    return dict(sections(image))[f".text.{step.function}"]


def sections(image: bytes) -> Iterator[tuple[str, bytes]]:
    """(name, contents) of each section of an ELF file. Raises ValueError for anything else."""
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("this is no 64-bit little-endian ELF file, so no cubin")
    table, entry, count, names_at = _HEADER.unpack_from(image)
    found = [_SECTION.unpack_from(image, table + entry * number) for number in range(count)]
    _, start, length = found[names_at]
    names = image[start : start + length]
    for name, offset, size in found:
        yield names[name : names.index(b"\0", name)].decode(), image[offset : offset + size]
