"""Text for people: tables, and warnings at the line that they are about."""
