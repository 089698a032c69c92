"""Whether the replicas of a training still agree: sums of their tensors every so many steps, left
in the files of the run, and compared by whoever reads these."""
