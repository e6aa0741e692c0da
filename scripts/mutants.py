"""Breaks the code on purpose, break by break, and sees a named test go red each time.

`scripts/mutants.py [NAME…]`: the breaks of these names, or all of them. They are made in copies of the checkout, two
at a time, on one PostgreSQL; nothing of it is left afterwards. A break counts as noticed when its test fails by an
assertion or an exception of its own: a module that does not load, a fixture that breaks, a test that hangs or that
nobody wrote are no evidence. Exit status: 0 all were noticed, 1 one was not, 2 no such name, 130 interrupted.
"""

import asyncio
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

# Of a script only its own folder is on the path; its neighbours are modules of the folder above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from adapters.embedded_postgres import EmbeddedPostgres
from scripts.own_brabo import leave_in_order_on_signals

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("domain", "application", "adapters", "entrypoints")
AT_ONCE: Final = 2
UNBROKEN_PATIENCE_S: Final = 300.0
BROKEN_PATIENCE_S: Final = 60.0
SHOWN_LINES: Final = 15


@dataclass(frozen=True, slots=True)
class Mutant:
    """One break, and the test that must notice it."""

    name: str
    file: str
    """Below `src`."""
    text: str
    """Occurs exactly once in the file."""
    instead: str
    test: str
    """A test as pytest names it; without `[…]`, any case of it may notice."""


BAD_INPUT: Final = "tests/e2e/test_bad_input.py"
BINDINGS: Final = "tests/unit/domain/test_binding.py"
BODY: Final = "tests/unit/http/test_body.py"
BUDGETS: Final = "tests/unit/domain/test_budget.py"
BUDGET_ROUTES: Final = "tests/e2e/test_budgets.py"
CONNECTIONS: Final = "tests/integration/openai_compatible/test_connections.py"
CONTEXTS: Final = "tests/contract/test_turn_contexts.py"
COSTS: Final = "tests/unit/domain/test_usage.py"
DRAIN: Final = "tests/e2e/test_drain.py"
JEV_ANSWER: Final = "tests/unit/adapters/jev/test_answer.py"
JEV_CIRCUIT: Final = "tests/unit/adapters/jev/test_circuit.py"
JEV_WIRE: Final = "tests/integration/jev/test_wire.py"
LEAVING: Final = "tests/e2e/test_leaving.py"
MENU_DECISIONS: Final = "tests/unit/application/test_decide_step_menu.py"
ODDITY: Final = "tests/integration/openai_compatible/test_wire_oddities.py::test_reads"
RECORDER: Final = "tests/contract/test_usage_recorder.py"
REQUESTS: Final = "tests/unit/adapters/openai_compatible/test_request.py"
SENTENCES: Final = "tests/unit/http/test_sentences.py"
SERVICE_TOKEN: Final = "tests/unit/adapters/test_service_token.py"
TOOL_ROUTER: Final = "tests/e2e/test_tool_router.py"
TURN: Final = "tests/unit/application/test_turn.py"
TURNS: Final = "tests/e2e/test_turns.py"
USER_TOKEN: Final = "tests/unit/adapters/test_user_token.py"
WIRE: Final = "tests/unit/http/test_wire.py"
WORKSPACES: Final = "tests/contract/test_workspaces.py"

