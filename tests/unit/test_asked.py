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
        ("any", (80, 81), True),  # and another, which counts by its number
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


@pytest.mark.parametrize(
    ("solution", "path", "is_setting"),
    [
        ("/etc/profile.d/site.sh", "/etc/profile.d/50-umask.sh", True),
        ("/etc/profile.d/site.sh", "/etc/profile", True),
        ("/etc/logrotate.d/app", "/etc/logrotate.conf", True),
        ("/etc/ssh/sshd_config", "/etc/ssh/sshd_config.d/10.conf", True),
        ("/etc/profile.d/site.sh", "/etc/bash.bashrc", False),
        ("/etc/ld.so.conf.d/x.conf", "/etc/ld.so.preload", False),
        ("/etc/motd", "/etc/profile.d/site.sh", False),
        ("/opt/x.d/a", "/opt/x.d/b", False),  # who knows what reads it
    ],
)
def test_settings_that_a_solution_makes_may_be_in_another_file_of_the_same(
    solution: str, path: str, is_setting: bool
) -> None:
    assert Asked(Footprint(frozenset({solution})), "").is_setting(path) is is_setting


@pytest.mark.parametrize(
    ("path", "is_new"),
    [
        ("/srv/site/a/index.html", True),
        ("/srv/old/a", False),  # the image has the folder
        ("/home/deploy/.ssh/authorized_keys", True),
        ("/home/other/.profile", False),
        ("/usr/lib/tool/x", False),
        ("/opt/x", False),
    ],
)
def test_new_folders_that_an_instruction_names_are_work_where_no_solution_tells(path: str, is_new: bool) -> None:
    made = {"/srv/site", "/srv/site/a", "/home/deploy", "/home/deploy/.ssh", "/home/other", "/usr/lib/tool", "/opt"}
    text = "Make /srv/site of /srv/old for the user deploy; see /usr/lib/tool and /opt."
    assert Asked(None, text).is_new_place(path, made) is is_new
    assert not Asked(Footprint(), text).is_new_place(path, made)


def test_a_command_that_an_instruction_names_is_asked_for_where_no_solution_tells() -> None:
    text, paths = "The command `report` prints x by jq.", ("/usr/local/bin/report", "/usr/bin/jq", "/usr/lib/report")
    assert [Asked(None, text).allows(path) for path in paths] == [True, False, False]
    assert not Asked(SOLUTION, text).allows(paths[0])


def test_any_process_may_run_where_the_instruction_and_the_solution_leave_one() -> None:
    process, leaves = Process("python3"), Footprint(processes=frozenset({"beat.sh"}))
    kinds = (
        (leaves, "Keep it running."),
        (leaves, "Do it."),
        (Footprint(), "Keep it running."),
        (None, "Keep it running."),
    )
    assert [Asked(*one).allows_process(process) for one in kinds] == [True, False, False, True]


RESOLVES = """The host name db.internal shall resolve to 10.1.2.3, and mail.internal must resolve to 10.1.2.4. The
judge is judge.internal; 10.9.9.9 is ours.
Set the time zone of this machine to Europe/Berlin; its logs are of America/New_York. The zone of
the customers is Asia/Tokyo. Change each entry of the server to UTC; it is in Etc/GMT+8.
"""


@pytest.mark.parametrize(
    ("lines", "given"),
    [
        ("10.1.2.3 db.internal\n", True),
        ("\n10.1.2.3\tdb.internal db # of ours\n10.1.2.4 mail.internal\n", True),
        ("10.1.2.3 db.internal judge.internal\n", False),
        ("10.1.2.3 db\n", False),  # a short name alone
        ("10.9.9.9 db.internal\n", False),
        ("10.9.9.9 judge.internal\n", False),  # nothing says that it resolves to this
        ("10.1.2.3 db.internal\n10.1.2.3 pypi.org\n", False),
        ("10.1.2.3\n", False),
        ("", False),  # other changes than new lines
    ],
)
def test_a_name_that_shall_resolve_to_an_address_may_be_given_it(lines: str, given: bool) -> None:
    assert Asked(None, RESOLVES).gives_names(lines) is given
    assert not Asked(SOLUTION, RESOLVES).gives_names(lines)


@pytest.mark.parametrize(
    ("zone", "wanted"),
    [
        ("/usr/share/zoneinfo/Europe/Berlin", True),
        ("/app/Europe/Berlin", False),
        ("/usr/share/zoneinfo/Asia/Tokyo", False),
        ("/usr/share/zoneinfo/Etc/GMT+8", False),
        ("/usr/share/zoneinfo/Berlin", False),
        ("", False),
    ],
)
def test_a_time_zone_is_wanted_where_the_machine_shall_have_it(zone: str, wanted: bool) -> None:
    assert Asked(None, RESOLVES).is_zone(zone) is wanted
    assert not Asked(SOLUTION, RESOLVES).is_zone(zone)
