"""The web server: who may ask what, the HTTP interface, live events and metrics."""
