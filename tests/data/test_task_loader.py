from unittest import mock

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddn_lightning import Samples, TaskLoader


def numbered(size: int) -> Samples:
    return Samples(torch.zeros(size, 1, 2, 2, dtype=torch.uint8), torch.arange(size))


def served(loader: TaskLoader) -> list[int]:
    return [label for batch in loader for label in batch.labels.tolist()]


def test_batches_come_in_order_with_their_global_size() -> None:
    batches = list(TaskLoader(numbered(7), 3, order=torch.tensor([6, 5, 4, 3, 2, 1, 0])))
    assert [batch.labels.tolist() for batch in batches] == [[6, 5, 4], [3, 2, 1], [0]]
    assert [batch.total for batch in batches] == [3, 3, 1]


def test_every_rank_knows_the_tasks_of_the_whole_batch() -> None:
    samples = Samples(torch.zeros(4, 1, 2, 2), torch.arange(4), tasks=torch.tensor([0, 0, 1, 2]))
    for rank in (0, 1):  # the second has nothing of the last batch
        with (
            mock.patch("ddn_lightning.distributed.rank_and_world_size", return_value=(rank, 2)),
            mock.patch("ddn_lightning.data.task_loader.rank_and_world_size", return_value=(rank, 2)),
        ):
            tasks = [batch.global_tasks for batch in TaskLoader(samples, 3)]
        assert [whole.tolist() for whole in tasks if whole is not None] == [[0, 0, 1], [2]]


def test_drop_last_leaves_out_the_short_batch_only() -> None:
    assert len(TaskLoader(numbered(7), 3, drop_last=True)) == len(list(TaskLoader(numbered(7), 3, drop_last=True))) == 2
    assert len(TaskLoader(numbered(6), 3, drop_last=True)) == 2
    assert len(TaskLoader(numbered(7), 3)) == 3


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 4), st.data())
def test_an_epoch_resumed_anywhere_on_any_number_of_ranks_yields_each_sample_once(
    size: int, batch_size: int, world_size: int, data: st.DataObject
) -> None:
    order = torch.randperm(size, generator=torch.Generator().manual_seed(size))
    stop = data.draw(st.integers(0, -(-size // batch_size)))
    shown: list[int] = []
    for rank in range(world_size):
        with mock.patch("ddn_lightning.distributed.rank_and_world_size", return_value=(rank, world_size)):
            first = TaskLoader(numbered(size), batch_size, order=order)
            iterator = iter(first)
            for _ in range(stop):
                shown += next(iterator).labels.tolist()
            resumed = TaskLoader(numbered(size), batch_size, order=order)
            resumed.load_state_dict(first.state_dict())
            iter(resumed)  # Lightning makes one iterator more than it uses
            shown += served(resumed)
    assert sorted(shown) == list(range(size))


def test_the_epoch_after_a_resumed_one_is_complete() -> None:
    loader = TaskLoader(numbered(6), 2)
    loader.load_state_dict({"position": 2})
    assert served(loader) == [4, 5]
    assert served(loader) == [0, 1, 2, 3, 4, 5]
