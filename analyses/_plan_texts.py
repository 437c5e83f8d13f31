"""What the plan says besides its figures."""

from __future__ import annotations

DETAIL = (
    "In this order, each on top of those before it: {listed}. Played on {played} of {steps}; without any change the "
    "replay is {error:.1%} off.{limit}"
)
#: What no change of launches can do anything about.
LIMIT = " With launches for free a step still takes {free}, the device works for {busy} of it."
REMEDY = "The first one first; the analyses {sources} say how."
VERIFY = (
    "Record again after each change: the step time should have fallen by what is said here, and the rest be as before."
)
NO_STEP = "there is no whole step with work on a device: choose whole steps, or the whole trace"
