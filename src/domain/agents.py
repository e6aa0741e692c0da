"""Agents and the areas they belong to (contract, section 4)."""

from typing import Final

CREATIVE: Final = "criativo"
"""The agent whose model a project inherits instead of its workspace's."""

_AREA_OF: Final = {
    "qa": "qa",
    "qa-automacao": "qa",
    "qa-performance-seguranca": "qa",
    "infra": "infra",
    "infra-workflows": "infra",
}


def area_of(agent: str | None) -> str | None:
    """The key of the agent's area; None for an agent without one, or for no agent."""
    if agent is None:
        return None
    if agent.startswith("dev-"):
        return "dev"
    return _AREA_OF.get(agent)
