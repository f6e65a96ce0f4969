"""Numbers of system calls by which a process acts on another one, or on files without a word of fanotify's. No I/O."""

PTRACE, READ, WRITE, FILE = "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd"
LIMIT, SIGNAL = "prlimit", "signal"
# fcntl of programs of 32 bits with F_SETOWN or F_SETOWN_EX: whom the kernel signals when something happens to a file.
_OWNS = {55: SIGNAL, 221: SIGNAL}
OWN, OWN_EX = 8, 15
# By number, also as programs of 32 bits make them, which the events named after calls leave out.
CALLS = {
    "x86_64": {101: PTRACE, 26: PTRACE, 310: READ, 347: READ, 311: WRITE, 348: WRITE, 438: FILE, 302: LIMIT} | _OWNS,
    "aarch64": {117: PTRACE, 26: PTRACE, 270: READ, 376: READ, 271: WRITE, 377: WRITE, 438: FILE, 261: LIMIT} | _OWNS,
}
# rename, link, symlink and truncate; below, unlink, mkdir, mknod, chmod, chown, utime and setxattr: each with its kin.
# Others have some of these numbers in the other mode, which does no harm; left out are those of programs of 32 bits
# that would be every mmap, ppoll or clock_gettime on x86_64. Rings (io_uring_setup, io_uring_enter) do all of it.
RINGS = (425, 426)
LISTEN = {"x86_64": (50, 363), "aarch64": (201,)}
BIND = {"x86_64": (49, 361), "aarch64": (200,)}
SOCKET = {"x86_64": (41, 359), "aarch64": (198,)}
UNIX, DATAGRAM = 1, 2
OTHER_NAMES = (12, 16, 28, 128)  # bytes of netlink's, IPv4's and IPv6's addresses, and of the room for any
SOCKETS, TO_LISTEN = 102, 4  # socketcall of programs of 32 bits; in the other mode getuid, which has no argument
MOVES = {
    "x86_64": (82, 264, 316, 86, 265, 88, 266, 38, 302, 353, 303, 83, 304, 76, *RINGS),
    "aarch64": (38, 276, 37, 36, 329, 382, 9, 330, 83, 331, 45, *RINGS),
}
LINKS = {"x86_64": (88, 266), "aarch64": (36,)}  # symlink
CHANGES = {
    "x86_64": (
        *(87, 84, 263, 301, 258, 296, 133, 259, 297, 90, 91, 268, 306, 452, 92, 93, 94, 260, 298),
        *(132, 235, 261, 280, 320, 412, 188, 189, 190, 197, 198, 199, 463, 466),
    ),
    "aarch64": (35, 328, 34, 323, 33, 324, 52, 53, 333, 452, 54, 55, 325, 88, 412, 5, 6, 7, 14, 15, 16, 463, 466),
}
ATTACH, SEIZE = 16, 0x4206  # all other requests need one of these first, or concern the caller's own children
MOST_PID = 1 << 22
