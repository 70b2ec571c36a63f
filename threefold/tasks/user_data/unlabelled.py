"""Rows of a table whose label is empty: inputs to pretrain on."""

from __future__ import annotations

from threefold.data.cells import is_missing
from threefold.data.tables import Table
from threefold.errors import ThreefoldError, option
from threefold.tasks.user_data.roles import TableReading

PLACEHOLDER = "0"  # in the place of an empty label, which is not read


def split_unlabelled(table: Table, found: TableReading) -> tuple[Table, Table]:
    """The rows with labels, and those without; the rows of one group stay together."""
    roles = found.roles
    if found.kind == "tagger" and roles.group is None:
        raise ThreefoldError(
            f"{table.name}: {option('pretrain')} needs sequences that are labelled or not; name "
            f"the column that tells them apart: {option('group_column')}"
        )
    columns = [roles.label] if roles.label else list(roles.targets)
    cells = [table.column(name) for name in columns if name is not None]
    empty = [all(map(is_missing, row)) for row in zip(*cells, strict=True)]
    if roles.group is not None:
        groups = table.column(roles.group)
        known = {group for group, is_empty in zip(groups, empty, strict=True) if not is_empty}
        empty = [group not in known for group in groups]
    labelled, rest = (
        table.rows([i for i, is_empty in enumerate(empty) if is_empty is wanted])
        for wanted in (False, True)
    )
    for name in columns:
        if name is not None:
            rest.cells[name] = [PLACEHOLDER] * len(rest)
    if not len(labelled):
        raise ThreefoldError(
            f"{table.name}: no row has a label ({', '.join(filter(None, columns))})"
        )
    return labelled, rest
