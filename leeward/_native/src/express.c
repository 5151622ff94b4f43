/* The short way of a short job: from its client's request to its runner, and back, without Python.
 *
 * Runs in:  the daemon, inside a turn of its loop.
 * Trust:    nothing is parsed. A request is taken whose bytes are what our own client sends for code
 *           and nothing else; a reply whose bytes are those of a job that has nothing to tell. Every
 *           other one is told to Python, which reads, checks and decides as if this file weren't there.
 *
 * Theory of operation. The owner offers armed runners, one of each worker that is free, with all that an answer
 * needs: pipes, open control files and what stood in them. A whole plain request takes one of them at
 * once: the code is written to its pipe. When its reply is there and all is in order, the answer goes out.
 * The owner hears by LW_EVENT_STARTED and LW_EVENT_DONE, and has his records to make then. A job may run on the
 * processor that he would make them on, and so may its client: therefore the turn goes on meanwhile, for STAY_NS
 * and no longer than nothing else happens, and both events come together. Whatever isn't in order (a denied call, a limit hit, much output, an
 * exception) is handed over untouched by LW_EVENT_HANDED. A runner that the owner withdraws is his alone from then on.
 *
 * A session's runner is offered to one stream and one number, and takes the requests that name it, one after the
 * other, until it is withdrawn. So one turn may tell of several of its jobs, in order.
 *
 * So the owner sees the same things as without this file, only later; and each of his rules that could
 * forbid a job must be in the offer, or in the word `plain` of a stream. */

#include "loop_private.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Bytes of code, and of stdout and stderr together, that go the short way. */
#define MOST_CODE (32u << 10)
#define MOST_OUTPUT (32u << 10)
/* Bytes of a control file: memory.stat would be more, and isn't asked. */
#define GAUGE 1024
/* Bytes of the reply of a job that has nothing to tell; and of an answer without output. */
#define MOST_REPLY 64
#define MOST_FRAME 1024
#define MOST_ID ((UINT64_C(1) << 53) - 1)
/* For so long after a job's start, and after its answer, the owner isn't told if nothing else happens; by then most
 * short jobs are over, and their clients awake. The owner's own looks at a job begin later. After a session's
 * answer he has nothing to do but to count it. */
#define STAY_NS 1000000
#define COURTESY_NS 100000
/* What waits to be told while a turn goes on; with all that one wait can bring there is room for it. */
#define MOST_UNTOLD LW_TURN

/* HELD: offered to a session. */
enum state { VACANT, OFFERED, RUNNING, HELD };

struct entry {
	enum state state;
	struct lw_offer offer;
	uint32_t room; /* bytes that its job pipe takes at once */
	int stream;
	uint32_t stream_generation;
	uint64_t id;
	double started;
};

/* One that was given up is told or skipped by its state; `offered` holds indexes of entries. */
struct lw_express {
	bool ready; /* the terms are here */
	struct lw_terms terms;
	struct entry *entries;
	uint32_t *offered;
	uint32_t count, offered_count, held_count;
	uint8_t replies[LW_TURN][MOST_REPLY]; /* what LW_EVENT_HANDED tells in a turn */
	uint32_t handed;
	uint8_t output[MOST_OUTPUT];
};

static double now(void)
{
	return 1e-9 * (double)lw_now_ns();
}

static void tell(struct lw_loop *loop, const struct lw_event *event)
{
	loop->urgent[loop->urgent_count++] = *event;
}

/* How long this turn may wait for more before its owner hears of it, at most until `turn_ends_ns`; 0: not at all. */
int64_t lw_express_patience(const struct lw_loop *loop, int64_t turn_ends_ns)
{
	double ends = (double)turn_ends_ns;
	int64_t left;

	if (loop->pressing || loop->other_count || !loop->urgent_count || loop->urgent_count > MOST_UNTOLD)
		return 0;
	for (uint32_t at = 0; at < loop->urgent_count; at++) {
		const struct lw_event *event = &loop->urgent[at];
		bool counted = LW_EVENT_STARTED != event->kind && !event->session;
		double stay = 1e9 * event->at + (counted ? COURTESY_NS : STAY_NS);

		ends = stay < ends ? stay : ends;
	}
	left = (int64_t)ends - lw_now_ns();
	return left > 0 ? left : 0;
}

int lw_express_open(struct lw_loop *loop)
{
	loop->express = calloc(1, sizeof(*loop->express));
	return loop->express ? 0 : -ENOMEM;
}

