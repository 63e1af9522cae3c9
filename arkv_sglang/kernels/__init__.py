"""The ops on rows of the arena: ``api`` checks and dispatches, ``reference`` specifies."""
