"""What recording costs, and how it is kept within the user's budget.

Read first: `budget`, then `meter` (measures), `governor` (decides) and `controller` (acts).
"""
