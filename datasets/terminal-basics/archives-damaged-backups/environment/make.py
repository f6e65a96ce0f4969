import gzip
import io
import os
import tarfile

DAYS = {
    "2024-05-01": {"plan.txt": "plan 1", "notes/a.txt": "a 1", "notes/b.txt": "b 1", "gone.txt": "gone 1", "back.txt": "back 1"},
    "2024-05-02": {"plan.txt": "plan 2", "notes/a.txt": "a 2", "notes/c.txt": "c 2", "DELETED": "gone.txt\nback.txt\n"},
    "2024-05-03": {"plan.txt": "plan 3", "notes/a.txt": "a 3", "only3.txt": "only 3", "DELETED": "notes/b.txt\n"},
    "2024-05-04": {"plan.txt": "plan 4", "notes/c.txt": "c 4", "back.txt": "back 4", "x y.txt": "x 4"},
    "2024-05-05": {"plan.txt": "plan 5", "notes/a.txt": "a 5", "DELETED": "plan.txt\n"},
    "2024-05-06": {"plan.txt": "plan 6", "notes/d.txt": "d 6", "DELETED": "x y.txt\n"},
    "2024-05-07": {"plan.txt": "plan 7"},
}
os.makedirs("/app/backups")
for day, files in DAYS.items():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
    data = bytearray(gzip.compress(buffer.getvalue(), mtime=0))
    if day == "2024-05-03":
        data = data[:-30]
    if day == "2024-05-05":
        data[-8] ^= 1  # the checksum at the end
    if day == "2024-05-07":
        data = b"404 not found\n"
    with open(f"/app/backups/{day}.tar.gz", "wb") as file:
        file.write(data)
