"""Spans for code that has none: a module and a class as they are, and annotations that were written for NVTX."""

from __future__ import annotations

import json
import textwrap

import stepscope as sc
from stepscope import nvtx  # was: import nvtx


class Tokenizer:
    def split(self, text: str) -> list[str]:
        return [self._clean(word) for word in text.split()]

    def _clean(self, word: str) -> str:
        return word.strip(".,").lower()


@nvtx.annotate("prepare", color="green", domain="loading")
def prepare(text: str) -> str:
    nvtx.range_push("encode")
    try:
        return json.dumps(Tokenizer().split(text))
    finally:
        nvtx.range_pop()


with sc.trace(exporters=[sc.ChromeTraceExporter("trace.json")], output_dir="run") as profiler:
    with (
        sc.instrument(Tokenizer, exclude="_*") as tokenizer,
        sc.instrument(json, include=["dumps", "loads"]),
        sc.instrument(textwrap, include="TextWrapper.*"),
    ):
        prepare(textwrap.fill("Some words, to be wrapped. " * 20, 40))
    prepare("no more of them are spans")
print("instrumented:", *tokenizer.names)
print(profiler.summary())
