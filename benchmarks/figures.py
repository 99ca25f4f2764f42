"""Numbers as people read them."""

from __future__ import annotations


def figure(value: float) -> str:
    """Three significant digits, without exponents: `0.0312`, `4.56`, `111`, `13,464`."""
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.0005:
        return f"{value:.1e}"
    if size < 1:
        return f"{value:.3g}"
    if size < 10:
        return f"{value:.2f}"
    return f"{value:.1f}" if size < 100 else f"{value:,.0f}"


def spread(values: list[float], middle: float, unit: str) -> str:
    """Median, smallest and largest: `111 ns (108–161)`."""
    if len(values) < 2:
        return f"{figure(middle)} {unit}"
    return f"{figure(middle)} {unit} ({figure(min(values))}–{figure(max(values))})"
