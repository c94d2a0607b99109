"""Memory that several processes see."""

from __future__ import annotations

import gc
import os
import socket
import stat
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

from gymbridge.engine.block import Block
from gymbridge.engine.layout import ALIGNMENT, Layout, Leaf
from gymbridge.engine.shared_memory import MemoryKind, SharedBytes
from gymbridge.engine.workers import WorkerSide, start_worker
from gymbridge.engine.workers.channel import Channel
from gymbridge.engine.workers.starter import has_starter

cloudpickle.register_pickle_by_value(sys.modules[__name__])

KINDS: list[MemoryKind] = ["anonymous", "file", "named"]

LAYOUT = Layout(3, input=[], next=[Leaf(("reward",), (2,), np.dtype("f8"))], root=[])


@pytest.mark.skipif(not has_starter(), reason="counts on Linux")
@pytest.mark.parametrize("kind", KINDS)
def test_a_block_in_two_processes_is_one_memory(kind: MemoryKind) -> None:
    def job(side: WorkerSide) -> None:
        memory = SharedBytes.receive(side.connection, LAYOUT.nbytes)
        block = Block(LAYOUT, memory.array)
        memory.close()
        side.wake.wait()
        block.next["reward",][1] = 2 * block.next["reward",][0]
        side.wake.wake()

    memory = SharedBytes.allocate(LAYOUT.nbytes, kind)
    block = Block(LAYOUT, memory.array)
    worker = start_worker(job)
    memory.send(worker.connection)
    memory.close()
    assert not block.next["reward",].any()
    block.next["reward",][0] = [3, 4]
    worker.wake.wake()
    worker.wake.wait()
    assert block.next["reward",].tolist() == [[3, 4], [6, 8], [0, 0]]
    assert worker.exit_status(60) == 0
    worker.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nbytes", [0, 1, 64, 100_000])
def test_memory_is_zero_aligned_and_of_its_size(kind: MemoryKind, nbytes: int) -> None:
    memory = SharedBytes.allocate(nbytes, kind)
    assert memory.array.dtype == np.uint8
    assert memory.array.shape == (nbytes,)
    assert memory.array.ctypes.data % ALIGNMENT == 0
    assert not memory.array.any()
    memory.array[:] = 1
    memory.close()
    memory.close()


def open_descriptors_and_names() -> tuple[int, list[str]]:
    gc.collect()
    return len(os.listdir("/proc/self/fd")), sorted(name for name in os.listdir("/dev/shm") if str(os.getpid()) in name)


@pytest.mark.skipif(sys.platform != "linux", reason="counts as Linux does")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("closed", [True, False])
def test_nothing_is_left_behind(
    kind: MemoryKind, closed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    SharedBytes.allocate(1, kind).close()  # `multiprocessing` starts a process of its own for names
    before = open_descriptors_and_names()
    for _ in range(20):
        memory = SharedBytes.allocate(10, kind)
        assert list(tmp_path.iterdir()) == []
        if closed:
            memory.close()
        del memory
    assert open_descriptors_and_names() == before


def test_arrays_outlive_what_hands_the_memory_over() -> None:
    memory = SharedBytes.allocate(10)
    array = memory.array
    memory.close()
    del memory
    gc.collect()
    array[:] = 7
    assert array.sum() == 70


def test_a_file_is_its_owners_alone_and_stays_where_it_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "block"
    mask = os.umask(0)
    try:
        memory = SharedBytes.allocate(10, "file", path)
        unnamed = SharedBytes.allocate(10, "file")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(os.fstat(unnamed.descriptor).st_mode) == 0o600
    assert os.fstat(unnamed.descriptor).st_nlink == 0
    memory.array[:] = 3
    memory.close()
    unnamed.close()
    assert path.read_bytes() == b"\3" * 10


def test_no_file_and_no_link_that_is_there_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("file", "link"):
        with pytest.raises(FileExistsError):
            SharedBytes.allocate(10, "file", tmp_path / name)
    assert (tmp_path / "file").read_bytes() == b"precious"
    assert not (tmp_path / "target").exists()


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="kind: got 'disk', expected None or one of anonymous, file, named"):
        SharedBytes.allocate(10, "disk")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="for memory of kind 'anonymous', which has none"):
        SharedBytes.allocate(10, path=tmp_path / "block")
    with pytest.raises(OSError, match=r"."):
        SharedBytes.allocate(1 << 62, "file", tmp_path / "block")
    assert list(tmp_path.iterdir()) == []


def test_smaller_memory_than_expected_is_refused() -> None:
    ours, theirs = (Channel(end.detach()) for end in socket.socketpair())
    memory = SharedBytes.allocate(10)
    memory.send(ours)
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    with pytest.raises(ValueError, match="got memory of 10 bytes, expected 11 or more"):
        SharedBytes.receive(theirs, 11)
    assert sys.platform != "linux" or len(os.listdir("/proc/self/fd")) == before
    for each in (ours, theirs, memory):
        each.close()


def test_without_memfd_memory_has_a_name_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    memory = SharedBytes.allocate(10)
    assert os.fstat(memory.descriptor).st_nlink == 0
    memory.close()


def test_a_block_refuses_memory_that_does_not_fit() -> None:
    aligned = SharedBytes.allocate(2 * LAYOUT.nbytes).array
    read_only = aligned.copy() if not (aligned.ctypes.data % 64) else aligned
    read_only = np.frombuffer(aligned, np.uint8)
    read_only.flags.writeable = False
    for memory in (
        aligned[: LAYOUT.nbytes - 1],
        aligned[1 : LAYOUT.nbytes + 1],
        aligned.view(np.int8),
        aligned[::2],
        aligned.reshape(2, -1),
        read_only,
    ):
        with pytest.raises(ValueError, match=rf"expected uint8 of {LAYOUT.nbytes} bytes or more"):
            Block(LAYOUT, memory)
    Block(LAYOUT, aligned).next["reward",][...] = 1
    assert aligned.any()
