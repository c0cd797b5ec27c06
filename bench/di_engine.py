"""DI-engine has an environment of its own (`make di-engine`): what it needs is at odds with what we are tested with."""

from __future__ import annotations

from pathlib import Path

PYTHON = Path(__file__).resolve().parent.parent / ".venv-di-engine" / "bin" / "python"


def missing() -> str | None:
    """Why DI-engine cannot be measured, or None where it can."""
    return None if PYTHON.exists() else "DI-engine is not installed: make di-engine"
