"""`shmloader index`: makes the index of shards before a run needs it."""
