/* The keeper's loop. See keeper.c. */
#ifndef LW_KEEPER_H
#define LW_KEEPER_H

#include "begin.h"
#include "beside.h"
#include "hot.h"
#include "snapshot.h"
#include "spawn.h"
#include "steps.h"

#include <stdbool.h>
#include <stdint.h>

/* What daemon and keeper say to each other once the template stands: one
 * datagram each, of this size. MessagePack never starts with the mark. */
#define LW_KEEPER_MARK 0xc1

enum lw_keeper_kind { LW_ARM = 1, LW_ARMED = 2, LW_ENDED = 3, LW_FAILED = 4,
		      LW_START = 5, LW_STARTED = 6, LW_EXITED = 7, LW_UNSTARTED = 8 };

/* Of an ARM or a START. LW_INTO: a cgroup directory comes before the tasks files. LW_HURRIED: somebody waits for this
 * very runner, so nothing is done in advance of what its job does.
 * Of an ARM alone. LW_PROVED: a runner of this keeper has taken the step that the first ones alone take, and is ready.
 * Of a START alone. LW_RULESET: a Landlock ruleset comes behind the namespaces. LW_REAPER: it becomes a subreaper.
 * One of the last three says what it is; neither: a program without a terminal. */
enum lw_keeper_flag { LW_INTO = 1, LW_HURRIED = 2, LW_RULESET = 4, LW_REAPER = 8, LW_TERMINAL = 16,
		      LW_INTERPRETER = 32, LW_PORTER = 64, LW_PROVED = 128 };

/* The calls that LW_FAILED tells of, beside clone3 as 0. */
enum lw_keeper_call { LW_CLONE3 = 0, LW_PIPE2 = 1, LW_MMAP = 2, LW_ROOM = 3 };

struct lw_keeper_message {
	uint8_t mark;
	uint8_t kind;
	uint8_t into;    /* ARM, START: flags. FAILED: which call. UNSTARTED: enum lw_stage */
	uint8_t attach;  /* ARM, START: so many tasks files come last. UNSTARTED: the layer of the step */
	int32_t value;   /* ARM, START: processor or -1. ARMED, STARTED: pid. ENDED, EXITED: wait status or -1.
			  * FAILED: errno. UNSTARTED: what the call returned */
	uint64_t runner; /* or the process */
	uint64_t spent_us; /* ENDED: processor time of the job and of what its init has reaped.
			    * EXITED: of the process and of the children that it has waited for */
	uint64_t tasks;  /* START: RLIMIT_NPROC or 0. STARTED: its pid in its own namespace, or 0 where it is a copy.
			  * EXITED: bytes of its largest resident set, or of such a child's; 0: below what the keeper had */
	uint64_t data;   /* START: RLIMIT_DATA or 0 */
};

/* A runner's: job, reply, out, err, birth. A program's: in, out, err, birth, ruleset. An interpreter's beside others: as a
 * runner's, and ruleset. */
#define LW_ENDS 6

/* The way of every job to its last lock. */
struct lw_way {
	const struct lw_step *steps;
	uint32_t count;
	uint32_t once;           /* the step that runners without LW_PROVED alone take; 0: there is none */
	const uint8_t *layers;   /* of each step, for UNSTARTED; or NULL */
	int32_t *ends[LW_ENDS];  /* cells of the steps */
	const struct lw_range *pages;  /* that it will write, whatever it runs */
	uint32_t page_count;
	const struct lw_beginning *beginning; /* of one for which somebody waits; or NULL */
	const struct lw_range *hot;    /* pages that each such job writes */
	uint32_t hot_count;
	const struct lw_snapshot_parts *taken; /* mapped in place of the zygote's memory; or NULL */
};

/* How far a job came on it. */
struct lw_born {
	int join_error;      /* 0, or the -errno with which a cgroup could not be joined */
	int affinity_error;  /* the same of its one processor */
	uint32_t done;       /* so many steps gave what they must */
	int64_t result;      /* what the next one gave */
	uint8_t hurried;     /* as its order said */
	uint8_t sound;       /* it came to the end */
	uint8_t beside;      /* 0: a runner's first process; else the flag of the copy that it is */
	uint8_t begun;       /* it has said that it is ready, and has its job's frame */
};

enum lw_ways { LW_FIRST = 0, LW_PROGRAM = 1, LW_ON_TERMINAL = 2, LW_COPY = 3, LW_CARRY = 4, LW_WAYS = 5 };

int lw_keep(int channel, const struct lw_runner *how, const struct lw_way *ways, struct lw_born *ret_born);

#endif
