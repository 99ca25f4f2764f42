"""Text for people: tables, and warnings with the right line."""
