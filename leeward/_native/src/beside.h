/* One more process in the namespaces of a runner. See beside.c. */
#pragma once

#include "steps.h"

#include <stdbool.h>
#include <stdint.h>

#define LW_NAMESPACES 4

/* Bytes of all strings, and strings of each kind, at most. */
#define LW_COMMAND_BYTES (4U << 20)
#define LW_COMMAND_STRINGS 8192U

/* The counts at the start of the file. The strings follow: the folder, the paths, the arguments, the environment, each with
 * its NUL. */
struct lw_command_head {
	uint32_t paths, arguments, variables;
	uint32_t size; /* of all strings with their NULs, in bytes */
};

struct lw_command {
	const char *folder;  /* the working directory */
	char **paths;        /* paths of the program, to try in turn; this list and the others end with NULL */
	char **arguments;
	char **variables;
	void *memory;        /* the mapping that all of the above points into */
	uint64_t size;
};

/* The helper's name; also in worker/orphans.py. */
#define LW_HELPER "lw-helper"

/* The stage at which the start has failed. The numbers are also in wire/control.py. */
enum lw_stage { LW_AT_CLONE = 0, LW_AT_NAMESPACES = 1, LW_AT_CGROUP = 2, LW_AT_RLIMITS = 3, LW_AT_AFFINITY = 4,
		LW_AT_STEP = 5, LW_AT_FOLDER = 6, LW_AT_EXEC = 7, LW_AT_FILES = 8 };

struct lw_beside {
	const int *namespaces;             /* descriptors of the pid, mount, ipc and uts namespace */
	int cgroup;                        /* for CLONE_INTO_CGROUP, or -1 */
	const int *attach;                 /* open tasks files (cgroup v1), which the process joins */
	uint32_t attach_count;
	int cpu;                           /* the one processor that the process may use, or -1 */
	int reaper;                        /* whether it becomes a subreaper */
	uint64_t most_tasks;               /* RLIMIT_NPROC; 0: unchanged */
	uint64_t data, most_data;          /* soft and hard limit of RLIMIT_DATA; 0: unchanged */
	uint64_t most_descriptors;         /* RLIMIT_NOFILE, set behind the locks of a program; 0: unchanged */
	uint64_t files;                    /* bytes of the runner's tmpfs; 0: unchanged */
	const struct lw_step *steps;       /* its locks; unused for a copy */
	uint32_t count;
	const struct lw_command *command;  /* the program that it becomes; NULL: a copy of the caller */
	struct lw_helper *helper;          /* makes it; NULL: one that ends afterwards; a base: `namespaces` is unused */
};

/* How far the start has come. */
struct lw_fate {
	uint32_t stage;  /* of enum lw_stage, where result isn't 0 */
	uint32_t done;   /* LW_AT_STEP: how many steps had an allowed result */
	int64_t result;  /* 0, or the result of the failed call */
	int32_t inside;  /* a program's pid in its own namespace */
};

struct lw_runner;
struct rusage;
struct lw_helper *lw_base_new(const struct lw_runner *how, const struct lw_step *rules, uint32_t count);
bool lw_base_over(struct lw_helper *base, int *ret_status, struct rusage *ret_used);
void lw_base_end(struct lw_helper *base);
int lw_base_pid(const struct lw_helper *base);
struct lw_helper *lw_helper_new(const struct lw_step *domain, uint32_t count);
void lw_helper_end(struct lw_helper *helper);
int lw_command_read(int fd, struct lw_command *ret);
void lw_command_free(struct lw_command *command);
int lw_beside_prepare(const struct lw_beside *how, struct lw_fate *ret_fate);
int lw_spawn_beside(const struct lw_beside *how, struct lw_fate *ret_fate, int *ret_pidfd);
