"""Mosaic (arXiv 2604.10060): a KV cache clustered twice, by what frames show and by what keys mean.

`statistics` holds the cluster equations and the spherical K-means, `index` the clusters of one decoder layer
with their deferred splits and two-stage selection, `system` the visual level, all layers, prefetch and the
attention context. All of it is float64; the order of every tie is fixed.
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
