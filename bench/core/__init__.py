"""Shared by all questions: processes, rounds, results, spreads, agreement, and what is loaded."""
