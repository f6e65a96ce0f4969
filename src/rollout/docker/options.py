"""What a user may set of our Docker environment: environment_kwargs.NAME=VALUE."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, NonNegativeInt, StringConstraints

KEEP = "keep_processes"


def _split(value: Any) -> Any:
    return value.split(",") if isinstance(value, str) else value


_Word = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_Words = Annotated[list[_Word], BeforeValidator(_split)]


class EngineOptions(BaseModel):
    """`cap_add`: as Docker names them; it refuses one that it does not know. `keep_processes`: globs of task names."""

    model_config = ConfigDict(strict=True)

    pids_limit: NonNegativeInt = 512
    allow_sudo: bool = False
    cap_add: _Words = []
    keep_processes: _Words = []
