"""Nothing is read, unpickled or mapped that another user, or a process that the engine did not start, could have made.

What is unpickled comes over unnamed sockets, pipes and files that only the processes have open that an engine started:
there is no path by which another process could reach them.
"""

from __future__ import annotations

import ast
import errno
import mmap
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from waiting_envs import acting
from worker_processes import descendants, names_of_memory, run_script

import gymbridge
from gymbridge.engine.mailbox import Mailbox
from gymbridge.engine.shared_memory import MemoryKind, SharedBytes
from gymbridge.vector import AsyncVectorEnv

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at descriptors as Linux has them")

KINDS: list[MemoryKind] = ["anonymous", "file", "named"]

READERS = {
    "gymbridge/batched.py": "a policy of the pickle that is being unpickled",
    "gymbridge/engine/env_threads.py": "jobs within the payload of a worker",
    "gymbridge/engine/mailbox.py": "an unnamed file that a process and its worker share",
    "gymbridge/engine/makers.py": "a maker of the pickle that is being unpickled",
    "gymbridge/engine/remote_errors.py": "an error within a message of a mailbox",
    "gymbridge/engine/workers/pickling.py": "what the modules here that call its ``loads`` give it",
    "gymbridge/engine/workers/channel.py": "what this process has just pickled",
    "gymbridge/engine/workers/registrations.py": "ids within the payload of a worker",
    "gymbridge/engine/workers/starter.py": "an unnamed file that the starter has sent over the pair of sockets",
    "gymbridge/engine/workers/surroundings.py": "the payload of a worker",
    "gymbridge/engine/workers/warning_filters.py": "filters within the payload of a worker",
    "gymbridge/engine/workers/worker_main.py": "the payload of a worker, an unnamed file",
    "gymbridge/envs/creator.py": "metadata of the pickle that is being unpickled",
    "gymbridge/envs/metadata.py": "metadata of the pickle that is being unpickled",
    "gymbridge/envs/parcels.py": "a parcel within a message of a mailbox",
    "gymbridge/interop/torchrl_env.py": "a maker of the pickle that is being unpickled",
    "gymbridge/interop/ray_actor.py": "what its caller has sent over Ray, whose clients may run whatever they like",
}
"""Every module that unpickles, and where that comes from."""


def unpickles(tree: ast.AST) -> bool:
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if any(isinstance(each, ast.Name) and each.id == "loads" for each in calls):  # that of gymbridge itself
        return True
    named = {(ast.unparse(each.value), each.attr) for each in calls if isinstance(each, ast.Attribute)}
    modules = {"pickle", "cloudpickle", "torch", "joblib", "dill", "marshal", "shelve", "np", "numpy"}
    names = {"loads", "load", "Unpickler", "open"}
    return any(module in modules and name in names for module, name in named)


def test_every_place_that_unpickles_is_known() -> None:
    """Whoever adds one says here where it reads from."""
    root = Path(gymbridge.__file__).parent
    found = {
        str(path.relative_to(root.parent)) for path in root.rglob("*.py") if unpickles(ast.parse(path.read_text()))
    }
    assert found == {*READERS}


def paths_of_sockets() -> dict[str, str]:
    """Inode -> the path or abstract name of each UNIX socket that has one."""
    fields = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {own[6]: own[7] for own in fields if len(own) > 7}