METERING: Final = [
    Mutant(
        "threshold-lock-removed",
        "adapters/postgres/settle.py",
        "            ORDER BY b.id FOR UPDATE OF b\n",
        "            ORDER BY b.id\n",
        "tests/integration/postgres/test_settling_from_two_processes.py"
        "::test_the_sum_is_exact_and_each_threshold_comes_once",
    ),
    Mutant(
        "area-lock-removed",
        "adapters/postgres/settle.py",
        "            ORDER BY a.id FOR UPDATE OF a\n",
        "            ORDER BY a.id\n",
        "tests/integration/postgres/test_settling_from_two_processes.py"
        "::test_the_sum_is_exact_and_each_threshold_comes_once",
    ),
    Mutant(
        "project-sum-from-the-input",
        "adapters/postgres/settle.py",
        "SELECT moved_project_budget_id AS budget_id, cost_micros AS cost, true AS is_spend FROM written",
        "SELECT moved_project_budget_id AS budget_id, cost_micros AS cost, true AS is_spend FROM handed",
        f"{RECORDER}::test_writing_a_record_twice_changes_nothing_the_second_time[postgres]",
    ),
    Mutant(
        "session-sum-from-the-input",
        "adapters/postgres/settle.py",
        "UNION ALL SELECT moved_session_budget_id, cost_micros, true FROM written",
        "UNION ALL SELECT moved_session_budget_id, cost_micros, true FROM handed",
        f"{RECORDER}::test_writing_a_record_twice_changes_nothing_the_second_time[postgres]",
    ),
    Mutant(
        "area-sum-from-the-input",
        "adapters/postgres/settle.py",
        "SELECT moved_area_id AS area_id, sum(cost_micros) AS cost FROM written",
        "SELECT moved_area_id AS area_id, sum(cost_micros) AS cost FROM handed",
        f"{RECORDER}::test_writing_a_record_twice_changes_nothing_the_second_time[postgres]",
    ),
    Mutant(
        "threshold-announced-again",
        "adapters/postgres/settle.py",
        "                ON threshold.percent > locked.last_threshold_notified\n                AND ",
        "                ON ",
        f"{RECORDER}::test_a_threshold_is_announced_once_an_arming[postgres]",
    ),
    Mutant(
        "recorded-before-the-commit",
        "adapters/postgres/usage_recorder.py",
        "        return await asyncio.shield(handed.answer)\n",
        "        return True\n",
        f"{RECORDER}::test_without_any_budget_the_row_is_written[postgres]",
    ),
    Mutant(
        "final-before-the-row",
        "application/record_usage.py",
        "        await self.recorder.record(Settlement(turn_id=turn.start.turn_id, usage=usage, end=end))\n",
        "        import asyncio; asyncio.ensure_future(\n"
        "            self.recorder.record(Settlement(turn_id=turn.start.turn_id, usage=usage, end=end)))\n",
        f"{TURN}::test_the_answer_waits_for_its_row",
    ),
    Mutant(
        "leaving-undoes-the-row",
        "application/turn.py",
        "await asyncio.shield(settlement)",
        "await settlement",
        f"{TURN}::test_leaving_while_the_row_is_written_does_not_undo_it",
    ),
    Mutant(
        "row-for-a-refused-call",
        "application/record_usage.py",
        "await self._row(turn) if turn.chat.may_be_charged else None",
        "await self._row(turn)",
        f"{TURN}::test_a_refused_call_has_no_row",
    ),
    Mutant(
        "rounding-half-even",
        "domain/usage.py",
        "rounding=ROUND_HALF_UP",
        'rounding="ROUND_HALF_EVEN"',
        f"{COSTS}::test_usd_becomes_micros_rounded_half_up[0.0000005-1]",
    ),
    Mutant(
        "rounding-once-over-the-sum",
        "domain/usage.py",
        """\
    return _priced(tokens.input, prices.input_per_million_micros) + _priced(
        tokens.output, prices.output_per_million_micros
    )
""",
        """\
    return _priced(
        1, tokens.input * prices.input_per_million_micros + tokens.output * prices.output_per_million_micros
    )
""",
        f"{COSTS}::test_the_catalogue_rounds_input_and_output_apart",
    ),
    Mutant(
        "free-read-as-unknown",
        "domain/usage.py",
        "if charged_usd is None:",
        "if not charged_usd:",
        f"{COSTS}::test_unknown_is_the_catalogue_and_free_is_free",
    ),
    Mutant(
        "negative-cost-accepted",
        "adapters/transport/figures.py",
        "not 0 <= usd <= _MAX_CHARGE_USD",
        "not usd <= _MAX_CHARGE_USD",
        f"{ODDITY}[cost negative]",
    ),
    Mutant(
        "byok-cost-trusted",
        "adapters/openai_compatible/answer.py",
        "if states_charge and not part.is_byok else",
        "if states_charge else",
        f"{ODDITY}[is_byok: what the key is charged is not said]",
    ),
    Mutant(
        "cost-of-any-provider-trusted",
        "adapters/openai_compatible/answer.py",
        "if states_charge and not part.is_byok else",
        "if not part.is_byok else",
        f"{ODDITY}[a cost of a provider whose cost is no charge]",
    ),
    Mutant(
        "first-usage-wins",
        "adapters/openai_compatible/answer.py",
        "if frame.usage is not None and (usage",
        "if self.usage is None and frame.usage is not None and (usage",
        f"{ODDITY}[usage twice: the last one wins]",
    ),
    Mutant(
        "bill-only-of-calls-that-ended",
        "entrypoints/simulator/bill.py",
        "        return iter(self._entries.values())\n",
        "        return (entry for entry in self._entries.values() if entry.ended_s is not None)\n",
        "tests/e2e/simulator/test_bill.py::test_a_call_is_on_the_bill_while_it_runs",
    ),
]

DECISIONS: Final = [
    Mutant(
        "cascade-without-the-area",
        "adapters/postgres/turn_contexts.py",
        "                _bound_to(BindingScope.AREA, _asked.c.area),\n",
        "",
        f"{CONTEXTS}::test_every_scope_brings_its_binding_with_the_whole_model[postgres]",
    ),
    Mutant(
        "cascade-stops-at-the-first-binding",
        "domain/binding.py",
        "        for bound in self._most_specific_first():\n",
        "        for bound in self._most_specific_first()[:1]:\n",
        f"{BINDINGS}::test_a_model_without_tool_calling_is_skipped_only_for_a_turn_with_tools",
    ),
    Mutant(
        "cascade-in-any-order",
        "domain/binding.py",
        "sorted(self.by_scope, key=lambda bound: order.index(bound.scope))",
        "list(self.by_scope)",
        f"{BINDINGS}::test_the_most_specific_scope_wins_in_any_order",
    ),
    Mutant(
        "nothing-inherited-from-criativo",
        "domain/binding.py",
        "if bound.scope is BindingScope.WORKSPACE and self.creative is not None:",
        "if False:",
        f"{BINDINGS}::test_landing_on_the_workspace_takes_the_model_of_criativo",
    ),
    Mutant(
        "criativo-inherited-unchecked",
        "domain/binding.py",
        "return self.creative if self.creative.serves(with_tools=with_tools) else bound",
        "return self.creative",
        f"{BINDINGS}::test_criativo_must_pass_the_same_checks",
    ),
    Mutant(
        "criativo-inherits-from-itself",
        "adapters/postgres/turn_contexts.py",
        "if agent != CREATIVE and row.scope",
        "if row.scope",
        f"{CONTEXTS}::test_criativo_does_not_inherit_from_itself[postgres]",
    ),
    Mutant(
        "unavailable-model-not-skipped",
        "domain/binding.py",
        "return self.is_available and (self.supports_tool_calling or not with_tools)",
        "return self.supports_tool_calling or not with_tools",
        f"{BINDINGS}::test_an_unavailable_model_is_skipped_at_every_level",
    ),
    Mutant(
        "tool-calling-not-checked",
        "domain/binding.py",
        "return self.is_available and (self.supports_tool_calling or not with_tools)",
        "return self.is_available",
        f"{BINDINGS}::test_a_model_without_tool_calling_is_skipped_only_for_a_turn_with_tools",
    ),
    Mutant(
        "gate-skipped",
        "application/turn.py",
        "refusing_budget(self._context.budgets)",
        "refusing_budget(())",
        f"{TURN}::test_the_gate_comes_after_the_binding_and_before_the_credential",
    ),
    Mutant(
        "gate-before-the-binding",
        "application/turn.py",
        "        bound = self._bound\n        if bound is None:\n",
        """\
        bound = self._bound
        spent = refusing_budget(self._context.budgets)
        if spent is not None:
            return TurnFailure(FailureCode.BUDGET_EXHAUSTED, budget=spent.scope)
        if bound is None:
""",
        f"{TURN}::test_the_gate_comes_after_the_binding_and_before_the_credential",
    ),
    Mutant(
        "gate-after-the-credential",
        "application/turn.py",
        "        if spent is not None:\n",
        "        if spent is not None and bound.provider in self._context.sealed_keys:\n",
        f"{TURN}::test_the_gate_comes_after_the_binding_and_before_the_credential",
    ),
    Mutant(
        "allow-treated-as-block",
        "domain/budget.py",
        "return self.policy is BudgetPolicy.BLOCK and 0 < self.limit_micros",
        "return 0 < self.limit_micros",
        f"{BUDGETS}::test_block_refuses_from_the_whole_of_a_limit_on",
    ),
    Mutant(
        "limit-of-zero-refuses",
        "domain/budget.py",
        "0 < self.limit_micros <= self.spent_micros",
        "self.limit_micros <= self.spent_micros",
        f"{BUDGETS}::test_block_refuses_from_the_whole_of_a_limit_on",
    ),
    Mutant(
        "ceiling-of-the-area-not-read",
        "adapters/postgres/turn_contexts.py",
        "    if (area := context.area) is not None:\n",
        "    if False and (area := context.area) is not None:\n",
        f"{CONTEXTS}::test_budgets_come_in_order_project_session_area[postgres]",
    ),
    Mutant(
        "credential-of-the-sessions-creator",
        "adapters/postgres/turn_contexts.py",
        "user_credentials.c.user_id == workspaces.c.created_by",
        "user_credentials.c.user_id == sessions.c.created_by",
        f"{CONTEXTS}::test_the_keys_are_the_workspace_owners_and_not_the_session_creators[postgres]",
    ),
    Mutant(
        "previous-service-token-refused",
        "adapters/security/service_token.py",
        "for token in (current, previous) if",
        "for token in (current,) if",
        f"{SERVICE_TOKEN}::test_current_and_previous_are_accepted",
    ),
    Mutant(
        "beginning-of-a-service-token-accepted",
        "adapters/security/service_token.py",
        "hmac.compare_digest(shown, token)",
        "token.startswith(shown)",
        f"{SERVICE_TOKEN}::test_anything_else_is_not",
    ),
    Mutant(
        "service-token-compared-by-its-time",
        "adapters/security/service_token.py",
        "hmac.compare_digest(shown, token)",
        "shown == token",
        f"{SERVICE_TOKEN}::test_every_token_is_compared_whichever_matches",
    ),
    Mutant(
        "key-in-repr",
        "domain/secret.py",
        '    def __repr__(self) -> str:\n        return "Secret(…)"\n',
        '    def __repr__(self) -> str:\n        return f"Secret({self._text})"\n',
        "tests/unit/domain/test_failure.py::test_a_secret_is_not_seen",
    ),
]

