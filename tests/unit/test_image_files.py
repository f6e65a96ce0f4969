"""The files of an image, read from its layers' folders."""

from pathlib import Path

from harbortrainer.docker.integrity.image_files import ImageFiles


def layer(folder: Path, *names: str) -> str:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return str(folder)


def test_a_layer_that_containers_share_is_listed_once(tmp_path: Path) -> None:
    base = layer(tmp_path / "base", "usr/bin/sh")
    first, second = (ImageFiles([layer(tmp_path / name, f"etc/{name}"), base]) for name in ("one", "two"))
    assert first.has_name("sh") and first.has_name("usr") and not first.has_name("two")
    (tmp_path / "base/usr/bin/sh").unlink()  # no image's layer changes: what was listed still holds
    assert second.has_name("sh") and second.has_name("two") and not second.has_name("one")
