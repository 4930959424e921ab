"""Front end: videos, clips, keys, synthetic key streams and traces, all processed as streams. See README.md."""