PROVIDER: Final = [
    Mutant(
        "cut-arguments-mended-and-run",
        "adapters/openai_compatible/tool_calls.py",
        'arguments = _parsed("".join(call.arguments))',
        """arguments = _parsed("".join(call.arguments)) or _parsed("".join(call.arguments) + "null}")""",
        f"{ODDITY}[a tool call cut by length]",
    ),
    Mutant(
        "cut-call-not-told",
        "adapters/openai_compatible/tool_calls.py",
        "is_cut = is_cut or arguments is None or not call.name",
        "is_cut = is_cut or not call.name",
        f"{ODDITY}[arguments that do not parse]",
    ),
    Mutant(
        "calls-of-a-broken-stream-run",
        "adapters/openai_compatible/provider.py",
        "        if self._is_over and self._failure is None:\n",
        "        if self._is_over:\n",
        f"{ODDITY}[a cut that drops the calls that were whole]",
    ),
    Mutant(
        "finish-reason-twice-calls-twice",
        "adapters/openai_compatible/answer.py",
        "        if choice.finish_reason:\n",
        "        if choice.finish_reason:\n            self._calls._calls *= 1 + self.is_finished\n",
        f"{ODDITY}[finish_reason twice gives the calls once]",
    ),
    Mutant(
        "comments-count-as-life",
        "adapters/openai_compatible/provider.py",
        "            self._quiet_s += loop.time() - started_s\n",
        "            self._quiet_s = 0.0 if received.startswith(b':') else self._quiet_s + loop.time() - started_s\n",
        f"{CONNECTIONS}::test_comments_do_not_end_the_silence",
    ),
    Mutant(
        "end-without-an-end-accepted",
        "adapters/openai_compatible/provider.py",
        "            self._fail(FailureCode.CONNECTION)\n",
        "            self._end(exchange)\n",
        f"{ODDITY}[an end with neither a finish reason nor [DONE]]",
    ),
    Mutant(
        "error-frame-swallowed",
        "adapters/openai_compatible/answer.py",
        "        if frame.error and not self.error:\n",
        "        if False:\n",
        f"{ODDITY}[a bare data: error]",
    ),
    Mutant(
        "sent-again-after-it-was-read",
        "adapters/transport/way_out.py",
        "if self.is_sent or not self._is_connection_reused:",
        "if not self._is_connection_reused:",
        f"{CONNECTIONS}::test_a_request_that_was_read_and_not_answered_is_not_sent_again",
    ),
    Mutant(
        "connection-found-closed-not-replaced",
        "adapters/transport/way_out.py",
        "if self.is_sent or not self._is_connection_reused:",
        "if True:",
        f"{CONNECTIONS}::test_a_kept_connection_found_closed_before_a_byte_was_written_is_replaced",
    ),
    Mutant(
        "socket-left-open-on-cancel",
        "adapters/openai_compatible/provider.py",
        "            self._exchange.interrupt()\n            self._exchange.close()\n",
        "            self._exchange.interrupt()\n",
        f"{CONNECTIONS}::test_leaving_closes_the_socket_at_once[in the stream-cancel]",
    ),
    Mutant(
        "orphan-result-sent-as-it-is",
        "adapters/openai_compatible/request.py",
        "            self._assistant.calls.append(_WireCall(wire_id, message.name or _NAMELESS_TOOL, {}))\n",
        "",
        f"{REQUESTS}::test_a_result_without_its_call_gets_one_on_the_assistant_message_before_it",
    ),
    Mutant(
        "call-without-a-result-sent-as-it-is",
        "adapters/openai_compatible/request.py",
        "        for wire_id in self._open:\n",
        "        for wire_id in ():\n",
        f"{REQUESTS}::test_a_call_without_a_result_gets_a_word_for_it_before_the_next_message",
    ),
    Mutant(
        "tool-parameters-touched",
        "adapters/openai_compatible/request.py",
        '"parameters": tool.parameters}',
        '"parameters": {**tool.parameters, "additionalProperties": False}}',
        f"{REQUESTS}::test_tools_pass_untouched_and_twice_if_they_are_two",
    ),
    Mutant(
        "sort-sent-to-every-provider",
        "adapters/openai_compatible/request.py",
        "if profile.takes_sort and call.routing_preference is not None:",
        "if call.routing_preference is not None:",
        f"{REQUESTS}::test_the_others_get_the_dialect_and_no_more",
    ),
    Mutant(
        "prompt-compression-left-on",
        "adapters/openai_compatible/profiles.py",
        '    "plugins": [{"id": "context-compression", "enabled": False}],\n',
        "",
        f"{REQUESTS}::test_openrouter_gets_its_particulars",
    ),
    Mutant(
        "trace-not-passed-on",
        "adapters/openai_compatible/provider.py",
        "        if self._call.traceparent is not None:\n",
        "        if False:\n",
        f"{CONNECTIONS}::test_what_goes_out_with_a_request",
    ),
]

