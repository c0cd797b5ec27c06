"""The trainer's side of a loader: what is asked for, of whom, in which order it comes, and who looks after workers."""
