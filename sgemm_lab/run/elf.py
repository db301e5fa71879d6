"""The sections of a cubin, which is an ELF file."""

import struct
from collections.abc import Iterator

# A 64-bit little-endian ELF file, as `man 5 elf` has it: of the header, where the table of sections
# begins, how long an entry is, how many there are, and which one holds the names; of a section, the
# offset of its name, and where it lies in the file.
_HEADER = struct.Struct("<40xQ10xHHH")
_SECTION = struct.Struct("<I20xQQ")


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
