"""Mosaic (arXiv 2604.10060): a KV cache with two levels of clusters, visual (frames) and semantic (keys).

`statistics` holds the cluster equations and spherical K-means, `index` the clusters of one decoder layer with deferred
splits and two-stage selection, `system` the visual level, all layers, prefetch and the attention context. All values
are float64; the order of every tie is defined.
"""

from golden.mosaic.index import SemanticIndex
from golden.mosaic.statistics import MosaicConfig, absorb, kmeans, spread, threshold
from golden.mosaic.system import MosaicCache, Retrieval, query_vector

__all__ = [
    "MosaicCache",
    "MosaicConfig",
    "Retrieval",
    "SemanticIndex",
    "absorb",
    "kmeans",
    "query_vector",
    "spread",
    "threshold",
]
