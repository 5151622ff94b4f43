/* The loop's backend over io_uring: operations are submitted, and their completions come back.
 *
 * Runs in:  the daemon. Linux 5.19 (rings of provided buffers); a build with liburing.
 * Source:   io_uring(7), io_uring_enter(2), io_uring_register_buf_ring(3)
 *
 * loop_uring_ring.c has the ring itself, loop_uring_send.c the sends, and loop_uring_leave.c the change to epoll
 * where the ring fails.
 *
 * Theory of operation. A turn is one io_uring_enter: it submits the operations since the last one, and
 * waits. There are polls of watched descriptors and job pipes, receives and sends of connections, the accept of the
 * listener, and the deadline of the turn. Only an answer of the fast path is submitted at once, because a
 * client waits for it.
 *
 * An operation's user data are its kind, and its descriptor with the generation of its use. Polls and
 * receives are one-shot, and are submitted again while they are wanted. So waiting is level-triggered, and nothing is
 * received from a client that doesn't read its answers.
 *
 * After a descriptor was forgotten an operation may still hold it, until the next enter has cancelled
 * that. The memory of a send must stay until the send has ended: `dead` has such streams. */

#include "loop_uring.h"

#include <errno.h>

#ifdef LW_URING

#include <poll.h>
#include <sys/epoll.h>

static void cancel(struct lw_uring *way, enum lw_ring_operation operation, int fd, uint32_t generation)
{
	struct io_uring_sqe *entry = lw_ring_next(way);

	io_uring_prep_cancel64(entry, lw_ring_tag(operation, fd, generation), 0);
	io_uring_sqe_set_data64(entry, lw_ring_tag(LW_RING_CANCEL, fd, generation));
}

