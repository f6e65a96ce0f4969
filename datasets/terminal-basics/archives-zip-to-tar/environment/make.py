import zipfile

with zipfile.ZipFile("/app/photos.zip", "w", zipfile.ZIP_DEFLATED) as archive:
    for name, when, content in (
        ("2023/beach.jpg", (2023, 7, 14, 10, 30, 22), b"sand\0sea"),
        ("2023/thumbs.db", (2023, 7, 14, 10, 31, 0), b"small"),
        ("2024/my dog.jpg", (2024, 2, 29, 23, 59, 58), b"wuff\n"),
        ("index.html", (2024, 3, 1, 0, 0, 2), b"<img src='2023/beach.jpg'>\n"),
        ("empty", (1999, 12, 31, 12, 0, 0), b""),
    ):
        archive.writestr(zipfile.ZipInfo(name, when), content, zipfile.ZIP_DEFLATED)
