"""Names that torch and multiprocessing keep to themselves, and what other code has replaced there."""