static void drop_terms(struct lw_terms *terms)
{
	struct lw_piece *pieces = (struct lw_piece *)terms;

	for (size_t at = 0; at < sizeof(*terms) / sizeof(*pieces); at++)
		free((void *)(uintptr_t)pieces[at].data);
	*terms = (struct lw_terms){ 0 };
}

void lw_express_close(struct lw_loop *loop)
{
	struct lw_express *express = loop->express;

	if (!express)
		return;
	drop_terms(&express->terms);
	free(express->entries);
	free(express->offered);
	free(express);
}

/* Once, before the first offer. */
int lw_express_terms(struct lw_loop *loop, const struct lw_terms *terms)
{
	struct lw_express *express = loop->express;
	const struct lw_piece *given = (const struct lw_piece *)terms;
	struct lw_piece *kept = (struct lw_piece *)&express->terms;

	size_t answer = terms->answer_id.size + terms->answer_duration.size + terms->answer_cpu.size +
			terms->answer_peak.size + terms->answer_out.size + terms->answer_err.size;

	if (express->ready || terms->reply.size > MOST_REPLY || answer > MOST_FRAME - 64)
		return -EINVAL;
	for (size_t at = 0; at < sizeof(*terms) / sizeof(*given); at++) {
		uint8_t *copy = malloc(given[at].size ? given[at].size : 1);

		if (!copy) {
			drop_terms(&express->terms);
			return -ENOMEM;
		}
		memcpy(copy, given[at].data, given[at].size);
		kept[at] = (struct lw_piece){ .data = copy, .size = given[at].size };
	}
	express->ready = true;
	return 0;
}

static int grow(struct lw_express *express)
{
	uint32_t count = express->count ? 2 * express->count : 8;
	struct entry *entries = realloc(express->entries, count * sizeof(*entries));
	uint32_t *offered;

	if (!entries)
		return -ENOMEM;
	express->entries = entries;
	offered = realloc(express->offered, count * sizeof(*offered));
	if (!offered)
		return -ENOMEM;
	express->offered = offered;
	memset(entries + express->count, 0, (count - express->count) * sizeof(*entries));
	express->count = count;
	return 0;
}

static void run(struct entry *entry, const struct lw_stream *stream, uint64_t id, double started)
{
	entry->state = RUNNING;
	entry->stream = stream->fd;
	entry->stream_generation = stream->generation;
	entry->id = id;
	entry->started = started;
}

static int enter(struct lw_loop *loop, const struct lw_offer *offer, uint32_t *ret_at)
{
	struct lw_express *express = loop->express;
	int room = fcntl(offer->job, F_GETPIPE_SZ), failed;
	uint32_t at = 0;

	if (!express->ready)
		return -EINVAL;
	if (room < 0)
		return -errno;
	while (at < express->count && VACANT != express->entries[at].state)
		at++;
	if (at == express->count) {
		failed = grow(express);
		if (failed)
			return failed;
	}
	failed = lw_begin(loop, offer->reply, LW_REPLY, 0);
	if (failed)
		return failed;
	loop->slots[offer->reply].entry = at;
	express->entries[at] = (struct entry){ .state = OFFERED, .offer = *offer, .room = (uint32_t)room };
	*ret_at = at;
	return 0;
}

/* A runner that may have the next job. Its descriptors stay the caller's, and open until it is withdrawn or done.
 * Returns 0 or -errno, and then it isn't offered. */
int lw_express_offer(struct lw_loop *loop, const struct lw_offer *offer)
{
	struct lw_express *express = loop->express;
	bool stream = offer->stream >= 0 && offer->stream < loop->slot_count &&
		      LW_STREAM == loop->slots[offer->stream].kind;
	uint32_t at;
	int failed = offer->session && !stream ? -ENOENT : enter(loop, offer, &at);

	if (failed)
		return failed;
	if (offer->session) {
		express->entries[at].state = HELD;
		express->entries[at].stream = offer->stream;
		express->entries[at].stream_generation = loop->slots[offer->stream].stream->generation;
		express->held_count++;
	} else {
		express->offered[express->offered_count++] = at;
	}
	return 0;
}

/* A runner that has its job already, since `started`: only the answer, to request `id` of stream `fd`, goes the
 * short way. */
int lw_express_adopt(struct lw_loop *loop, const struct lw_offer *offer, int fd, uint64_t id, double started)
{
	uint32_t at;
	int failed;

	if (fd < 0 || fd >= loop->slot_count || LW_STREAM != loop->slots[fd].kind)
		return -ENOENT;
	failed = enter(loop, offer, &at);
	if (failed)
		return failed;
	run(&loop->express->entries[at], loop->slots[fd].stream, id, started);
	return 0;
}

