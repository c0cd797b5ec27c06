"""What a loader measures, the verdict on it, and where the figures can go: docs/statistics.md."""
