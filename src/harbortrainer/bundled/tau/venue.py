"""The venue `tau`: domains of tau2-bench, or a folder's own, with the domain's tools and a simulated user."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harbortrainer.bundled.tau import tasks as tau_tasks
from harbortrainer.bundled.tau.package import DISTRIBUTION
from harbortrainer.config import Config
from harbortrainer.errors import UserError
from harbortrainer.tasks.task import Task

if TYPE_CHECKING:  # slow to import, and a list of tasks needs none of it
    from harbortrainer.bundled.tau.room import TauRoom
    from harbortrainer.bundled.tau.user import NewUser
    from harbortrainer.policy.chat_template import ChatTemplate
    from harbortrainer.rollout.venue import RunParts

SCRIPTED = (
    "tau: the user is scripted and follows no instruction of its scenario: rewards cannot be compared with tau-bench's"
)


@dataclass(frozen=True, slots=True)
class TauVenue:
    """The venue tau. `new_user`: a test's user; None = the one that user names, else the scripted user."""

    new_user: "NewUser | None" = None
    name: str = tau_tasks.VENUE
    packages: tuple[str, ...] = (DISTRIBUTION,)

    find = staticmethod(tau_tasks.find)
    names = staticmethod(tau_tasks.names)
    load = staticmethod(tau_tasks.load)
    identify = staticmethod(tau_tasks.identify)

    def check(self, tasks: Sequence[Task], config: Config, template: "ChatTemplate", n_trials: int) -> list[str]:
        """Return warnings for the user. Raises UserError when the chat template cannot show tools and their results."""
        from harbortrainer.bundled.tau.domain import GREETING, domain
        from harbortrainer.model_file import SCRIPTED as SCRIPTED_USER
        from harbortrainer.model_file import model_of

        places = [domain(name) for name in dict.fromkeys(tau_tasks.key_of(task)[0] for task in tasks)]
        for place in places:
            template.call_form  # noqa: B018 -- raises UserError
            opening = [{"role": "system", "content": place.system_prompt}, {"role": "assistant", "content": GREETING}]
            prompt = template.first_prompt([*opening, {"role": "user", "content": "x"}], place.schemas)
            _require_room(place.data.name, len(prompt), config)
        user = model_of("user", config.user)
        scripted = (user is None or user.model == SCRIPTED_USER) and self.new_user is None
        return [SCRIPTED] if scripted and not all(place.data.for_script for place in places) else []

    def room(self, run: "RunParts") -> "TauRoom":
        from harbortrainer.bundled.tau.room import TauRoom

        return TauRoom(run, self.new_user)


def _require_room(name: str, tokens: int, config: Config) -> None:
    """Raises UserError when the first prompt leaves no room for one answer."""
    from harbortrainer.policy.conversation import SMALLEST_ANSWER

    if tokens + SMALLEST_ANSWER > config.context_limit:
        raise UserError(
            f"context_limit={config.context_limit}: the first prompt of tau:{name} has {tokens} tokens; plan 24000 to "
            "32000 for a whole conversation"
        )


VENUE = TauVenue()