def inodes_of_the_network() -> set[str]:
    """The sockets that can be reached from elsewhere."""
    tables = [Path("/proc/net") / name for name in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6")]
    return {line.split()[9] for table in tables if table.exists() for line in table.read_text().splitlines()[1:]}


def descriptors_of(pid: int) -> dict[str, str]:
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            found[name] = os.readlink(f"/proc/{pid}/fd/{name}")
    return found


@pytest.mark.parametrize("options", [{}, {"shared_memory": False}, {"context": "spawn"}, {"context": "forkserver"}])
def test_no_path_and_no_port_leads_to_what_processes_tell_each_other(options: dict[str, Any]) -> None:
    """Neither a socket with a name, nor a file that another could open: not in this process, nor in its workers."""
    own = descriptors_of(os.getpid())
    before = {os.getpid(), *descendants()}
    envs = AsyncVectorEnv(acting(2), num_workers=2, **options)
    try:
        envs.reset()
        workers = set(envs.call("pid"))
        assert len(workers) == 2
        named, reachable, seen = paths_of_sockets(), inodes_of_the_network(), 0
        new = {name: target for name, target in descriptors_of(os.getpid()).items() if own.get(name) != target}
        for target in [*new.values(), *(each for pid in workers for each in descriptors_of(pid).values())]:
            if target in own.values():  # inherited: what this process prints to, say
                continue
            kind, _, inode = target.partition(":")
            inode = inode.strip("[]")
            seen += kind == "socket" or "gymbridge" in target
            if kind == "socket":
                assert inode not in reachable
                # `multiprocessing`'s own fork server has a socket, in a folder that is its user's alone
                assert options.get("context") == "forkserver" or inode not in named
            elif target.startswith("/") and not target.startswith(("/dev/null", "/proc/")):
                assert target.endswith(" (deleted)"), target
        assert seen
        assert descendants() - before  # it has started some
    finally:
        envs.close()


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_its_users_alone(kind: MemoryKind) -> None:
    mask = os.umask(0)
    try:
        memory, mailbox = SharedBytes.allocate(10, kind), Mailbox.create()
    finally:
        os.umask(mask)
    for descriptor in (memory.descriptor, mailbox.descriptor):
        assert stat.S_IMODE(os.fstat(descriptor).st_mode) == 0o600
        assert not os.get_inheritable(descriptor)
    memory.close()
    mailbox.close()


@pytest.mark.parametrize("target", ["missing", "there"])
def test_a_link_or_file_that_somebody_has_put_there_is_not_followed(target: str, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"precious")
    (tmp_path / "block").symlink_to(tmp_path / target)
    with pytest.raises(FileExistsError):
        SharedBytes.allocate(10, "file", tmp_path / "block")
    assert (tmp_path / "there").read_bytes() == b"precious"
    assert not (tmp_path / "missing").exists()


def test_a_temporary_name_that_is_taken_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever guesses the next names, and puts links there, gets nothing."""
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "gymbridge-first").symlink_to(tmp_path / "victim")
    names = iter(["first", "second"])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("tempfile._get_candidate_names", lambda: names)
    memory = SharedBytes.allocate(10, "file")
    memory.array[:] = 1
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert next(names, None) is None  # both were tried
    memory.close()


# ---------------------------------------------------------------- room that is missing


@pytest.mark.parametrize("kind", ["file", "named"])
def test_room_that_could_be_missing_later_is_taken_at_once(kind: MemoryKind) -> None:
    """Else who writes to the mapping is killed by SIGBUS once the disk or ``/dev/shm`` is full."""
    memory = SharedBytes.allocate(1 << 20, kind)
    assert os.fstat(memory.descriptor).st_blocks * 512 >= 1 << 20
    memory.close()


def test_anonymous_memory_is_taken_at_once_where_the_kernel_keeps_its_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    def blocks() -> int:
        memory = SharedBytes.allocate(1 << 20, "anonymous")
        try:
            return os.fstat(memory.descriptor).st_blocks * 512
        finally:
            memory.close()

    monkeypatch.setattr("gymbridge.engine.shared_memory._promises_are_kept", lambda: False)
    assert blocks() < 1 << 20
    monkeypatch.setattr("gymbridge.engine.shared_memory._promises_are_kept", lambda: True)
    assert blocks() >= 1 << 20


@pytest.mark.parametrize("kind", ["file", "named"])
def test_a_full_disk_is_an_error_that_says_how_much_was_wanted(
    kind: MemoryKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SharedBytes.allocate(1, kind).close()  # `multiprocessing` starts a process of its own for names
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before, names = descriptors_of(os.getpid()), names_of_memory(patience=0)

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"123456 bytes of .* cannot be had: No space left on device") as raised:
        SharedBytes.allocate(123456, kind)
    assert raised.value.errno == errno.ENOSPC
    assert descriptors_of(os.getpid()) == before
    assert names_of_memory(names) <= names
    assert not list(tmp_path.iterdir())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)], capture_output=True)
    if made.returncode:
        pytest.skip("needs the right to mount a file system")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def fill(path: Path) -> None:
    """Writes until an error says that there is no more room."""
    with path.open("wb", buffering=0) as file:
        while file.write(bytes(mmap.PAGESIZE)):
            pass


def test_a_disk_that_is_full_in_truth(small_disk: Path) -> None:
    with pytest.raises(OSError, match="bytes of a memory-mapped file cannot be had") as raised:
        SharedBytes.allocate(1 << 21, "file", small_disk / "block")
    assert raised.value.errno == errno.ENOSPC
    assert not list(small_disk.iterdir())
    memory = SharedBytes.allocate(1 << 19, "file", small_disk / "block")
    with pytest.raises(OSError, match="No space left"):
        fill(small_disk / "other")
    memory.array[:] = 1  # the room was taken
    memory.close()


FILE_SIZE = """
import resource
import gymnasium as gym
import numpy as np
from gymbridge.vector import AsyncVectorEnv

class Large(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (1 << 16,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1 << 16, np.float32), {{}}

soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, hard))
for _ in range(2):
    try:
        AsyncVectorEnv([Large] * 16, shared_memory={shared})
    except OSError as error:
        assert "cannot be had: File too large" in str(error), error
        print("refused")
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
envs = AsyncVectorEnv([Large] * 16, shared_memory={shared})
print(envs.reset()[0].shape)
envs.close()
"""


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY, reason="sets the limit")
@pytest.mark.parametrize("shared", [True, False])
def test_a_block_for_which_there_is_no_room_leaves_no_worker_and_can_be_tried_again(
    shared: bool, tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    script = FILE_SIZE.format(limit=1 << 22, shared=shared)
    assert run_script(tmp_path, script, subprocess_env).splitlines() == ["refused", "refused", "(16, 65536)"]


def test_a_message_that_is_cut_short_is_an_error(tmp_path: Path) -> None:
    """Not a wait for what never comes."""
    mailbox = Mailbox.create()
    mailbox.put(bytes(100_000))
    os.ftruncate(mailbox.descriptor, 50_000)
    with pytest.raises(EOFError, match="a message of 100008 bytes ends after 50000"):
        mailbox.take()
    mailbox.close()
