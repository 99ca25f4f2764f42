"""The report as a page: one file that asks nobody for anything, and the part of it that notebooks show."""
