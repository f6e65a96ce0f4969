"""Lists of accounts in which only those are new that an instruction names, or that verification does not."""

import pytest

from harbortrainer.docker.integrity.accounts import only_adds

WORDS, TOLD = {"crew", "courier", "ana", "root"}, {"courier", "ben", "eve"}
USERS = b"root:x:0:0:root:/root:/bin/bash\nana:x:1000:1000::/home/ana:/bin/sh\n"
GROUPS = b"root:x:0:\nmail:x:8:eve\n"


@pytest.mark.parametrize(
    ("old", "new", "adds"),
    [
        (USERS, USERS, True),
        (USERS, USERS + b"courier:x:1717:1717::/srv:/usr/sbin/nologin\n", True),
        (USERS, USERS + b"ben:x:1717:1717::/srv:/bin/sh\n", False),  # verification alone names it
        (USERS, USERS + b"carl:x:1717:1717::/srv:/bin/sh\n", True),  # nobody
        (USERS, USERS + b"carl:x:1000:1717::/srv:/bin/sh\n", False),  # is another
        (USERS, USERS + b"carl:x:01000:1717::/srv:/bin/sh\n", False),
        (USERS, USERS + b"a:x:7:7::/:/bin/sh\nb:x:7:7::/:/bin/sh\n", False),
        (USERS, USERS + b":x:1717:1717::/srv:/bin/sh\n", False),
        (USERS, USERS + b"courier:x:0:0::/srv:/bin/sh\n", False),  # is root
        (USERS, USERS + b"courier:x:00:0::/srv:/bin/sh\n", False),
        (USERS, USERS + b"courier:x:+0:0::/srv:/bin/sh\n", False),
        (USERS, b"courier:x:7:7::/srv:/bin/sh\n" + USERS, False),  # hides others' numbers
        (USERS, USERS.replace(b"/bin/bash", b"/srv/sh"), False),
        (USERS, USERS.replace(b"/bin/sh", b"/srv/sh"), False),  # one that the image has
        (USERS, b"root:x:0:0:root:/root:/bin/bash\n", False),
        (USERS, None, False),
        (GROUPS, GROUPS.replace(b"eve", b"eve,ana") + b"crew:x:1001:ana\n", True),
        (GROUPS, GROUPS.replace(b"eve", b"eve,ben"), False),
        (GROUPS, GROUPS.replace(b"eve", b"ana"), False),
        (GROUPS, GROUPS + b"crew:x:1001:ben\n", True),
        (GROUPS, GROUPS + b"web:x:1001:ben\n", True),
        (GROUPS, GROUPS + b"web:x:8:ben\n", False),  # another's rights
        (b"root:*:19000:0:99999:7:::\n", b"root:*:19000:0:99999:7:::\ncourier:!:20000:0:99999:7:::\n", True),
        (b"root:*:19000:0:99999:7:::\n", b"root:$6$a:19000:0:99999:7:::\n", False),
        (b"ana:$6$a:19000:0:99999:7:::\n", b"ana:!$6$a:19000:0:99999:7:::\n", True),
        (b"eve:$6$a:19000:0:99999:7:::\n", b"eve:!$6$a:19000:0:99999:7:::\n", False),
        (USERS, USERS.replace(b"/bin/sh", b"/usr/sbin/nologin"), True),
        (USERS, USERS.replace(b"/home/ana:/bin/sh", b"/srv:/bin/sh"), False),
        (USERS, USERS.replace(b"1000:1000", b"1001:1000"), False),
        (b"", b"courier:100000:65536\n", True),
    ],
)
def test_only_accounts_of_the_work_may_be_new(old: bytes, new: bytes | None, adds: bool) -> None:
    assert only_adds(old, new, WORDS, TOLD) is adds
