"""HelpfulGroup: a group of commands that suggests commands for an unknown name, and shows whole sentences as help."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

import click

__all__ = ["HelpfulGroup"]

_WHOLE: Final = 1_000


class HelpfulGroup(click.Group):
    """A group of commands. For a command that does not exist, it suggests the one with the most similar name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does. Commands that are not loaded are suggested, too. Raises click.UsageError."""
        names = self.list_commands(ctx)
        # While a shell completes a line, click looks up names that are not complete. An error would end up in that line.
        if args[0] not in names and not args[0].startswith("-") and not ctx.resilient_parsing:
            near = get_close_matches(args[0], names, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise click.UsageError(f"No such command '{args[0]}'.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first sentence of each command in full. Click would cut it at the end of the line."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        shown = [(name, each.get_short_help_str(_WHOLE)) for name, each in found.items() if each and not each.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(shown)
