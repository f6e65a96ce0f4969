#!/bin/bash
set -e
jq -S -s '
  def merge($a; $b):
    if ($b | type) != "object" then $b
    else reduce ($b | to_entries[]) as $e ((if ($a | type) == "object" then $a else {} end);
      if $e.value == null then del(.[$e.key]) else .[$e.key] = merge(.[$e.key]; $e.value) end)
    end;
  merge(.[0]; .[1])' /app/base.json /app/override.json > /app/merged.json
