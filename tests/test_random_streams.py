import io

import torch

from ddn_lightning.random_streams import RandomStreams


def draw(streams: RandomStreams, name: str) -> list[float]:
    return torch.rand(4, generator=streams[name]).tolist()


def test_streams_are_independent_of_each_other() -> None:
    alone, together = RandomStreams(3), RandomStreams(3)
    draw(together, "other")
    assert draw(alone, "augment") == draw(together, "augment")
    assert draw(RandomStreams(3), "other") != draw(RandomStreams(3), "augment")
    assert draw(RandomStreams(3), "augment") != draw(RandomStreams(4), "augment")


def test_restored_streams_continue() -> None:
    streams = RandomStreams(3)
    draw(streams, "used")
    file = io.BytesIO()
    torch.save(streams.state_dict(), file)
    file.seek(0)

    resumed = RandomStreams(99)
    draw(resumed, "used")
    draw(resumed, "fresh")
    resumed.load_state_dict(torch.load(file, weights_only=True))

    assert draw(resumed, "used") == draw(streams, "used")
    assert draw(resumed, "fresh") == draw(streams, "fresh")
