"""What a worker process does: fetch, collate, publish."""
