"""The workers of an elastic run since Horovod was last started. Pure: no clock, no network."""

from __future__ import annotations

from dataclasses import dataclass, field

from hvdcloud.node.run.outcome import Worker


@dataclass
class Workers:
    """Every worker, by its node and process id."""

    processes: dict[tuple[str, int], Worker] = field(default_factory=dict)

    def living(self) -> list[Worker]:
        """The workers that run, as far as is known."""
        return [worker for worker in self.processes.values() if worker.lives]

    def nodes(self) -> set[str]:
        """The nodes where workers run."""
        return {worker.node for worker in self.living()}

    def nodes_served(self) -> set[str]:
        """The nodes where workers run or have done their work, so that Horovod has none to start there."""
        return {worker.node for worker in self.processes.values() if worker.lives or worker.completed}

    def any_succeeded(self) -> bool:
        """Whether a worker has ended with 0."""
        return any(worker.succeeded for worker in self.processes.values())

    def any_completed(self) -> bool:
        """Whether a worker has done its work: one that was told to end may end with 0 too."""
        return any(worker.completed for worker in self.processes.values())

    def forget(self, node: str) -> None:
        """Note that a node is lost, and its workers with it."""
        for worker in self.living():
            if worker.node == node:
                worker.lost = True

    def got_over(self) -> None:
        """Note that those that run have continued without those that have ended."""
        for worker in self.processes.values():
            worker.got_over = worker.got_over or not worker.lives
