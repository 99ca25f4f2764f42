"""The project itself: packaging, pages, imports."""
