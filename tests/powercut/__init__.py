"""Power cuts: what a process had written is recorded, and the disk is rebuilt as it might be found at any instant.

    recorder        runs a process and takes down its writes, syncs and changes of directories
    trace           what was taken down
    disk            which disks a power cut may leave, and one of them as a directory
    programs        what is run: stores, a broker, the staging of a recovery log
    checks          what must hold on each disk
    run             all of it, from one seed, within a budget

`make powercut` runs it for long, `test_power_cuts.py` with a small budget.
"""
