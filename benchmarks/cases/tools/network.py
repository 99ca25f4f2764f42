"""A network to train, with and without spans in its step."""

from __future__ import annotations

from typing import Any

from benchmarks.cases.tools.span_load import Span
from benchmarks.harness.peers import peer

LAYERS = 48
WIDTH, BATCH = 256, 32
"""Such that a step takes about 10 ms on one core: with 2 spans a layer and 4 more that is 10,000 spans a second."""

SPANS = 2 * LAYERS + 4
"""Of a step."""


class Network:
    """A small network, trained on noise by stochastic gradient descent, on the CPU."""

    def __init__(self) -> None:
        torch: Any = peer("torch")
        torch.set_num_threads(1)  # another core is left for exporters, as where a GPU does the work
        torch.manual_seed(0)
        self._torch = torch
        self._layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        self._parameters = [list(layer.parameters()) for layer in self._layers]
        self._x, self._y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)

    def step(self) -> None:
        """One step, without a span."""
        torch = self._torch
        x = self._x
        for layer in self._layers:
            x = torch.tanh(layer(x))
        loss = torch.nn.functional.mse_loss(x, self._y)
        loss.backward()
        with torch.no_grad():
            for parameters in self._parameters:
                self._update(parameters)

    def step_with(self, span: Span) -> None:
        """The same step with a span around each of its parts, 100 in all."""
        torch = self._torch
        x = self._x
        with span("forward"):
            for layer in self._layers:
                with span("layer"):
                    x = torch.tanh(layer(x))
        with span("loss"):
            loss = torch.nn.functional.mse_loss(x, self._y)
        with span("backward"):
            loss.backward()
        with span("optimizer"), torch.no_grad():
            for parameters in self._parameters:
                with span("update"):
                    self._update(parameters)

    def _update(self, parameters: list[Any]) -> None:
        for parameter in parameters:
            parameter.add_(parameter.grad, alpha=-0.01)
            parameter.grad = None
