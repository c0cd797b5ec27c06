"""Clusters that do not fit here: a simulation of far workers, held against a cluster that does."""