ENGINES: Final = [
    Mutant(
        "crlf-deltas",
        "entrypoints/http/wire.py",
        r"""_encode(text) + b"}\n\n" for""",
        r"""_encode(text) + b"}\r\n\r\n" for""",
        f"{WIRE}::test_a_delta_is_one_frame",
    ),
    Mutant(
        "crlf-final",
        "entrypoints/http/wire.py",
        r"""b'data: {"type":"final",', b"}\n\n")""",
        r"""b'data: {"type":"final",', b"}\r\n\r\n")""",
        f"{WIRE}::test_frames_are_one_line_whatever_the_text",
    ),
    Mutant(
        "english-error",
        "entrypoints/http/sentences.py",
        '"O provider {provider} não respondeu a tempo"',
        '"The provider {provider} did not answer in time"',
        f"{SENTENCES}::test_every_sentence_is_portuguese",
    ),
    Mutant(
        "word-of-another-kind-let-in",
        "entrypoints/http/sentences.py",
        r"modelo\s+vinculado|\(\d{3}\)",
        r"\(\d{3}\)",
        f"{SENTENCES}::test_a_sentence_holds_the_word_of_its_kind_and_of_no_other",
    ),
    Mutant(
        "lone-surrogate-accepted",
        "entrypoints/http/wire.py",
        """\
            raise BadBody(
                "The body holds half a surrogate pair (\\\\ud800 to \\\\udfff standing alone)."
            ) from None
""",
        """\
            import json; return msgspec.convert(json.loads(body), TurnBody)
""",
        f"{WIRE}::test_what_does_not_decode_names_the_field",
    ),
    Mutant(
        "deeper-than-900-accepted",
        "entrypoints/http/wire.py",
        "_SLICE_BYTES]) > MAX_DEPTH:\n",
        "_SLICE_BYTES]) > 2 * MAX_DEPTH:\n",
        f"{WIRE}::test_the_depth_that_is_legal_ends_at_900[901-False]",
    ),
    Mutant(
        "20000-deep-is-a-fault-of-ours",
        "entrypoints/http/wire.py",
        "    except RecursionError:\n",
        "    except ZeroDivisionError:\n",
        f"{WIRE}::test_nesting_of_twenty_thousand_is_refused",
    ),
    Mutant(
        "head-before-the-context",
        "entrypoints/http/turns.py",
        "                    turn = await self._admit(",
        """\
                    await send({"type": "http.response.start", "status": 200, "headers": []})
                    turn = await self._admit(""",
        f"{BAD_INPUT}::test_a_session_that_is_not_there_is_404[sessao-stream]",
    ),
    Mutant(
        "body-left-open-after-final",
        "entrypoints/http/presentations.py",
        '"body": first, "more_body": False}',
        '"body": first, "more_body": True}',
        f"{TURNS}::test_one_connection_carries_one_turn_after_another[stream]",
    ),
    Mutant(
        "disconnect-of-json-not-watched",
        "entrypoints/http/presentations.py",
        "await _while_read(receive, outlet, ended, patience, answer, blank)",
        "await _while_read(asyncio.Event().wait, outlet, ended, patience, answer, blank)",
        f"{LEAVING}::test_an_engine_that_leaves_pays_for_what_was_made[json]",
    ),
    Mutant(
        "disconnect-of-a-stream-not-watched",
        "entrypoints/http/presentations.py",
        "await _while_read(receive, outlet, ended, patience, relay, comment)",
        "await _while_read(asyncio.Event().wait, outlet, ended, patience, relay, comment)",
        f"{LEAVING}::test_an_engine_that_leaves_pays_for_what_was_made[stream]",
    ),
    Mutant(
        "stuck-reader-not-noticed",
        "entrypoints/http/presentations.py",
        "            elif is_stuck:\n                break\n",
        "            elif is_stuck:\n                await asyncio.sleep(0.1)\n",
        f"{LEAVING}::test_a_reader_that_takes_nothing_counts_as_gone_and_the_provider_is_not_read_on",
    ),
    Mutant(
        "keep-alive-comment-missing",
        "entrypoints/http/presentations.py",
        r"""        await outlet.fill(b":\n\n")
""",
        "        outlet._since_s = outlet._now()\n",
        f"{LEAVING}::test_silence_on_the_stream_is_broken_by_comments",
    ),
    Mutant(
        "keep-alive-blank-missing",
        "entrypoints/http/presentations.py",
        '        await outlet.head(_JSON_HEAD)\n        await outlet.fill(b" ")\n',
        "        outlet._since_s = outlet._now()\n",
        f"{LEAVING}::test_silence_before_the_json_is_broken_by_the_head_and_blanks",
    ),
    Mutant(
        "deltas-held-back",
        "entrypoints/http/presentations.py",
        """\
            async for event in events:
                if isinstance(event, TextDeltas):
                    frames = encode_deltas(event.pieces)
                    await (outlet.write(frames) if isinstance(frames, bytes) else outlet.write_all(frames))
                elif isinstance(event, RoutingStarted):
                    await outlet.write(ROUTING_STARTED)
                else:
""",
        """\
            held = []
            async for event in events:
                if isinstance(event, TextDeltas):
                    frames = encode_deltas(event.pieces)
                    held += [frames] if isinstance(frames, bytes) else frames
                elif isinstance(event, RoutingStarted):
                    await outlet.write(ROUTING_STARTED)
                else:
                    await outlet.write(b"".join(held))
""",
        f"{LEAVING}::test_each_piece_leaves_as_soon_as_it_comes",
    ),
    Mutant(
        "trace-not-continued",
        "entrypoints/http/tracing.py",
        'if name == b"traceparent":',
        'if name == b"trace-parent":',
        f"{TURNS}::test_the_provider_is_sent_what_the_contract_says[json]",
    ),
    Mutant(
        "413-without-reading-on",
        "entrypoints/http/body.py",
        "        if more:\n",
        "        if False:\n",
        f"{BODY}::test_what_still_comes_of_a_body_over_the_limit_is_taken",
    ),
    Mutant(
        "503-without-retry-after",
        "entrypoints/http/turns.py",
        "RETRY_AFTER_S if refused.status == 503 else None",
        "None",
        f"{BAD_INPUT}::test_without_a_database_a_turn_is_503_and_nothing_is_sent[json]",
    ),
]

