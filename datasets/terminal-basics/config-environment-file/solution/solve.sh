#!/bin/bash
set -e
cd /app
python3 - <<'END'
old = {}
for line in open("old.env"):
    name, equals, value = line.rstrip("\n").partition("=")
    if equals and not line.startswith("#"):
        old[name] = value
was = {new: name for name, new in (line.split() for line in open("renamed.txt"))}
out, used = [], set()
for line in open("app.env.example"):
    name, equals, value = line.rstrip("\n").partition("=")
    if equals and not line.startswith("#"):
        source = name if name in old else was.get(name)
        if source in old:
            used.add(source)
            value = old[source]
    out.append(name + equals + value)
if rest := sorted(set(old) - used):
    out += ["", "# unused", *(f"{name}={old[name]}" for name in rest)]
open("app.env", "w").write("".join(f"{line}\n" for line in out))
END
