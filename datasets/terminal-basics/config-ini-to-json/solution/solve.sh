#!/bin/bash
set -e
cd /app
python3 - <<'END'
import json, re

values, section = {}, ""
for line in map(str.strip, open("legacy.ini")):
    if line.startswith("["):
        section = line[1:-1].strip()
    elif "=" in line and line[0] not in "#;":
        key, _, value = line.partition("=")
        values[f"{section}.{key.strip()}"] = value.strip()

def convert(kind, value):
    if kind == "number":
        return int(value)
    if kind == "flag":
        return {"yes": True, "on": True, "true": True, "1": True, "no": False, "off": False, "false": False, "0": False}[value.lower()]
    if kind == "list":
        return [part.strip() for part in value.split(",")] if value else []
    if kind == "seconds":
        number, unit = re.fullmatch(r"(\d+)([smhd]?)", value).groups()
        return int(number) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[unit]
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value

settings, problems = {}, []
for line in open("rules.txt"):
    name, _, path, kind = line.split()
    if name not in values:
        continue
    value = values.pop(name)
    try:
        result = convert(kind, value)
    except (ValueError, KeyError, AttributeError):
        problems.append(f"{name}: {value}")
        continue
    *outer, last = path.split(".")
    place = settings
    for part in outer:
        place = place.setdefault(part, {})
    place[last] = result
problems += [f"{name}: no rule" for name in values]
json.dump(settings, open("settings.json", "w"))
open("problems.txt", "w").writelines(f"{line}\n" for line in sorted(problems))
END
