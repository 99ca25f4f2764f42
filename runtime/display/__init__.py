"""Text for people: tables, notebooks, warnings at the line that they are about."""
