"""One answer, as its frames add up."""

from collections.abc import Sequence
from typing import Any, Final

from adapters.openai_compatible.frames import Choice, Delta, Frame, UsagePart
from adapters.openai_compatible.text import Pieces
from adapters.openai_compatible.tool_calls import ToolCalls
from adapters.transport import figures
from adapters.transport.names import storable_name
from domain.step import CalledTool
from domain.usage import ReportedUsage, TokenCounts

_CUT: Final = frozenset({"length", "max_tokens", "max_output_tokens"})


class Answer:
    """What a provider has said so far: text, calls, usage, names, an error."""

    def __init__(self, *, states_charge: bool) -> None:
        """`states_charge`: whether `usage.cost` is taken for what was charged."""
        self._states_charge = states_charge
        self._text = Pieces()
        self._made: list[str] = []
        self._calls = ToolCalls()
        self._has_content = False
        self._is_error_finish = False
        self._is_cut = False
        self._native_finish_reason: str | None = None
        self.error: dict[str, Any] | str | None = None
        """The first error of any frame."""
        self.has_choices = False
        self.is_finished = False
        """A finish reason or an error was seen: what may still come is usage."""
        self.usage: ReportedUsage | None = None
        self.upstream_provider: str | None = None
        self.resolved_model: str | None = None
        self.generation_id: str | None = None

    @property
    def has_content(self) -> bool:
        """Any text, reasoning or piece of a tool call came."""
        return self._has_content or bool(self._calls)

    @property
    def has_error(self) -> bool:
        """An error came, or a finish reason that says so."""
        return bool(self.error) or self._is_error_finish

    def add(self, frame: Frame) -> list[str]:
        """Take a frame in; the pieces of text it brings, none of them empty."""
        if frame.error and not self.error:
            self.error = frame.error
        if frame.usage is not None and (usage := _usage(frame.usage, self._states_charge)) is not None:
            self.usage = usage
        if (
            frame.model != self.resolved_model
            or frame.provider != self.upstream_provider
            or self.generation_id is None
        ):
            self._take_names(frame)
        pieces: list[str] = []
        for choice in frame.choices or ():
            if not choice.index:
                self._take_choice(choice, pieces)
        if self.error:
            self.is_finished = True
        return pieces

    def end(self) -> list[str]:
        """Nothing more comes: the piece that was still waiting for its other half, and the error of an error finish."""
        if self._is_error_finish and not self.error:
            self.error = {"message": self._native_finish_reason}
        rest = self._text.end()
        if rest:
            self._made.append(rest)
        return [rest] if rest else []

    def tool_calls(self) -> tuple[Sequence[CalledTool], bool]:
        """The calls, and whether the answer or one of its calls was cut."""
        calls, is_call_cut = self._calls.finished()
        return calls, self._is_cut or is_call_cut

    @property
    def is_cut(self) -> bool:
        """The model ran out of tokens."""
        return self._is_cut

    def generated(self) -> Sequence[str]:
        """Everything the model made, in no particular order."""
        return (*self._made, *self._calls.generated())

    def _take_names(self, frame: Frame) -> None:
        if self.generation_id is None and frame.id:
            self.generation_id = storable_name(frame.id)
        if frame.model and frame.model != self.resolved_model:
            self.resolved_model = storable_name(frame.model) or self.resolved_model
        if frame.provider and frame.provider != self.upstream_provider:
            self.upstream_provider = storable_name(frame.provider) or self.upstream_provider

    def _take_choice(self, choice: Choice, pieces: list[str]) -> None:
        self.has_choices = True
        if choice.error and not self.error:
            self.error = choice.error
        if choice.delta is not None:
            self._take_delta(choice.delta, pieces)
            if choice.delta.tool_calls:
                self._calls.add_parts(choice.delta.tool_calls)
        elif choice.message is not None and not self.has_content:
            self._take_delta(choice.message, pieces)
            self._calls.add_whole(choice.message.tool_calls or ())
        if choice.native_finish_reason:
            self._native_finish_reason = choice.native_finish_reason
            self._is_cut = self._is_cut or choice.native_finish_reason.lower() in _CUT
        if choice.finish_reason:
            self.is_finished = True
            self._is_cut = self._is_cut or choice.finish_reason.lower() in _CUT
            self._is_error_finish = self._is_error_finish or choice.finish_reason == "error"

    def _take_delta(self, delta: Delta, pieces: list[str]) -> None:
        if delta.content:
            self._take_text(delta.content, pieces)
        if delta.refusal:
            self._take_text(delta.refusal, pieces)
        if reasoning := delta.reasoning or delta.reasoning_content:
            self._has_content = True
            self._made.append(reasoning)
            return
        for part in delta.reasoning_details or ():
            if text := part.text or part.summary:
                self._made.append(text)
            self._has_content = self._has_content or bool(text or part.data)

    def _take_text(self, text: str, pieces: list[str]) -> None:
        self._has_content = True
        if piece := self._text.add(text):
            self._made.append(piece)
            pieces.append(piece)


def _usage(part: UsagePart, states_charge: bool) -> ReportedUsage | None:
    """None when neither a count nor a charge is said."""
    charged_usd = figures.charge(part.cost) if states_charge and not part.is_byok else None
    sent, made, total = (
        figures.count(value) for value in (part.prompt_tokens, part.completion_tokens, part.total_tokens)
    )
    if sent is None and made is None and charged_usd is None:
        return None
    if total is not None:
        sent = max(0, total - made) if sent is None and made is not None else sent
        made = max(0, total - sent) if made is None and sent is not None else made
    prompt, completion = part.prompt_tokens_details, part.completion_tokens_details
    return ReportedUsage(
        TokenCounts(
            sent or 0,
            made or 0,
            cached_input=figures.count(prompt.cached_tokens) if prompt else None,
            reasoning=figures.count(completion.reasoning_tokens) if completion else None,
        ),
        charged_usd,
    )
