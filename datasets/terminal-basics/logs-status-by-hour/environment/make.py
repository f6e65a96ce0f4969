import gzip
import os
import random

random.seed(11)
os.makedirs("/app/logs")
hours = [6] * 4 + [7] * 9 + [8] * 3 + [9] * 12 + [11] * 7 + [12] * 2 + [14] * 5
lines = []
for number, hour in enumerate(hours):
    status = (200, 200, 204, 301, 304, 404, 403, 500, 200, 503)[number * 7 % 10]
    path = random.choice(("/", "/books", '/a"b', "/500", "/x 404 y"))
    time = f"11/Jun/2024:{hour:02}:{number % 60:02}:{number * 13 % 60:02} +0000"
    lines.append(f'10.0.0.{number % 9} - - [{time}] "GET {path} HTTP/1.1" {status} {number * 31}\n')
files = {"access.log": lines[30:] + ["-- restarted --\n"], "access.log.1": lines[20:30], "access.log.2.gz": lines[9:20]}
files |= {"access-old.gz": lines[:9], "error.log": lines[:5], "old-access.log": lines[:7]}
for name, content in files.items():
    data = "".join(content).encode()
    with open(f"/app/logs/{name}", "wb") as file:
        file.write(gzip.compress(data, mtime=0) if name.endswith(".gz") else data)
