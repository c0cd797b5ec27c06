"""In the place of the function that Streaming's archive lacks: it writes a dataset of numbers."""

from typing import Any

from streaming import MDSWriter


def convert_to_mds(out_root: Any, dataset_name: str, num_samples: int, offset: int = 0, **options: Any) -> None:
    with MDSWriter(out=out_root, columns={"id": "str", "sample": "int"}, **options) as writer:
        for number in range(num_samples):
            writer.write({"id": f"{number:06}", "sample": offset + 3 * number})
