"""Who still needs a thing that is to be removed at the end? A trace's temporary file is read by its parts, too."""

from __future__ import annotations

from collections.abc import Callable


class Hold:
    """Runs `end` when all who hold the thing have let go of it."""

    def __init__(self, end: Callable[[], None] | None) -> None:
        self._end = end
        self._holders = 0

    def taken(self) -> Callable[[], None]:
        """One more holder; call what is returned to let go."""
        self._holders += 1
        return self._let_go

    def _let_go(self) -> None:
        self._holders -= 1
        if self._holders == 0 and self._end is not None:
            self._end()
