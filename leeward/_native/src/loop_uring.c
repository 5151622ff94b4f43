/* The loop's backend over io_uring: operations are submitted, and their completions come back.
 *
 * Runs in:  the daemon. Linux 5.19 (rings of provided buffers); a build with liburing.
 * Source:   io_uring(7), io_uring_enter(2), io_uring_register_buf_ring(3)
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
 * that. The memory of a send must stay until the send has ended: `dead` has such streams.
 *
 * A ring that fails is noted, and left at the start of the next turn, when nobody uses what the turn before has reported;
 * no running job is lost. First the kernel is asked to cancel what is in the ring (IORING_REGISTER_SYNC_CANCEL, Linux
 * 6.0). What had ended before is served as ever; that may take some turns, since each can tell only so much. Then every
 * descriptor is given to epoll. Where the kernel can't cancel, the state of a connection is unknown: bytes may have been
 * received from it, or sent. Such a connection is shut down, and its client finds it closed. Polls consume nothing, so
 * jobs, workers and the listener lose nothing. */

#include "loop_private.h"

#include <errno.h>

#ifdef LW_URING

#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>

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
	int failure;		/* -errno once the ring has failed for good; else 0 */
	uint32_t refusals;	/* enters in a row that failed with a temporary error */
	bool cancelled;		/* leaving: the kernel was asked to cancel everything in the ring */
	bool emptied;		/* leaving: the kernel has confirmed that the ring is empty */
	struct io_uring_sqe unread; /* requests to a ring that has failed are written here, and not submitted */
};

/* Entries of the ring. When all are filled, next_entry submits them before the turn's own enter. */
#define RING_ENTRIES 256
/* Bytes for the group of provided buffers, in one piece with its chunks and with as many for guarded streams. Pages are
 * allocated only when they are filled. */
#define BUFFERS ((size_t)LW_CHUNK)
#define MEMORY (BUFFERS + 2 * (size_t)LW_CHUNKS * LW_CHUNK)

static uint64_t tag_of(enum lw_ring_operation operation, int fd, uint32_t generation)
{
	return (uint64_t)operation << 56 | (uint64_t)generation << 32 | (uint32_t)fd;
}

static int hand_in(struct lw_uring *way)
{
	way->enters++;
	return io_uring_submit(&way->ring);
}

/* Record that the ring has failed: from the next turn on the loop uses epoll. */
static void fail(struct lw_uring *way, int failure)
{
	if (!way->failure)
		way->failure = failure ? failure : -EBUSY;
}

/* An entry to fill. Never NULL: if the ring is full, the filled entries are submitted first. */
static struct io_uring_sqe *next_entry(struct lw_uring *way)
{
	struct io_uring_sqe *entry = way->failure ? NULL : io_uring_get_sqe(&way->ring);
	int failed = 0;

	for (unsigned tries = 0; !entry && !way->failure && tries < LW_RING_TRIES; tries++) {
		failed = hand_in(way);
		entry = io_uring_get_sqe(&way->ring);
	}
	if (entry)
		return entry;
	fail(way, failed);
	return &way->unread;
}

/* An entry for an operation on this descriptor. Records it for take_away, as not submitted yet. */
static struct io_uring_sqe *next_entry_of(struct lw_loop *loop, int fd)
{
	struct lw_uring *way = loop->kernel;
	struct io_uring_sqe *entry = next_entry(way);

	loop->slots[fd].asked = way->enters;
	return entry;
}

static void give_back(struct lw_uring *way, uint32_t chunk)
{
	io_uring_buf_ring_add(way->buffers, way->chunks + (size_t)chunk * LW_CHUNK, LW_CHUNK, (unsigned short)chunk,
			      io_uring_buf_ring_mask(LW_CHUNKS), 0);
	io_uring_buf_ring_advance(way->buffers, 1);
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
	void *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int failed;

	if (memory == MAP_FAILED)
		return -ENOMEM;
	group.ring_addr = (uint64_t)(uintptr_t)memory;
	failed = io_uring_register_buf_ring(&way->ring, &group, 0);
	if (failed) {
		munmap(memory, MEMORY);
		return failed;
	}
	way->buffers = memory;
	way->chunks = (uint8_t *)memory + BUFFERS;
	way->guarded = way->chunks + (size_t)LW_CHUNKS * LW_CHUNK;
	io_uring_buf_ring_init(way->buffers);
	for (uint32_t chunk = 0; chunk < LW_CHUNKS; chunk++)
		give_back(way, chunk);
	return 0;
}

