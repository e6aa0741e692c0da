"""The decision model that is asked which tool fits a step. It decides; it does not converse."""

from typing import Protocol

from domain.routing import Fallback, Verdict
from domain.secret import Secret
from domain.step import Step


class Question(Protocol):
    """A question that may be sent: ask it at once, and once."""

    async def ask(self) -> Verdict:
        """Send it and read the answer, within the router's timeout. Raises nothing but cancellation."""
        ...


class ToolRouter(Protocol):
    """Asks the decision model. It is never asked twice for one step."""

    @property
    def model(self) -> str:
        """The pinned name of the decision model."""
        ...

    async def prepare(self, step: Step, api_key: Secret) -> Question | Fallback:
        """The question, not yet sent; a fallback where nothing is to be sent: too large, a name that collides with
        the reserved option, or an endpoint that keeps failing for this key (its last reason, detail `circuit_open`).

        Raises nothing but cancellation, and does not hold the event loop.
        """
        ...
