/* The loop's way to the kernel by io_uring: work is handed in, and its end is heard of.
 *
 * Runs in:  the daemon. Linux 5.19 (rings of provided buffers); a build with liburing.
 * Source:   io_uring(7), io_uring_enter(2), io_uring_register_buf_ring(3)
 *
 * Theory of operation. A turn is one io_uring_enter: it hands in what was asked for since the last one, and
 * waits. Watched descriptors and job pipes are polled, connections received from and sent to, the listener
 * accepts, and the deadline of the turn goes along. Only an answer of express.c is handed in at once, as a
 * client waits for it.
 *
 * An operation's user data are its kind, and its descriptor with the generation of its use. A poll and a
 * receive are for one time and are asked for again while they are wanted, so level-triggered waiting and
 * back-pressure come by themselves: who doesn't read isn't received from.
 *
 * A descriptor that was forgotten may still be held by its operation, until that was cancelled
 * by the next enter. Memory of a send stays until its end was heard of: `dead` keeps such streams. */

#include "loop_private.h"

#include <errno.h>

#ifdef LW_URING

#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#define ENTRIES 256
#define BUFFERS 0 /* the group's number */
#define TRIES 1000 /* of an enter that fails for a moment: EAGAIN, EBUSY */

enum operation { POLL = 1, RECEIVE, SEND, ACCEPT, MIND, CANCEL };

struct again {
	int fd;
	uint32_t generation;
};

struct way {
	struct io_uring ring;
	struct io_uring_buf_ring *buffers;
	uint8_t *chunks;
	uint16_t told[LW_CHUNKS]; /* chunks that LW_EVENT_DATA and LW_EVENT_STARTED point into, until the turn is over */
	uint32_t told_count;
	struct again again[2 * LW_TURN]; /* served in the last turn, and to be asked for anew */
	uint32_t again_count;
	uint64_t enters; /* how often what was asked for was handed in */
	struct lw_stream *dead; /* forgotten while a send of theirs flew */
};

static uint64_t tag(enum operation operation, int fd, uint32_t generation)
{
	return (uint64_t)operation << 56 | (uint64_t)generation << 32 | (uint32_t)fd;
}

static int hand_in(struct way *way)
{
	way->enters++;
	return io_uring_submit(&way->ring);
}

/* Never NULL: what was handed in makes room. Where the kernel takes nothing any more, whatever is asked for would be
 * lost; then a daemon that is started anew is the better one. */
static struct io_uring_sqe *next(struct way *way)
{
	struct io_uring_sqe *entry = io_uring_get_sqe(&way->ring);
	int failed = 0;

	for (unsigned tries = 0; !entry && tries < TRIES; tries++) {
		failed = hand_in(way);
		entry = io_uring_get_sqe(&way->ring);
	}
	if (!entry) {
		fprintf(stderr, "leeward: io_uring_enter takes nothing any more: %s\n", strerror(-failed));
		abort();
	}
	return entry;
}

/* For an operation on this very descriptor; see take_away. */
static struct io_uring_sqe *next_of(struct lw_loop *loop, int fd)
{
	struct way *way = loop->kernel;
	struct io_uring_sqe *entry = next(way);

	loop->slots[fd].asked = way->enters;
	return entry;
}

static void give_back(struct way *way, uint32_t chunk)
{
	io_uring_buf_ring_add(way->buffers, way->chunks + (size_t)chunk * LW_CHUNK, LW_CHUNK, (unsigned short)chunk,
			      io_uring_buf_ring_mask(LW_CHUNKS), 0);
	io_uring_buf_ring_advance(way->buffers, 1);
}

static size_t ring_bytes(void)
{
	return LW_CHUNKS * sizeof(struct io_uring_buf);
}

static int set_up(struct way *way)
{
	/* What spares wake-ups of our own thread came with Linux 6.1 and 5.19. */
	static const unsigned flags[] = { IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
					  IORING_SETUP_COOP_TASKRUN, 0 };
	int failed = -EINVAL;

	for (size_t at = 0; -EINVAL == failed && at < sizeof(flags) / sizeof(*flags); at++) {
		way->ring = (struct io_uring){ 0 };
		failed = io_uring_queue_init(ENTRIES, &way->ring, flags[at]);
	}
	return failed;
}

