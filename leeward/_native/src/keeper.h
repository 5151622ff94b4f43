/* The keeper's loop. See keeper.c. */
#ifndef LW_KEEPER_H
#define LW_KEEPER_H

#include "spawn.h"
#include "steps.h"

#include <stdint.h>

/* What daemon and keeper say to each other once the template stands: one
 * datagram each, of this size. MessagePack never starts with the mark. */
#define LW_KEEPER_MARK 0xc1

enum lw_keeper_kind { LW_ARM = 1, LW_ARMED = 2, LW_ENDED = 3, LW_FAILED = 4 };

/* Of an ARM: a cgroup directory follows the birth end; and somebody waits for this very runner, so
 * nothing is done in advance of what its job does. */
enum lw_keeper_flag { LW_INTO = 1, LW_HURRIED = 2 };

/* The calls that LW_FAILED tells of, beside clone3 as 0. */
enum lw_keeper_call { LW_CLONE3 = 0, LW_PIPE2 = 1, LW_MMAP = 2, LW_ROOM = 3 };

struct lw_keeper_message {
	uint8_t mark;
	uint8_t kind;
	uint8_t into;    /* ARM: LW_INTO, LW_HURRIED. FAILED: which call */
	uint8_t attach;  /* ARM: so many tasks files come last */
	int32_t value;   /* ARM: processor or -1. ARMED: pid. ENDED: wait status or -1. FAILED: errno */
	uint64_t runner;
};

#define LW_ENDS 5

struct lw_range {
	uint64_t start, size;
};

/* The way of every job to its last lock. */
struct lw_way {
	const struct lw_step *steps;
	uint32_t count;
	int32_t *ends[LW_ENDS];  /* cells of the steps: job, reply, out, err, birth */
	const struct lw_range *pages;  /* that it will write, whatever it runs */
	uint32_t page_count;
};

/* How far a job came on it. */
struct lw_born {
	int join_error;      /* 0, or the -errno with which a cgroup could not be joined */
	int affinity_error;  /* the same of its one processor */
	uint32_t done;       /* so many steps gave what they must */
	int64_t result;      /* what the next one gave */
	uint8_t hurried;     /* as its order said */
	uint8_t sound;       /* it came to the end */
};

int lw_keep(int channel, const struct lw_runner *how, const struct lw_way *way, struct lw_born *ret_born);

#endif
