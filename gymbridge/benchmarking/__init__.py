"""How batches of envs are timed, whoever has made them: for ``gymbridge bench`` and the programs in ``benchmarks/``.

- :mod:`~gymbridge.benchmarking.rounds`: several candidates, timed in turn.
- :mod:`~gymbridge.benchmarking.drivers`: how a batch is stepped while it is timed.
- :mod:`~gymbridge.benchmarking.machine`: what figures depend on.
- :mod:`~gymbridge.benchmarking.plots`: figures over the number of envs; needs matplotlib.
"""
