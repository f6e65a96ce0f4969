"""The service desk of a shop, generated here, as a domain of the venue tau and without tau2.

harbortrainer train tasks_dir=tau:examples/desk ...
"""

from .tasks import cases, desk

DOMAIN = desk(cases())
