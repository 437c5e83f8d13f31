"""What can go wrong, as one class tree; the command line turns each into one line and an exit code.

TracekitError            1
  UsageError             2   the request makes no sense (no such analysis, output exists)
    RulesError           2   a kernel rules file is wrong
  UnknownFormatError     3   no reader knows the file
  MalformedTraceError    4   input broken beyond salvage
    TruncatedTraceError  4   input cut short; what is whole could be kept with --allow-partial
  CaptureError           5   the capture failed or is empty
"""

from __future__ import annotations


class TracekitError(Exception):
    """Base of all errors meant for the user: the message says what happened, where, and what to do."""

    exit_code = 1


class UsageError(TracekitError):
    """The request itself is wrong."""

    exit_code = 2


class RulesError(UsageError):
    """A kernel rules file is malformed; the message names the file and the rule."""


class UnknownFormatError(TracekitError):
    """No reader knows this file."""

    exit_code = 3


class MalformedTraceError(TracekitError):
    """The file is of a known format but broken beyond salvage; the message names the byte."""

    exit_code = 4


class TruncatedTraceError(MalformedTraceError):
    """The file ends early. Its complete events are kept only when asked for."""


class CaptureError(TracekitError):
    """The profiled program failed, or the profiler recorded nothing."""

    exit_code = 5
