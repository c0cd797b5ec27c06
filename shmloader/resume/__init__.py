"""Where a loader is in an epoch, so that another one can go on from there."""
