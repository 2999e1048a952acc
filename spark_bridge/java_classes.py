"""Classes of Spark's JVM that PySpark does not wrap."""

from __future__ import annotations

from typing import Any, Final

from py4j.java_gateway import JavaClass

__all__ = ["is_class", "java_class", "keep_functions"]

_LOOKED_UP_OFTEN: Final = ("functions", "org.apache.spark.sql.functions", "PythonUtils")
"""The classes by the names with which PySpark looks them up for each expression of a column."""


def java_class(jvm: Any, name: str) -> Any:
    """The class with this full name, which is then kept; `is_class` tells if there is one. `jvm`: the `_jvm` of a
    session or context.

    `jvm.org.apache...` would ask Java for a class `org`, then for `org.apache`, and so on. For each of these, Java
    searches all jars in vain, which takes milliseconds.
    """
    found = getattr(jvm, name)
    if not isinstance(found, JavaClass):
        return found
    kept = _KeptClass(found)
    setattr(jvm, name, kept)
    return kept


def is_class(found: Any) -> bool:
    """Return True if a result of `java_class` is a class: the JVM has its jar."""
    return isinstance(found, _KeptClass)


class _KeptClass:
    """A Java class whose members are looked up once."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __call__(self, *given: Any) -> Any:
        """A new object of the class."""
        return self._found(*given)

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._found, name)
        setattr(self, name, member)
        return member


def keep_functions(jvm: Any) -> None:
    """Keep the Java classes that PySpark uses for expressions of columns. `jvm`: as for `java_class`.

    PySpark asks Java for the class and for its member again each time: for a mirror, a thousand calls a micro-batch.
    """
    for name in _LOOKED_UP_OFTEN:
        if name not in vars(jvm):
            setattr(jvm, name, _KeptClass(getattr(jvm, name)))
