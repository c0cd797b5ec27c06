"""Pictures, decoded where they are wanted: only the crop, only once, straight into the batch's row.

`fuse` takes a dataset of torchvision's as it is; `ImageFolder` and `from_bytes` need no torchvision; `decode` is one
picture.  docs/images.md tells it from the start.
"""

from shmloader.images.columns import on_column
from shmloader.images.decode import counts, decode
from shmloader.images.folder import ImageFolder, from_bytes
from shmloader.images.fused import fuse
from shmloader.images.recipe import evaluation, training
from shmloader.images.views import views

__all__ = ["ImageFolder", "counts", "decode", "evaluation", "from_bytes", "fuse", "on_column", "training", "views"]