OPERATORS: Final = [
    Mutant(
        "listener-closed-first",
        "entrypoints/http/server.py",
        "        await self._drain.run(grace_s=grace_s, drain_s=self._drain_s)\n        self.should_exit = True\n",
        "        self.should_exit = True\n        await self._drain.run(grace_s=grace_s, drain_s=self._drain_s)\n",
        f"{DRAIN}::test_the_grace_takes_turns_and_what_follows_refuses_them_with_the_listener_open",
    ),
    Mutant(
        "connection-not-closed-while-draining",
        "entrypoints/http/server.py",
        'if drain.has_begun and message["type"]',
        'if False and message["type"]',
        f"{DRAIN}::test_the_grace_takes_turns_and_what_follows_refuses_them_with_the_listener_open",
    ),
    Mutant(
        "turns-taken-after-the-grace",
        "entrypoints/drain.py",
        "self._phase in (_Phase.SERVING, _Phase.GRACE)",
        "self._phase is not _Phase.ENDING",
        f"{DRAIN}::test_the_grace_takes_turns_and_what_follows_refuses_them_with_the_listener_open",
    ),
    Mutant(
        "no-final-for-a-drained-turn",
        "entrypoints/drain.py",
        "        for place in list(self._places):\n            place.end()\n",
        "",
        f"{DRAIN}::test_a_turn_in_each_phase_gets_its_answer_and_its_row[left over]",
    ),
    Mutant(
        "wrong-type-adopted",
        "adapters/postgres/adoption.py",
        "    if found.type != wanted_type:\n",
        "    if False:\n",
        "tests/integration/migrations/test_adoption.py::test_what_does_not_fit_is_named",
    ),
    Mutant(
        "migrated-without-the-advisory-lock",
        "adapters/postgres/migrate.py",
        "SELECT pg_try_advisory_lock(:key)",
        "SELECT CAST(:key AS bigint) IS NOT NULL",
        "tests/integration/migrations/test_migrate.py::test_waiting_for_another_migration_is_said_and_has_an_end",
    ),
    Mutant(
        "migrated-without-lock-timeout",
        "adapters/postgres/migrate.py",
        "SET lock_timeout = {_LOCK_TIMEOUT_MS}",
        "SET lock_timeout = 0",
        "tests/integration/migrations/test_migrate.py::test_nobody_waits_long_behind_a_migration_that_waits",
    ),
]

