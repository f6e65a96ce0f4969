"""What a task asks for, by its solution and its instruction."""

import pytest

from harbortrainer.docker.integrity.asked import Asked, Footprint
from harbortrainer.docker.integrity.watch import Process
from tests.support.causes import OTHER, SOLUTION

INSTRUCTION = (
    "Fix `/etc/app.conf` and write /srv/motd, answer.txt and Makefile; serve http://localhost:8080/x. "
    "The command report lies in /usr/local/bin."
)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/usr/bin/jq", True),  # the solution's
        ("/usr/bin/jq2", False),
        ("/opt/tool/bin/x", True),  # in a folder that the solution made
        ("/opt/toolbox", False),
        ("/app/out/other", False),  # the solution changed the folder alone
        ("/etc/app.conf", True),  # the instruction's path
        ("/srv/motd", True),
        ("/etc/motd", False),  # a name without a dot, elsewhere
        ("/etc/app.conf.d", False),
        ("/root/answer.txt", True),  # a name with a dot, anywhere
        ("/app/sub/Makefile", True),  # any word, in the working directory
        ("/usr/Makefile", False),
        ("/usr/local/bin/report", True),  # any word, in a folder of which the instruction has the whole path
        ("/usr/local/bin/grep", False),
        ("/usr/local/bin/a/report", False),
        ("/application/Makefile", False),
        (f"/app/.git/objects/{OTHER}", True),  # named by another content
        (f"/usr/.git/objects/{OTHER}", False),
        ("/app/.git/objects/cd/short", False),
        (f"/cache/{'b' * 64}", True),
    ],
)
def test_what_the_solution_changes_or_the_instruction_names_is_asked_for(path: str, allowed: bool) -> None:
    assert Asked(SOLUTION, INSTRUCTION, "/app").allows(path) is allowed


@pytest.mark.parametrize("work", ["", "/"])
def test_the_root_is_no_working_directory(work: str) -> None:
    asked = Asked(None, INSTRUCTION, work)
    assert not asked.has_solution and asked.allows("/x/answer.txt") and not asked.allows("/x/Makefile")


@pytest.mark.parametrize(
    ("name", "ports", "allowed"),
    [
        ("any", (80,), True),  # the solution's port
        ("any", (80, 8080), True),  # the instruction's
        ("redis", (81,), False),
        ("any", (80, 81), False),
        ("redis", (), True),
        ("any", (), False),
    ],
)
def test_a_service_is_asked_for_by_its_ports_and_another_process_by_its_name(
    name: str, ports: tuple[int, ...], allowed: bool
) -> None:
    assert Asked(SOLUTION, INSTRUCTION).allows_process(Process(name, ports)) is allowed


def test_a_version_or_an_address_is_no_port() -> None:
    asked = Asked(None, "Python 3.12 at 127.0.0.1:5000, x99 or 77y; port 6000.")
    ports = (12, 27, 77, 99, 127, 5000, 6000)
    assert [port for port in ports if asked.allows_process(Process("x", (port,)))] == [5000, 6000]


@pytest.mark.parametrize(
    ("path", "instruction", "allowed"),
    [
        ("/app/.git/config", "Leave the config alone.", False),
        ("/app/.git/config", "Change the config in .git.", True),
        ("/app/config", "Write the config.", True),
    ],
)
def test_a_word_asks_for_no_file_in_a_hidden_folder_that_has_no_word(
    path: str, instruction: str, allowed: bool
) -> None:
    assert Asked(SOLUTION, instruction, "/app").allows(path) is allowed


@pytest.mark.parametrize(("path", "allowed"), [("/app/.git/config", False), ("/app/.git/refs/heads/config", True)])
def test_without_a_solution_a_word_asks_for_a_file_deeper_in_a_hidden_folder(path: str, allowed: bool) -> None:
    assert Asked(None, "Bring the branch config back.", "/app").allows(path) is allowed


def test_a_folder_of_a_user_that_a_solution_made_is_asked_for_where_it_left_files() -> None:
    made = Footprint(
        frozenset({"/root/.local", "/root/.local/bin", "/root/.local/bin/x"}),
        frozenset({"/root/.local", "/root/.local/bin"}),
    )
    asked = Asked(made, "")
    assert asked.allows("/root/.local/bin/y") and not asked.allows("/root/.local/lib/hook.py")


def test_a_number_is_a_port_only_where_something_is_to_be_served() -> None:
    process = Process("server", (30,))
    assert not Asked(Footprint(), "At most 30 lines.").allows_process(process)
    assert not Asked(None, "At most 30 lines.").allows_process(process)
    assert Asked(None, "Serve it on 30.").allows_process(process)