static int open_way(struct lw_loop *loop)
{
	struct lw_uring *way = calloc(1, sizeof(*way));
	int failed;

	if (!way)
		return -ENOMEM;
	failed = set_up(way);
	if (!failed && (failed = set_up_buffers(way))) {
		io_uring_queue_exit(&way->ring);
		failed = failed == -EINVAL ? -ENOSYS : failed; /* Linux before 5.19 */
	}
	if (failed) {
		free(way);
		return failed;
	}
	io_uring_register_ring_fd(&way->ring); /* makes enters cheaper; a failure doesn't matter */
	way->enters = 1;
	loop->kernel = way;
	return 0;
}

static void close_way(struct lw_loop *loop)
{
	struct lw_uring *way = loop->kernel;

	io_uring_queue_exit(&way->ring);
	if (way->failure && !way->emptied) {
		/* Operations that may still be in the ring must not use memory that was freed and allocated again. */
		free(way);
		return;
	}
	munmap(way->buffers, MEMORY);
	while (way->dead) {
		struct lw_stream *stream = way->dead;

		way->dead = stream->next_dead;
		lw_stream_free(stream);
	}
	free(way);
}

static void send_on(struct lw_loop *loop, struct lw_stream *stream)
{
	struct io_uring_sqe *entry = next_entry_of(loop, stream->fd);

	stream->flying = true;
	if (stream->from_python)
		io_uring_prep_sendmsg(entry, stream->fd, &stream->message, MSG_NOSIGNAL);
	else
		io_uring_prep_send(entry, stream->fd, stream->sending.data + stream->sent,
				   stream->sending.size - stream->sent, MSG_NOSIGNAL);
	io_uring_sqe_set_data64(entry, tag_of(LW_RING_SEND, stream->fd, stream->generation));
}

/* Send Python's frame. Returns -EINPROGRESS, and LW_EVENT_SENT reports the end. */
static int64_t send_frame(struct lw_loop *loop, struct lw_stream *stream, const uint8_t *data, size_t size, const int *fds,
		     uint32_t fd_count)
{
	stream->from_python = true;
	lw_message(&stream->message, &stream->piece, stream->control, data, size, fds, fd_count);
	send_on(loop, stream);
	return -EINPROGRESS;
}

static void flush(struct lw_loop *loop, struct lw_stream *stream)
{
	struct lw_uring *way = loop->kernel;
	struct lw_bytes idle = stream->sending;

	if (stream->flying || !stream->waiting.size)
		return;
	stream->sending = stream->waiting;
	stream->sent = 0;
	idle.size = 0;
	stream->waiting = idle;
	stream->from_python = false;
	send_on(loop, stream);
	hand_in(way); /* at once, because a client waits */
}

static struct lw_stream *take_dead(struct lw_uring *way, int fd, uint32_t generation)
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

