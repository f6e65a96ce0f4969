"""What the cookbook's recipes are given and how they are judged; the recipes themselves run in test_cookbook.py."""

import json
from pathlib import Path

import pytest

from scripts.cookbook import data
from scripts.cookbook.run import BEGIN, END, PAGE, Broken, numbers, table

TRAINED = {"step": 0, "skyrl.ai/grad_norm": 2.0, "env/all/reward/total": 0.25}
FINAL = '{"name": "final"}\n'


def folder_of(path: Path, rows: list[dict[str, object]], checkpoints: str) -> Path:
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "checkpoints.jsonl").write_text(checkpoints)
    return path


@pytest.mark.parametrize(
    ("rows", "checkpoints", "fault"),
    [
        ([TRAINED, {"step": 1}], FINAL, "it trained 1 times, not 2"),
        ([], FINAL, "it trained 0 times"),
        ([TRAINED, TRAINED], '{"name": "000001"}\n', "no final checkpoint"),
    ],
)
def test_a_recipe_that_did_not_train_to_its_end_is_broken(
    rows: list[dict[str, object]], checkpoints: str, fault: str, tmp_path: Path
) -> None:
    with pytest.raises(Broken, match=fault):
        numbers(folder_of(tmp_path, rows, checkpoints), 2)


def test_the_page_has_the_table_of_all_recipes() -> None:
    shown = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    rows = [line.rsplit("|", 3)[0] for line in table({}).splitlines()[2:]]
    assert [line.rsplit("|", 3)[0] for line in shown.strip().splitlines()[2:]] == rows
    assert "not run" not in shown


def test_data_is_the_same_each_time_and_loads_by_its_names(tmp_path: Path) -> None:
    assert data.write_data(tmp_path / "one") == data.write_data(tmp_path / "other")
    for name, (_, configurations) in data.SETS.items():
        for configuration, splits in configurations.items():
            for split in splits:
                assert (tmp_path / "one" / name / configuration / f"{split}.jsonl").read_text()
