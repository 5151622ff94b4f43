/* What the files of the io_uring backend share: loop_uring.c, which begins with the theory of operation, loop_uring_ring.c,
 * loop_uring_send.c and loop_uring_leave.c. */

#ifndef LW_LOOP_URING_H
#define LW_LOOP_URING_H

#include "loop_private.h"

#ifdef LW_URING

#include <liburing.h>

/* The id of the group of provided buffers for receives. */
#define LW_RING_BUFFERS 0
/* Enters in a row that may fail with a temporary error before the ring is left. */
#define LW_RING_TRIES 1000

enum lw_ring_operation {
	LW_RING_POLL = 1,
	LW_RING_RECEIVE,
	LW_RING_SEND,
	LW_RING_ACCEPT,
	LW_RING_MIND, /* a poll for the hang-up of a client that isn't read from now */
	LW_RING_CANCEL,
};

/* A use of a descriptor for which an operation has to be submitted again. */
struct lw_again {
	int fd;
	uint32_t generation;
};

struct lw_uring {
	struct io_uring ring;
	struct io_uring_buf_ring *buffers;
	uint8_t *chunks;
	uint16_t told[LW_CHUNKS]; /* chunks that LW_EVENT_DATA and LW_EVENT_STARTED point into, until the turn is over */
	uint32_t told_count;
	uint8_t *guarded; /* chunks for guarded streams, and how many of them this turn has filled */
	uint32_t guarded_used;
	struct lw_again again[2 * LW_TURN]; /* descriptors that the last turn has reported; see ask_again */
	uint32_t again_count;
	uint64_t enters; /* how often entries were submitted; lw_slot.asked is compared with it */
	struct lw_stream *dead; /* streams that were forgotten while a send was in the ring */
	int failure;		/* -errno once the ring has failed for good; else 0. See loop_uring_leave.c */
	uint32_t refusals;	/* enters in a row that failed with a temporary error */
	bool cancelled;		/* leaving: the kernel was asked to cancel everything in the ring */
	bool emptied;		/* leaving: the kernel has confirmed that the ring is empty */
	struct io_uring_sqe unread; /* requests to a ring that has failed are written here, and not submitted */
};

uint64_t lw_ring_tag(enum lw_ring_operation operation, int fd, uint32_t generation);
int lw_ring_hand_in(struct lw_uring *way);
struct io_uring_sqe *lw_ring_next(struct lw_uring *way);
struct io_uring_sqe *lw_ring_next_of(struct lw_loop *loop, int fd);
void lw_ring_fail(struct lw_uring *way, int failure);
void lw_ring_give_back(struct lw_uring *way, uint32_t chunk);
int lw_ring_open(struct lw_loop *loop);
void lw_ring_close(struct lw_loop *loop);
void lw_ring_serve(struct lw_loop *loop, const struct io_uring_cqe *done);
int lw_ring_leave(struct lw_loop *loop);

int64_t lw_ring_send(struct lw_loop *loop, struct lw_stream *stream, const uint8_t *data, size_t size, const int *fds,
		     uint32_t fd_count);
void lw_ring_flush(struct lw_loop *loop, struct lw_stream *stream);
void lw_ring_sent(struct lw_loop *loop, struct lw_slot *slot, int fd, uint32_t generation, int result);

#endif

#endif
