"""What stores have in common that are one container, and do not know who lives: observers watch counters there."""

from __future__ import annotations

from consumer.leasing.azure_blob.container import BlobContainer


class ObservedContainer:
    """The part of `consumer.leasing.store.RecordStore` that is about the store as a whole."""

    def __init__(self, container: BlobContainer) -> None:
        """Be the container."""
        self._container = container

    @property
    def tells_who_lives(self) -> bool:
        """A blob does not know whether its owner lives."""
        return False

    async def exists(self) -> bool:
        """Return whether the container is there."""
        return await self._container.exists()

    async def create_store(self) -> bool:
        """Create the container. False if it is there."""
        return await self._container.create()

    async def delete_store(self) -> None:
        """Delete the container. Azure takes about half a minute, during which it cannot be created again."""
        await self._container.delete()

    async def join(self, worker: str) -> None:
        """Do nothing: a worker is alive while its counters move."""
