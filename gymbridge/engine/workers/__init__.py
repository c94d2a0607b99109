"""Worker processes: how they are started, connected and ended, whatever they run.

::

    this process                                starter, one a process           workers
      |                                           |
      |--- exec, once: control socket, pidfd ---> | imports numpy, gymnasium
      | <-- gymnasium ids it knows -------------- | and our worker modules
      |                                           |
      |--- request: descriptors only -----------> | fork --------------------->  | reads its payload: surroundings, job
      | <-- pid, pidfd -------------------------- |                              |
      |                                           |                              |
      | <================ connection: pickled messages, descriptors ===========> | job(worker_side)
      | <================ wake-ups: a byte on a pipe each way =================> |
      | <======================= its standard error: a pipe ==================== |
      |                                           |                              |
      | <-- exit code --------------------------- | <-- reaps ------------------ | ends

The starter runs nothing of the user's and has one thread, so that a fork of it is quick, small and safe. It ends with
this process, on whose pidfd it waits, and the kernel ends each worker with the starter. A worker stays in the group and
session of this process: Ctrl-Z stops all and a scheduler's signals to the group reach all, but SIGINT is ignored, since
what Ctrl-C means is for this process to say.

Where there is no starter (``"exec"``, ``multiprocessing``) a worker is a child of this process, and a socket pair whose
end it holds tells the kernel to end it: a death signal of the parent would come when the *thread* that started it ends.

- :mod:`~gymbridge.engine.workers.start`: ``start_worker``, which chooses the way.
- :mod:`~gymbridge.engine.workers.process`: a worker seen from here; :mod:`~gymbridge.engine.workers.worker_main`: what
  runs in it; :mod:`~gymbridge.engine.workers.share`: several workers that are one process.
- :mod:`~gymbridge.engine.workers.starter` and :mod:`~gymbridge.engine.workers.starter_main`: the two sides of the
  starter; :mod:`~gymbridge.engine.workers.interpreter`: a new interpreter that does not run the user's script.
- :mod:`~gymbridge.engine.workers.surroundings`: what a worker takes over from this process, with
  :mod:`~gymbridge.engine.workers.registrations` and :mod:`~gymbridge.engine.workers.warning_filters`;
  :mod:`~gymbridge.engine.workers.pickling`: what stands in the way of that.
- :mod:`~gymbridge.engine.workers.channel` and :mod:`~gymbridge.engine.workers.wake`: messages and wake-ups;
  :mod:`~gymbridge.engine.workers.standard_error`: what workers write to standard error.
- :mod:`~gymbridge.engine.workers.parent_death` and :mod:`~gymbridge.engine.workers.descriptors`: what the kernel does.
"""

from __future__ import annotations

from gymbridge.engine.workers.process import WorkerProcess
from gymbridge.engine.workers.share import WorkerShare, shares_of
from gymbridge.engine.workers.start import StartMethod, default_method, start_worker
from gymbridge.engine.workers.surroundings import Surroundings
from gymbridge.engine.workers.wake import ReadyEnds, WakeEnd, WakeGroup
from gymbridge.engine.workers.worker_main import Job, WorkerSide

__all__ = [
    "Job",
    "ReadyEnds",
    "StartMethod",
    "Surroundings",
    "WakeEnd",
    "WakeGroup",
    "WorkerProcess",
    "WorkerShare",
    "WorkerSide",
    "default_method",
    "shares_of",
    "start_worker",
]
