"""Turns as metrics and log lines."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from application.ports.turn_telemetry import TurnTelemetry
from domain.failure import FailureCode
from domain.provider import Provider
from domain.settlement import TurnStart
from domain.usage import ReportedUsage, TokenUsage

_log: Final = structlog.get_logger("brabo.turn")
_DURATION_BUCKETS_S: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class PrometheusTelemetry(TurnTelemetry):
    """Keeps a registry of its own, so that two in one process do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._turns = Counter(
            "brabo_turns", "Turns that were answered, by error code", ["error_code"], registry=self.registry
        )
        self._left = Counter("brabo_turns_left", "Turns whose engine went away", registry=self.registry)
        self._seconds = Histogram(
            "brabo_turn_seconds", "Duration of turns", buckets=_DURATION_BUCKETS_S, registry=self.registry
        )
        self._unrecorded = Counter(
            "brabo_usage_unrecorded",
            "Usage rows that neither the database nor the disk took in time; each is in the log with its numbers",
            registry=self.registry,
        )
        self._unflushed_s = Gauge(
            "brabo_usage_unflushed_seconds",
            "For how long the oldest settlement has been waiting for the database",
            registry=self.registry,
        )
        self._unkept = Gauge(
            "brabo_usage_unkept",
            "Settlements that neither the database nor the disk has",
            registry=self.registry,
        )
        self._audit_violations = Gauge(
            "brabo_audit_violations",
            "What the last `brabo audit` found; NaN before the first",
            registry=self.registry,
        )
        self._audit_violations.set(float("nan"))
        self._audit_age_s = Gauge(
            "brabo_audit_age_seconds", "How long ago that was; NaN before the first", registry=self.registry
        )
        self._audit_age_s.set(float("nan"))
        self._parked = Counter(
            "brabo_usage_parked",
            "Usage rows that the ledger refused, such as those of a deleted session; they count all the same",
            registry=self.registry,
        )
        self._dropped = Counter(
            "brabo_provider_frames_dropped",
            "Frames of a provider that could not be read",
            ["provider"],
            registry=self.registry,
        )
        self._decisions = Counter(
            "brabo_router_decisions",
            "Steps to be narrowed: ok, the reason why they were not, circuit_open, or switch_unreadable",
            ["outcome"],
            registry=self.registry,
        )
        self._unseen_charges = Counter(
            "brabo_router_charges_unseen",
            "Decisions sent whose cost could not be read: they may have been charged, and have no usage row",
            registry=self.registry,
        )
        self._circuits_open = Gauge(
            "brabo_router_circuits_open",
            "Keys for which the tool router is not asked for the time being",
            registry=self.registry,
        )

    def turn_ended(self, turn_id: UUID, *, failure: FailureCode | None, duration_s: float) -> None:
        """Count the turn, and log it."""
        code = failure.value if failure else ""
        self._turns.labels(code).inc()
        self._seconds.observe(duration_s)
        _log.info(
            "turn_ended", turn_id=str(turn_id), error_code=code or None, duration_ms=round(duration_s * 1000)
        )

    def turn_left(self, turn_id: UUID, *, duration_s: float) -> None:
        """Count the turn, and log it."""
        self._left.inc()
        _log.info("turn_left", turn_id=str(turn_id), duration_ms=round(duration_s * 1000))

    def credential_unreadable(self, turn_id: UUID, *, workspace_id: UUID) -> None:
        """Say which workspace's owner is concerned, and what may be missing."""
        _log.error(
            "credential_unreadable",
            turn_id=str(turn_id),
            workspace_id=str(workspace_id),
            hint="CREDENTIALS_MASTER_KEY or CREDENTIALS_MASTER_KEY_PREVIOUS must be the key it was sealed with",
        )

    def settlement_cut(
        self, start: TurnStart, *, usage: ReportedUsage | None, generation_id: str | None
    ) -> None:
        """Count the row that this process will not write, and log all that is known of it, by its columns' names."""
        self._unrecorded.inc()
        charged_usd = usage.charged_usd if usage else None
        _log.error(
            "usage_unrecorded",
            reason="the process ended before its tokens were counted",
            id=str(start.turn_id),
            session_id=str(start.session_id),
            project_id=str(start.project_id),
            provider=start.provider.value,
            model_id=str(start.model_id),
            model_name=start.model_name,
            input_tokens=usage.tokens.input if usage else None,
            output_tokens=usage.tokens.output if usage else None,
            charged_usd=None if charged_usd is None else str(charged_usd),
            generation_id=generation_id,
        )

    def internal_failure(self, turn_id: UUID | None, error: BaseException) -> None:
        """The error's type and where it was raised; its text could quote a message."""
        frames = traceback.extract_tb(error.__traceback__)
        places = [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames[-8:]]
        _log.error(
            "failed_internally", turn_id=turn_id and str(turn_id), error=type(error).__name__, places=places
        )

    def usage_unrecorded(self, _: TokenUsage) -> None:
        """Count a row that neither the database nor the disk took in time; the recorder has logged it."""
        self._unrecorded.inc()

    def usage_parked(self) -> None:
        """Count a row that the ledger refused; the recorder has logged it."""
        self._parked.inc()

    def frame_dropped(self, provider: Provider) -> None:
        """Count a frame that could not be read."""
        self._dropped.labels(provider.value).inc()

    def router_decided(self, outcome: str) -> None:
        """Count what came of a step that the tool router was to narrow."""
        self._decisions.labels(outcome).inc()

    def router_switch_unreadable(self, workspace_id: UUID) -> None:
        """Count a step that went without the tool router since the workspace's switch could not be read, and log it."""
        self._decisions.labels("switch_unreadable").inc()
        _log.warning("router_switch_unreadable", workspace_id=str(workspace_id))

    def router_charge_unseen(self) -> None:
        """Count a decision that may have been charged without our seeing it."""
        self._unseen_charges.inc()

    def router_circuits_open(self, count: int) -> None:
        """How many there are now."""
        self._circuits_open.set(count)

    def last_audit(self, violations: int, *, age_s: float) -> None:
        """What the last audit found, and how long ago."""
        self._audit_violations.set(violations)
        self._audit_age_s.set(age_s)

    def books(self, oldest_unflushed_s: float, unkept: int) -> None:
        """How far the database is behind, and how many settlements are in this process alone."""
        self._unflushed_s.set(oldest_unflushed_s)
        self._unkept.set(unkept)

    @contextmanager
    def serve(self, host: str, port: int) -> Iterator[None]:
        """Answer `GET /metrics` on an address of its own, from a thread, while inside."""
        server, thread = start_http_server(port, host, self.registry)
        _log.info("metrics_served", host=host, port=server.server_port)
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
