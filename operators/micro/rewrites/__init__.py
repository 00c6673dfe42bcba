"""Every rewrite that the offline coder knows, by strategy name. Adding one: a class here, and a line in `_ALL`."""

from __future__ import annotations

from operators.micro.rewrites.accesses import CacheHints, DropMasks
from operators.micro.rewrites.arithmetic import Exp2, InputPrecision
from operators.micro.rewrites.base import Rewrite, RewriteFailed
from operators.micro.rewrites.causal import CausalSkip
from operators.micro.rewrites.descriptor import TensorDescriptor
from operators.micro.rewrites.fuse import FuseConsumer, FuseProducer
from operators.micro.rewrites.launch_options import LaunchOptions
from operators.micro.rewrites.loops import Hoist, SoftwarePipeline
from operators.micro.rewrites.passes import OnePassRow, OnlineRow
from operators.micro.rewrites.persistent import Persistent
from operators.micro.rewrites.row_tiles import RowsPerProgram
from operators.micro.rewrites.split_k import SplitK
from operators.micro.rewrites.swizzle import Swizzle
from operators.micro.rewrites.tile_2d import Tile2D

_ALL: tuple[Rewrite, ...] = (
    # rows, memory, fusion
    OnePassRow(),
    OnlineRow(),
    RowsPerProgram(),
    Tile2D(),
    Hoist(),
    Exp2(),
    DropMasks(),
    CacheHints(),
    LaunchOptions(),
    FuseProducer(),
    FuseConsumer(),
    # contractions, grids
    Swizzle(),
    SplitK(),
    Persistent(),
    CausalSkip(),
    InputPrecision(),
    TensorDescriptor(),
    SoftwarePipeline(),
)

REWRITES: dict[str, Rewrite] = {rewrite.name: rewrite for rewrite in _ALL}

__all__ = ["REWRITES", "Rewrite", "RewriteFailed"]
