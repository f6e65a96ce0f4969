"""Takes the GPU code of other architectures out of CUDA libraries, which makes them a fifth as large when packed.

python -m scripts.gpu.fat_binary ARCHITECTURE LIBRARY...          90 = H100, H200

A library's section .nv_fatbin is a row of containers, one for each source file: a header (magic, version, header size,
size of the rest), then entries: kind (1 = PTX, 2 = machine code), header size at byte 4, size of the code at byte 8,
architecture at byte 28. The driver picks the entry of its GPU and reads no other. Code of other architectures becomes
zeros, all sizes and places stay. A container without code for ARCHITECTURE cannot run on it before or after, except by
its PTX: kernels that exist as PTX alone (vLLM: some of quantized weights) are lost.
"""

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

MAGIC, VERSION = 0xBA55ED50, 1
MACHINE_CODE = 2


def section(library: bytes | bytearray, name: bytes) -> tuple[int, int]:
    """Offset and size of a section of an ELF file. Raises ValueError where there is none."""
    (table,) = struct.unpack_from("<Q", library, 0x28)
    size, count, names = struct.unpack_from("<HHH", library, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", library, table + index * size) for index in range(count)]
    for header in headers:
        start = headers[names][4] + header[0]
        if library[start : library.index(b"\0", start)] == name:
            return header[4], header[5]
    raise ValueError(f"no section {name.decode()}")


def entries(library: bytes | bytearray) -> Iterator[tuple[int, int, int, int]]:
    """Kind, architecture, offset and size of each piece of code. Raises ValueError for an unknown form."""
    place, size = section(library, b".nv_fatbin")
    end = place + size
    while place < end:
        if library[place : place + 4] == bytes(4):  # between containers
            place += 4
            continue
        magic, version, header, rest = struct.unpack_from("<IHHQ", library, place)
        if (magic, version) != (MAGIC, VERSION):
            raise ValueError(f"no fat binary at byte {place}: magic {magic:#x}, version {version}")
        entry, place = place + header, place + header + rest
        while entry < place:
            kind, _, header, code = struct.unpack_from("<HHIQ", library, entry)
            (architecture,) = struct.unpack_from("<I", library, entry + 28)
            yield kind, architecture, entry + header, code
            entry += header + code
        if entry != place:
            raise ValueError(f"entries of a fat binary end at byte {entry}, not at {place}")


def trim(library: bytearray, architecture: int) -> tuple[int, int]:
    """Bytes of code kept and replaced by zeros, in place. Raises ValueError where none would be kept."""
    kept = gone = 0
    for kind, found, place, size in list(entries(library)):
        if (kind, found) == (MACHINE_CODE, architecture):
            kept += size
        else:
            library[place : place + size] = bytes(size)
            gone += size
    if not kept:
        raise ValueError(f"no machine code of sm_{architecture}")
    return kept, gone


def main(architecture: int, files: list[str]) -> None:
    for file in map(Path, files):
        library = bytearray(file.read_bytes())
        kept, gone = trim(library, architecture)
        file.write_bytes(library)
        print(f"{file.name}: {kept / 2**20:.1f} MiB of sm_{architecture} kept, {gone / 2**20:.1f} MiB taken out")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
