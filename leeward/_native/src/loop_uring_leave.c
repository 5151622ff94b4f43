/* From the ring to epoll while the daemon runs: if the ring fails, no running job is lost.
 *
 * Runs in:  the daemon.
 * Source:   io_uring_register(2), IORING_REGISTER_SYNC_CANCEL, Linux 6.0
 *
 * Theory of operation. A ring that fails is noted, and left at the start of the next turn, when nobody uses what the
 * turn before has reported. First the kernel is asked to cancel what is in the ring. What had ended before is served as
 * ever; that may take some turns, since each can tell only so much. Then every descriptor is given to epoll.
 *
 * Where the kernel can't cancel, the state of a connection is unknown: bytes may have been received from it, or sent.
 * Such a connection is shut down, and its client finds it closed. Polls consume nothing, so jobs, workers and
 * the listener lose nothing. */

#include "loop_uring.h"

#ifdef LW_URING

#include <errno.h>
#include <sys/socket.h>

static void cancel_all(struct lw_uring *way)
{
	struct io_uring_sync_cancel_reg all = {
		.fd = -1,
		.flags = IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY,
		.timeout = { .tv_sec = 1, .tv_nsec = 0 },
	};
	int failed = io_uring_register_sync_cancel(&way->ring, &all);

	way->cancelled = true;
	way->emptied = failed >= 0 || -ENOENT == failed;
}

/* Whether this is the completion of an operation without effect: epoll takes over polls, and lose_sends handles sends. */
static bool did_nothing(const struct io_uring_cqe *done)
{
	enum lw_ring_operation operation = (enum lw_ring_operation)(done->user_data >> 56);

	return done->res < 0 && (LW_RING_SEND == operation || (LW_RING_POLL == operation && -ECANCELED == done->res));
}

/* Process completions, as many as one turn can report. Returns whether there were any. */
static bool serve_the_rest(struct lw_loop *loop)
{
	struct lw_uring *way = loop->kernel;
	struct io_uring_cqe *done;
	unsigned head, count = 0;

	io_uring_for_each_cqe(&way->ring, head, done) {
		if (LW_TURN == count || LW_CHUNKS == way->told_count)
			break;
		if (!did_nothing(done))
			lw_ring_serve(loop, done);
		count++;
	}
	io_uring_cq_advance(&way->ring, count);
	way->again_count = 0; /* epoll watches all descriptors from now on */
	return count > 0;
}

/* Shut down the connection of a send whose progress is unknown. */
static void lose_send(struct lw_loop *loop, struct lw_stream *stream)
{
	stream->flying = false;
	stream->sent = stream->sending.size = stream->waiting.size = 0;
	if (!stream->owners)
		return;
	stream->owners = false;
	stream->halfway = true;
	lw_tell(loop, LW_EVENT_SENT, stream->fd, -ECONNRESET, NULL);
	loop->others[loop->other_count - 1].number = stream->number;
}

/* Report the ends of the remaining sends, as many as one turn can. Returns whether those were all. */
static bool lose_sends(struct lw_loop *loop)
{
	struct lw_uring *way = loop->kernel;

	for (struct lw_stream *stream = way->emptied ? way->dead : NULL; stream; stream = stream->next_dead) {
		if (LW_TURN <= loop->other_count)
			return false;
		if (stream->flying)
			lose_send(loop, stream);
	}
	for (int fd = 0; fd < loop->slot_count; fd++) {
		struct lw_slot *slot = &loop->slots[fd];

		if (LW_STREAM != slot->kind || !(slot->stream->flying || (slot->stream->receiving && !way->emptied)))
			continue;
		if (LW_TURN <= loop->other_count)
			return false;
		shutdown(fd, SHUT_RDWR);
		slot->stream->receiving = false;
		if (slot->stream->flying)
			lose_send(loop, slot->stream);
	}
	return true;
}

static int go_by_epoll(struct lw_loop *loop)
{
	struct lw_uring *way = loop->kernel;
	int failure = way->failure;
	int failed = lw_epoll_way.open(loop); /* which sets loop->kernel */
	void *kernel = loop->kernel;

	if (failed)
		return failed;
	loop->kernel = way;
	lw_ring_close(loop);
	loop->kernel = kernel;
	loop->way = &lw_epoll_way;
	for (int fd = 0; !failed && fd < loop->slot_count; fd++) {
		struct lw_slot *slot = &loop->slots[fd];

		if (LW_FREE == slot->kind)
			continue;
		slot->armed = false;
		if (LW_STREAM == slot->kind)
			slot->stream->receiving = slot->stream->minding = false;
		failed = lw_epoll_way.add(loop, fd);
	}
	lw_tell(loop, LW_EVENT_TRANSPORT, -1, failure, NULL);
	return failed;
}

/* Execute one turn of a loop whose ring has failed. Returns 0, or -errno if there is no epoll either. */
int lw_ring_leave(struct lw_loop *loop)
{
	struct lw_uring *way = loop->kernel;

	if (!way->cancelled)
		cancel_all(way);
	if (serve_the_rest(loop) || !lose_sends(loop))
		return 0;
	return go_by_epoll(loop);
}

#endif
