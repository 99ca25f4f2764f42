"""Text for people: tables, notebooks, and warnings with the right line."""
