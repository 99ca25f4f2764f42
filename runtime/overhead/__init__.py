"""The overhead budget: measures the cost of recording, and lowers the level of detail to stay within the budget.

Read first: `budget`, then `meter` (measures), `governor` (decides) and `controller` (acts).
"""