OWNERS: Final = [
    Mutant(
        "raised-limit-arms-nothing",
        "adapters/postgres/budgets.py",
        "case((arms_again, crossed), else_=last)",
        "last",
        "tests/contract/test_budgets.py::test_what_is_armed_again_is_announced_again_once[postgres-project]",
    ),
    Mutant(
        "same-limit-arms-again",
        "adapters/postgres/budgets.py",
        "limit > budgets.c.limit_micros",
        "limit >= budgets.c.limit_micros",
        "tests/contract/test_budgets.py"
        "::test_a_raised_limit_arms_what_is_no_longer_crossed_and_announces_nothing",
    ),
    Mutant(
        "arming-by-the-spend-before-the-lock",
        "adapters/postgres/budgets.py",
        "spent = cast(budgets.c.spent_micros, Numeric)",
        "spent = cast(select(budgets.alias('b').c.spent_micros).limit(1).scalar_subquery(), Numeric)",
        "tests/integration/postgres/test_budget_changes.py"
        "::test_a_change_that_waited_for_a_settlement_starts_from_what_it_left",
    ),
    Mutant(
        "session-of-any-project",
        "adapters/postgres/budgets.py",
        '    sessions.c.project_id == bindparam("project_id", type_=Uuid),\n',
        "",
        f"{BUDGET_ROUTES}::test_a_session_of_another_project_is_as_unknown_as_none",
    ),
    Mutant(
        "workspaces-role-before-the-projects",
        "adapters/postgres/users.py",
        "func.coalesce(project_members.c.role, workspace_members.c.role)",
        "func.coalesce(workspace_members.c.role, project_members.c.role)",
        "tests/contract/test_users.py::test_the_projects_role_overrides_the_workspaces",
    ),
    Mutant(
        "tiny-limit-is-no-limit",
        "entrypoints/http/budgets.py",
        "if usd and not micros:",
        "if False:",
        f"{BUDGET_ROUTES}::test_a_body_that_does_not_decode_is_explained_and_sets_nothing",
    ),
    Mutant(
        "report-sums-micros-only",
        "adapters/postgres/spending.py",
        "func.coalesce(token_usage.c.charged_usd, cast(token_usage.c.cost_micros, Numeric) * _MICRO_USD)",
        "(cast(token_usage.c.cost_micros, Numeric) * _MICRO_USD)",
        "tests/integration/cli/test_report.py::test_ten_thousand_decisions_add_up_exactly",
    ),
    Mutant(
        "role-check-dropped",
        "application/require_role.py",
        "if role is None or not role.covers(needed):",
        "if role is None:",
        "tests/unit/application/test_tool_router_switch.py::test_who_is_no_owner_may_look_and_not_switch",
    ),
    Mutant(
        "orphaned-user-taken-for-a-stranger",
        "adapters/postgres/users.py",
        "            raise UnknownUser\n",
        "            return None\n",
        "tests/contract/test_users.py::test_who_is_not_there_any_more_is_unknown[postgres]",
    ),
    Mutant(
        "token-of-any-audience-accepted",
        "adapters/security/user_token.py",
        '{"require": _REQUIRED_CLAIMS}',
        '{"require": _REQUIRED_CLAIMS, "verify_aud": False}',
        f"{USER_TOKEN}::test_every_claim_counts",
    ),
    Mutant(
        "previous-jwt-secret-refused",
        "adapters/security/user_token.py",
        "if previous is None else",
        "if True else",
        f"{USER_TOKEN}::test_while_secrets_change_both_keys_are_published_and_the_new_one_signs",
    ),
    Mutant(
        "switch-not-recorded",
        "adapters/postgres/workspaces.py",
        ".add_cte(recorded)",
        ".add_cte(switched)",
        f"{WORKSPACES}::test_a_switch_is_in_the_next_read_and_leaves_one_record",
    ),
    Mutant(
        "switch-without-a-lock",
        "adapters/postgres/workspaces.py",
        ".with_for_update(key_share=True)",
        "",
        "tests/integration/postgres/test_router_switches.py"
        "::test_a_switch_that_waited_records_what_it_found_then",
    ),
]

ROUTER: Final = [
    Mutant(
        "runner-up-of-equals-the-last",
        "adapters/jev/answer.py",
        "likeliest = max(others, ",
        "likeliest = max(reversed(others), ",
        f"{JEV_ANSWER}::test_the_runner_up_is_the_likeliest_of_the_others[tie]",
    ),
    Mutant(
        "routers-cost-dropped-in-a-fallback",
        "adapters/jev/question.py",
        "spend = await self._spend(answer, reply)",
        "spend = None if isinstance(answer.outcome, Fallback) else await self._spend(answer, reply)",
        "tests/contract/test_tool_router.py::test_a_choice_that_was_not_offered_costs_all_the_same[jev]",
    ),
    Mutant(
        "routers-cost-before-a-cut-dropped",
        "adapters/jev/question.py",
        "return Answer(reply.cut, charge_within(reply.body))",
        "return Answer(reply.cut, None)",
        f"{JEV_WIRE}::test_a_cost_that_came_before_the_end_is_not_lost",
    ),
    Mutant(
        "routers-redirect-followed",
        "adapters/transport/way_out.py",
        "allow_redirects=False",
        "allow_redirects=True",
        f"{JEV_WIRE}::test_a_redirect_is_not_followed",
    ),
    Mutant(
        "circuit-counts-a-4xx",
        "adapters/jev/question.py",
        "return self.status >= 500 if",
        "return self.status >= 400 if",
        f"{JEV_WIRE}::test_refusals_open_nothing",
    ),
    Mutant(
        "circuit-probed-by-everyone",
        "adapters/jev/circuit.py",
        "        row.next_probe_s = now_s + REST_S\n",
        "",
        f"{JEV_CIRCUIT}::test_it_rests_for_thirty_seconds_and_is_then_probed_once",
    ),
    Mutant(
        "menu-narrowed-to-a-choice-alone",
        "domain/menu.py",
        " or previous_tool not in names:",
        ":",
        "tests/unit/domain/test_menu.py::test_without_a_previous_tool_it_is_the_catalogue",
    ),
]

