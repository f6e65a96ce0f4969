"""Endpoints of skyrl's API that can be wrapped, and answers that an endpoint can be made to give.

FastAPI binds an endpoint and its request model when skyrl.tinker.api is imported. `open_endpoint` binds the route to
the name instead, so that a repair wraps an endpoint by replacing the module's attribute, as it does any function.
"""

# pyright: reportMissingImports=false
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi.routing import APIRoute
from skyrl.tinker import api

Endpoint = Callable[..., Awaitable[Any]]


def open_endpoint(name: str, **changed: Any) -> None:
    """The route of `api.NAME` calls what api.NAME is when a request comes; `changed`: other types of its arguments.

    An argument's new type is a class, or a fastapi.Path or fastapi.Query that replaces its default.
    """
    routes = api.app.router.routes
    place, stock = next((i, route) for i, route in enumerate(routes) if getattr(route, "name", "") == name)

    async def late(**arguments: Any) -> Any:
        return await getattr(api, name)(**arguments)

    parameters = [
        retyped(value, changed[key]) if key in changed else value
        for key, value in inspect.signature(stock.endpoint).parameters.items()
    ]
    late.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    routes[place] = APIRoute(
        stock.path, late, methods=stock.methods, status_code=stock.status_code, name=name, response_model=None
    )


def retyped(parameter: inspect.Parameter, new: Any) -> inspect.Parameter:
    return parameter.replace(annotation=new) if isinstance(new, type) else parameter.replace(default=new)


def wrap(name: str, make: Callable[[Endpoint], Endpoint]) -> None:
    """Replaces endpoint or function api.NAME by make(what it was), which gets the same arguments."""
    setattr(api, name, make(getattr(api, name)))
    if any(getattr(route, "name", "") == name for route in api.app.router.routes):
        open_endpoint(name)


def add_route(method: str, path: str, endpoint: Endpoint) -> None:
    """A route that skyrl does not have; before its own, whose patterns take what they can."""
    route = APIRoute(f"/api/v1{path}", endpoint, methods=[method], response_model=None)
    api.app.router.routes.insert(0, route)


def bad_request(detail: str, status: int = 400) -> api.HTTPException:
    """An error that the SDK does not retry; to be raised."""
    return api.HTTPException(status_code=status, detail=detail)


def around_life(make: Callable[[], Any]) -> None:
    """make() is an async context manager: entered before the engine is started, left after it was stopped."""
    stock = api.app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[Any]:
        async with make(), stock(app) as state:
            yield state

    api.app.router.lifespan_context = lifespan
