"""A family that cannot be imported: its own problem, and nobody else's."""

import a_module_that_is_not_there  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]  # noqa: F401
