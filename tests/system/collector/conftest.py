"""Tests of NATS have a server of their own, if they do not make another one."""

from tests.support.nats import server

__all__ = ["server"]
