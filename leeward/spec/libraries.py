"""
Libraries that start threads when they are imported, and how that is prevented.

A zygote must have one thread, since a clone lacks the others but may wait for them. So its environment has variables by
which libraries start no threads. Jobs have these variables, too, with the number of processors that they may use:
`nproc` goes by the first one. A thread that no variable prevents, and that only waits for work until the first call
needs it, is ended after the import (crossing/left_threads.py).
"""

from __future__ import annotations

from leeward.base.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Library:
    name: str
    variables: tuple[tuple[str, str], ...] = ()  # by which it starts no threads when it is imported
    idle: tuple[str, ...] = ()  # threads, by the kernel's 15 bytes, that wait for work, hold nothing and may end
    why: str = ""  # what the threads are, and what is lost without them


LIBRARIES = (
    Library("OpenMP", (("OMP_NUM_THREADS", "1"),),
            why="scikit-learn, scipy and torch compute with it: a thread for each processor"),
    Library("OpenBLAS", (("OPENBLAS_NUM_THREADS", "1"),),
            why="numpy's and scipy's: a thread for each processor, from the import on"),
    Library("MKL", (("MKL_NUM_THREADS", "1"),), why="the same of numpy from other builders"),
    Library("numexpr", (("NUMEXPR_NUM_THREADS", "1"),), why="a thread for each processor, from the import on"),
    Library("pyarrow", (("JE_ARROW_MALLOC_CONF", "background_thread:false"),),
            why="its allocator gives memory back in a thread, jemalloc_bg_thd; without it, when memory is freed"),
    Library("polars", (("_RJEM_MALLOC_CONF", "background_thread:false"),), idle=("polars-ooc-clea",),
            why="its allocator as pyarrow's. The other thread deletes files of tables too large for memory; without it "
                "they stay in the job's /tmp until the job ends"),
)

#: The variables in the environment of zygotes.
VARIABLES = tuple(variable for library in LIBRARIES for variable in library.variables)


def of_jobs(processors: int) -> tuple[tuple[str, str], ...]:
    """The variables in the environment of jobs that may use so many *processors*."""
    return tuple((name, str(processors) if value == "1" else value) for name, value in VARIABLES)


#: Threads that a zygote ends.
IDLE = tuple(name for library in LIBRARIES for name in library.idle)
