/* A job's way on the fast path: from a client's bytes to a runner's job pipe, and from its reply to the client's answer.
 * fast_path.c explains the whole.
 *
 * Runs in:  the daemon, inside a turn of its loop.
 * Trust:    none in a client's bytes. They are compared with those of the templates; between them are a request's id, a
 *           session's number and the length of the code, and each is checked against its bounds.
 *           None in a job's bytes. Its reply is compared with the expected bytes; its output is copied, and its length
 *           is what read(2) returned. The control files are the kernel's.
 *
 * Requests on connections that send more than can be served are refused. Python decides which streams are shed
 * (lw_stream_shed), and the text (lw_fast_path_refusal). The next request of such a stream gets a runner if one is on
 * offer, else the refusal. LW_EVENT_REFUSED tells Python how many were refused, once per turn and stream. */

#include "fast_path.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
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
	while (key && (strncmp(line, gauge->key, key) || line[key] != ' ')) {
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

/* Read the peak of the job's memory. False if it has reached a limit. */
static bool within_limits(struct lw_offer *offer, uint64_t *ret_peak)
{
	int64_t peak, oom, forks;
	uint64_t charged;

	if (offer->watch.job) {
		if (lw_supervisor_charged(offer->supervisor, offer->denials, &charged) || lw_watch_look(&offer->watch, charged))
			return false;
		*ret_peak = offer->watch.peak;
		return true;
	}
	peak = look(&offer->peak);
	oom = look(&offer->oom);
	forks = look(&offer->forks);
	*ret_peak = (uint64_t)peak;
	return peak >= 0 && oom >= 0 && forks >= 0 && (uint64_t)oom == offer->oom_before &&
	       (uint64_t)forks == offer->forks_before;
}

/* Read the job's figures. False if it has details to report, such as a limit that was hit or a refused call. */
static bool in_order(struct lw_offer *offer, struct figures *ret)
{
	int64_t time = look(&offer->time);
	uint64_t denials;

	if (time < 0 || !within_limits(offer, &ret->peak) ||
	    lw_supervisor_total(offer->supervisor, offer->denials, &denials) || denials != offer->denials_before)
		return false;
	ret->cpu = (double)time * offer->time_unit - offer->time_before;
	ret->cpu = ret->cpu > 0 ? ret->cpu : 0;
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

/* Whether an answer may be sent on this stream now. Not in the middle of a frame of Python's; not before a frame that
 * Python waits to send; and not while a client leaves much unread, which Python bounds. */
static bool may_answer(const struct lw_stream *stream)
{
	return !stream->halfway && !stream->wants_room && !(stream->flying && stream->from_python) &&
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

	if (entry->state != LW_RUNNING) { /* the runner has died without a job, which its keeper reports to Python */
		lw_entry_vacate(loop, entry);
		return;
	}
	got = read(entry->offer.reply, reply, expected->size);
	ended = lw_now_s();
	sizes[0] = lw_pipe_bytes(entry->offer.out);
	sizes[1] = lw_pipe_bytes(entry->offer.err);
	if (!slot || !may_answer(slot->stream) || got != (ssize_t)expected->size ||
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
	if (entry->offer.session && !entry->offer.once) {
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

	if (before_size > LW_MOST_FRAME / 2 || behind_size > LW_MOST_FRAME / 2 - 64)
		return -EINVAL;
	return lw_keep_piece(&path->refusal_id, before, before_size) ||
	       lw_keep_piece(&path->refusal_end, behind, behind_size) ? -ENOMEM : 0;
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

static bool refuse(struct lw_loop *loop, struct lw_stream *stream, uint64_t id)
{
	struct lw_fast_path *path = loop->fast_path;
	struct lw_bytes *to = &stream->waiting;
	size_t head = to->size;

	if (!stream->shed || path->refused == LW_TURN || !may_answer(stream) || lw_reserve(to, LW_MOST_FRAME))
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

/* Bytes of code that take the fast path. */
#define MOST_CODE (32u << 10)
/* The largest id of a request; leeward/wire/fields.py. */
#define MOST_ID ((UINT64_C(1) << 53) - 1)

struct request {
	uint64_t id, session;
	const uint8_t *code;
	uint32_t size;
};

static bool begins(const uint8_t **at, const uint8_t *end, const struct lw_piece *piece)
{
	if ((size_t)(end - *at) < piece->size || memcmp(*at, piece->data, piece->size))
		return false;
	*at += piece->size;
	return true;
}

static bool number(const uint8_t **at, const uint8_t *end, unsigned width, uint64_t *ret)
{
	if (end - *at < (ptrdiff_t)width)
		return false;
	for (*ret = 0; width; width--)
		*ret = *ret << 8 | *(*at)++;
	return true;
}

/* Read one of MessagePack's whole numbers from 0 up. */
static bool whole(const uint8_t **at, const uint8_t *end, uint64_t *ret)
{
	uint64_t first;

	if (!number(at, end, 1, &first))
		return false;
	*ret = first;
	return first < 0x80 || (first >= 0xcc && first <= 0xcf && number(at, end, 1u << (first - 0xcc), ret));
}

/* Whether this payload is what our own client sends for code and nothing else, in a session or not. */
static bool is_for_fast_path(const struct lw_templates *templates, const uint8_t *at, const uint8_t *end,
			     struct request *ret)
{
	bool turn = begins(&at, end, &templates->turn_id); /* of a session */
	uint64_t kind, size;

	ret->session = 0;
	if (!turn && !begins(&at, end, &templates->request_id))
		return false;
	if (!whole(&at, end, &ret->id) || !ret->id || ret->id > MOST_ID)
		return false;
	if (turn && (!begins(&at, end, &templates->turn_session) || !whole(&at, end, &ret->session) || !ret->session))
		return false;
	if (!begins(&at, end, turn ? &templates->turn_code : &templates->request_code))
		return false;
	if (!number(&at, end, 1, &kind) || kind < 0xc4 || kind > 0xc6) /* binary, its length in 1, 2 or 4 bytes */
		return false;
	if (!number(&at, end, 1u << (kind - 0xc4), &size) || size > MOST_CODE || size != (uint64_t)(end - at))
		return false;
	ret->code = at;
	ret->size = (uint32_t)size;
	return true;
}

/* Whether a request of this stream with this id is unanswered, or was answered in this turn: Python has to decide. */
static bool in_flight(const struct lw_loop *loop, const struct lw_stream *stream, uint64_t id)
{
	const struct lw_fast_path *path = loop->fast_path;

	for (uint32_t at = 0; at < loop->urgent_count; at++) {
		const struct lw_event *event = &loop->urgent[at];

		if (event->kind == LW_EVENT_DONE && event->fd == stream->fd && event->id == id)
			return true;
	}
	for (uint32_t at = stream->first_running; LW_NOWHERE != at; at = path->entries[at].next_of_stream)
		if (path->entries[at].id == id)
			return true;
	return false;
}

/* Write the job's frame, of *ret_size bytes, to the runner's pipe. Returns how many bytes the pipe took, nearly always
 * all of them; or -errno, and no job has begun. -EMSGSIZE: the pipe can't take the frame at once. */
static ssize_t write_job(const struct lw_templates *templates, const struct lw_entry *entry,
			 const struct request *request, size_t *ret_size)
{
	const struct lw_piece *turn = entry->offer.shows ? &templates->job_shown : &templates->job_turn;
	const struct lw_piece *first = request->session && !entry->offer.once ? turn : &templates->job_code;
	uint8_t head[4];
	size_t payload = first->size + request->size;
	struct iovec pieces[] = {
		{ head, sizeof(head) },
		{ (void *)(uintptr_t)first->data, first->size },
		{ (void *)(uintptr_t)request->code, request->size },
	};
	ssize_t written;

	*ret_size = sizeof(head) + payload;
	if (*ret_size > entry->room)
		return -EMSGSIZE;
	lw_put_number(head, sizeof(head), payload);
	written = writev(entry->offer.job, pieces, sizeof(pieces) / sizeof(*pieces));
	return written < 0 ? -errno : written;
}

static struct lw_entry *next(const struct lw_fast_path *path, const struct lw_stream *stream,
			     const struct request *request)
{
	if (request->session)
		return lw_entry_held(path, stream, request->session);
	return path->offered_count ? &path->entries[path->offered[path->offered_count - 1]] : NULL;
}

/* Give the request to a runner that is offered; false if there is none that takes it. */
static bool start(struct lw_loop *loop, struct lw_stream *stream, const struct request *request)
{
	struct lw_fast_path *path = loop->fast_path;
	struct lw_entry *entry;

	while ((entry = next(path, stream, request))) {
		double started = lw_now_s();
		size_t size;
		ssize_t written;

		/* A session's process that writes a reply while it has no job breaks the protocol. Python reads it. */
		if (request->session && lw_pipe_bytes(entry->offer.reply)) {
			lw_entry_vacate(loop, entry);
			return false;
		}
		if (!request->session && entry->offer.watch.job && lw_watch_begin(&entry->offer.watch)) {
			lw_entry_vacate(loop, entry);
			continue;
		}
		written = write_job(&path->templates, entry, request, &size);
		if (written == -EMSGSIZE)
			return false;
		if (written <= 0) { /* the runner has died, which its keeper reports to Python */
			lw_entry_vacate(loop, entry);
			continue;
		}
		lw_tell_first(loop, &(struct lw_event){ .kind = LW_EVENT_STARTED, .fd = stream->fd, .id = request->id,
							.number = entry->offer.number, .session = request->session,
							.data = request->code, .size = request->size,
							.value = (int64_t)size - written, .at = started });
		loop->pressing |= written < (ssize_t)size;
		path->offered_count -= !request->session;
		lw_entry_run(path, entry, stream, request->id, started);
		return true;
	}
	return false;
}

/* Start or refuse the requests at the beginning of a client's bytes, up to the first that is incomplete or doesn't fit the
 * fast path. Returns the number of bytes of those requests. The bytes must stay until the turn is over, because LW_EVENT_STARTED
 * points into them. */
size_t lw_fast_path_feed(struct lw_loop *loop, struct lw_stream *stream, const uint8_t *data, size_t size)
{
	struct lw_fast_path *path = loop->fast_path;
	size_t taken = 0;
	bool refused = false;

	while (stream->fast_path && (path->offered_count || path->held_count || stream->shed) &&
	       (!stream->waiting.size || refused) && size - taken >= 4 && loop->urgent_count < LW_TURN_JOBS) {
		const uint8_t *frame = data + taken;
		size_t length = (size_t)frame[0] << 24 | (size_t)frame[1] << 16 | (size_t)frame[2] << 8 | frame[3];
		struct request request;

		if (size - taken - 4 < length || !is_for_fast_path(&path->templates, frame + 4, frame + 4 + length, &request) ||
		    in_flight(loop, stream, request.id))
			break;
		if (!start(loop, stream, &request)) {
			if (request.session || path->offered_count || !refuse(loop, stream, request.id))
				break;
			refused = true;
		}
		taken += 4 + length;
	}
	if (refused)
		loop->way->flush(loop, stream);
	return taken;
}