static void ask(struct lw_loop *loop, int fd, struct lw_slot *slot)
{
	struct io_uring_sqe *entry = lw_ring_next_of(loop, fd);

	slot->armed = true;
	if (LW_ACCEPT == slot->kind) {
		/* One at a time: a multishot accept takes all waiting connections, and so many descriptors, before the
		 * owner has decided about the first one. */
		io_uring_prep_accept(entry, fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		io_uring_sqe_set_data64(entry, lw_ring_tag(LW_RING_ACCEPT, fd, slot->generation));
		return;
	}
	io_uring_prep_poll_add(entry, fd, LW_WATCH == slot->kind ? slot->events : POLLIN);
	io_uring_sqe_set_data64(entry, lw_ring_tag(LW_RING_POLL, fd, slot->generation));
}

static int stream_changed(struct lw_loop *loop, struct lw_stream *stream)
{
	struct io_uring_sqe *entry;

	if (stream->reading && !stream->receiving) {
		stream->receiving = true;
		entry = lw_ring_next_of(loop, stream->fd);
		if (stream->guarded) {
			io_uring_prep_poll_add(entry, stream->fd, POLLIN);
		} else {
			io_uring_prep_recv(entry, stream->fd, NULL, LW_CHUNK, 0);
			entry->flags |= IOSQE_BUFFER_SELECT;
			entry->buf_group = LW_RING_BUFFERS;
		}
		io_uring_sqe_set_data64(entry, lw_ring_tag(LW_RING_RECEIVE, stream->fd, stream->generation));
	} else if (!stream->reading && !stream->receiving && !stream->minding) {
		stream->minding = true;
		entry = lw_ring_next_of(loop, stream->fd);
		io_uring_prep_poll_add(entry, stream->fd, 0); /* hang-ups are always reported */
		io_uring_sqe_set_data64(entry, lw_ring_tag(LW_RING_MIND, stream->fd, stream->generation));
	}
	return 0;
}

static int add(struct lw_loop *loop, int fd)
{
	struct lw_slot *slot = &loop->slots[fd];

	if (LW_STREAM == slot->kind)
		return stream_changed(loop, slot->stream);
	ask(loop, fd, slot);
	return 0;
}

/* Cancel the operations on a descriptor that is going to be closed. Entries that aren't submitted yet must not be executed
 * on the next descriptor with the same number. */
static void take_away(struct lw_loop *loop, int fd)
{
	struct lw_uring *way = loop->kernel;
	struct lw_slot *slot = &loop->slots[fd];
	struct lw_stream *stream = slot->stream;

	if (slot->asked == way->enters)
		lw_ring_hand_in(way);
	if (LW_STREAM != slot->kind) {
		if (slot->armed)
			cancel(way, LW_ACCEPT == slot->kind ? LW_RING_ACCEPT : LW_RING_POLL, fd, slot->generation);
		return;
	}
	if (stream->receiving)
		cancel(way, LW_RING_RECEIVE, fd, slot->generation);
	if (stream->minding)
		cancel(way, LW_RING_MIND, fd, slot->generation);
	if (!stream->flying) {
		lw_stream_free(stream);
		return;
	}
	cancel(way, LW_RING_SEND, fd, slot->generation);
	stream->next_dead = way->dead;
	way->dead = stream;
}

/* Change the events of a watched descriptor, which begins a new use of it. */
static int change(struct lw_loop *loop, int fd)
{
	struct lw_slot *slot = &loop->slots[fd];

	if (slot->armed)
		cancel(loop->kernel, LW_RING_POLL, fd, slot->generation);
	loop->generation = (loop->generation + 1) & 0xffffff;
	slot->generation = loop->generation;
	ask(loop, fd, slot);
	return 0;
}

/* --- a turn ------------------------------------------------------------------- */

static void again(struct lw_uring *way, int fd, uint32_t generation)
{
	way->again[way->again_count++] = (struct lw_again){ .fd = fd, .generation = generation };
}

static void received(struct lw_loop *loop, struct lw_slot *slot, int fd, const struct io_uring_cqe *done)
{
	struct lw_uring *way = loop->kernel;
	bool chunked = done->flags & IORING_CQE_F_BUFFER;
	uint32_t chunk = done->flags >> IORING_CQE_BUFFER_SHIFT;
	struct lw_stream *stream = slot ? slot->stream : NULL;
	uint32_t urgent = loop->urgent_count;
	size_t taken, got = done->res > 0 ? (size_t)done->res : 0;
	const uint8_t *data = way->chunks + (size_t)chunk * LW_CHUNK;

	if (!stream) {
		if (chunked)
			lw_ring_give_back(way, chunk);
		return;
	}
	stream->receiving = false;
	if (-ENOBUFS == done->res || -ECANCELED == done->res || -EINTR == done->res || -EAGAIN == done->res) {
		again(way, fd, slot->generation);
		return;
	}
	if (!got) {
		if (chunked)
			lw_ring_give_back(way, chunk);
		lw_tell(loop, LW_EVENT_DATA, fd, done->res, NULL);
		return;
	}
	taken = lw_fast_path_feed(loop, stream, data, got);
	if (taken < got) {
		stream->fast_path = false;
		lw_tell(loop, LW_EVENT_DATA, fd, (int64_t)(got - taken), data + taken);
	}
	if (taken < got || loop->urgent_count > urgent)
		way->told[way->told_count++] = (uint16_t)chunk;
	else
		lw_ring_give_back(way, chunk);
	again(way, fd, slot->generation);
}

/* A guarded stream is readable. It is received from here, because the ring can't look for descriptors first. */
static void looked(struct lw_loop *loop, struct lw_slot *slot, int fd)
{
	struct lw_uring *way = loop->kernel;
	struct lw_stream *stream = slot->stream;
	uint8_t *chunk = way->guarded + (size_t)way->guarded_used * LW_CHUNK;
	int64_t got = LW_CHUNKS == way->guarded_used ? -EAGAIN : lw_receive(stream, chunk);
	size_t taken;

	stream->receiving = false;
	if (got <= 0 && -EAGAIN != got && -EINTR != got) {
		lw_tell(loop, LW_EVENT_DATA, fd, got, NULL);
		return;
	}
	again(way, fd, slot->generation);
	if (got <= 0)
		return;
	taken = lw_fast_path_feed(loop, stream, chunk, (size_t)got);
	way->guarded_used++;
	loop->pressing |= LW_CHUNKS == way->guarded_used;
	if (taken < (size_t)got) {
		stream->fast_path = false;
		lw_tell(loop, LW_EVENT_DATA, fd, got - (int64_t)taken, chunk + taken);
	}
}

static void accepted(struct lw_loop *loop, struct lw_slot *slot, int fd, const struct io_uring_cqe *done)
{
	if (!slot) { /* the listener was forgotten after this connection was accepted */
		if (done->res >= 0)
			lw_tell(loop, LW_EVENT_ACCEPTED, fd, done->res, NULL);
		return;
	}
	slot->armed = done->flags & IORING_CQE_F_MORE;
	if (done->res < 0 && -ECONNABORTED != done->res && -EINTR != done->res && -ECANCELED != done->res) {
		if (slot->armed)
			take_away(loop, fd);
		slot->kind = LW_FREE; /* the owner calls lw_loop_accept again later */
	} else if (!slot->armed) {
		ask(loop, fd, slot);
	}
	if (done->res >= 0 || LW_FREE == slot->kind)
		lw_tell(loop, LW_EVENT_ACCEPTED, fd, done->res, NULL);
}

/* Process the completion of one operation. */
void lw_ring_serve(struct lw_loop *loop, const struct io_uring_cqe *done)
{
	struct lw_uring *way = loop->kernel;
	int fd = (int)(uint32_t)done->user_data;
	uint32_t generation = (uint32_t)(done->user_data >> 32) & 0xffffff;
	struct lw_slot *slot = lw_slot_of(loop, fd, generation);

	switch ((enum lw_ring_operation)(done->user_data >> 56)) {
	case LW_RING_POLL:
		if (!slot)
			break;
		slot->armed = false;
		if (LW_REPLY == slot->kind)
			lw_fast_path_replied(loop, slot->entry);
		else
			lw_tell(loop, LW_EVENT_READY, fd, done->res < 0 ? EPOLLERR : done->res, NULL);
		again(way, fd, generation);
		break;
	case LW_RING_RECEIVE:
		if (slot && slot->stream->guarded && done->res >= 0)
			looked(loop, slot, fd);
		else
			received(loop, slot, fd, done);
		break;
	case LW_RING_SEND:
		lw_ring_sent(loop, slot, fd, generation, done->res);
		break;
	case LW_RING_ACCEPT:
		accepted(loop, slot, fd, done);
		break;
	case LW_RING_MIND:
		if (!slot)
			break;
		slot->stream->minding = false;
		/* POLLRDHUP, which is reported too after a shutdown of one direction, isn't a hang-up. */
		if (!slot->stream->reading && done->res > 0 && done->res & (POLLHUP | POLLERR))
			lw_tell(loop, LW_EVENT_DATA, fd, -EPIPE, NULL); /* the peer hung up */
		break;
	case LW_RING_CANCEL:
		break;
	}
}

/* Submit new operations for what the last turn has reported, which the owner has served by now. */
static void ask_again(struct lw_loop *loop)
{
	struct lw_uring *way = loop->kernel;

	for (uint32_t at = 0; at < way->again_count; at++) {
		const struct lw_again *each = &way->again[at];
		struct lw_slot *slot = lw_slot_of(loop, each->fd, each->generation);

		if (slot && LW_STREAM == slot->kind)
			stream_changed(loop, slot->stream);
		else if (slot && !slot->armed)
			ask(loop, each->fd, slot);
	}
	way->again_count = 0;
}

static int go_on(struct lw_loop *loop, int64_t patience_ns)
{
	struct lw_uring *way = loop->kernel;
	struct __kernel_timespec patience = { .tv_sec = patience_ns / 1000000000, .tv_nsec = patience_ns % 1000000000 };
	struct io_uring_cqe *done;
	unsigned head, count = 0;
	int failed;

	if (way->failure)
		return -EINTR; /* the turn is over; the next one leaves the ring */
	ask_again(loop);
	way->enters++;
	failed = io_uring_submit_and_wait_timeout(&way->ring, &done, 1, patience_ns < 0 ? NULL : &patience, NULL);
	lw_woke(loop);
	way->refusals = -EAGAIN == failed || -EBUSY == failed ? way->refusals + 1 : 0;
	if ((failed < 0 && -ETIME != failed && -EINTR != failed && !way->refusals) || LW_RING_TRIES < way->refusals)
		lw_ring_fail(way, failed);
	if (failed < 0 && -ETIME != failed && !way->refusals)
		return -EINTR == failed ? failed : 0;
	io_uring_for_each_cqe(&way->ring, head, done) {
		if (LW_TURN == count || LW_CHUNKS == way->told_count)
			break; /* the rest is served in the next turn */
		lw_ring_serve(loop, done);
		count++;
	}
	io_uring_cq_advance(&way->ring, count);
	loop->pressing |= LW_CHUNKS == way->told_count; /* nothing can be received until the turn is over */
	return 0;
}

static int turn(struct lw_loop *loop, int64_t patience_ns)
{
	struct lw_uring *way = loop->kernel;

	for (uint32_t at = 0; at < way->told_count; at++)
		lw_ring_give_back(way, way->told[at]);
	way->told_count = way->guarded_used = 0;
	if (way->failure)
		return lw_ring_leave(loop);
	return go_on(loop, patience_ns);
}

const struct lw_way_to_kernel lw_uring_way = {
	.open = lw_ring_open,
	.close = lw_ring_close,
	.add = add,
	.change = change,
	.remove = take_away,
	.stream_changed = stream_changed,
	.send = lw_ring_send,
	.flush = lw_ring_flush,
	.turn = turn,
	.go_on = go_on,
};

#else

static int not_built(struct lw_loop *loop)
{
	(void)loop;
	return -ENOSYS;
}

const struct lw_way_to_kernel lw_uring_way = { .open = not_built };

#endif
