"""Objects with their tensors on disk and back, without pickle where it can be."""
