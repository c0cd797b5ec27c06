"""The part of a loader that resumes: docs/resume.md."""

from __future__ import annotations

from typing import Any

from shmloader import off_the_ring, read_elsewhere
from shmloader.resume.place import place_of


class Resumable:
    """The methods of a DataLoader that save its place and return to it."""

    num_workers: int

    def state_dict(self) -> dict[str, Any]:
        """The user's place: what `load_state_dict` needs to resume there, also in another process.

        It counts the batches that you have received, and not those that are ready.  You may call it at any time: before
        the first epoch, in one, at its end, in a signal handler.  It starts nothing, draws from no generator, asks no
        worker, and takes some microseconds.  The keys are always the same, and the values are JSON types.

        With a sampler that is Sequential, Random without a generator or Distributed, in batches or not, the state is
        the same for all ranks and less than 1 KB; with a generator of yours, less than 8 KB.  With a sampler that has
        its own `state_dict`, the state belongs to this rank.  docs/resume.md has more.

        Raises:
            RuntimeError: The loader has workers and does not ride the ring, so nothing counts its batches.
        """
        place = place_of(self)
        if place.counts_with != self.num_workers:  # otherwise it was checked already that its batches are counted
            if self._others("state_dict"):
                return super().state_dict()  # type: ignore[misc,no-any-return]
            place.counts_with = self.num_workers
        return place.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have the next `iter()` resume from a state.

        The part of the epoch that was delivered is skipped without loading a sample.  If each sample is seeded
        (`schedule="steal"`, `sample_seeds=True`), the rest is the same to the bit, for any number of workers, also for
        none.  Otherwise only the indices are, and workers get new seeds from the epoch's seed and the place.  After the
        end of an epoch, the next one starts.  Load into a loader with the same dataset and the same kind of sampler.

        Args:
            state_dict: The result of `state_dict`.  It is not changed.

        Raises:
            ValueError: It is from a loader with another kind of sampler, or from another number of ranks without
                `shmloader.DistributedSampler`, or from another rank; or it is damaged.
            RuntimeError: As in `state_dict`.
        """
        if self._others("load_state_dict"):
            super().load_state_dict(state_dict)  # type: ignore[misc]
        else:
            place_of(self).load(state_dict)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch that the next `iter()` begins, and call `set_epoch` of the sampler and dataset.

        A worker's copy of the dataset gets it before the first sample of that epoch is made, and never while batches of
        another one are made, also if workers persist.  The same happens if you call the dataset's own `set_epoch`.
        torch's Subset, ConcatDataset and other wrappers have none, so it is called on the datasets inside them.

        Without it, epochs are counted from 0.  After loading a state, call it with the state's epoch, or not at all.
        With another number, that epoch starts at its beginning, with a RuntimeWarning.
        """
        place_of(self).set_epoch(epoch)

    def _others(self, name: str) -> bool:
        """Whether the class from which this one takes its iterators has this method too, so that it must be called.

        Raises:
            RuntimeError: It has not, and nothing counts the loader's batches.
        """
        why = off_the_ring.why_not_here() or off_the_ring.why_not_of(type(self))
        if why is not None and hasattr(super(), name):
            return True
        if why is None and self.num_workers:
            why = read_elsewhere.why_not(self)
        if why is not None:
            raise RuntimeError(
                f"{name}() needs a loader that rides shmloader's ring, or one without workers. Otherwise nothing "
                f"counts the batches that you receive. This loader does not ride it: {why}"
            )
        return False
