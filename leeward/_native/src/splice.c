/* Passes bytes from one socket to another through a pipe, without a copy. splice(2)
 *
 * Runs in:  the broker, between two calls of its loop, for a direction that nobody reads. A turn of Python for each piece
 * takes as long as the piece. */

#include "splice.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/types.h>

#define TURN (2U << 20) /* then other connections have theirs */

static int stopped(int waiting)
{
	if (errno == EINTR)
		return LW_SPLICE_MORE;
	return errno == EAGAIN ? waiting : -errno;
}

/* Returns an enum lw_splice_why, or -errno. */
int lw_splice(struct lw_splice *direction)
{
	const unsigned flags = SPLICE_F_MOVE | SPLICE_F_NONBLOCK;
	const uint64_t begun = direction->passed;

	while (direction->passed - begun < TURN) {
		ssize_t count;

		if (direction->took == direction->passed) {
			count = splice(direction->source, NULL, direction->into, NULL, LW_SPLICE_PIECE, flags);
			if (count < 0)
				return stopped(LW_SPLICE_SOURCE_WAITS);
			if (!count)
				return LW_SPLICE_ENDED;
			direction->took += (uint64_t)count;
			if (direction->took > direction->most)
				return LW_SPLICE_MORE;
		}
		count = splice(direction->out, NULL, direction->goal, NULL, (size_t)(direction->took - direction->passed), flags);
		if (count < 0)
			return stopped(LW_SPLICE_GOAL_WAITS);
		direction->passed += (uint64_t)count;
	}
	return LW_SPLICE_MORE;
}
