"""x"""

import argparse
from typing import Any


def add(commands: Any, common: argparse.ArgumentParser) -> None: ...
