/* Sending by the ring of loop_uring.c: one send of a stream at a time, of the owner's frame or of the fast path's
 * answers.
 *
 * Runs in:  the daemon. */

#include "loop_uring.h"

#ifdef LW_URING

#include <errno.h>

/* Submit the next send: of the owner's frame, or of the rest of `sending`. */
static void send_on(struct lw_loop *loop, struct lw_stream *stream)
{
	struct io_uring_sqe *entry = lw_ring_next_of(loop, stream->fd);

	stream->flying = true;
	if (stream->owners)
		io_uring_prep_sendmsg(entry, stream->fd, &stream->message, MSG_NOSIGNAL);
	else
		io_uring_prep_send(entry, stream->fd, stream->sending.data + stream->sent,
				   stream->sending.size - stream->sent, MSG_NOSIGNAL);
	io_uring_sqe_set_data64(entry, lw_ring_tag(LW_RING_SEND, stream->fd, stream->generation));
}

/* Send the owner's frame. Returns -EINPROGRESS, and LW_EVENT_SENT reports the end. */
int64_t lw_ring_send(struct lw_loop *loop, struct lw_stream *stream, const uint8_t *data, size_t size, const int *fds,
		     uint32_t fd_count)
{
	stream->owners = true;
	stream->piece = (struct iovec){ .iov_base = (void *)(uintptr_t)data, .iov_len = size };
	stream->message = (struct msghdr){ .msg_iov = &stream->piece, .msg_iovlen = 1 };
	if (fd_count) {
		stream->message.msg_control = stream->control;
		stream->message.msg_controllen = lw_control(stream->control, fds, fd_count);
	}
	send_on(loop, stream);
	return -EINPROGRESS;
}

/* Send the fast path's answers, if no send is in the ring. */
void lw_ring_flush(struct lw_loop *loop, struct lw_stream *stream)
{
	struct lw_uring *way = loop->kernel;
	struct lw_bytes idle = stream->sending;

	if (stream->flying || !stream->waiting.size)
		return;
	stream->sending = stream->waiting;
	stream->sent = 0;
	idle.size = 0;
	stream->waiting = idle;
	stream->owners = false;
	send_on(loop, stream);
	lw_ring_hand_in(way); /* at once, because a client waits */
}

/* Remove the stream of a send whose descriptor was forgotten from the list, and return it. */
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
void lw_ring_sent(struct lw_loop *loop, struct lw_slot *slot, int fd, uint32_t generation, int result)
{
	struct lw_uring *way = loop->kernel;
	struct lw_stream *stream = slot ? slot->stream : take_dead(way, fd, generation);

	if (!stream)
		return;
	stream->flying = false;
	if (stream->owners) {
		stream->owners = false;
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
	lw_ring_flush(loop, stream);
	if (stream->wants_room && !stream->flying) {
		stream->wants_room = false;
		lw_tell(loop, LW_EVENT_ROOM, fd, 0, NULL);
	}
}

#endif
