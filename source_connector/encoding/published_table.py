"""The definition of a table as it is published, if that differs from the table's own. Pure."""

from __future__ import annotations

from schemas.errors import ConfigError
from schemas.hidden_columns import HiddenColumns, PublishedTable
from schemas.table_metadata import TableMetadata
from source_connector.errors import DeploymentError

__all__ = ["published_table"]


def published_table(table: TableMetadata, hidden: HiddenColumns | None) -> PublishedTable | None:
    """The published definition; None if no column is hidden.

    Raises DeploymentError with every reason why the table's columns cannot be hidden in this way.
    """
    try:
        return None if hidden is None else hidden.of(table)
    except ConfigError as error:
        raise DeploymentError("; ".join(str(error).splitlines())) from None
