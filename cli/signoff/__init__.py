"""Sign-off: records of evidence for each unit, stages, and the page that shows both."""
