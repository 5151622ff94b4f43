/* A direction of a connection whose bytes pass unseen. See splice.c. */
#pragma once

#include <stdint.h>

#define LW_SPLICE_PIECE (1U << 20) /* bytes at a time, at most */

enum lw_splice_why {
	LW_SPLICE_ENDED,	/* all has passed, and the source has ended */
	LW_SPLICE_SOURCE_WAITS,	/* nothing is held, and there are no bytes */
	LW_SPLICE_GOAL_WAITS,	/* for room */
	LW_SPLICE_MORE,		/* both may be ready: it was enough for a turn, or more came than may pass */
};

struct lw_splice {
	int source, goal;	/* sockets */
	int out, into;		/* the ends of a pipe */
	uint64_t took, passed;	/* bytes of the source and to the goal so far; what lies between is in the pipe */
	uint64_t most;		/* bytes that may pass */
};

int lw_splice(struct lw_splice *direction);