static int set_up_buffers(struct way *way)
{
	struct io_uring_buf_reg group = { .ring_entries = LW_CHUNKS, .bgid = BUFFERS };
	void *ring = mmap(NULL, ring_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *chunks = mmap(NULL, (size_t)LW_CHUNKS * LW_CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
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
			munmap(chunks, (size_t)LW_CHUNKS * LW_CHUNK);
		return failed;
	}
	way->buffers = ring;
	way->chunks = chunks;
	io_uring_buf_ring_init(way->buffers);
	for (uint32_t chunk = 0; chunk < LW_CHUNKS; chunk++)
		give_back(way, chunk);
	return 0;
}

static int open_way(struct lw_loop *loop)
{
	struct way *way = calloc(1, sizeof(*way));
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
	io_uring_register_ring_fd(&way->ring); /* an enter is cheaper then; without it, it isn't */
	way->enters = 1;
	loop->kernel = way;
	return 0;
}

static void close_way(struct lw_loop *loop)
{
	struct way *way = loop->kernel;

	io_uring_queue_exit(&way->ring);
	munmap(way->buffers, ring_bytes());
	munmap(way->chunks, (size_t)LW_CHUNKS * LW_CHUNK);
	while (way->dead) {
		struct lw_stream *stream = way->dead;

		way->dead = stream->next_dead;
		lw_stream_free(stream);
	}
	free(way);
}

static void cancel(struct way *way, enum operation operation, int fd, uint32_t generation)
{
	struct io_uring_sqe *entry = next(way);

	io_uring_prep_cancel64(entry, tag(operation, fd, generation), 0);
	io_uring_sqe_set_data64(entry, tag(CANCEL, fd, generation));
}

static void ask(struct lw_loop *loop, int fd, struct lw_slot *slot)
{
	struct io_uring_sqe *entry = next_of(loop, fd);

	slot->armed = true;
	if (LW_ACCEPT == slot->kind) {
		io_uring_prep_multishot_accept(entry, fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		io_uring_sqe_set_data64(entry, tag(ACCEPT, fd, slot->generation));
		return;
	}
	io_uring_prep_poll_add(entry, fd, LW_WATCH == slot->kind ? slot->events : POLLIN);
	io_uring_sqe_set_data64(entry, tag(POLL, fd, slot->generation));
}

static int stream_changed(struct lw_loop *loop, struct lw_stream *stream)
{
	struct io_uring_sqe *entry;

	if (stream->reading && !stream->receiving) {
		stream->receiving = true;
		entry = next_of(loop, stream->fd);
		io_uring_prep_recv(entry, stream->fd, NULL, LW_CHUNK, 0);
		entry->flags |= IOSQE_BUFFER_SELECT;
		entry->buf_group = BUFFERS;
		io_uring_sqe_set_data64(entry, tag(RECEIVE, stream->fd, stream->generation));
	} else if (!stream->reading && !stream->receiving && !stream->minding) {
		stream->minding = true;
		entry = next_of(loop, stream->fd);
		io_uring_prep_poll_add(entry, stream->fd, 0); /* a hang-up is always told */
		io_uring_sqe_set_data64(entry, tag(MIND, stream->fd, stream->generation));
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

/* The descriptor is going to be closed, and its number to be somebody else's. What is asked of it and wasn't handed in
 * yet would be done to that one. */
static void take_away(struct lw_loop *loop, int fd)
{
	struct way *way = loop->kernel;
	struct lw_slot *slot = &loop->slots[fd];
	struct lw_stream *stream = slot->stream;

	if (slot->asked == way->enters)
		hand_in(way);
	if (LW_STREAM != slot->kind) {
		if (slot->armed)
			cancel(way, LW_ACCEPT == slot->kind ? ACCEPT : POLL, fd, slot->generation);
		return;
	}
	if (stream->receiving)
		cancel(way, RECEIVE, fd, slot->generation);
	if (stream->minding)
		cancel(way, MIND, fd, slot->generation);
	if (!stream->flying) {
		lw_stream_free(stream);
		return;
	}
	cancel(way, SEND, fd, slot->generation);
	stream->next_dead = way->dead;
	way->dead = stream;
}

/* Of a watched descriptor: other events are another use. */
static int change(struct lw_loop *loop, int fd)
{
	struct lw_slot *slot = &loop->slots[fd];

	if (slot->armed)
		cancel(loop->kernel, POLL, fd, slot->generation);
	loop->generation = (loop->generation + 1) & 0xffffff;
	slot->generation = loop->generation;
	ask(loop, fd, slot);
	return 0;
}

/* --- sending ------------------------------------------------------------------ */

static void fly(struct lw_loop *loop, struct lw_stream *stream)
{
	struct io_uring_sqe *entry = next_of(loop, stream->fd);

	stream->flying = true;
	if (stream->owners)
		io_uring_prep_sendmsg(entry, stream->fd, &stream->message, MSG_NOSIGNAL);
	else
		io_uring_prep_send(entry, stream->fd, stream->sending.data + stream->sent,
				   stream->sending.size - stream->sent, MSG_NOSIGNAL);
	io_uring_sqe_set_data64(entry, tag(SEND, stream->fd, stream->generation));
}

static int64_t send_later(struct lw_loop *loop, struct lw_stream *stream, const uint8_t *data, size_t size,
			  const int *fds, uint32_t fd_count)
{
	stream->owners = true;
	stream->piece = (struct iovec){ .iov_base = (void *)(uintptr_t)data, .iov_len = size };
	stream->message = (struct msghdr){ .msg_iov = &stream->piece, .msg_iovlen = 1 };
	if (fd_count) {
		stream->message.msg_control = stream->control;
		stream->message.msg_controllen = lw_control(stream->control, fds, fd_count);
	}
	fly(loop, stream);
	return -EINPROGRESS;
}

static void flush(struct lw_loop *loop, struct lw_stream *stream)
{
	struct way *way = loop->kernel;
	struct lw_bytes idle = stream->sending;

	if (stream->flying || !stream->waiting.size)
		return;
	stream->sending = stream->waiting;
	stream->sent = 0;
	idle.size = 0;
	stream->waiting = idle;
	stream->owners = false;
	fly(loop, stream);
	hand_in(way); /* a client waits */
}

static struct lw_stream *bury(struct way *way, int fd, uint32_t generation)
{
	for (struct lw_stream **at = &way->dead; *at; at = &(*at)->next_dead)
		if ((*at)->fd == fd && (*at)->generation == generation) {
			struct lw_stream *stream = *at;

			*at = stream->next_dead;
			return stream;
		}
	return NULL;
}

static void tell_sent(struct lw_loop *loop, const struct lw_stream *stream, int64_t result)
{
	lw_tell(loop, LW_EVENT_SENT, stream->fd, result, NULL);
	loop->others[loop->other_count - 1].number = stream->number;
}

static void sent(struct lw_loop *loop, struct lw_slot *slot, int fd, uint32_t generation, int result)
{
	struct way *way = loop->kernel;
	struct lw_stream *stream = slot ? slot->stream : bury(way, fd, generation);

	if (!stream)
		return;
	stream->flying = false;
	if (stream->owners) {
		stream->owners = false;
		stream->halfway = result < 0 || (size_t)result < stream->piece.iov_len;
		tell_sent(loop, stream, result);
	} else if (slot && result > 0 && stream->sent + (size_t)result < stream->sending.size) {
		stream->sent += (size_t)result;
		fly(loop, stream);
		return;
	} else {
		/* Whatever is wrong with it, receiving tells; then nobody needs the rest. */
		stream->sent = stream->sending.size = 0;
		if (stream->sending.room > LW_CHUNK)
			lw_drop(&stream->sending);
	}
	if (!slot) {
		lw_stream_free(stream);
		return;
	}
	flush(loop, stream);
	if (stream->wants_room && !stream->flying) {
		stream->wants_room = false;
		lw_tell(loop, LW_EVENT_ROOM, fd, 0, NULL);
	}
}

/* --- a turn ------------------------------------------------------------------- */

static void again(struct way *way, int fd, uint32_t generation)
{
	way->again[way->again_count++] = (struct again){ .fd = fd, .generation = generation };
}

static void received(struct lw_loop *loop, struct lw_slot *slot, int fd, const struct io_uring_cqe *done)
{
	struct way *way = loop->kernel;
	bool chunked = done->flags & IORING_CQE_F_BUFFER;
	uint32_t chunk = done->flags >> IORING_CQE_BUFFER_SHIFT;
	struct lw_stream *stream = slot ? slot->stream : NULL;
	uint32_t urgent = loop->urgent_count;
	size_t taken, got = done->res > 0 ? (size_t)done->res : 0;
	const uint8_t *data = way->chunks + (size_t)chunk * LW_CHUNK;

	if (!stream) {
		if (chunked)
			give_back(way, chunk);
		return;
	}
	stream->receiving = false;
	if (-ENOBUFS == done->res || -ECANCELED == done->res || -EINTR == done->res || -EAGAIN == done->res) {
		again(way, fd, slot->generation);
		return;
	}
	if (!got) {
		if (chunked)
			give_back(way, chunk);
		lw_tell(loop, LW_EVENT_DATA, fd, done->res, NULL);
		return;
	}
	taken = lw_express_feed(loop, stream, data, got);
	if (taken < got) {
		stream->plain = false;
		lw_tell(loop, LW_EVENT_DATA, fd, (int64_t)(got - taken), data + taken);
	}
	if (taken < got || loop->urgent_count > urgent)
		way->told[way->told_count++] = (uint16_t)chunk;
	else
		give_back(way, chunk);
	again(way, fd, slot->generation);
}

static void accepted(struct lw_loop *loop, struct lw_slot *slot, int fd, const struct io_uring_cqe *done)
{
	if (!slot) { /* it was forgotten, but this one had come before: somebody waits there */
		if (done->res >= 0)
			lw_tell(loop, LW_EVENT_ACCEPTED, fd, done->res, NULL);
		return;
	}
	slot->armed = done->flags & IORING_CQE_F_MORE;
	if (done->res < 0 && -ECONNABORTED != done->res && -EINTR != done->res && -ECANCELED != done->res) {
		if (slot->armed)
			take_away(loop, fd);
		slot->kind = LW_FREE; /* the caller asks anew when it is better */
	} else if (!slot->armed) {
		ask(loop, fd, slot);
	}
	if (done->res >= 0 || LW_FREE == slot->kind)
		lw_tell(loop, LW_EVENT_ACCEPTED, fd, done->res, NULL);
}

static void serve(struct lw_loop *loop, const struct io_uring_cqe *done)
{
	struct way *way = loop->kernel;
	int fd = (int)(uint32_t)done->user_data;
	uint32_t generation = (uint32_t)(done->user_data >> 32) & 0xffffff;
	struct lw_slot *slot = lw_slot_of(loop, fd, generation);

	switch ((enum operation)(done->user_data >> 56)) {
	case POLL:
		if (!slot)
			break;
		slot->armed = false;
		if (LW_REPLY == slot->kind)
			lw_express_replied(loop, slot->entry);
		else
			lw_tell(loop, LW_EVENT_READY, fd, done->res < 0 ? EPOLLERR : done->res, NULL);
		again(way, fd, generation);
		break;
	case RECEIVE:
		received(loop, slot, fd, done);
		break;
	case SEND:
		sent(loop, slot, fd, generation, done->res);
		break;
	case ACCEPT:
		accepted(loop, slot, fd, done);
		break;
	case MIND:
		if (!slot)
			break;
		slot->stream->minding = false;
		/* Not what comes unasked as well: that we, or it, shut down the reading side. */
		if (!slot->stream->reading && done->res > 0 && done->res & (POLLHUP | POLLERR))
			lw_tell(loop, LW_EVENT_DATA, fd, -EPIPE, NULL); /* it hung up */
		break;
	case CANCEL:
		break;
	}
}

/* What was told, or taken, has been served by now: wait for more of it. */
static void ask_again(struct lw_loop *loop)
{
	struct way *way = loop->kernel;

	for (uint32_t at = 0; at < way->again_count; at++) {
		const struct again *each = &way->again[at];
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
	struct way *way = loop->kernel;
	struct __kernel_timespec patience = { .tv_sec = patience_ns / 1000000000, .tv_nsec = patience_ns % 1000000000 };
	struct io_uring_cqe *done;
	unsigned head, count = 0;
	int failed;

	ask_again(loop);
	way->enters++;
	failed = io_uring_submit_and_wait_timeout(&way->ring, &done, 1, patience_ns < 0 ? NULL : &patience, NULL);
	if (failed < 0 && -ETIME != failed && -EAGAIN != failed && -EBUSY != failed)
		return failed;
	io_uring_for_each_cqe(&way->ring, head, done) {
		if (LW_TURN == count || LW_CHUNKS == way->told_count)
			break; /* the rest is there in the next turn */
		serve(loop, done);
		count++;
	}
	io_uring_cq_advance(&way->ring, count);
	loop->pressing |= LW_CHUNKS == way->told_count; /* nothing can be received until the turn is over */
	return 0;
}

static int turn(struct lw_loop *loop, int64_t patience_ns)
{
	struct way *way = loop->kernel;

	for (uint32_t at = 0; at < way->told_count; at++)
		give_back(way, way->told[at]);
	way->told_count = 0;
	return go_on(loop, patience_ns);
}

const struct lw_way_to_kernel lw_uring_way = {
	.open = open_way,
	.close = close_way,
	.add = add,
	.change = change,
	.remove = take_away,
	.stream_changed = stream_changed,
	.send = send_later,
	.flush = flush,
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
