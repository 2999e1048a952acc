"""The JSON files between the demo and its Spark job, which is another process."""

from __future__ import annotations

from typing import TypedDict

__all__ = ["Job", "TableJob", "TableResult"]


class TableJob(TypedDict):
    """One table to compare. `key`: the names of its primary key columns."""

    keyspace: str
    table: str
    topic: str
    key: list[str]


class Job(TypedDict):
    """The input of the job."""

    service_url: str
    admin_url: str
    cassandra_address: str
    cassandra_port: int
    jars: list[str]
    tables: list[TableJob]


class TableResult(TypedDict):
    """The result for one table."""

    table: str
    rows: int
    records: int
    differences: list[str]
