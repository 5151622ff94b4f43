/* The keeper's loop. See keeper.c. */
#pragma once

#include "beside.h"
#include "job.h"
#include "snapshot.h"
#include "spawn.h"
#include "steps.h"

#include <stdbool.h>
#include <stdint.h>

/* The first byte of each message between daemon and keeper once the mount template is built, and of orders for keepers. A
 * message is one datagram, a struct lw_keeper_message. No MessagePack value begins with this byte. */
#define LW_KEEPER_MARK 0xc1

enum lw_keeper_kind { LW_ARM = 1, LW_ARMED = 2, LW_ENDED = 3, LW_FAILED = 4,
		      LW_START = 5, LW_STARTED = 6, LW_EXITED = 7, LW_UNSTARTED = 8, LW_MAKE = 9, LW_MADE = 10 };

/* For ARM and START. LW_INTO: the descriptors include a cgroup directory, before the tasks files. LW_HURRIED: a request
 * waits for this runner, so no work is done in advance.
 * For ARM only. LW_PROVED: a runner of this keeper has passed the step `once` before, so it is left out. LW_UNPINNED: a live
 * sandbox will have the runner, which then gets no job, so no page is copied for one.
 * LW_AGAIN: the runner before in the namespaces that are kept for `sandbox` was ready.
 * For START only. LW_RULESET: the descriptors include a Landlock ruleset, behind the namespaces. LW_REAPER: the process
 * becomes a subreaper. LW_TERMINAL, LW_INTERPRETER or LW_PORTER says what kind of process it is; without one of them it is a
 * program without a terminal. */
enum lw_keeper_flag { LW_INTO = 1, LW_HURRIED = 2, LW_RULESET = 4, LW_REAPER = 8, LW_TERMINAL = 16,
		      LW_INTERPRETER = 32, LW_PORTER = 64, LW_PROVED = 128, LW_UNPINNED = LW_RULESET,
		      LW_AGAIN = LW_REAPER };

/* Which call has failed, in LW_FAILED. */
enum lw_keeper_call { LW_CLONE3 = 0, LW_PIPE2 = 1, LW_MMAP = 2, LW_ROOM = 3, LW_KEEPER = 4 };

struct lw_keeper_message {
	uint8_t mark;
	uint8_t kind;
	uint8_t into;    /* ARM, START, MAKE: flags. FAILED: which call. UNSTARTED: enum lw_stage */
	uint8_t attach;  /* ARM, START, MAKE: how many tasks files are the last descriptors. UNSTARTED: the layer of the step */
	int32_t value;   /* ARM, START: processor or -1. ARMED, STARTED, MADE: pid. ENDED, EXITED: wait status or -1.
			  * FAILED: errno. UNSTARTED: what the call returned */
	uint64_t runner; /* the number of the runner or process; MAKE, MADE: of the worker */
	uint64_t spent_us; /* START: the hard limit of RLIMIT_DATA. ENDED: processor time of the job and of what its init has reaped.
			    * EXITED: of the process and of the children that it has waited for */
	uint64_t tasks;  /* START: RLIMIT_NPROC or 0. STARTED: its pid in its own namespace, or 0 for a copy.
			  * EXITED: the largest resident set of the process or a child of it, in bytes; 0: not above the
			  * keeper's own. ENDED: bytes that one of those processes had at once, at the most */
	uint64_t data;   /* START: RLIMIT_DATA or 0 */
	uint64_t descriptors; /* START: RLIMIT_NOFILE of a program, or 0 */
	uint64_t files;  /* START: bytes of the runner's tmpfs, or 0 */
	uint64_t sandbox; /* START: the number of the runner beside which it is. ARM: whose jobs alone may be in the runner's
			   * namespaces, one after the other; 0: this one alone, whose ever */
};

/* Descriptors of a new process. A runner has job, reply, out, err, birth; a program in, out, err, birth, ruleset; an
 * interpreter in a live sandbox has those of a runner and ruleset. */
#define LW_ENDS 6

/* What every process of one kind does up to its last lock. */
struct lw_way {
	const struct lw_step *steps;
	uint32_t count;
	uint32_t once;           /* the step that runners with LW_PROVED leave out; 0: there is none */
	const uint8_t *layers;   /* the layer of each step, for UNSTARTED; or NULL */
	int32_t *ends[LW_ENDS];  /* where the steps read the descriptors */
	const struct lw_range *pages;  /* pages that the process will write, whatever it runs */
	uint32_t page_count;
	const struct lw_beginning *beginning; /* for a runner with LW_HURRIED; or NULL */
	const struct lw_range *hot;    /* pages that each job of such a runner writes */
	uint32_t hot_count;
	const struct lw_snapshot_parts *taken; /* mapped in place of the zygote's memory; or NULL */
};

/* How far a new process has come. */
struct lw_born {
	int join_error;      /* 0, or the -errno of the attempt to join a cgroup */
	int affinity_error;  /* 0, or the -errno of sched_setaffinity */
	uint32_t done;       /* how many steps had an allowed result */
	int64_t result;      /* the result of the next step */
	uint8_t hurried;     /* the order had LW_HURRIED */
	uint8_t sound;       /* all steps have succeeded */
	uint8_t beside;      /* 0: a runner's first process; else LW_INTERPRETER or LW_PORTER */
	uint8_t again;       /* a runner in kept namespaces that aren't new */
	uint8_t begun;       /* 1, or 2 with `again`: it has sent the message that it is ready, and read its job's frame */
};

enum lw_ways { LW_FIRST = 0, LW_PROGRAM = 1, LW_ON_TERMINAL = 2, LW_COPY = 3, LW_CARRY = 4, LW_DOMAIN = 5,
	       LW_NEXT = 6, LW_RULES = 7, LW_WAYS = 8 };

/* What a keeper does before it serves. */
struct lw_settling {
	const struct lw_step *steps;
	uint32_t aside, last;  /* the steps between these two are those of a child in a pid namespace of its own */
	uint32_t count;
	int32_t *channel;      /* where the steps read the keeper's end of its control channel */
	const int32_t *ruleset; /* where they leave the ruleset of the inits; NULL: there is none */
	int *map;              /* where the descriptor of its page map goes, for lw_snapshot_drop; or NULL */
	uint32_t done;         /* written by a keeper that can't settle: how many steps had an allowed result */
	int64_t result;        /* and the result of the next one; with all steps done, of joining its cgroups */
};

/* What lw_make_keepers returns in a keeper that can't settle. */
enum { LW_UNSETTLED = 2 };

int lw_make_keepers(int channel, uint64_t flags, struct lw_settling *settling, struct lw_runner *how,
		    const struct lw_way *ways, struct lw_born *ret_born);
int lw_keep(int channel, const struct lw_runner *how, const struct lw_way *ways, struct lw_born *ret_born);