MENUS: Final = [
    Mutant(
        "gate-asked-again-after-the-router",
        "application/turn.py",
        "            menu = self._decision.menu\n",
        "            menu = self._decision.menu\n            self._plan()\n",
        f"{TURN}::test_the_gate_is_asked_once_although_the_router_spends",
    ),
    Mutant(
        "switch-read-first",
        "application/decide_step_menu.py",
        "        start, api_key = request.start, request.api_key\n",
        "        start, api_key = request.start, request.api_key\n"
        "        if not await self.switches.is_on(start.workspace_id):\n"
        "            return None\n",
        "tests/integration/postgres/test_router_statements.py"
        "::test_a_condition_that_comes_before_the_switch_adds_no_statement",
    ),
    Mutant(
        "switch-read-before-the-last-condition",
        "application/decide_step_menu.py",
        "        and not wants_whole_catalogue\n    )\n",
        "    )\n",
        f"{MENU_DECISIONS}::test_the_switch_is_read_only_when_all_the_others_hold",
    ),
    Mutant(
        "unreadable-switch-fails-the-turn",
        "application/decide_step_menu.py",
        "            self.on_switch_unreadable(start.workspace_id)\n            return None\n",
        "            raise\n",
        f"{TOOL_ROUTER}::test_a_switch_that_cannot_be_read_costs_the_narrowing_and_no_more",
    ),
    Mutant(
        "routing-started-without-a-request",
        "application/turn.py",
        "            if self._decision.is_asked:\n                yield RoutingStarted()\n",
        "            yield RoutingStarted()\n            if self._decision.is_asked:\n",
        f"{TURN}::test_without_a_request_nothing_is_said_to_have_started",
    ),
    Mutant(
        "routing-started-after-the-answer",
        "application/turn.py",
        """\
                yield RoutingStarted()
                failure = await self._decided(self._decision)
""",
        """\
                failure = await self._decided(self._decision)
                yield RoutingStarted()
""",
        f"{TURN}::test_started_comes_first_and_nothing_is_sent_before_it",
    ),
    Mutant(
        "routers-row-left-out",
        "application/decide_step_menu.py",
        "        if verdict.spend is None:\n",
        "        if True:\n",
        f"{MENU_DECISIONS}::test_a_cost_is_a_row_whatever_came_of_it",
    ),
    Mutant(
        "routers-row-left-out-in-a-fallback",
        "application/decide_step_menu.py",
        "        if verdict.spend is None:\n",
        "        if verdict.spend is None or isinstance(verdict.outcome, Fallback):\n",
        f"{TOOL_ROUTER}::test_every_condition_and_reason",
    ),
    Mutant(
        "unrecorded-spend-unsaid",
        "application/decide_step_menu.py",
        "is_spend_unrecorded=not is_spend_recorded",
        "is_spend_unrecorded=False",
        f"{MENU_DECISIONS}::test_a_row_that_is_not_written_is_said_to_be_missing",
    ),
    Mutant(
        "fault-in-the-router-let-through",
        "application/decide_step_menu.py",
        "            question = self.fault_of_ours(error)\n",
        "            raise error\n",
        f"{TURN}::test_a_router_that_raises_costs_the_turn_its_narrowing_and_no_more",
    ),
    Mutant(
        "long-arguments-read-in-the-event-loop",
        "application/decide_step_menu.py",
        "    if is_read_at_once(messages):\n",
        "    if True:\n",
        f"{MENU_DECISIONS}::test_long_arguments_do_not_hold_the_event_loop",
    ),
    Mutant(
        "unreadable-step-let-through",
        "application/decide_step_menu.py",
        "        try:\n"
        "            step = await _read_step(start.agent, request.messages, request.catalogue)\n"
        "            previous_tool = step.previous_tool\n",
        "        step = await _read_step(start.agent, request.messages, request.catalogue)\n"
        "        previous_tool = step.previous_tool\n"
        "        try:\n",
        f"{MENU_DECISIONS}::test_a_step_that_cannot_be_read_costs_the_narrowing_and_no_more",
    ),
    Mutant(
        "narrowed-menu-not-given-to-the-chat",
        "application/turn.py",
        "                tools=menu,\n                api_key=",
        "                tools=self._request.tools,\n                api_key=",
        f"{TURN}::test_the_narrowed_menu_reaches_the_provider_and_the_answer",
    ),
    Mutant(
        "chat-waits-for-the-routers-row",
        "application/turn.py",
        "= {decision.decided, self._interrupted}",
        "= {self._deciding, self._interrupted}",
        f"{TURN}::test_the_chat_does_not_wait_for_the_routers_row_and_the_answer_does",
    ),
    Mutant(
        "answer-does-not-wait-for-the-routers-row",
        "application/turn.py",
        "        await asyncio.wait({deciding})\n        is_recorded = not deciding.cancelled()",
        "        is_recorded = deciding.done() and not deciding.cancelled()",
        f"{TURN}::test_the_chat_does_not_wait_for_the_routers_row_and_the_answer_does",
    ),
    Mutant(
        "drain-waits-for-the-router",
        "application/turn.py",
        "= {decision.decided, self._interrupted}",
        "= {decision.decided}",
        f"{TURN}::test_a_drain_while_the_router_is_asked_answers_at_once",
    ),
    Mutant(
        "ceiling-waits-for-the-router",
        "application/turn.py",
        "timeout=max(0.0, left_s), return_when",
        "return_when",
        f"{TURN}::test_the_ceiling_while_the_router_is_asked_answers_at_once",
    ),
    Mutant(
        "leaving-cancels-the-decision",
        "application/turn.py",
        "        await asyncio.wait(either, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED)\n",
        """\
        try:
            await asyncio.wait(either, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._deciding.cancel()
            raise
""",
        f"{TOOL_ROUTER}::test_leaving_while_the_router_is_asked_lets_it_finish_and_calls_no_chat",
    ),
]

MUTANTS: Final = [*METERING, *DECISIONS, *PROVIDER, *ENGINES, *OPERATORS, *OWNERS, *ROUTER, *MENUS]


@dataclass(frozen=True, slots=True)
class Ran:
    """A run of pytest. `status` is its exit status; None: it was ended for taking too long."""

    status: int | None
    said: str

    def has_red(self, test: str) -> bool:
        """Whether this test, or a case of it, failed."""
        return self._names("FAILED", test)

    def has_trouble(self, test: str) -> bool:
        """Whether it failed, or what it stands on did."""
        return self._names("FAILED", test) or self._names("ERROR", test)

    def last_lines(self) -> str:
        return "\n".join(f"    {line}" for line in self.said.splitlines()[-SHOWN_LINES:])

    def _names(self, outcome: str, test: str) -> bool:
        beginnings = (f"{outcome} {test} - ", f"{outcome} {test}[")
        return any(
            line.startswith(beginnings) or line == f"{outcome} {test}" for line in self.said.splitlines()
        )


