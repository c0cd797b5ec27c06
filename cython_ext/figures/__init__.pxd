# The measurements of a loader: histograms, the log of batches, and a ring as another process reads it.
