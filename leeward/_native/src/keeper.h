/* The keeper's loop. See keeper.c. */
#ifndef LW_KEEPER_H
#define LW_KEEPER_H

#include "spawn.h"

#include <stdint.h>

/* What daemon and keeper say to each other once the template stands: one
 * datagram each, of this size. MessagePack never starts with the mark. */
#define LW_KEEPER_MARK 0xc1

enum lw_keeper_kind { LW_ARM = 1, LW_ARMED = 2, LW_ENDED = 3, LW_FAILED = 4 };

/* The calls that LW_FAILED tells of, beside clone3 as 0. */
enum lw_keeper_call { LW_CLONE3 = 0, LW_PIPE2 = 1, LW_MMAP = 2, LW_ROOM = 3 };

struct lw_keeper_message {
	uint8_t mark;
	uint8_t kind;
	uint8_t into;    /* ARM: a cgroup directory follows the birth end. FAILED: which call */
	uint8_t attach;  /* ARM: so many tasks files come last */
	int32_t value;   /* ARM: processor or -1. ARMED: pid. ENDED: wait status or -1. FAILED: errno */
	uint64_t runner;
};

/* What a job comes out of lw_keep with. */
struct lw_born {
	int job, reply, out, err, birth;
	int join_error;  /* 0, or the -errno with which a cgroup could not be joined */
	int cpu;         /* the one processor that it may use, or -1 */
};

int lw_keep(int channel, const struct lw_runner *how, struct lw_born *ret_born);

#endif
