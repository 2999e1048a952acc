"""SourceView: the state of one source, from the answers of Pulsar's functions worker."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from cdc.health.findings import Finding, as_duration, failure, ok, warning
from cdc.health.pulsar_service import NotThereError, PulsarService, PulsarServiceError
from cdc.health.source_log import last_error, one_line, start_waits_for
from cdc.health.worker_requests import last_request
from schemas.topics import full_topic_name
from source_connector.configuration.config import SourceConfig, flattened

__all__ = [
    "SOURCE_CLASS",
    "InstanceView",
    "SourceView",
    "is_ours",
    "names_in",
    "options_of",
    "sources_of",
    "with_starts",
]

SOURCE_CLASS: Final = "org.cassandracdc.source.CassandraSource"
_RECENT_S: Final = 600.0
_OPTIONS: Final = frozenset(str(field.alias or name) for name, field in SourceConfig.model_fields.items())
# A start takes 5 to 15 s, on a busy machine a minute. After this time, the watch restarts a source, too.
_START_S: Final = 90.0
# What the worker says of an instance that it has not scheduled or started yet, or whose JVM does not answer yet.
_NO_ANSWER: Final = "UNAVAILABLE: io exception"
# How the connector says that it could not reach Cassandra for 30 s after its start.
_NO_CASSANDRA: Final = "see that Cassandra is up and that the options lead to it"
_NOT_YET: Final = ("Source has not been scheduled", _NO_ANSWER)


def names_in(option: object) -> list[str]:
    """The names in an option of a source: a list, or a text with commas. Another value is one name."""
    entries = option if isinstance(option, list | tuple) else str(option).split(",")
    return [str(each).strip() for each in entries]


def options_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The source's --source-config with the names that the connector uses. Users may write them as nested maps."""
    return dict(flattened(config.get("configs") or {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """One instance of a source.

    `last_exception`: the latest exception that Pulsar has recorded; `last_exception_s`: its time, in seconds since the
    epoch. `last_record_s`: when the instance handed over a record last, likewise; 0 if it has not since its start.
    """

    number: int
    is_running: bool
    error: str
    restarts: int
    last_exception: str
    last_exception_s: float
    last_record_s: float = 0.0

    @property
    def may_start(self) -> bool:
        """True if it does not run, and the worker reports neither a failure nor a restart."""
        has_failed = self.restarts or self.last_exception or self.error not in ("", *_NOT_YET)
        return not self.is_running and not has_failed


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """A deployed source.

    `namespace`: tenant and namespace. `options`: its --source-config, flat. `is_stopped`: somebody has stopped it on purpose.
    `starts_for_s`: the seconds since it was created, changed or started, if it may still be starting.
    """

    name: str
    namespace: str = "public/default"
    topic: str
    options: Mapping[str, Any]
    wanted: int
    instances: Sequence[InstanceView]
    is_stopped: bool
    starts_for_s: float | None = None

    @classmethod
    def of(cls, name: str, config: Mapping[str, Any], status: Mapping[str, Any]) -> Self:
        """Make the view from two answers of the admin service: the source's configuration and its status."""
        return cls(
            name=name,
            namespace=f"{config.get('tenant') or 'public'}/{config.get('namespace') or 'default'}",
            topic=full_topic_name(str(config.get("topicName") or "")) if config.get("topicName") else "",
            options=options_of(config),
            wanted=int(status["numInstances"]),
            instances=[_instance(each["instanceId"], each["status"]) for each in status["instances"]],
            is_stopped=bool(status["instances"]) and all(_is_stopped(each["status"]) for each in status["instances"]),
        )

    @property
    def arguments(self) -> str:
        """The arguments that name the source in commands of `pulsar-admin sources`."""
        tenant, namespace = self.namespace.split("/")
        place = "" if self.namespace == "public/default" else f"--tenant {tenant} --namespace {namespace} "
        return f"{place}--name {self.name}"

    @property
    def log_path(self) -> str:
        """The log of the source's first instance, in the folder of Pulsar on the functions worker's machine."""
        return f"logs/functions/{self.namespace}/{self.name}/{self.name}-0.log"

    @property
    def running(self) -> int:
        """The number of instances that run."""
        return sum(each.is_running for each in self.instances)

    @property
    def last_record_s(self) -> float:
        """When an instance handed over a record last, in seconds since the epoch; 0 if that is not known."""
        return max((each.last_record_s for each in self.instances), default=0.0)

    @property
    def is_down(self) -> bool:
        """True if fewer instances run than should, and nobody has stopped the source."""
        return self.running < max(1, self.wanted) and not self.is_stopped

    @property
    def error(self) -> str:
        """Why an instance does not run, in one line; empty if the functions worker gives no reason."""
        for each in self.instances:
            if not each.is_running and (each.error or each.last_exception):
                return one_line(each.error or each.last_exception)
        return ""

    def findings(self, logs: Path | None, now_s: float) -> Iterator[Finding]:
        """The source's state. `logs`: the folder of the instances' logs, if it is on this machine."""
        count = f"{self.running} of {max(1, self.wanted)} instances run"
        restarts = sum(each.restarts for each in self.instances)
        again = "started again once" if restarts == 1 else f"started again {restarts} times"
        facts = {"running": self.running, "wanted": self.wanted, "restarts": restarts, "error": self.error}
        if self.starts_for_s is None and self.is_stopped:
            remedy = f"pulsar-admin sources start {self.arguments}"
            yield failure(self.name, f"is stopped: {count}", remedy, **facts)
            return
        if self.starts_for_s is not None or self.is_down:
            yield self._down(count, logs, facts, now_s)
            return
        if logs is not None and (reason := start_waits_for(logs, self.name, now_s)):
            text = f"{count}, and waits: {reason}"
            yield warning(self.name, text, self._remedy(_NO_CASSANDRA, has_reason=True), **facts)
            return
        recent = [each for each in self.instances if now_s - each.last_exception_s < _RECENT_S and each.last_exception]
        if recent:
            age = as_duration(now_s - recent[0].last_exception_s)
            text = f"{count}, {again}; {age} ago: {one_line(recent[0].last_exception)}"
            yield warning(self.name, text, f"if it happens again, see {self.log_path} on the worker", **facts)
        else:
            yield ok(self.name, f"{count}, {again}" if restarts else count, **facts)

    def _down(self, count: str, logs: Path | None, facts: Mapping[str, object], now_s: float) -> Finding:
        said = last_error(logs, self.name, now_s) if logs is not None else ""
        why = self.error or "the functions worker gives no reason"
        log = f"; its log says: {said}" if said and said not in why else ""
        if self.starts_for_s is not None and not _is_about_options(f"{why} {said}"):
            text = f"is starting: {count}; created, changed or started {as_duration(self.starts_for_s)} ago{log}"
            remedy = (
                f"wait: a start takes 5 to 15 s, on a busy machine a minute; after {_START_S:.0f} s it is a failure"
            )
            return warning(self.name, text, remedy, **facts)
        text = f"is not running: {count} ({why}){log}"
        remedy = self._remedy(f"{why} {said}", has_reason=bool(self.error or said or logs is not None))
        return failure(self.name, text, remedy, **facts)

    def _remedy(self, said: str, *, has_reason: bool) -> str:
        """What to do about a source that does not run. `said`: the reasons of the worker and of the source's log."""
        if _is_about_options(said):
            return f"correct its --source-config with pulsar-admin sources update {self.arguments}"
        if _NO_CASSANDRA in said:
            return (
                "start Cassandra, or correct contactPoints and port of its --source-config with pulsar-admin sources update "
                f"{self.arguments}; Pulsar starts it again by itself"
            )
        remedy = f"pulsar-admin sources restart {self.arguments}, or `cdc doctor --fix`; `cdc connector watch` does it by itself"
        if not has_reason:
            remedy = f"see {self.log_path} on the worker (functionsLogDir in line.yaml shows its last error here); then {remedy}"
        if self.error in ("", _NO_ANSWER):  # it has ended, and the worker has not given it up
            remedy = f"wait half a minute: Pulsar restarts an instance that has ended; if it stays down: {remedy}"
        return remedy


def _is_about_options(text: str) -> bool:
    """Return True if an error is about the source's options. No restart helps then."""
    if re.search(r"IllegalArgumentException|is no(t an)? option|cannot be used", text):
        return True
    named = re.search(r"Exception: ([\w.]+): ", text)
    return named is not None and named[1] in _OPTIONS


def sources_of(service: PulsarService, wanted: Sequence[str] = ()) -> list[SourceView]:
    """All sources of this connector in the line's namespace, and those that are wanted by name.

    Raises PulsarServiceError.
    """
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda name: _view(service, name, is_wanted=name in wanted), service.sources())
        return [each for each in found if each is not None]


def with_starts(service: PulsarService, views: Sequence[SourceView]) -> list[SourceView]:
    """The same views, with `starts_for_s` where the functions workers have had a request to start the source shortly before,
    and `is_stopped` where the last request was to stop it.

    Without the right to read the workers' requests, no source is known to start, and one that is stopped after a start
    that failed counts as down.
    """
    return [_with_start(service, each) for each in views]


def _with_start(service: PulsarService, view: SourceView) -> SourceView:
    waits = [each for each in view.instances if not each.is_running]
    if not (view.is_down or view.is_stopped):
        return view
    request = last_request(service, view.namespace, view.name, math.inf)
    if request is None:
        return view
    if request.is_stop:
        # The worker keeps the error of a start that failed earlier, also when the source is stopped after that.
        is_stopped = not view.running and all(each.error != _NO_ANSWER for each in waits)
        return replace(view, is_stopped=view.is_stopped or is_stopped)
    starts = request.age_s <= _START_S and all(each.may_start for each in waits)
    return replace(view, starts_for_s=request.age_s) if starts else view


def is_ours(config: Mapping[str, Any]) -> bool:
    """Return True if the configuration is of a source of this connector, or if Pulsar does not report its class."""
    return config.get("className") in (SOURCE_CLASS, None, "")


def _view(service: PulsarService, name: str, *, is_wanted: bool) -> SourceView | None:
    """The view of a source; None for one of another connector, unless it is wanted, and for one just deleted."""
    try:
        config = service.source(name)
        if not is_wanted and not is_ours(config):
            return None
        return SourceView.of(name, config, service.source_status(name))
    except NotThereError:
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise PulsarServiceError(f"what the functions worker says of {name} is not understood ({error!r})") from error


def _is_stopped(status: Mapping[str, Any]) -> bool:
    """Return True if somebody has stopped the instance.

    The worker reports no list of exceptions for an instance that it has not started. If it has tried to start the
    instance, it reports an error.
    """
    return not status["running"] and not status.get("error") and "latestSystemExceptions" not in status


def _instance(number: int, status: Mapping[str, Any]) -> InstanceView:
    noted = [*(status.get("latestSystemExceptions") or ()), *(status.get("latestSourceExceptions") or ())]
    last: Mapping[str, Any] = max(noted, key=lambda each: int(each.get("timestampMs") or 0), default={})
    return InstanceView(
        number=number,
        is_running=bool(status["running"]),
        error=str(status.get("error") or ""),
        restarts=int(status.get("numRestarts") or 0),
        last_exception=str(last.get("exceptionString") or ""),
        last_exception_s=int(last.get("timestampMs") or 0) / 1000,
        last_record_s=int(status.get("lastReceivedTime") or 0) / 1000,
    )
