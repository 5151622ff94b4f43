/* The ring of loop_uring.c: its entries, and the chunks that are received into.
 *
 * Runs in:  the daemon. */

#include "loop_uring.h"

#ifdef LW_URING

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Entries of the ring. When all are filled, lw_ring_next submits them before the turn's own enter. */
#define RING_ENTRIES 256

/* The user data of an operation on one use of a descriptor. */
uint64_t lw_ring_tag(enum lw_ring_operation operation, int fd, uint32_t generation)
{
	return (uint64_t)operation << 56 | (uint64_t)generation << 32 | (uint32_t)fd;
}

/* Submit the filled entries without waiting. */
int lw_ring_hand_in(struct lw_uring *way)
{
	way->enters++;
	return io_uring_submit(&way->ring);
}

/* Record that the ring has failed: from the next turn on the loop uses epoll. */
void lw_ring_fail(struct lw_uring *way, int failure)
{
	if (!way->failure)
		way->failure = failure ? failure : -EBUSY;
}

/* An entry to fill. Never NULL: if the ring is full, the filled entries are submitted first. */
struct io_uring_sqe *lw_ring_next(struct lw_uring *way)
{
	struct io_uring_sqe *entry = way->failure ? NULL : io_uring_get_sqe(&way->ring);
	int failed = 0;

	for (unsigned tries = 0; !entry && !way->failure && tries < LW_RING_TRIES; tries++) {
		failed = lw_ring_hand_in(way);
		entry = io_uring_get_sqe(&way->ring);
	}
	if (entry)
		return entry;
	lw_ring_fail(way, failed);
	return &way->unread;
}

/* An entry for an operation on this descriptor. Records it for take_away in loop_uring.c, as not submitted yet. */
struct io_uring_sqe *lw_ring_next_of(struct lw_loop *loop, int fd)
{
	struct lw_uring *way = loop->kernel;
	struct io_uring_sqe *entry = lw_ring_next(way);

	loop->slots[fd].asked = way->enters;
	return entry;
}

/* Return a chunk to the group of provided buffers. */
void lw_ring_give_back(struct lw_uring *way, uint32_t chunk)
{
	io_uring_buf_ring_add(way->buffers, way->chunks + (size_t)chunk * LW_CHUNK, LW_CHUNK, (unsigned short)chunk,
			      io_uring_buf_ring_mask(LW_CHUNKS), 0);
	io_uring_buf_ring_advance(way->buffers, 1);
}

static size_t ring_bytes(void)
{
	return LW_CHUNKS * sizeof(struct io_uring_buf);
}

static int set_up(struct lw_uring *way)
{
	/* The first two combinations save wake-ups of our own thread; Linux 6.1 and 5.19. */
	static const unsigned flags[] = { IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
					  IORING_SETUP_COOP_TASKRUN, 0 };
	int failed = -EINVAL;

	for (size_t at = 0; -EINVAL == failed && at < sizeof(flags) / sizeof(*flags); at++) {
		way->ring = (struct io_uring){ 0 };
		failed = io_uring_queue_init(RING_ENTRIES, &way->ring, flags[at]);
	}
	return failed;
}

static int set_up_buffers(struct lw_uring *way)
{
	struct io_uring_buf_reg group = { .ring_entries = LW_CHUNKS, .bgid = LW_RING_BUFFERS };
	void *ring = mmap(NULL, ring_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	/* The second half is for guarded streams. Pages are allocated only when they are filled. */
	void *chunks = mmap(NULL, 2 * (size_t)LW_CHUNKS * LW_CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			    -1, 0);
	int failed = 0;

	if (MAP_FAILED == ring || MAP_FAILED == chunks)
		failed = -ENOMEM;
	group.ring_addr = (uint64_t)(uintptr_t)ring;
	if (!failed)
		failed = io_uring_register_buf_ring(&way->ring, &group, 0);
	if (failed) {
		if (MAP_FAILED != ring)
			munmap(ring, ring_bytes());
		if (MAP_FAILED != chunks)
			munmap(chunks, 2 * (size_t)LW_CHUNKS * LW_CHUNK);
		return failed;
	}
	way->buffers = ring;
	way->chunks = chunks;
	way->guarded = way->chunks + (size_t)LW_CHUNKS * LW_CHUNK;
	io_uring_buf_ring_init(way->buffers);
	for (uint32_t chunk = 0; chunk < LW_CHUNKS; chunk++)
		lw_ring_give_back(way, chunk);
	return 0;
}

int lw_ring_open(struct lw_loop *loop)
{
	struct lw_uring *way = calloc(1, sizeof(*way));
	int failed;

	if (!way)
		return -ENOMEM;
	failed = set_up(way);
	if (failed) {
		free(way);
		return failed;
	}
	failed = set_up_buffers(way);
	if (failed) {
		io_uring_queue_exit(&way->ring);
		free(way);
		return -EINVAL == failed ? -ENOSYS : failed; /* Linux before 5.19 */
	}
	io_uring_register_ring_fd(&way->ring); /* makes enters cheaper; a failure doesn't matter */
	way->enters = 1;
	loop->kernel = way;
	return 0;
}

void lw_ring_close(struct lw_loop *loop)
{
	struct lw_uring *way = loop->kernel;

	io_uring_queue_exit(&way->ring);
	if (way->failure && !way->emptied) {
		/* Operations that may still be in the ring must not use memory that was freed and allocated again. */
		free(way);
		return;
	}
	munmap(way->buffers, ring_bytes());
	munmap(way->chunks, 2 * (size_t)LW_CHUNKS * LW_CHUNK);
	while (way->dead) {
		struct lw_stream *stream = way->dead;

		way->dead = stream->next_dead;
		lw_stream_free(stream);
	}
	free(way);
}

#endif
