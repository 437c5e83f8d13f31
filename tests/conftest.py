"""What the tests ask of the machine once a session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.nsys_runs import why_it_does_not_record

os.environ.pop("COLUMNS", None)  # pytest-xdist says 80; what is written must not depend on how many tests run at once


@pytest.fixture(scope="session")
def nsys_records(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where there is no nsys, and where the one there is does not record so much as `sleep`."""
    folder: Path = tmp_path_factory.mktemp("nsys-records")
    reason = why_it_does_not_record(folder)
    if reason:
        pytest.skip(reason)
