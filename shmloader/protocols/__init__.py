"""What a user's dataset, sampler and collate function say of themselves: methods, marks, what they wrap."""
