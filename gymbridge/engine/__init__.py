"""The engine: envs run round by round over one block of memory. It knows numpy and gymnasium, but no torch.

One round, as :meth:`LocalEngine.run <gymbridge.engine.local.LocalEngine.run>` does it::

    caller                       block, one allocation                 host
      |                                                                  |
      |-- ops, actions ----------------------------------------------->  |  for each row, in order:
      |                          next   [N, ...]  <- obs, reward, flags -|    STEP               env.step
      |                          root   [N, ...]  <- first obs ----------|    RESET              env.reset
      |                          state  [N] uint8 <- running, ended, ... |    STEP_MAYBE_RESET   both, if it ended
      |                          source [N] uint8 <- latest obs is where |    IDLE               nothing
      |<- report: infos, errors ---------------------------------------- |
      |
      |-- copies what the caller is to have out of next and root, once

- :mod:`~gymbridge.engine.codes`: the op codes, row states and sources, one byte a row.
- :mod:`~gymbridge.engine.layout` and :mod:`~gymbridge.engine.block`: where each leaf lies, and the memory.
- :mod:`~gymbridge.engine.host`: what an engine asks of the thing that runs envs; :mod:`~gymbridge.engine.gym_host` runs
  gymnasium envs, checking what they return with :mod:`~gymbridge.engine.conform` and writing it with
  :mod:`~gymbridge.engine.rows`; :mod:`~gymbridge.engine.contract` looks for all that is wrong with an env at once.
- :mod:`~gymbridge.engine.workers`: worker processes, whatever they run; :mod:`~gymbridge.engine.shared_memory`: memory
  that they share.
- :mod:`~gymbridge.engine.local`: the engine whose host is in this process.
- :mod:`~gymbridge.engine.reader`: how a front reads the block.
- :mod:`~gymbridge.engine.calls`: refuses a call while another of the same front is under way.
- :mod:`~gymbridge.engine.failures`: from the errors of a round to the exception that the caller sees.
"""

from __future__ import annotations
