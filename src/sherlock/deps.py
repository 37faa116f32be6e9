"""What a route is given: who is calling, and what is built.

All of it is `async`, though nothing waits: FastAPI runs any other function in a thread, for each request.
"""

from typing import Annotated, Literal, TypedDict

from fastapi import Depends, Query, Request

from sherlock.rag.domain.models import DEFAULT_WORKSPACE, WorkspaceId
from sherlock.schemas import InDigits
from sherlock.wiring import Rag, Services


class State(TypedDict):
    """What the lifespan hands to every request."""

    services: Services
    started_at: int


async def _services(request: Request) -> Services:
    services: Services = request.state.services
    return services


ServicesDep = Annotated[Services, Depends(_services)]


async def _rag(services: ServicesDep) -> Rag:
    return services.require_rag()


RagDep = Annotated[Rag, Depends(_rag)]


async def _caller() -> WorkspaceId:
    """Everybody works in the default workspace; any `Authorization` header is accepted."""
    return DEFAULT_WORKSPACE


CallerDep = Annotated[WorkspaceId, Depends(_caller)]


async def _include(
    bracketed: Annotated[list[str], Query(alias="include[]")] = [],  # noqa: B006
    plain: Annotated[list[str], Query(alias="include")] = [],  # noqa: B006
) -> frozenset[str]:
    """Official clients write `include[]=a`, people `include=a`."""
    return frozenset(bracketed) | frozenset(plain)


IncludeDep = Annotated[frozenset[str], Depends(_include)]

Limit = Annotated[int, Query(ge=1, le=100), InDigits]
"""Length of a page."""
Order = Literal["asc", "desc"]
