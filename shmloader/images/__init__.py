"""Pictures for training: only the crop is decoded, only once, and straight into the batch's row.

`fuse` takes a dataset of torchvision's as it is.  `ImageFolder` and `from_bytes` need no torchvision.  `decode` decodes
one picture.  docs/images.md begins at the beginning.
"""

from shmloader.images.decode import counts, decode
from shmloader.images.folder import ImageFolder, from_bytes
from shmloader.images.fused import fuse
from shmloader.images.picture_columns import on_column
from shmloader.images.recipe import evaluation, training
from shmloader.images.views import views

__all__ = ["ImageFolder", "counts", "decode", "evaluation", "from_bytes", "fuse", "on_column", "training", "views"]
