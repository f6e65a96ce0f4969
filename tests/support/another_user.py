"""A user who is not root, in the group of Docker's socket."""

import os


def another_user() -> list[str]:
    """What runs a command as that user; it may read this Python, which may lie in root's folder."""
    group = os.stat("/var/run/docker.sock").st_gid
    reads = "+dac_read_search"
    return ["setpriv", "--reuid=65534", "--regid=65534", f"--groups={group}", f"--inh-caps={reads}", "--ambient-caps",
            reads]  # fmt: skip