/* Process the end of a send. `slot` is NULL if its descriptor was forgotten meanwhile. */
static void sent(struct lw_loop *loop, struct lw_slot *slot, int fd, uint32_t generation, int result)
{
	struct lw_uring *way = loop->kernel;
	struct lw_stream *stream = slot ? slot->stream : take_dead(way, fd, generation);

	if (!stream)
		return;
	stream->flying = false;
	if (stream->from_python) {
		stream->from_python = false;
		stream->halfway = result < 0 || (size_t)result < stream->piece.iov_len;
		tell_sent(loop, stream, result);
	} else if (slot && result > 0 && stream->sent + (size_t)result < stream->sending.size) {
		stream->sent += (size_t)result;
		send_on(loop, stream);
		return;
	} else {
		/* Everything is sent, or the connection is broken, which receiving will report; the rest is dropped. */
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

static void cancel(struct lw_uring *way, enum lw_ring_operation operation, int fd, uint32_t generation)
{
	struct io_uring_sqe *entry = next_entry(way);

	io_uring_prep_cancel64(entry, tag_of(operation, fd, generation), 0);
	io_uring_sqe_set_data64(entry, tag_of(LW_RING_CANCEL, fd, generation));
}

static void ask(struct lw_loop *loop, int fd, struct lw_slot *slot)
{
	struct io_uring_sqe *entry = next_entry_of(loop, fd);

	slot->armed = true;
	if (slot->kind == LW_ACCEPT) {
		/* One at a time: a multishot accept takes all waiting connections, and so many descriptors, before
		 * Python has decided about the first one. */
		io_uring_prep_accept(entry, fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		io_uring_sqe_set_data64(entry, tag_of(LW_RING_ACCEPT, fd, slot->generation));
		return;
	}
	io_uring_prep_poll_add(entry, fd, slot->kind == LW_WATCH ? slot->events : POLLIN);
	io_uring_sqe_set_data64(entry, tag_of(LW_RING_POLL, fd, slot->generation));
}

static int stream_changed(struct lw_loop *loop, struct lw_stream *stream)
{
	struct io_uring_sqe *entry;

	if (stream->reading && !stream->receiving) {
		stream->receiving = true;
		entry = next_entry_of(loop, stream->fd);
		if (stream->guarded) {
			io_uring_prep_poll_add(entry, stream->fd, POLLIN);
		} else {
			io_uring_prep_recv(entry, stream->fd, NULL, LW_CHUNK, 0);
			entry->flags |= IOSQE_BUFFER_SELECT;
			entry->buf_group = LW_RING_BUFFERS;
		}
		io_uring_sqe_set_data64(entry, tag_of(LW_RING_RECEIVE, stream->fd, stream->generation));
	} else if (!stream->reading && !stream->receiving && !stream->minding) {
		stream->minding = true;
		entry = next_entry_of(loop, stream->fd);
		io_uring_prep_poll_add(entry, stream->fd, 0); /* hang-ups are always reported */
		io_uring_sqe_set_data64(entry, tag_of(LW_RING_MIND, stream->fd, stream->generation));
	}
	return 0;
}

static int add(struct lw_loop *loop, int fd)
{
	struct lw_slot *slot = &loop->slots[fd];

	if (slot->kind == LW_STREAM)
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
		hand_in(way);
	if (slot->kind != LW_STREAM) {
		if (slot->armed)
			cancel(way, slot->kind == LW_ACCEPT ? LW_RING_ACCEPT : LW_RING_POLL, fd, slot->generation);
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
	size_t got = done->res > 0 ? (size_t)done->res : 0;

	if (!stream) {
		if (chunked)
			give_back(way, chunk);
		return;
	}
	stream->receiving = false;
	if (done->res == -ENOBUFS || done->res == -ECANCELED || done->res == -EINTR || done->res == -EAGAIN) {
		again(way, fd, slot->generation);
		return;
	}
	if (!got) {
		if (chunked)
			give_back(way, chunk);
		lw_tell(loop, LW_EVENT_DATA, fd, done->res, NULL);
		return;
	}
	if (lw_fed(loop, stream, way->chunks + (size_t)chunk * LW_CHUNK, got) || loop->urgent_count > urgent)
		way->told[way->told_count++] = (uint16_t)chunk;
	else
		give_back(way, chunk);
	again(way, fd, slot->generation);
}

/* A guarded stream is readable. It is received from here, because the ring can't look for descriptors first. */
static void looked(struct lw_loop *loop, struct lw_slot *slot, int fd)
{
	struct lw_uring *way = loop->kernel;
	struct lw_stream *stream = slot->stream;
	uint8_t *chunk = way->guarded + (size_t)way->guarded_used * LW_CHUNK;
	int64_t got = way->guarded_used == LW_CHUNKS ? -EAGAIN : lw_receive(stream, chunk);

	stream->receiving = false;
	if (got <= 0 && got != -EAGAIN && got != -EINTR) {
		lw_tell(loop, LW_EVENT_DATA, fd, got, NULL);
		return;
	}
	again(way, fd, slot->generation);
	if (got <= 0)
		return;
	lw_fed(loop, stream, chunk, (size_t)got);
	way->guarded_used++;
	loop->pressing |= way->guarded_used == LW_CHUNKS;
}

static void accepted(struct lw_loop *loop, struct lw_slot *slot, int fd, const struct io_uring_cqe *done)
{
	if (!slot) { /* the listener was forgotten after this connection was accepted */
		if (done->res >= 0)
			lw_tell(loop, LW_EVENT_ACCEPTED, fd, done->res, NULL);
		return;
	}
	slot->armed = done->flags & IORING_CQE_F_MORE;
	if (done->res < 0 && done->res != -ECONNABORTED && done->res != -EINTR && done->res != -ECANCELED) {
		if (slot->armed)
			take_away(loop, fd);
		slot->kind = LW_FREE; /* Python calls lw_loop_accept again later */
	} else if (!slot->armed) {
		ask(loop, fd, slot);
	}
	if (done->res >= 0 || slot->kind == LW_FREE)
		lw_tell(loop, LW_EVENT_ACCEPTED, fd, done->res, NULL);
}

static void serve(struct lw_loop *loop, const struct io_uring_cqe *done)
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
		if (slot->kind == LW_REPLY)
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
		sent(loop, slot, fd, generation, done->res);
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

static void cancel_all(struct lw_uring *way)
{
	struct io_uring_sync_cancel_reg all = {
		.fd = -1,
		.flags = IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY,
		.timeout = { .tv_sec = 1, .tv_nsec = 0 },
	};
	int failed = io_uring_register_sync_cancel(&way->ring, &all);

	way->cancelled = true;
	way->emptied = failed >= 0 || failed == -ENOENT;
}

/* Whether this is the completion of an operation without effect: epoll takes over polls, and lose_sends handles sends. */
static bool did_nothing(const struct io_uring_cqe *done)
{
	enum lw_ring_operation operation = (enum lw_ring_operation)(done->user_data >> 56);

	return done->res < 0 && (operation == LW_RING_SEND || (operation == LW_RING_POLL && done->res == -ECANCELED));
}

/* Process completions, as many as one turn can report. Returns whether there were any. */
static bool serve_the_rest(struct lw_loop *loop)
{
	struct lw_uring *way = loop->kernel;
	struct io_uring_cqe *done;
	unsigned head, count = 0;

	io_uring_for_each_cqe(&way->ring, head, done) {
		if (count == LW_TURN || way->told_count == LW_CHUNKS)
			break;
		if (!did_nothing(done))
			serve(loop, done);
		count++;
	}
	io_uring_cq_advance(&way->ring, count);
	way->again_count = 0; /* epoll watches all descriptors from now on */
	return count > 0;
}

static void lose_send(struct lw_loop *loop, struct lw_stream *stream)
{
	stream->flying = false;
	stream->sent = stream->sending.size = stream->waiting.size = 0;
	if (!stream->from_python)
		return;
	stream->from_python = false;
	stream->halfway = true;
	tell_sent(loop, stream, -ECONNRESET);
}

/* Report the ends of the remaining sends, as many as one turn can. Returns whether those were all. */
static bool lose_sends(struct lw_loop *loop)
{
	struct lw_uring *way = loop->kernel;

	for (struct lw_stream *stream = way->emptied ? way->dead : NULL; stream; stream = stream->next_dead) {
		if (loop->other_count >= LW_TURN)
			return false;
		if (stream->flying)
			lose_send(loop, stream);
	}
	for (int fd = 0; fd < loop->slot_count; fd++) {
		struct lw_slot *slot = &loop->slots[fd];

		if (slot->kind != LW_STREAM || !(slot->stream->flying || (slot->stream->receiving && !way->emptied)))
			continue;
		if (loop->other_count >= LW_TURN)
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
	close_way(loop);
	loop->kernel = kernel;
	loop->way = &lw_epoll_way;
	for (int fd = 0; !failed && fd < loop->slot_count; fd++) {
		struct lw_slot *slot = &loop->slots[fd];

		if (slot->kind == LW_FREE)
			continue;
		slot->armed = false;
		if (slot->kind == LW_STREAM)
			slot->stream->receiving = slot->stream->minding = false;
		failed = lw_epoll_way.add(loop, fd);
	}
	lw_tell(loop, LW_EVENT_TRANSPORT, -1, failure, NULL);
	return failed;
}

/* Execute one turn of a loop whose ring has failed. Returns 0, or -errno if there is no epoll either. */
static int leave(struct lw_loop *loop)
{
	struct lw_uring *way = loop->kernel;

	if (!way->cancelled)
		cancel_all(way);
	if (serve_the_rest(loop) || !lose_sends(loop))
		return 0;
	return go_by_epoll(loop);
}

/* Submit new operations for what the last turn has reported, which Python has served by now. */
static void ask_again(struct lw_loop *loop)
{
	struct lw_uring *way = loop->kernel;

	for (uint32_t at = 0; at < way->again_count; at++) {
		const struct lw_again *each = &way->again[at];
		struct lw_slot *slot = lw_slot_of(loop, each->fd, each->generation);

		if (slot && slot->kind == LW_STREAM)
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
	way->refusals = failed == -EAGAIN || failed == -EBUSY ? way->refusals + 1 : 0;
	if ((failed < 0 && failed != -ETIME && failed != -EINTR && !way->refusals) || way->refusals > LW_RING_TRIES)
		fail(way, failed);
	if (failed < 0 && failed != -ETIME && !way->refusals)
		return failed == -EINTR ? failed : 0;
	io_uring_for_each_cqe(&way->ring, head, done) {
		if (count == LW_TURN || way->told_count == LW_CHUNKS)
			break; /* the rest is served in the next turn */
		serve(loop, done);
		count++;
	}
	io_uring_cq_advance(&way->ring, count);
	loop->pressing |= way->told_count == LW_CHUNKS; /* nothing can be received until the turn is over */
	return 0;
}

static int turn(struct lw_loop *loop, int64_t patience_ns)
{
	struct lw_uring *way = loop->kernel;

	for (uint32_t at = 0; at < way->told_count; at++)
		give_back(way, way->told[at]);
	way->told_count = way->guarded_used = 0;
	if (way->failure)
		return leave(loop);
	return go_on(loop, patience_ns);
}

const struct lw_way_to_kernel lw_uring_way = {
	.open = open_way,
	.close = close_way,
	.add = add,
	.change = change,
	.remove = take_away,
	.stream_changed = stream_changed,
	.send = send_frame,
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
