"""Programs that run to their end in a process of their own."""

import subprocess


def run_program(command, **options):
    """Run a program, also one that fails; return its exit code and what it printed."""
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False, **options)
