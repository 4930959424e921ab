"""The commands of `vrex`: arguments and printing; the packages do the work and are imported when needed."""
