"""A training run on JPEG files that takes either loader: `python -m examples.train --help`."""
