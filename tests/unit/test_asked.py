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


def test_a_folder_of_the_system_that_a_solution_made_is_asked_for_where_it_left_files() -> None:
    folder = "/usr/lib/tool"
    empty, filled = (Footprint(frozenset({folder, *more}), frozenset({folder})) for more in ([], [f"{folder}/a"]))
    assert [Asked(one, "").allows(f"{folder}/b") for one in (empty, filled)] == [False, True]


def test_a_path_of_the_instruction_is_asked_for_only_where_paths_tell() -> None:
    asked = Asked(SOLUTION, INSTRUCTION, "/app", allowed=["/opt/cache/"])
    assert asked.allows("/etc/app.conf", by_name=False) and not asked.allows(
        "/etc/app.conf", by_path=False, by_name=False
    )
    assert asked.allows("/opt/cache/x") and not asked.allows("/opt/cache2/x")


@pytest.mark.parametrize(
    ("path", "named"),
    [("/srv/x", True), ("/srv/y", False), ("/usr/lib/x", False), ("/dev/shm/x", False), ("/tests/x", False)],
)
def test_a_path_that_programs_of_every_kind_read_is_none_of_the_work(path: str, named: bool) -> None:
    assert Asked(None, "See /srv/x, /usr/lib/x, /dev/shm/x and /tests/x.").names_path(path) is named


def test_what_tests_name_and_what_lies_near_depends_on_the_solution() -> None:
    text, own = "See /srv/data.", Footprint(frozenset({"/srv/data/a", "/root/.tool/a"}))
    asked = [Asked(one, text, "/app", tests={"y.txt"}) for one in (None, own)]
    assert [one.is_tested("/srv/y.txt") for one in asked] == [True, False]
    assert [one.is_area("/srv/data/x") for one in asked] == [True, False]
    assert [one.is_near("/srv/data/x") for one in asked] == [False, True]
    assert not asked[1].is_near("/root/.tool/b")


@pytest.mark.parametrize(
    ("text", "name", "means"),
    [
        ("Make a certificate.", "certs", True),
        ("Configure sshd.", "ssh", True),
        ("Set the password.", "pass", False),  # too short for the beginning of a word
        ("Over the net.", "network", False),
        ("Compare profiles.", "profile", False),
        ("Compare profile.", "profiles", True),
    ],
)
def test_a_word_stands_for_what_begins_like_it(text: str, name: str, means: bool) -> None:
    assert Asked(None, text).means(name) is means


def test_in_hidden_folders_of_the_work_only_new_files_are_settings_of_what_the_instruction_speaks_of() -> None:
    asked, path = Asked(None, "A hook shall refuse it.", "/app"), "/app/.git/hooks/pre-commit"
    assert [asked.subjects(path, (), is_new=new) for new in (True, False)] == [{"hooks"}, set()]


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
        ("/opt/x.conf", "/opt/x", False),
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
    assert (zone in Asked(None, RESOLVES).zones) is wanted
    assert not Asked(SOLUTION, RESOLVES).zones


def test_a_package_is_named_by_its_folder_or_its_module() -> None:
    asked, site = Asked(None, "Install the package greeting.", "/app"), "/usr/lib/python3/dist-packages"
    assert asked.names_module(f"{site}/greeting/a/b.py") and asked.names_module(f"{site}/greeting.py")
    assert not asked.names_module(f"{site}/package_of/greeting.py") and not asked.names_module("/app/greeting.py")
