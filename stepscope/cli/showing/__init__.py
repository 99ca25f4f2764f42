"""Commands whose result is for people to look at: `explain`, `report` with its page, `view`, `windows`."""