class Checkout:
    """A copy of this checkout, to be broken."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist")
        shutil.copytree(ROOT, folder, ignore=ignored, symlinks=True)
        # A Python of the copy's own: its tests start processes, some of which get no PYTHONPATH.
        venv.create(folder / ".venv", symlinks=True)
        self._python = folder / ".venv" / "bin" / "python"
        installed = sysconfig.get_path("purelib")
        own_packages = sysconfig.get_path("purelib", vars={"base": str(folder / ".venv")})
        # Its source goes first, before the way to the original that lies among the installed packages.
        (Path(own_packages) / "copy.pth").write_text(
            f"import site, sys; sys.path.insert(0, {str(folder / 'src')!r}); site.addsitedir({installed!r})\n"
        )

    async def check_imports(self) -> None:
        """That what is imported here is the copy, and not the original."""
        program = f"import {', '.join(PACKAGES)}; print(*({', '.join(PACKAGES)}), sep='\\n')"
        ran = await self._run("-c", program, patience_s=BROKEN_PATIENCE_S)
        if ran.said.count(f"'{self._folder / 'src'}/") != len(PACKAGES):
            sys.exit(f"A break in {self._folder} would not be imported:\n{ran.said}")

    async def test(self, tests: Iterable[str], *, patience_s: float) -> Ran:
        options = ("-q", "-rfE", "--tb=short", "--color=no", "-p", "no:cacheprovider")
        return await self._run("-m", "pytest", *options, *tests, patience_s=patience_s)

    @contextmanager
    def broken(self, mutant: Mutant) -> Iterator[None]:
        """With this break, and afterwards without it."""
        path = self._folder / "src" / mutant.file
        whole = path.read_text(encoding="utf-8")
        try:
            _write_source(path, whole.replace(mutant.text, mutant.instead))
            yield
        finally:
            _write_source(path, whole)

    async def _run(self, *arguments: str, patience_s: float) -> Ran:
        process = await asyncio.create_subprocess_exec(
            self._python,
            *arguments,
            cwd=self._folder,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(patience_s):
                said, _ = await process.communicate()
        except TimeoutError:
            return Ran(None, "")
        finally:
            if process.returncode is None:
                # With whatever it started: it leads a group of its own.
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return Ran(process.returncode, said.decode(errors="replace"))


def _write_source(path: Path, source: str) -> None:
    """Write it, and forget what was compiled: that goes by size and whole seconds, which a break may leave the same."""
    path.write_text(source, encoding="utf-8")
    Path(cache_from_source(path)).unlink(missing_ok=True)


class Report:
    """Says of each mutant what became of it, and counts."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0

    def killed(self, mutant: Mutant, took_s: float) -> None:
        self.passed += 1
        print(f"{mutant.name} → {mutant.test} → killed in {took_s:.1f} s", flush=True)

    def survived(self, mutant: Mutant, why: str) -> None:
        self.failed += 1
        print(f"{mutant.name} → {mutant.test} → FAILED: {why}", flush=True)


def main(names: Sequence[str]) -> int:
    known = {mutant.name for mutant in MUTANTS}
    if unknown := [name for name in names if name not in known]:
        print(f"There is no {', '.join(unknown)}; there are {', '.join(sorted(known))}.", file=sys.stderr)
        return 2
    leave_in_order_on_signals()
    report = Report()
    fresh = []
    for mutant in MUTANTS:
        if names and mutant.name not in names:
            continue
        source = (ROOT / "src" / mutant.file).read_text(encoding="utf-8")
        if (times := source.count(mutant.text)) == 1:
            fresh.append(mutant)
        else:
            report.survived(mutant, f"stale, its text occurs {times} times in src/{mutant.file}")
    with (
        tempfile.TemporaryDirectory(prefix="brabo-mutants-", ignore_cleanup_errors=True) as folder,
        EmbeddedPostgres(durable=False).join(Path(folder)) as server,
    ):
        shared = ROOT.parent / "shared"
        if shared.is_dir():
            (Path(folder) / "shared").symlink_to(shared, target_is_directory=True)
        environment = {**os.environ, "BRABO_TEST_DATABASE_URL": server.url, "TMPDIR": folder}
        checkouts = [Checkout(Path(folder) / f"checkout-{at}", environment) for at in range(AT_ONCE)]
        asyncio.run(try_all(fresh, checkouts, report))
    print(f"{report.passed} passed, {report.failed} failed")
    return 1 if report.failed else 0


async def try_all(mutants: Sequence[Mutant], checkouts: Sequence[Checkout], report: Report) -> None:
    for checkout in checkouts:
        await checkout.check_imports()
    tests = sorted({mutant.test for mutant in mutants})
    print(f"The {len(tests)} named tests, unbroken, must be green", flush=True)
    sound = await _sound_tests(tests, checkouts)
    left = iter([mutant for mutant in mutants if mutant.test in sound])
    for mutant in mutants:
        if mutant.test not in sound:
            report.survived(mutant, "its test is not green without the break")

    async def work(checkout: Checkout) -> None:
        for mutant in left:
            started_s = time.monotonic()
            with checkout.broken(mutant):
                ran = await checkout.test([mutant.test], patience_s=BROKEN_PATIENCE_S)
            if ran.status == 1 and ran.has_red(mutant.test):
                report.killed(mutant, time.monotonic() - started_s)
            elif ran.status == 0:
                report.survived(mutant, "survived, the test is green")
            elif ran.status is None:
                report.survived(mutant, f"the test hung for {BROKEN_PATIENCE_S:g} s, which is no red")
            else:
                report.survived(
                    mutant, f"the test itself did not fail (pytest: {ran.status})\n{ran.last_lines()}"
                )

    async with asyncio.TaskGroup() as group:
        for checkout in checkouts:
            group.create_task(work(checkout))


async def _sound_tests(tests: Sequence[str], checkouts: Sequence[Checkout]) -> set[str]:
    """Those that are green; the tests of a file run together."""
    files = sorted({test.partition("::")[0] for test in tests})
    shares = [
        [test for test in tests if files.index(test.partition("::")[0]) % len(checkouts) == at]
        for at in range(len(checkouts))
    ]
    sound: set[str] = set()

    async def run(checkout: Checkout, share: Sequence[str]) -> None:
        ran = await checkout.test(share, patience_s=UNBROKEN_PATIENCE_S)
        if ran.status in (0, 1):
            sound.update(test for test in share if not ran.has_trouble(test))
        if ran.status != 0:
            print(ran.last_lines() or f"    not done after {UNBROKEN_PATIENCE_S:g} s", flush=True)

    async with asyncio.TaskGroup() as group:
        for checkout, share in zip(checkouts, shares, strict=True):
            if share:
                group.create_task(run(checkout, share))
    return sound


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
