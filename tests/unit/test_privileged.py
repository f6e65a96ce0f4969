"""The watcher's program starts from a folder of source alone, without the packages of the trainer."""

import subprocess

from harbortrainer.docker.integrity.privileged import _SOURCE, words_of
from harbortrainer.docker.integrity.watch import MODULE


def test_the_watcher_loads_from_its_folder_alone() -> None:
    assert (_SOURCE / "harbortrainer" / "__init__.py").is_file()
    *interpreter, code = words_of(MODULE)
    assert interpreter[1:] == ["-I", "-S", "-c"]
    loaded = subprocess.run(
        [*interpreter, f"{code.removesuffix('main()')}print(main.__module__)"], capture_output=True, text=True
    )
    assert loaded.stdout == f"{MODULE}\n", loaded.stderr
