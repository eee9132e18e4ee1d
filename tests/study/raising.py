"""A module that cannot be imported."""

raise RuntimeError("import went wrong")
