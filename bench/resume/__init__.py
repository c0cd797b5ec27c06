"""What it costs to be able to resume, and how long a resume takes."""
