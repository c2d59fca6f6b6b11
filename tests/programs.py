"""Programs that run to their end in a process of their own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Any


def run_program(command: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program, also one that fails; return its exit code and what it printed."""
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False, **options)
