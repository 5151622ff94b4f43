/* The calls that CPython needs around a fork. os.fork makes them; leeward's processes are made by clone3, in lw_clone.
 *
 * Runs in:  zygote and keeper, each by its only thread, and the new process. */

/* Python.h first, and without the stable ABI's own idea of stdlib macros. */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030b0000
#endif
#include <Python.h>

#include "spawn.h"

#define AROUND_FORK(name, call)                          \
	void name(void)                                  \
	{                                                \
		PyGILState_STATE held = PyGILState_Ensure(); \
		call();                                  \
		PyGILState_Release(held);                \
	}

AROUND_FORK(lw_before_fork, PyOS_BeforeFork)
AROUND_FORK(lw_after_fork_parent, PyOS_AfterFork_Parent)
AROUND_FORK(lw_after_fork_child, PyOS_AfterFork_Child)
