"""Whatever number a path or a query holds, the answer says what is wrong with it, or that there is none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from stepscope.collector.problems import MEDIA_TYPE
from tests.support.collecting import CollectorProcess, ask, collecting, trained, until

NUMBERS = [
    *("9" * digits for digits in (10, 18, 19, 20, 40, 4300, 4301, 5000)),
    *(str(at + by) for at in (1 << 31, 1 << 32, 1 << 63, 1 << 64) for by in (-1, 0, 1)),
    *("-1", "-9223372036854775809", "0" * 5000 + "1", "1e400", "1.5", "nan", "０", "²", "+1", " 1", "0x1", "1_0", ""),
]


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CollectorProcess]:
    """One with a stream that has ended, so that numbers get as far as they can."""
    with collecting(tmp_path_factory.mktemp("collector")) as running:
        trained(running.url, 0)
        until(lambda: running.get("/v1/job")["ended"] == 1)
        yield running


def addresses(document: dict[str, Any], known: dict[str, str], number: str) -> Iterator[str]:
    """Every address of a GET that takes a number, with this one in each place of the path and of the query."""
    for path, methods in document["paths"].items():
        if "get" not in methods or path == "/v1/events":
            continue
        parameters = methods["get"].get("parameters", ())
        filled = re.sub("{(.*?)}", lambda found: known.get(found[1], "{" + found[1] + "}"), path)
        for name in re.findall("{(.*?)}", path):
            others = re.sub("{(.*?)}", lambda found: "{" + name + "}" if found[1] == name else known[found[1]], path)  # noqa: B023
            yield others.replace("{" + name + "}", quote(number, safe=""))
        for parameter in parameters:
            if parameter["in"] == "query":
                yield f"{filled}?{parameter['name']}={quote(number, safe='')}"


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: f"{number[:24]} of {len(number)}")
def test_no_number_is_a_fault_of_the_collector(collector: CollectorProcess, number: str) -> None:
    stream = collector.get("/v1/ranks")[0]["stream"]
    known = {"rank": "job-0", "stream": stream, "window": "0", "kind": "chrome"}
    for address in addresses(collector.get("/openapi.json"), known, number):
        answer = ask(collector.url + address)
        assert answer.status in (200, 400, 404), (address[:200], answer.status, answer.body[:300])
        if answer.status >= 400:
            assert answer.headers["content-type"] == MEDIA_TYPE and answer.json()["detail"]
            assert len(answer.body) < 3000
