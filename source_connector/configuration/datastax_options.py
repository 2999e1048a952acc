"""Options of DataStax's connector that are not ours: Java driver options with an equivalent of ours, and idle options.

An idle option controls something that does not exist here. It is checked as DataStax's connector checks it, and then
ignored, with one warning for all idle options.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from schemas.errors import ConfigProblem

__all__ = ["IDLE_OPTIONS", "known_name", "take_out_foreign", "use_login"]

DRIVER_PREFIX: Final = "datastax-java-driver."
_ONE_OF_OURS: Final[Mapping[str, str]] = {
    "basic.contact-points": "contactPoints",
    "basic.load-balancing-policy.local-datacenter": "loadBalancing.localDc",
    "basic.cloud.secure-connect-bundle": "cloud.secureConnectBundle",
    "basic.request.timeout": "queryExecutionTimeout",
    "advanced.auth-provider.username": "auth.username",
    "advanced.auth-provider.password": "auth.password",
}
_SECONDS: Final[Mapping[str, float]] = {
    "": 1e-3, "ms": 1e-3, "milli": 1e-3, "millis": 1e-3, "millisecond": 1e-3, "milliseconds": 1e-3,
    "s": 1, "second": 1, "seconds": 1, "m": 60, "minute": 60, "minutes": 60,
}  # fmt: skip


def known_name(*names: str) -> BeforeValidator:
    """A pydantic validator that accepts these names in upper or lower case."""
    by_lower = {name.lower(): name for name in names}
    return BeforeValidator(lambda value: by_lower.get(value.lower(), value) if isinstance(value, str) else value)


_COUNT: Final = TypeAdapter[int](Annotated[int, Field(ge=1)])
_FLAG: Final = TypeAdapter[bool](bool)
_TEXT: Final = TypeAdapter[str](str)
_IDLE: Final[Mapping[str, TypeAdapter[Any]]] = {
    "batch.size": _COUNT,
    "query.executors": _COUNT,
    "query.maxMobileAvgLatency": _COUNT,
    "query.minMobileAvgLatency": _COUNT,
    "key.converter": _TEXT,
    "value.converter": _TEXT,
    "maxConcurrentRequests": _COUNT,
    "connectionPoolLocalSize": _COUNT,
    "compression": TypeAdapter(Annotated[Literal["None", "LZ4", "SNAPPY"], known_name("None", "LZ4", "SNAPPY")]),
    "metricsHighestLatency": _COUNT,
    "jmx": _FLAG,
    "jmxConnectorDomain": _TEXT,
    "ignoreErrors": TypeAdapter(
        Annotated[
            Literal["None", "All", "Driver", "true", "false"],
            BeforeValidator(lambda value: str(value).lower() if isinstance(value, bool) else value),
            known_name("None", "All", "Driver", "true", "false"),
        ]
    ),
    "auth.gssapi.keyTab": _TEXT,
    "auth.gssapi.principal": _TEXT,
    "auth.gssapi.service": _TEXT,
    "name": _TEXT,
    "task.id": _TEXT,
}


_NO_KERBEROS: Final = (
    "GSSAPI (Kerberos, of DataStax Enterprise only) is not spoken here; use PLAIN, or None with a certificate (ssl.*)"
)

IDLE_OPTIONS: Final = frozenset(_IDLE)
"""Names of options that are accepted and ignored."""


def take_out_foreign(given: dict[str, object]) -> tuple[list[ConfigProblem], list[str]]:
    """Remove foreign options. An option with an equivalent of ours is put under our name, unless that is given.

    Return the problems of the values, and warnings for the log.
    """
    problems: list[ConfigProblem] = []
    idle: list[str] = []
    _use_driver_options(given, problems)
    if str(given.get("auth.provider")).upper() == "GSSAPI":
        del given["auth.provider"]
        problems.append(ConfigProblem(option="auth.provider", reason=_NO_KERBEROS))
    for name in sorted(given):
        if name.startswith(DRIVER_PREFIX):
            idle.append(name)
            del given[name]
        elif name in _IDLE:
            problems += _problems(name, given.pop(name))
            idle.append(name)
    warning = f"options without a meaning for this connector are ignored: {', '.join(idle)}"
    return problems, [warning] if idle else []


def use_login(given: dict[str, object]) -> None:
    """Use the provider PLAIN if name and password are given, also instead of None, as DataStax's connector does."""
    is_without = str(given.get("auth.provider") or "None").lower() == "none"
    if is_without and given.get("auth.username") and given.get("auth.password"):
        given["auth.provider"] = "PLAIN"


def _problems(name: str, value: object) -> Iterator[ConfigProblem]:
    try:
        _IDLE[name].validate_python(value)
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"]
        got = f" (got {value!r})" if isinstance(value, str | int | float) else ""
        yield ConfigProblem(option=name, reason=reason[:1].lower() + reason[1:] + got)


def _use_driver_options(given: dict[str, object], problems: list[ConfigProblem]) -> None:
    for driver_name, own_name in _ONE_OF_OURS.items():
        option = DRIVER_PREFIX + driver_name
        value = given.pop(option, None)
        if value is None or own_name in given:
            continue
        if own_name == "contactPoints":
            _use_contact_points(option, value, given, problems)
        elif own_name == "queryExecutionTimeout":
            _use_timeout(option, value, given, problems)
        else:
            given[own_name] = value
            if own_name == "auth.username":
                given.setdefault("auth.provider", "PLAIN")


def _use_contact_points(option: str, value: object, given: dict[str, object], problems: list[ConfigProblem]) -> None:
    points = value if isinstance(value, list) else str(value).split(",")
    split = [str(point).strip().rpartition(":")[::2] for point in points]
    ports = {port for _, port in split}
    if all(host and port.isdecimal() for host, port in split) and len(ports) == 1:
        given["contactPoints"] = [host for host, _ in split]
        given.setdefault("port", ports.pop())
    else:
        reason = f"input should be a list of host:port, all with one port (got {value!r})"
        problems.append(ConfigProblem(option=option, reason=reason))


def _use_timeout(option: str, value: object, given: dict[str, object], problems: list[ConfigProblem]) -> None:
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]*)\s*", str(value))
    if found is not None and found[2] in _SECONDS:
        given["queryExecutionTimeout"] = float(found[1]) * _SECONDS[found[2]]
    else:
        reason = f"input should be a duration such as '30 seconds' (got {value!r})"
        problems.append(ConfigProblem(option=option, reason=reason))
