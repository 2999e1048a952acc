"""The seeded load: a thread that writes statement after statement, also while servers are down."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from cassandra import ConsistencyLevel, DriverException
from cassandra.cluster import ExecutionProfile, NoHostAvailable, ResponseFuture
from cassandra.connection import ConnectionException
from cassandra.policies import FallthroughRetryPolicy
from cassandra.pool import NoConnectionsAvailable
from cassandra.protocol import ErrorMessage

from tests.fault_kit.contact import Contact
from tests.fault_kit.sessions import open_session
from tests.fault_kit.statements import Statement, StatementWriter
from tests.servers.background import Background

if TYPE_CHECKING:
    from cassandra.cluster import Session

__all__ = ["Failures", "Workload"]

_IN_FLIGHT: Final = 48
_REQUEST_TIMEOUT_S: Final = 12.0
_SCHEMA_TIMEOUT_S: Final = 60.0
_RETRY_S: Final = 0.3
_LOOK_S: Final = 0.02
_BURST: Final = 150
_ANSWER_LOOK_S: Final = 0.002

Failures = (DriverException, NoHostAvailable, ConnectionException, NoConnectionsAvailable, ErrorMessage, OSError)
"""Errors of statements while servers are down. `ErrorMessage` is an answer for which the driver has no class, for
example when two nodes do not know whether a lease was written."""


class Workload(Background):
    """Writes `rate` statements a second in a thread, while its `with` block runs or until `finish`.

    Statements may fail. The outcome of a statement without an answer is not known; the final SELECT shows it.
    `before_drop` is called before a table is dropped, when all earlier statements are answered.
    """

    def __init__(
        self,
        contact: Contact,
        writer: StatementWriter,
        *,
        rate: float,
        before_drop: Callable[[], None],
    ) -> None:
        super().__init__("workload")
        self._contact = contact
        self._writer = writer
        self._rate = rate
        self._before_drop = before_drop
        self._paused = threading.Event()
        self._burst = 0
        self._answered = 0
        self._failure: BaseException | None = None
        self.sent = 0
        self.failed = 0
        self.schema_changes = 0

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the thread early."""
        return self._failure

    def get_under_way(self, answers: int, timeout_s: float) -> None:
        """Write without pauses, and return while changes are in flight.

        It returns when Cassandra has answered this number of statements, and the thread writes without pauses for a
        moment longer. If Cassandra does not answer, it returns when the time is over.
        """
        deadline = time.monotonic() + timeout_s
        wanted = self._answered + answers
        while self._answered < wanted and time.monotonic() < deadline and self._thread.is_alive():
            self._burst = _BURST
            time.sleep(_ANSWER_LOOK_S)

    def finish(self) -> None:
        """End the load. Raises the error that ended the thread early."""
        self._end()
        if self._failure is not None:
            raise self._failure

    def write_closing_rows(self) -> None:
        """Write a last row to each table, and return when all are acknowledged."""
        with _session(self._contact) as session:
            for statement in self._writer.closing():
                self._until_done(session, statement, time.monotonic() + _SCHEMA_TIMEOUT_S * 10)

    def _run(self) -> None:
        try:
            with _session(self._contact) as session:
                self._write(session)
        except BaseException as error:  # noqa: BLE001  # told by `finish`
            self._failure = error

    def _write(self, session: Session) -> None:
        pending: deque[ResponseFuture] = deque()
        next_at = time.monotonic()
        while not self._stop.is_set():
            statement = self._writer.next()
            if statement.is_schema:
                while pending:
                    self._settle(pending.popleft())
                self._change_schema(session, statement)
                continue
            try:
                pending.append(session.execute_async(statement.cql))
            except Failures:
                self.failed += 1
                time.sleep(_RETRY_S)
            self.sent += 1
            while len(pending) >= _IN_FLIGHT or (pending and pending[0]._event.is_set()):
                self._settle(pending.popleft())
            if self._burst > 0:
                self._burst -= 1
                next_at = time.monotonic()
                continue
            next_at = max(next_at + 1 / self._rate, time.monotonic() - 1)
            time.sleep(max(0.0, next_at - time.monotonic()))
        while pending:
            self._settle(pending.popleft())

    def _settle(self, pending: ResponseFuture) -> None:
        try:
            pending.result()
            self._answered += 1
        except Failures:
            self.failed += 1
            if not self._stop.is_set():
                time.sleep(_LOOK_S)

    def _change_schema(self, session: Session, statement: Statement) -> None:
        """Repeat a schema change until it is answered, because the statements behind it need it."""
        if statement.cql.startswith("DROP TABLE"):
            self._before_drop()
        self._until_done(session, statement)
        self.schema_changes += 1
        if statement.cql.startswith("DROP TABLE"):
            self._until_done(session, self._writer.created_again())

    def _until_done(self, session: Session, statement: Statement, deadline: float | None = None) -> None:
        while True:
            try:
                session.execute(statement.cql, timeout=_SCHEMA_TIMEOUT_S)
            except Failures as error:
                text = str(error)
                # an earlier attempt was done, but not answered
                if (
                    "already exist" in text
                    or "doesn't exist" in text
                    or "was not found" in text
                    or "unknown" in text.lower()
                ):
                    return
                if self._stop.is_set() and deadline is None:
                    return
                if deadline is not None and time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_S)
            else:
                return


def _session(contact: Contact) -> AbstractContextManager[Session]:
    return open_session(
        contact,
        ExecutionProfile(
            request_timeout=_REQUEST_TIMEOUT_S,
            retry_policy=FallthroughRetryPolicy(),
            consistency_level=ConsistencyLevel.ONE,
            serial_consistency_level=ConsistencyLevel.SERIAL,
        ),
    )
