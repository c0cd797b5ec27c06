"""The Ray actor that is a far worker."""

from __future__ import annotations

from typing import Any

import ray

from shmloader.far.maker import serve
from shmloader.far_workers import Ticket
from shmloader.ray.workers import facts


class FarWorker:
    """A process that makes batches for one iterator after another."""

    def about(self) -> tuple[str, dict[str, str]]:
        """The node where it runs, and what its libraries are."""
        return ray.util.get_node_ip_address(), facts()

    def work(self, ticket: Ticket, parcel: list[Any], others: dict[str, Any]) -> None:
        """Make batches for an iterator until that is closed.

        Args:
            ticket: Where its stand-in is.
            parcel: A list with a reference to the pickled dataset and functions.  Ray would fetch a plain reference
                first, and keep the value until this returns.
            others: The other arguments.
        """
        (reference,) = parcel
        node = ray.util.get_node_ip_address()
        serve(ticket, lambda: {**ray.cloudpickle.loads(ray.get(reference)), **others}, node)
