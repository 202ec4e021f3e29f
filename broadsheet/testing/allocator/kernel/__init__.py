"""The kernel of simulators: virtual time, one seed for everything, an etcd in memory, faults, and the report.

A simulator brings a world of its own (a `Simulation`): its cluster and members, its faults, invariants and scenario.

    kernel                                                     a simulator
    ------                                                     -----------
    command      seeds, processes, `--trace`, replay           __main__, its `Family` of runs
    run          time of faults, time of quiet, the report     run: `Simulation`, and its invariants
    faults       draws, injects and ends them                  faults: its kinds of faults
    cluster      members start, are killed, are resumed        cluster, member: what a process does
    network      links that delay, lose and cut                links to its other services
    etcd, store  etcd in memory
    virtual_loop the event loop, processes, clocks
"""
