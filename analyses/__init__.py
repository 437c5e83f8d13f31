"""One question each: a documented SQL macro that measures, and a module that judges."""
