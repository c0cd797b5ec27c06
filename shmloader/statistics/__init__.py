"""What a loader measures of itself, what that means, and where it can be sent: docs/statistics.md."""
