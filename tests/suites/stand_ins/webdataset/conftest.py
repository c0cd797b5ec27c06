"""In the place of the shard that WebDataset's archive lacks: one of as many samples.  Those of a server are absent."""

import io
import itertools
import os
import tarfile
from typing import Any

local_data, remote_loc, remote_shards = "testdata/made.tar", "", "testdata/absent.tar"


def count_samples_tuple(source: Any, n: int = 1000) -> int:
    return sum(isinstance(sample, (tuple, list, dict)) for sample in itertools.islice(source, n))


os.makedirs("testdata", exist_ok=True)
with tarfile.open(local_data, "w") as archive:
    for number in range(47):
        member = tarfile.TarInfo(f"{number:04}.cls")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"7"))
