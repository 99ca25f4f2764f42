"""Commands that show what was recorded: `explain`, `report`, `view`, `windows`."""
