"""The trainer's side of a loader: it begins epochs, assigns batches to workers, delivers batches, watches workers."""
