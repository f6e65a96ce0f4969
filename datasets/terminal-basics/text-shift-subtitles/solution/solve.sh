#!/bin/bash
set -e
cd /app
python3 - <<'END'
import re

def later(match):
    h, m, s, ms = map(int, match.groups())
    total = ((h * 60 + m) * 60 + s) * 1000 + ms + 2750
    return f"{total // 3600000:02}:{total // 60000 % 60:02}:{total // 1000 % 60:02},{total % 1000:03}"

kept = []
for entry in open("talk.srt").read().strip().split("\n\n"):
    number, times, *text = entry.split("\n")
    if text == ["[noise]"]:
        continue
    if int(number) >= 5:
        times = re.sub(r"(\d+):(\d+):(\d+),(\d+)", later, times)
    kept.append("\n".join([str(len(kept) + 1), times, *text]))
open("fixed.srt", "w").write("\n\n".join(kept) + "\n")
END
