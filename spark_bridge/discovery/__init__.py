"""Modules that Spark finds by their names: the formats are there without `register_formats`.

Before its first look for a format, Spark imports each top-level module whose name begins with `pyspark_`, in a Python
process of its own, and takes the data source that is called DefaultSource there. An installation puts the modules of
this folder at the top level (`pyproject.toml`). They are imported in every session of everybody who has Broadsheet
installed, also in those that use no format of ours, so they lead to nothing slow.

Source: pyspark/sql/worker/lookup_data_sources.py, in Spark from 4.0 on, which is the first version with data sources in
Python.
"""
