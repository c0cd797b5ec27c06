"""The work of a worker process: fetch, collate, publish."""
