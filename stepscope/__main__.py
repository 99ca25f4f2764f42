"""`python -m stepscope`: the command line."""

from __future__ import annotations

import sys

from stepscope.cli.main import main

sys.exit(main())
