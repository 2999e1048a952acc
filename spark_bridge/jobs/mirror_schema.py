"""The tables of a mirror follow the newest schema of their topic, before a micro-batch is merged into them."""

from __future__ import annotations

from dataclasses import replace

from spark_bridge.jobs.epoch_plan import EpochPlan
from spark_bridge.jobs.history_table import OWN_COLUMNS
from spark_bridge.jobs.mirror_rows import OWN, renamed_columns
from spark_bridge.jobs.mirror_state import Applied, MirrorTables
from spark_bridge.rows.table_rows import table_columns

__all__ = ["follow_schema"]


def follow_schema(tables: MirrorTables, plan: EpochPlan) -> Applied:
    """Key columns that were renamed, value columns that were dropped; new ones come with the first merge. The state as noted.

    What was dropped and added again since the last micro-batch is new, too. That is noted before anything is merged: a run
    that fails later has written the column's new values, which are not to go. The change log keeps its columns, so it is noted
    before they are dropped until when their values were shown.
    """
    wanted, applied = table_columns(plan.schemas), plan.applied
    for table, own in (
        (tables.rows, OWN),
        (tables.history, (*OWN, *OWN_COLUMNS)),
    ):
        found = table.read()
        if found is None:
            continue
        names = [each for each in found.columns if each not in own]
        renamed = renamed_columns(names, plan.schemas)
        for old, new in zip(names, renamed, strict=True):
            if old != new:
                table.rename_column(old, new)
        dropped = [each for each in renamed if each not in wanted or each in plan.gone_columns]
        if dropped and table is tables.rows:
            gone = dict.fromkeys(dropped, applied.epoch)
            applied = replace(applied, gone_until={**applied.gone_until, **gone})
            tables.save_applied(applied)
        table.drop_columns(dropped)
    if plan.gone_columns:
        applied = replace(applied, schema_version=plan.schemas.newest.version)
        tables.save_applied(applied)
    return applied