static void vacate(struct lw_loop *loop, struct entry *entry)
{
	struct lw_express *express = loop->express;
	uint32_t at = (uint32_t)(entry - express->entries), from = 0, to = 0;

	lw_loop_forget(loop, entry->offer.reply);
	for (; OFFERED == entry->state && from < express->offered_count; from++)
		if (express->offered[from] != at)
			express->offered[to++] = express->offered[from];
	if (OFFERED == entry->state)
		express->offered_count = to;
	express->held_count -= HELD == entry->state;
	entry->state = VACANT;
}

/* From now on the runner is the caller's alone. Returns 1 if it was running a job, 0 if it was only offered,
 * -ENOENT if it was neither: an LW_EVENT_DONE or LW_EVENT_HANDED has told, or will at once. */
int lw_express_withdraw(struct lw_loop *loop, uint64_t number)
{
	struct lw_express *express = loop->express;

	for (uint32_t at = 0; at < express->count; at++) {
		struct entry *entry = &express->entries[at];

		if (VACANT != entry->state && entry->offer.number == number) {
			int running = RUNNING == entry->state;

			vacate(loop, entry);
			return running;
		}
	}
	return -ENOENT;
}

/* A client has gone: its jobs are the owner's to end. */
void lw_express_lost(struct lw_loop *loop, const struct lw_stream *stream)
{
	struct lw_express *express = loop->express;

	for (uint32_t at = 0; at < express->count; at++) {
		struct entry *entry = &express->entries[at];

		if ((RUNNING == entry->state || HELD == entry->state) && entry->stream == stream->fd &&
		    entry->stream_generation == stream->generation)
			vacate(loop, entry);
	}
}

/* --- the request -------------------------------------------------------------- */

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

/* `width` bytes, big-endian. */
static bool number(const uint8_t **at, const uint8_t *end, unsigned width, uint64_t *ret)
{
	if (end - *at < (ptrdiff_t)width)
		return false;
	for (*ret = 0; width; width--)
		*ret = *ret << 8 | *(*at)++;
	return true;
}

/* MessagePack's numbers from 0 up. */
static bool whole(const uint8_t **at, const uint8_t *end, uint64_t *ret)
{
	uint64_t first;

	if (!number(at, end, 1, &first))
		return false;
	*ret = first;
	return first < 0x80 || (first >= 0xcc && first <= 0xcf && number(at, end, 1u << (first - 0xcc), ret));
}

/* Is this payload what our own client says for code and nothing else, in a session or not? */
static bool is_plain(const struct lw_terms *terms, const uint8_t *at, const uint8_t *end, struct request *ret)
{
	bool turn = begins(&at, end, &terms->turn_id);
	uint64_t kind, size;

	ret->session = 0;
	if (!(turn || begins(&at, end, &terms->request_id)) || !whole(&at, end, &ret->id) || !ret->id ||
	    ret->id > MOST_ID || (turn && (!begins(&at, end, &terms->turn_session) ||
					   !whole(&at, end, &ret->session) || !ret->session)) ||
	    !begins(&at, end, turn ? &terms->turn_code : &terms->request_code) || !number(&at, end, 1, &kind) ||
	    kind < 0xc4 || kind > 0xc6 || !number(&at, end, 1u << (kind - 0xc4), &size) || size > MOST_CODE ||
	    size != (uint64_t)(end - at))
		return false;
	ret->code = at;
	ret->size = (uint32_t)size;
	return true;
}

/* Is this id in use, as far as the owner knows or will know when he hears what has begun? */
static bool in_flight(const struct lw_loop *loop, const struct lw_stream *stream, uint64_t id)
{
	const struct lw_express *express = loop->express;

	for (uint32_t at = 0; at < loop->urgent_count; at++) {
		const struct lw_event *event = &loop->urgent[at];

		if (LW_EVENT_DONE == event->kind && event->fd == stream->fd && event->id == id)
			return true;
	}
	for (uint32_t at = 0; at < express->count; at++) {
		const struct entry *entry = &express->entries[at];

		if (RUNNING == entry->state && entry->id == id && entry->stream == stream->fd &&
		    entry->stream_generation == stream->generation)
			return true;
	}
	return false;
}

static size_t put_number(uint8_t *to, unsigned width, uint64_t value)
{
	for (unsigned at = 0; at < width; at++)
		to[at] = (uint8_t)(value >> 8 * (width - 1 - at));
	return width;
}

