"""Front end: video, clips, keys, generated streams and traces. Everything here yields piece by piece."""
