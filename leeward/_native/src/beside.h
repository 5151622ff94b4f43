/* One more process in the namespaces of a runner. See beside.c. */
#ifndef LW_BESIDE_H
#define LW_BESIDE_H

#include "command.h"
#include "steps.h"

#include <stdint.h>

#define LW_NAMESPACES 4

/* The helper's name; also in worker/orphans.py. */
#define LW_HELPER "lw-helper"

/* Where it failed. The numbers are also in wire/control.py. */
enum lw_stage { LW_AT_CLONE = 0, LW_AT_NAMESPACES = 1, LW_AT_CGROUP = 2, LW_AT_RLIMITS = 3, LW_AT_AFFINITY = 4,
		LW_AT_STEP = 5, LW_AT_FOLDER = 6, LW_AT_EXEC = 7 };

struct lw_beside {
	const int *namespaces;             /* open ones: pid, mount, ipc, uts */
	int cgroup;                        /* for CLONE_INTO_CGROUP, or -1 */
	const int *attach;                 /* open tasks files (cgroup v1), which it joins */
	uint32_t attach_count;
	int cpu;                           /* the one processor that it may use, or -1 */
	int reaper;                        /* its orphaned descendants become its own children */
	uint64_t most_tasks, most_data;    /* RLIMIT_NPROC, RLIMIT_DATA; 0: as they are */
	const struct lw_step *steps;       /* its locks; unused where it comes back as a copy */
	uint32_t count;
	const struct lw_command *command;  /* what it becomes; NULL: a copy of the caller */
};

/* How far it came. */
struct lw_fate {
	uint32_t stage;  /* of enum lw_stage, where result isn't 0 */
	uint32_t done;   /* LW_AT_STEP: so many steps gave what they must */
	int64_t result;  /* 0, or what the call returned */
	int32_t inside;  /* its pid in its own namespace, where it became a program */
};

int lw_beside_prepare(const struct lw_beside *how, struct lw_fate *ret_fate);
int lw_spawn_beside(const struct lw_beside *how, struct lw_fate *ret_fate, int *ret_pidfd);

#endif
