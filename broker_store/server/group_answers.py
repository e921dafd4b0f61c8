"""Answers to all requests of a group, written together."""

from __future__ import annotations

from broker_store.server.channel import Channel


class GroupAnswers:
    """Collects frames, and writes those of a connection in one piece."""

    def __init__(self) -> None:
        self._frames: dict[Channel, list[bytes]] = {}

    def add(self, channel: Channel, frame: bytes) -> None:
        frames = self._frames.get(channel)
        if frames is None:
            self._frames[channel] = [frame]
        else:
            frames.append(frame)

    def write(self) -> int:
        """Write all frames that were added, and return their number."""
        answers, self._frames = self._frames, {}
        number = 0
        for channel, frames in answers.items():
            number += len(frames)
            channel.write_bytes(frames[0] if len(frames) == 1 else b"".join(frames))
        return number
