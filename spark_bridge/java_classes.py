"""Classes of Spark's JVM that PySpark does not wrap."""

from __future__ import annotations

from typing import Any

__all__ = ["java_class"]


def java_class(jvm: Any, name: str) -> Any:
    """The class with this full name. `jvm`: the `_jvm` of a session or context.

    `jvm.org.apache...` would ask Java for a class `org`, then for `org.apache`, and so on. For each of these, Java
    searches all jars in vain, which takes milliseconds.
    """
    return getattr(jvm, name)