/* The shortest form, as MessagePack's packers choose it. */
static size_t put_whole(uint8_t *to, uint64_t value)
{
	unsigned power = value > UINT32_MAX ? 3 : value > UINT16_MAX ? 2 : value > UINT8_MAX;

	if (value < 0x80) {
		to[0] = (uint8_t)value;
		return 1;
	}
	to[0] = (uint8_t)(0xcc + power);
	return 1 + put_number(to + 1, 1u << power, value);
}

static size_t put_binary_head(uint8_t *to, uint64_t size)
{
	unsigned power = size > UINT16_MAX ? 2 : size > UINT8_MAX;

	to[0] = (uint8_t)(0xc4 + power);
	return 1 + put_number(to + 1, 1u << power, size);
}

/* Bytes written to the job's pipe, all but ever the whole frame; or -errno, and no job has begun. */
static ssize_t write_job(const struct lw_terms *terms, const struct entry *entry, const struct request *request,
			 size_t *ret_size)
{
	const struct lw_piece *first = request->session ? &terms->job_turn : &terms->job_code;
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
	put_number(head, sizeof(head), payload);
	written = writev(entry->offer.job, pieces, sizeof(pieces) / sizeof(*pieces));
	return written < 0 ? -errno : written;
}

/* The runner that is next for this request; NULL if there is none. */
static struct entry *next(const struct lw_express *express, const struct lw_stream *stream,
			  const struct request *request)
{
	if (!request->session)
		return express->offered_count ? &express->entries[express->offered[express->offered_count - 1]] : NULL;
	for (uint32_t at = 0; at < express->count; at++) {
		struct entry *entry = &express->entries[at];

		if (HELD == entry->state && entry->offer.session == request->session && entry->stream == stream->fd &&
		    entry->stream_generation == stream->generation)
			return entry;
	}
	return NULL;
}

/* Bytes that wait in a pipe. */
static size_t held(int pipe)
{
	int count = 0;

	return ioctl(pipe, FIONREAD, &count) || count < 0 ? SIZE_MAX / 2 : (size_t)count;
}

/* Give the request to a runner that is offered; false if there is none that takes it. */
static bool start(struct lw_loop *loop, struct lw_stream *stream, const struct request *request)
{
	struct lw_express *express = loop->express;
	struct entry *entry;

	while ((entry = next(express, stream, request))) {
		double started = now();
		size_t size;
		ssize_t written;

		/* What a session's job says when it has none is a breach, which the owner will find there. */
		if (request->session && held(entry->offer.reply)) {
			vacate(loop, entry);
			return false;
		}
		written = write_job(&express->terms, entry, request, &size);
		if (-EMSGSIZE == written)
			return false;
		if (written <= 0) { /* it died, of which the owner hears elsewhere */
			vacate(loop, entry);
			continue;
		}
		tell(loop, &(struct lw_event){ .kind = LW_EVENT_STARTED, .fd = stream->fd, .id = request->id,
					       .number = entry->offer.number, .session = request->session,
					       .data = request->code, .size = request->size,
					       .value = (int64_t)size - written, .at = started });
		loop->pressing |= written < (ssize_t)size;
		if (request->session)
			express->held_count--;
		else
			express->offered_count--;
		run(entry, stream, request->id, started);
		return true;
	}
	return false;
}

/* Take whole plain requests from the head of what a client sent; returns how many bytes those were. The
 * bytes stay until the turn is over: LW_EVENT_STARTED points into them. */
size_t lw_express_feed(struct lw_loop *loop, struct lw_stream *stream, const uint8_t *data, size_t size)
{
	struct lw_express *express = loop->express;
	size_t taken = 0;

	while (stream->plain && (express->offered_count || express->held_count) && !stream->waiting.size && size - taken >= 4 &&
	       loop->urgent_count < LW_TURN_JOBS) {
		const uint8_t *frame = data + taken;
		size_t length = (size_t)frame[0] << 24 | (size_t)frame[1] << 16 | (size_t)frame[2] << 8 | frame[3];
		struct request request;

		if (size - taken - 4 < length || !is_plain(&express->terms, frame + 4, frame + 4 + length, &request) ||
		    in_flight(loop, stream, request.id) || !start(loop, stream, &request))
			break;
		taken += 4 + length;
	}
	return taken;
}

/* --- the answer --------------------------------------------------------------- */

/* Its number now, or -errno; EBADMSG where it isn't there. */
static int64_t look(const struct lw_gauge *gauge)
{
	char text[GAUGE + 1];
	ssize_t size = pread(gauge->fd, text, GAUGE, 0);
	size_t key = strnlen(gauge->key, sizeof(gauge->key));
	const char *line = text;

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
	double cpu;
	uint64_t peak;
};

