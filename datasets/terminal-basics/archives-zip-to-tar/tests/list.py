import hashlib
import tarfile

with tarfile.open("/app/photos.tar.xz", "r:xz") as archive:
    for member in sorted(archive, key=lambda member: member.name):
        if not member.isdir():
            print(member.name, int(member.mtime), hashlib.md5(archive.extractfile(member).read()).hexdigest())
