"""Errors a user can act on. Everything else is a bug and keeps its traceback."""


class UserError(Exception):
    """A mistake or a fault outside our code: one message that names the field, the value and the fix.

    Commands print it as one line and exit with 2; they never show a traceback for it.
    """


class BackendError(UserError):
    """The Tinker API refused, vanished or answered nonsense."""


class ServerLost(BackendError):
    """The server went away, or came back without the adapter: a saved state can be restored once it answers."""


class WeightsGone(BackendError):
    """The server does not have this saved state any more: it was deleted, has expired, or went with its database."""


class EnvironmentFault(UserError):
    """Docker or another environment provider cannot be used at all (not one failed trial: that is data)."""


class DiskFault(UserError):
    """The disk of the run directory is full, over quota, read-only or broken: nothing that happens now can be kept."""