/* Has nothing happened that an answer would have to tell? And its figures. */
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

/* The put_ functions below write where `lw_reserve` has made room. */
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
	to->size += put_number(to->data + to->size, 8, bits);
}

/* `size` bytes that wait in `pipe`, of which there may be less now: a job may read its own. */
static void put_output(struct lw_bytes *to, int pipe, size_t size, uint8_t *between)
{
	ssize_t got = size ? read(pipe, between, size) : 0;

	size = got > 0 ? (size_t)got : 0;
	to->size += put_binary_head(to->data + to->size, size);
	put(to, between, size);
}

/* The frame that the client gets: byte for byte what messages.py would say. */
static void put_answer(struct lw_express *express, const struct entry *entry, const struct figures *figures,
		       double duration, const size_t sizes[2], struct lw_bytes *to)
{
	const struct lw_terms *terms = &express->terms;
	size_t head = to->size;

	to->size += 4;
	put_piece(to, &terms->answer_id);
	to->size += put_whole(to->data + to->size, entry->id);
	put_piece(to, &terms->answer_duration);
	put_double(to, duration);
	put_piece(to, &terms->answer_cpu);
	put_double(to, figures->cpu);
	put_piece(to, &terms->answer_peak);
	to->size += put_whole(to->data + to->size, figures->peak);
	put_piece(to, &terms->answer_out);
	put_output(to, entry->offer.out, sizes[0], express->output);
	put_piece(to, &terms->answer_err);
	put_output(to, entry->offer.err, sizes[1], express->output);
	put_number(to->data + head, 4, to->size - head - 4);
}

/* The owner goes on from here; of the reply he gets what was read of it. */
static void hand_over(struct lw_loop *loop, struct entry *entry, const uint8_t *reply, ssize_t got)
{
	struct lw_express *express = loop->express;
	uint8_t *kept = express->replies[express->handed++ % LW_TURN];
	struct lw_event event = { .kind = LW_EVENT_HANDED, .number = entry->offer.number, .data = kept };

	if (got > 0) {
		memcpy(kept, reply, (size_t)got);
		event.value = got;
	}
	vacate(loop, entry);
	tell(loop, &event);
	loop->pressing = true;
}

/* May an answer of ours come next? Not inside a frame of the owner's, nor before what he has waited to send; and
 * those that nobody reads are his to count. */
static bool may_answer(const struct lw_stream *stream)
{
	return !stream->halfway && !stream->wants_room && !(stream->flying && stream->owners) &&
	       stream->waiting.size <= MOST_OUTPUT;
}

/* The reply pipe of entry number `at` has something to say. */
void lw_express_replied(struct lw_loop *loop, uint32_t at)
{
	struct lw_express *express = loop->express;
	const struct lw_piece *expected = &express->terms.reply;
	struct entry *entry = &express->entries[at];
	struct lw_slot *slot = lw_slot_of(loop, entry->stream, entry->stream_generation);
	uint8_t reply[MOST_REPLY];
	struct figures figures;
	size_t sizes[2];
	double ended;
	ssize_t got;

	if (RUNNING != entry->state) { /* it died in store, of which the owner hears elsewhere */
		vacate(loop, entry);
		return;
	}
	got = read(entry->offer.reply, reply, expected->size);
	ended = now();
	sizes[0] = held(entry->offer.out);
	sizes[1] = held(entry->offer.err);
	if (!slot || !may_answer(slot->stream) || got != (ssize_t)expected->size ||
	    memcmp(reply, expected->data, expected->size) ||
	    sizes[0] + sizes[1] > MOST_OUTPUT || !in_order(&entry->offer, &figures) ||
	    lw_reserve(&slot->stream->waiting, MOST_FRAME + sizes[0] + sizes[1])) {
		hand_over(loop, entry, reply, got);
		return;
	}
	put_answer(express, entry, &figures, ended - entry->started, sizes, &slot->stream->waiting);
	loop->way->flush(loop, slot->stream);
	tell(loop, &(struct lw_event){ .kind = LW_EVENT_DONE, .fd = entry->stream, .id = entry->id,
				       .number = entry->offer.number, .session = entry->offer.session, .at = ended,
				       .cpu = figures.cpu, .peak = figures.peak });
	if (entry->offer.session) {
		entry->offer.time_before += figures.cpu;
		entry->state = HELD;
		express->held_count++;
	} else {
		vacate(loop, entry);
	}
}
