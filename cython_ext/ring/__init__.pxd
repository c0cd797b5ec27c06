# The ring: sequence words, slots, leases, the trainer's side and the worker's side of the protocol.
