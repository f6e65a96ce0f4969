import gzip
import hashlib
import io
import os
import tarfile

buffer = io.BytesIO()
with tarfile.open(fileobj=buffer, mode="w") as archive:
    for name, content in (("chart/north.txt", b"deep water\n" * 40), ("chart/south.txt", b"sand bank\n" * 9), ("log", b"calm\n")):
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
whole = gzip.compress(buffer.getvalue(), mtime=0)
size = -(-len(whole) // 12)
parts = [whole[i : i + size] for i in range(0, len(whole), size)]
os.makedirs("/app/parts")


def name(number):
    return "/app/parts/" + hashlib.md5(str(number).encode()).hexdigest()[:8]


def write(number, content):
    with open(name(number), "wb") as file:
        file.write(content)


for number, content in enumerate(parts):
    write(number, content)
    if number in (3, 7, 8):
        write(number + 100, content)
    if number in (2, 7, 10):
        write(number + 200, content[:-1] + bytes([content[-1] ^ 1]))
write(300, b"")
lines = [f"{number} {hashlib.sha256(content).hexdigest()}" for number, content in enumerate(parts, 1)]
lines.append(f"total {hashlib.sha256(whole).hexdigest()}")
with open("/app/manifest.txt", "w") as file:
    file.write("".join(f"{line}\n" for line in sorted(lines, key=lambda line: line.split()[1])))
