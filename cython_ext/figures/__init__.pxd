# What is measured of a loader: histograms, the log of batches, a ring as another process reads it.
