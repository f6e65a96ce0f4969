"""Settings and state of what an instruction speaks of, told by the words of their paths. Pure: no I/O."""

import posixpath
import re
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from harbortrainer.docker.integrity.image_files import way

PART = re.compile(r"[a-z]{3,}")
_PLACE = re.compile(r"/etc|/var|/usr/local/share|(?:/root|/home/[^/]+)(?=/\.[^/]+/[^/]+$)")
# Without an extension, or with one of settings and keys; programs have others.
_SETTING = re.compile(r"[^.]+|.+\.(?:conf|cfg|cnf|ini|json|ya?ml|toml|xml|list|rules|gen|key|pem|crt|cer|pub|\d+)")
_LEAST = 4  # letters of the beginning of a word that tell the word


def is_setting_name(path: str) -> bool:
    """Return whether a file has a name as settings have, and as modules of a language do not."""
    return _SETTING.fullmatch(posixpath.basename(path).lstrip(".")) is not None


def subjects_of(path: str, made: Collection[str], *, is_new: bool) -> Iterator[str]:
    """Yield parts of the names by which settings and state tell whose they are: /etc/cron.d, /etc/sudoers, ~/.ssh.

    `made`: new folders. Their names, and those of new files, are the policy's choice: none of them tells.
    """
    if (place := _PLACE.match(path)) is None:
        return
    is_users = place[0].startswith(("/root", "/home"))
    for above in way(posixpath.dirname(path)):
        if above.startswith(f"{place[0]}/") and (is_users or above not in made):
            yield from PART.findall(posixpath.basename(above).lower())
    if not is_new and posixpath.dirname(path) == "/etc":
        yield from PART.findall(PurePosixPath(path).stem.lower())


def is_meant(part: str, words: Collection[str]) -> bool:
    """Return whether a part of a name stands for one of the words: "ssh" for sshd, "sudoers" for sudo."""
    begin = part.removesuffix("s")
    return any(
        part == word
        or f"{part}d" == word
        or (len(word) >= _LEAST and part.startswith(word))
        or (len(begin) >= _LEAST and word.startswith(begin))
        for word in words
    )
