"""The engine: envs run round by round over one block of memory. It knows numpy and gymnasium, but no torch.

One round, as :meth:`LocalEngine.run <gymbridge.engine.local.LocalEngine.run>` does it::

    caller                       block, one allocation                 host
      |                                                                  |
      |-- ops, actions ----------------------------------------------->  |  for each row, in order:
      |                          next   [N, ...]  <- obs, reward, flags, |    STEP               env.step
      |                                              infos of numbers ---|
      |                          root   [N, ...]  <- first obs ----------|    RESET              env.reset
      |                          state  [N] uint8 <- running, ended, ... |    STEP_MAYBE_RESET   both, if it ended
      |                          source [N] uint8 <- latest obs is where |    IDLE               nothing
      |<- report: infos that are not of numbers alone, errors ---------- |
      |
      |-- copies what the caller is to have out of next and root, once

The same round in a :class:`~gymbridge.engine.parallel.ParallelEngine`, whose workers each have a run of rows::

    caller                        memory that all share                    worker w, of the rows a to b-1
      |                                                                       |
      |-- actions ------------->  input  [N, ...]                             |
      |-- ops ----------------->  op     [N] uint8                            |
      |-- lists, objects, reset kwargs, if any ->  mailbox w                  |
      |                                                                       |
      |== a byte on a pipe, to each worker that has an op but IDLE =========> | wakes
      |                           input, op  [a:b] ----------------------->   | its host runs the rows, as above
      |                           next, root, state, source  [a:b]  <-------  |
      |                           mailbox w  <-- other infos, errors, objects, if any
      | <======================================= a byte on a pipe =========== | waits for the next byte
      |
      |-- reads the mailboxes that have mail, and what the block has, as above

In a :class:`~gymbridge.engine.pool.PoolEngine` each worker has one row, and each row its own rounds::

    submit([2, 0], ops)   input, op [2], [0]  ==> a byte to worker 2, a byte to worker 0
    submit([1], ops)      input, op [1]       ==> a byte to worker 1
    wait(2)               one poll over the pipes of all that are under way, until two have answered: [0, 1], say
    take([0, 1], rows)    next, root, state, source [0], [1]  --> the first rows of another block; their mailboxes

A row is claimed by ``submit`` and let go by ``take``, so that threads may have rows of their own
(:class:`~gymbridge.engine.pool_rows.PoolRows`). Rounds of all rows are refused while one is claimed.

An :class:`~gymbridge.engine.asyncio_pool.AsyncioPoolEngine` has the same calls, and one host for all rows, which asks
no env itself: it makes a call for each row, and reads what that gave once it has come (picture:
:mod:`~gymbridge.engine.loop_crew`)::

    submit    host.calls(rows, ...)   --> the loop's thread: await env.step(action), a task each
    wait      arrivals                <-- each call tells that it has been made
    take      host.finish(calls)      writes next, root, state into the block, and copies as above

- Who waits, waits for a byte; the caller, and where cores are free the worker, looks for it in shared memory first, for
  a moment. End-of-file on a pipe, or a pidfd, tells of the other side's death, so nobody polls.
- A byte says what is asked or done (:mod:`~gymbridge.engine.protocol`); a mailbox holds one message and is written
  before the byte that tells of it. It is a file, so nobody waits for a reader and no interrupt leaves half a message.
- Beside rounds a byte may ask for verbs of the host (attributes, calls, states, seeds), with the mailbox both ways. One
  round or call is under way at a time, in a pool one of each row; each worker concerned answers it once.
- A caller that gave up (Ctrl-C, a time-out) does not know which bytes are under way. Before the next call it sends each
  worker a byte that comes back behind all others: ``settle``.
- Several workers may be threads of one process. Each has pipes and a mailbox of its own, so that the caller sees no
  difference until the process ends, and with it all of them (:mod:`~gymbridge.engine.env_threads`).
- A worker is dead when its pipe or pidfd says so. Its rows fail, the others' are kept,
  and what touches its envs later is refused with the same error.
- At the start each worker makes its envs and describes them; the front looks whether they fit together; ``allocate``
  then makes the memory and hands its descriptor over, and each worker makes its host over its own rows, which knows of
  no others.

- :mod:`~gymbridge.engine.codes`: the op codes, row states and sources, one byte a row.
- :mod:`~gymbridge.engine.layout` and :mod:`~gymbridge.engine.block`: where each leaf lies, and the memory.
- :mod:`~gymbridge.engine.host`: what an engine asks of the thing that runs envs; :mod:`~gymbridge.engine.gym_host` runs
  gymnasium envs, checking what they return with :mod:`~gymbridge.engine.conform` and writing it with
  :mod:`~gymbridge.engine.rows`; :mod:`~gymbridge.engine.contract` looks for all that is wrong with an env at once.
- :mod:`~gymbridge.engine.info_records` has the infos of numbers alone in the block, as records of a form that
  :mod:`~gymbridge.engine.info_forms` finds in them.
- :mod:`~gymbridge.engine.workers`: worker processes, whatever they run;
  :mod:`~gymbridge.engine.shared_memory`: memory that processes share.
- :mod:`~gymbridge.engine.local`: the engine whose host is in this process.
- :mod:`~gymbridge.engine.parallel`: the engine whose hosts are in workers; :mod:`~gymbridge.engine.supervision` starts,
  awaits and ends them, :mod:`~gymbridge.engine.worker_loop` is what they run, :mod:`~gymbridge.engine.protocol` is what
  both know, :mod:`~gymbridge.engine.worker_kinds` has them in a process each or several in one;
  :mod:`~gymbridge.engine.mailbox`, :mod:`~gymbridge.engine.remote_errors` and
  :mod:`~gymbridge.engine.gym_inputs`: messages, exceptions and actions on their way.
- :mod:`~gymbridge.engine.pool`: the engine whose envs have a worker each, and are given work and heard in any order;
  :mod:`~gymbridge.engine.pool_rows` and :mod:`~gymbridge.engine.claims`: which rows of it are busy, and whose.
- :mod:`~gymbridge.engine.call_pool`: the same for envs of this process, which a crew calls one by one
  (:mod:`~gymbridge.engine.env_calls`) and one host knows: :mod:`~gymbridge.engine.thread_pool` in threads,
  :mod:`~gymbridge.engine.asyncio_pool` on an event loop.
- :mod:`~gymbridge.engine.reader`: how a front reads the block.
- :mod:`~gymbridge.engine.calls`: refuses a call while another of the same front is under way.
- :mod:`~gymbridge.engine.failures`: from the errors of a round to the exception that the caller sees.
"""

from __future__ import annotations
