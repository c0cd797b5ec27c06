"""Eighty ways and more in which people use a loader: where is ours slower or heavier than torch's?"""
