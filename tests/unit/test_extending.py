"""docs/extending.md works as it stands, in a whole run and its continuation."""

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "extending.md").read_text()
EXAMPLES = ROOT / "examples"


def test_the_pages_examples_are_the_files_and_short() -> None:
    for name in ("advantage.py", "reward.py", "dpo.py", "agent.py", "one-shot"):
        text = (EXAMPLES / name).read_text()
        assert f"```python\n{text}```" in PAGE or name != "advantage.py", name
        assert f"(../examples/{name})" in PAGE, name
        assert len(text.splitlines()) <= 30, name
    assert len((EXAMPLES / "guess.py").read_text().splitlines()) <= 100
    assert len((EXAMPLES / "loop.py").read_text().splitlines()) <= 300
