"""A router that says what it was told to say."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from application.ports.tool_router import Question, ToolRouter
from domain.menu import RESERVED_OPTION
from domain.routing import Choice, Fallback, FallbackReason, Verdict
from domain.secret import Secret
from domain.step import Step


@dataclass(slots=True)
class ScriptedRouter(ToolRouter):
    """Answers from a script, in the order in which questions are prepared, and remembers them.

    A question beyond the script is answered with the reserved option. A step that has a tool of that name is not
    asked about; nothing else is checked.
    """

    prepared: list[Step] = field(default_factory=list)
    """Every step that a question was wanted for."""
    asked: list[Step] = field(default_factory=list)
    """Those whose question was sent."""
    keys: list[Secret] = field(default_factory=list)
    """What each of these was sent with."""
    _script: deque["_Reply | Fallback"] = field(default_factory=deque)

    @property
    def model(self) -> str:
        return "scripted/router"

    def will_say(self, verdict: Verdict, *, pause_s: float = 0.0) -> None:
        """Add an answer to the script, and how long it takes."""
        self._script.append(_Reply(verdict, pause_s))

    def will_not_ask(self, fallback: Fallback) -> None:
        """Add a step for which nothing is sent to the script."""
        self._script.append(fallback)

    async def prepare(self, step: Step, api_key: Secret) -> Question | Fallback:
        self.prepared.append(step)
        if any(tool.name == RESERVED_OPTION for tool in step.catalogue):
            return Fallback(FallbackReason.NAME_COLLISION)
        scripted = self._script.popleft() if self._script else _Reply(Verdict(Choice(RESERVED_OPTION), 1))
        if isinstance(scripted, Fallback):
            return scripted
        return _ScriptedQuestion(self, step, api_key, scripted)


@dataclass(frozen=True, slots=True)
class _Reply:
    verdict: Verdict
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _ScriptedQuestion(Question):
    router: ScriptedRouter
    step: Step
    api_key: Secret
    reply: _Reply

    async def ask(self) -> Verdict:
        self.router.asked.append(self.step)
        self.router.keys.append(self.api_key)
        await asyncio.sleep(self.reply.pause_s)
        return self.reply.verdict
