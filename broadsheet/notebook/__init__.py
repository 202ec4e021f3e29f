"""Notebooks: answers and clusters as tables of HTML. `%load_ext broadsheet.notebook`."""

from broadsheet.notebook.extension import load_ipython_extension as load_ipython_extension

__all__ = ["load_ipython_extension"]
