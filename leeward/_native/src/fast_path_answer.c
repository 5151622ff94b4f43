/* The fast path's second half: from a job's reply to its client's answer. fast_path.c explains the whole.
 *
 * Runs in:  the daemon, inside a turn of its loop.
 * Trust:    none in a job's bytes. Its reply is compared with the expected bytes; its output is copied, and its length
 *           is what read(2) returned. The control files are the kernel's.
 *
 * And its refusals, of requests on connections that send more than can be served. The owner decides which streams are
 * shed (lw_stream_shed), and the text (lw_fast_path_refusal). The next request of such a stream gets a runner if one is on
 * offer, else the refusal. LW_EVENT_REFUSED tells the owner how many were refused, once per turn and stream. */

#include "fast_path.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Bytes of a control file that are read. Only memory.stat is longer, and it isn't used here. */
#define GAUGE 1024

static int64_t look_at_clock(clockid_t clock)
{
	struct timespec now;

	return clock_gettime(clock, &now) ? -errno : (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Read the number of a gauge; or -errno, -EBADMSG if its file has none. */
static int64_t look(const struct lw_gauge *gauge)
{
	char text[GAUGE + 1];
	size_t key = strnlen(gauge->key, sizeof(gauge->key));
	const char *line = text;
	ssize_t size;

	if (!strncmp(gauge->key, LW_CLOCK, sizeof(gauge->key)))
		return look_at_clock(gauge->fd);
	size = pread(gauge->fd, text, GAUGE, 0);

	if (size <= 0)
		return size ? -errno : -EBADMSG;
	text[size] = 0;
	while (key && (strncmp(line, gauge->key, key) || ' ' != line[key])) {
		line = strchr(line, '\n');
		if (!line)
			return -EBADMSG;
		line++;
	}
	line += key ? key + 1 : 0;
	if (*line < '0' || *line > '9')
		return -EBADMSG;
	return (int64_t)(strtoull(line, NULL, 10) & INT64_MAX);
}

struct figures {
	double cpu; /* seconds */
	uint64_t peak; /* bytes */
};

/* Whether the job has no details that the answer would have to report, such as a limit that was hit or a refused call.
 * Reads the job's figures. */
static bool in_order(const struct lw_offer *offer, struct figures *ret)
{
	int64_t time = look(&offer->time), peak = look(&offer->peak);
	int64_t oom = look(&offer->oom), forks = look(&offer->forks);
	uint64_t denials;

	if (time < 0 || peak < 0 || oom < 0 || forks < 0 || (uint64_t)oom != offer->oom_before ||
	    (uint64_t)forks != offer->forks_before ||
	    lw_supervisor_total(offer->supervisor, offer->denials, &denials) || denials != offer->denials_before)
		return false;
	ret->cpu = (double)time * offer->time_unit - offer->time_before;
	ret->cpu = ret->cpu > 0 ? ret->cpu : 0;
	ret->peak = (uint64_t)peak;
	return true;
}

/* The put_ functions write where lw_reserve has made room; this one the head of a binary value of `size` bytes. */
static size_t put_binary_head(uint8_t *to, uint64_t size)
{
	unsigned power = size > UINT16_MAX ? 2 : size > UINT8_MAX;

	to[0] = (uint8_t)(0xc4 + power);
	return 1 + lw_put_number(to + 1, 1u << power, size);
}

static void put(struct lw_bytes *to, const void *data, size_t size)
{
	memcpy(to->data + to->size, data, size);
	to->size += size;
}

static void put_piece(struct lw_bytes *to, const struct lw_piece *piece)
{
	put(to, piece->data, piece->size);
}

static void put_double(struct lw_bytes *to, double value)
{
	uint64_t bits;

	memcpy(&bits, &value, sizeof(bits));
	to->data[to->size++] = 0xcb;
	to->size += lw_put_number(to->data + to->size, 8, bits);
}

/* Move `size` bytes from `pipe` to the answer. There may be fewer by now: a job can read its own output. */
static void put_output(struct lw_bytes *to, int pipe, size_t size, uint8_t *between)
{
	ssize_t got = size ? read(pipe, between, size) : 0;

	size = got > 0 ? (size_t)got : 0;
	to->size += put_binary_head(to->data + to->size, size);
	put(to, between, size);
}

/* The frame that the client gets: byte for byte what leeward/wire/answers.py would make. */
static void put_answer(struct lw_fast_path *path, const struct lw_entry *entry, const struct figures *figures,
		       double duration, const size_t sizes[2], struct lw_bytes *to)
{
	const struct lw_templates *templates = &path->templates;
	size_t head = to->size;

	to->size += 4;
	put_piece(to, &templates->answer_id);
	to->size += lw_put_whole(to->data + to->size, entry->id);
	put_piece(to, &templates->answer_duration);
	put_double(to, duration);
	put_piece(to, &templates->answer_cpu);
	put_double(to, figures->cpu);
	put_piece(to, &templates->answer_peak);
	to->size += lw_put_whole(to->data + to->size, figures->peak);
	put_piece(to, &templates->answer_out);
	put_output(to, entry->offer.out, sizes[0], path->output);
	put_piece(to, &templates->answer_err);
	put_output(to, entry->offer.err, sizes[1], path->output);
	lw_put_number(to->data + head, 4, to->size - head - 4);
}

static void hand_over(struct lw_loop *loop, struct lw_entry *entry, const uint8_t *reply, ssize_t got)
{
	struct lw_fast_path *path = loop->fast_path;
	uint8_t *kept = path->replies[path->handed++ % LW_TURN];
	struct lw_event event = { .kind = LW_EVENT_HANDED, .number = entry->offer.number, .data = kept };

	if (got > 0) {
		memcpy(kept, reply, (size_t)got);
		event.value = got;
	}
	lw_entry_vacate(loop, entry);
	lw_tell_first(loop, &event);
	loop->pressing = true;
}

/* Whether an answer may be sent on this stream now. Not in the middle of a frame of the owner's; not before a frame that the
 * owner waits to send; and not while a client leaves much unread, which the owner bounds. */
bool lw_may_answer(const struct lw_stream *stream)
{
	return !stream->halfway && !stream->wants_room && !(stream->flying && stream->owners) &&
	       stream->waiting.size <= LW_MOST_OUTPUT;
}

/* The reply pipe of the runner in entry `at` has bytes, or its end. */
void lw_fast_path_replied(struct lw_loop *loop, uint32_t at)
{
	struct lw_fast_path *path = loop->fast_path;
	const struct lw_piece *expected = &path->templates.reply;
	struct lw_entry *entry = &path->entries[at];
	struct lw_slot *slot = lw_slot_of(loop, entry->stream, entry->stream_generation);
	uint8_t reply[LW_MOST_REPLY];
	struct figures figures;
	size_t sizes[2];
	double ended;
	ssize_t got;

	if (LW_RUNNING != entry->state) { /* the runner has died without a job, which its keeper reports to the owner */
		lw_entry_vacate(loop, entry);
		return;
	}
	got = read(entry->offer.reply, reply, expected->size);
	ended = lw_now_s();
	sizes[0] = lw_pipe_bytes(entry->offer.out);
	sizes[1] = lw_pipe_bytes(entry->offer.err);
	if (!slot || !lw_may_answer(slot->stream) || got != (ssize_t)expected->size ||
	    memcmp(reply, expected->data, expected->size) ||
	    sizes[0] + sizes[1] > LW_MOST_OUTPUT || !in_order(&entry->offer, &figures) ||
	    lw_reserve(&slot->stream->waiting, LW_MOST_FRAME + sizes[0] + sizes[1])) {
		hand_over(loop, entry, reply, got);
		return;
	}
	put_answer(path, entry, &figures, ended - entry->started, sizes, &slot->stream->waiting);
	loop->way->flush(loop, slot->stream);
	lw_tell_first(loop, &(struct lw_event){ .kind = LW_EVENT_DONE, .fd = entry->stream, .id = entry->id,
						.number = entry->offer.number, .session = entry->offer.session,
						.at = ended, .cpu = figures.cpu, .peak = figures.peak });
	if (entry->offer.session) {
		entry->offer.time_before += figures.cpu;
		lw_entry_hold(path, entry, slot->stream);
	} else {
		lw_entry_vacate(loop, entry);
	}
}

/* Replace a piece by a copy of `data`. Returns 0 or -ENOMEM. */
int lw_keep_piece(struct lw_piece *to, const uint8_t *data, uint32_t size)
{
	uint8_t *copy = malloc(size ? size : 1);

	if (!copy)
		return -ENOMEM;
	memcpy(copy, data, size);
	free((void *)(uintptr_t)to->data);
	*to = (struct lw_piece){ .data = copy, .size = size };
	return 0;
}

/* Set the bytes of the refusal, `before` and `behind` the request's id; before a stream is shed. 0, -EINVAL or -ENOMEM. */
int lw_fast_path_refusal(struct lw_loop *loop, const uint8_t *before, uint32_t before_size, const uint8_t *behind,
			 uint32_t behind_size)
{
	struct lw_fast_path *path = loop->fast_path;
	int failed;

	if (before_size > LW_MOST_FRAME / 2 || behind_size > LW_MOST_FRAME / 2 - 64)
		return -EINVAL;
	failed = lw_keep_piece(&path->refusal_id, before, before_size);
	return failed ? failed : lw_keep_piece(&path->refusal_end, behind, behind_size);
}

/* Turn on or off that the fast path refuses requests of this stream if no runner is on offer. Returns 0 or -errno. */
int lw_stream_shed(struct lw_loop *loop, int fd, bool on)
{
	struct lw_stream *stream = lw_stream_of(loop, fd);

	if (!stream)
		return -ENOENT;
	if (on && !loop->fast_path->refusal_end.data)
		return -EINVAL;
	stream->shed = on;
	return 0;
}

/* Refuse request `id`. False if the owner has to decide instead. */
bool lw_fast_path_refuse(struct lw_loop *loop, struct lw_stream *stream, uint64_t id)
{
	struct lw_fast_path *path = loop->fast_path;
	struct lw_bytes *to = &stream->waiting;
	size_t head = to->size;

	if (!stream->shed || LW_TURN == path->refused || !lw_may_answer(stream) || lw_reserve(to, LW_MOST_FRAME))
		return false;
	to->size += 4;
	put_piece(to, &path->refusal_id);
	to->size += lw_put_whole(to->data + to->size, id);
	put_piece(to, &path->refusal_end);
	lw_put_number(to->data + head, 4, to->size - head - 4);
	if (!stream->refused++)
		path->refusing[path->refusing_count++] = stream->fd;
	path->refused++;
	return true;
}

/* At the end of the turn: report the streams with refused requests. */
void lw_fast_path_tell_refused(struct lw_loop *loop)
{
	struct lw_fast_path *path = loop->fast_path;

	for (uint32_t at = 0; at < path->refusing_count; at++) {
		struct lw_stream *stream = loop->slots[path->refusing[at]].stream;

		lw_tell(loop, LW_EVENT_REFUSED, stream->fd, stream->refused, NULL);
		stream->refused = 0;
	}
	path->refusing_count = path->refused = 0;
}
