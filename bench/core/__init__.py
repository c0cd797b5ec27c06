"""What all questions share: processes, rounds, results, spreads, agreement, and what is loaded."""
