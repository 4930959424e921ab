"""The commands of `vrex`, grouped by what they work on."""
