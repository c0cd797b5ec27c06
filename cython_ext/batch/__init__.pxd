# How the tree of a batch lies in a slot, and copies without the GIL.
