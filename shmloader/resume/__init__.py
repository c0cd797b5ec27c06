"""A loader's place in an epoch, from which another loader can resume."""
