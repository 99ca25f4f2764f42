"""The web server: access control, the HTTP interface, live events and metrics."""
