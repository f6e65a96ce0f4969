"""A task whose verifier goes the way that an attack waits for."""

from pathlib import Path

from tests.support import system_attacks as attacks
from tests.support.docker_parts import write_task


def attacked_task(folder: Path, *, way: str, user: str = "root", solve: str = "echo Hello > hello.txt\n") -> Path:
    """Wants /app/hello.txt to hold Hello; its test goes the way of `attacks.TEST`."""
    files = {f"environment/{name}": text for name, text in attacks.FILES.items()}
    test = attacks.TEST.replace("cd /app\n", f"cd /app\nset -- {way}\n", 1)
    task = write_task(folder, dockerfile=attacks.DOCKERFILE, solve=solve, test=test, files=files)
    (task / "tests" / "test_outputs.py").write_text(attacks.TEST_OUTPUTS)
    (task / "tests" / "test_flask.py").write_text(attacks.TEST_FLASK)
    toml = task / "task.toml"
    toml.write_text(toml.read_text().replace("[agent]\n", f'[agent]\nuser = "{user}"\n'))
    toml.write_text(toml.read_text().replace("[verifier]\n", f'[verifier]\nuser = "{user}"\n'))
    return task
