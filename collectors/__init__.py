"""How to record and how to read: one module per profiler run mode, one per file format."""
