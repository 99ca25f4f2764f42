"""Text for people: tables, and warnings with the right line.

Read first: `text_table`, then `code_places`.
"""
