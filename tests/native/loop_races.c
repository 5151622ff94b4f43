/* The daemon's loop and its supervisor under ThreadSanitizer, both at work as in the daemon: on one thread the loop,
 * with connections that come and go, jobs on the fast path, and what its Python does between two turns (listeners
 * added, counted, removed, reports drained); on the other the supervisor, with jobs that flood it.
 *
 *     loop_races epoll|uring CALLS
 *
 * Clients and runners are threads here, which share nothing with the loop but descriptors. Exits with 0 if each call
 * was answered once and each way was taken; 2 if there is no io_uring; the sanitizer says the rest. */

#include "floods.h"
#include "loop.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/un.h>

#define CLIENTS 3
#define RUNNERS 2
#define CALLS_OF_A_CONNECTION 25
/* A job that floods is followed by another after so many answers, and there are JOBS of them in turn. */
#define ANSWERS_OF_A_JOB 20
#define JOBS 10

#define CODE "print(1)"
#define OUTPUT "1\n"

static struct sockaddr_un place = { .sun_family = AF_UNIX };
static int calls;

static void expect(bool right, const char *what)
{
	if (!right) {
		fprintf(stderr, "loop_races: %s\n", what);
		_exit(1);
	}
}

static void whole(int fd, uint8_t *data, size_t size)
{
	while (size) {
		ssize_t got = read(fd, data, size);

		expect(got > 0, "the other end has gone");
		data += got;
		size -= (size_t)got;
	}
}

/* --- clients and runners ------------------------------------------------------- */

/* The length of a frame of less than 256 bytes. */
static size_t frame(int fd, uint8_t data[256])
{
	uint8_t head[4];

	whole(fd, head, sizeof(head));
	expect(!head[0] && !head[1] && !head[2], "a long frame");
	whole(fd, data, head[3]);
	return head[3];
}

static void *client(void *argument)
{
	uint8_t request[] = "\0\0\0\0I_C\xc4_" CODE, data[256];
	size_t size = sizeof(request) - 1;
	int sock = -1;

	(void)argument;
	request[3] = (uint8_t)(size - 4);
	request[8] = sizeof(CODE) - 1;
	for (int call = 0; call < calls; call++) {
		if (!(call % CALLS_OF_A_CONNECTION)) {
			if (sock >= 0)
				close(sock);
			sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
			expect(!connect(sock, (struct sockaddr *)&place, sizeof(place)), "connect");
		}
		request[5] = (uint8_t)(1 + call % 100);
		expect(write(sock, request, size) == (ssize_t)size, "a request");
		expect(frame(sock, data) > 1 && data[0] == 'A' && data[1] == request[5], "an answer to somebody else");
	}
	close(sock);
	return NULL;
}

struct runner {
	int job[2], reply[2], out[2], err[2];
	struct lw_offer offer;
	uint32_t denials;
};

static void *run(void *argument)
{
	const struct runner *runner = argument;
	uint8_t head[4], data[256];

	while (read(runner->job[0], head, 1) == 1) {
		whole(runner->job[0], head + 1, 3);
		whole(runner->job[0], data, head[3]);
		expect(head[3] == sizeof(CODE) && data[0] == 'J', "a job's frame");
		expect(write(runner->out[1], OUTPUT, sizeof(OUTPUT) - 1) == sizeof(OUTPUT) - 1, "output");
		expect(write(runner->reply[1], "OK", 2) == 2, "a reply");
	}
	return NULL;
}

/* --- what the daemon's Python does --------------------------------------------- */

struct daemon {
	struct lw_loop *loop;
	struct lw_supervisor *supervisor;
	struct runner runners[RUNNERS];
	int nursery;	/* listeners of flooding jobs come from it */
	int jobs;	/* that came */
	uint32_t slot;	/* of the present one */
	int gone;	/* connections that ended */
	int done, handed, refused;
	struct {
		int fd;
		uint64_t id;
	} running[RUNNERS];
};

static struct lw_gauge gauge(void)
{
	int fd = memfd_create("gauge", MFD_CLOEXEC);

	expect(fd >= 0 && write(fd, "0\n", 2) == 2, "memfd_create");
	return (struct lw_gauge){ .fd = fd };
}

static void next_job(struct daemon *daemon)
{
	struct lw_denied denied[LW_SUPERVISOR_MOST];
	uint32_t count;

	if (daemon->jobs) {
		expect(!lw_supervisor_counts(daemon->supervisor, daemon->slot, denied, &count), "counts");
		expect(!lw_supervisor_remove(daemon->supervisor, daemon->slot, denied, &count), "remove");
	}
	daemon->jobs++;
	expect(!lw_supervisor_add(daemon->supervisor, receive_fd(daemon->nursery), (uint64_t)daemon->jobs, false, -1, &daemon->slot),
	       "add");
}

/* The runner is free again, and the next job may be refused calls: what was counted up to now is no news. */
static void offer(struct daemon *daemon, uint64_t number)
{
	struct lw_offer *offer = &daemon->runners[number].offer;

	offer->denials = daemon->slot;
	expect(!lw_supervisor_total(daemon->supervisor, daemon->slot, &offer->denials_before), "total");
	expect(!lw_fast_path_offer(daemon->loop, offer), "offer");
}

/* Now and then another job floods. Offers that were made before name a slot that is gone by then, or whose counts are
 * another job's: their next jobs are handed over. */
static void ended(struct daemon *daemon, uint64_t number)
{
	if ((daemon->done + daemon->handed) % ANSWERS_OF_A_JOB == 0 && daemon->jobs < JOBS)
		next_job(daemon);
	offer(daemon, number);
}

static void answer(struct daemon *daemon, int fd, uint64_t id)
{
	/* The ring sends it after this turn; each client waits for its answer, so one at a time will do. */
	static uint8_t kept[1024][7];
	uint8_t *data = kept[fd];
	int64_t sent;

	memcpy(data, (const uint8_t[]){ 0, 0, 0, 3, 'A', (uint8_t)id, 'P' }, sizeof(kept[fd]));
	sent = lw_stream_send(daemon->loop, fd, data, sizeof(kept[fd]), NULL, 0);
	expect(sent == sizeof(kept[fd]) || sent == -EINPROGRESS, "an answer isn't taken");
}

/* A job that has something to tell: read what it left, and answer in its stead. */
static void handed(struct daemon *daemon, const struct lw_event *event)
{
	struct runner *runner = &daemon->runners[event->number];
	uint8_t output[sizeof(OUTPUT) - 1];

	expect(event->value == 2 && !memcmp(event->data, "OK", 2), "another reply");
	whole(runner->out[0], output, sizeof(output));
	daemon->handed++;
	answer(daemon, daemon->running[event->number].fd, daemon->running[event->number].id);
	ended(daemon, event->number);
}

static void data(struct daemon *daemon, const struct lw_event *event)
{
	if (event->value <= 0) {
		lw_loop_forget(daemon->loop, event->fd);
		close(event->fd);
		daemon->gone++;
		return;
	}
	/* No runner was on offer: a whole request, as each was sent by one call and is the only one. */
	expect(event->value == (int64_t)(9 + sizeof(CODE) - 1) && event->data[4] == 'I', "part of a request");
	daemon->refused++;
	answer(daemon, event->fd, event->data[5]);
	expect(!lw_stream_fast_path(daemon->loop, event->fd, true), "plain");
}

static void accepted(struct daemon *daemon, const struct lw_event *event)
{
	int fd = (int)event->value;

	expect(fd >= 0, "accept");
	expect(!lw_loop_stream(daemon->loop, fd, (uint64_t)fd, false) && !lw_stream_read(daemon->loop, fd, true) &&
	       !lw_stream_fast_path(daemon->loop, fd, true), "stream");
}

static void serve(struct daemon *daemon, const struct lw_event *event)
{
	struct lw_denied denied[LW_SUPERVISOR_MOST];
	uint32_t count;

	switch (event->kind) {
	case LW_EVENT_READY:	/* Python is told of denied calls */
		lw_supervisor_drain(daemon->supervisor, denied, &count);
		break;
	case LW_EVENT_ACCEPTED:
		accepted(daemon, event);
		break;
	case LW_EVENT_DATA:
		data(daemon, event);
		break;
	case LW_EVENT_STARTED:
		expect(!event->value, "a job written in part");
		daemon->running[event->number].fd = event->fd;
		daemon->running[event->number].id = event->id;
		break;
	case LW_EVENT_DONE:
		daemon->done++;
		ended(daemon, event->number);
		break;
	case LW_EVENT_HANDED:
		handed(daemon, event);
		break;
	default:
		break;
	}
}

static void prepare(struct daemon *daemon)
{
	static const struct lw_templates templates = {
		.request_id = { (const uint8_t *)"I", 1 }, .request_code = { (const uint8_t *)"C", 1 },
		.turn_id = { (const uint8_t *)"T", 1 }, .turn_session = { (const uint8_t *)"S", 1 },
		.turn_code = { (const uint8_t *)"U", 1 }, .job_turn = { (const uint8_t *)"K", 1 },
		.job_code = { (const uint8_t *)"J", 1 }, .reply = { (const uint8_t *)"OK", 2 },
		.answer_id = { (const uint8_t *)"A", 1 }, .answer_duration = { (const uint8_t *)"d", 1 },
		.answer_cpu = { (const uint8_t *)"c", 1 }, .answer_peak = { (const uint8_t *)"p", 1 },
		.answer_out = { (const uint8_t *)"o", 1 }, .answer_err = { (const uint8_t *)"e", 1 },
	};

	expect(!lw_fast_path_set_templates(daemon->loop, &templates), "templates");
	for (uint64_t number = 0; number < RUNNERS; number++) {
		struct runner *runner = &daemon->runners[number];

		expect(!pipe(runner->job) && !pipe(runner->reply) && !pipe(runner->out) && !pipe(runner->err), "pipe");
		runner->offer = (struct lw_offer){
			.number = number, .job = runner->job[1], .reply = runner->reply[0], .out = runner->out[0],
			.err = runner->err[0], .time = gauge(), .peak = gauge(), .oom = gauge(), .forks = gauge(),
			.time_unit = 1, .supervisor = daemon->supervisor,
		};
		offer(daemon, number);
	}
}

static int listener(void)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	snprintf(place.sun_path + 1, sizeof(place.sun_path) - 1, "leeward-loop-races-%d", getpid());
	expect(fd >= 0 && !bind(fd, (struct sockaddr *)&place, sizeof(place)) && !listen(fd, 16), "listen");
	return fd;
}

int main(int count, char **arguments)
{
	static struct lw_event events[LW_LOOP_EVENTS];
	struct daemon daemon = { 0 };
	pthread_t clients[CLIENTS], runners[RUNNERS];
	int sock, connections;

	expect(count == 3, "loop_races epoll|uring CALLS");
	calls = atoi(arguments[2]);
	daemon.nursery = nursery(JOBS);
	sock = listener();
	if (lw_loop_open(strcmp(arguments[1], "uring") ? LW_IO_EPOLL : LW_IO_URING, &daemon.loop))
		return 2;
	expect(!lw_supervisor_start(&daemon.supervisor), "lw_supervisor_start");
	next_job(&daemon);
	prepare(&daemon);
	expect(!lw_loop_watch(daemon.loop, lw_supervisor_eventfd(daemon.supervisor), EPOLLIN) &&
	       !lw_loop_accept(daemon.loop, sock), "watch");
	for (int at = 0; at < RUNNERS; at++)
		pthread_create(&runners[at], NULL, run, &daemon.runners[at]);
	for (int at = 0; at < CLIENTS; at++)
		pthread_create(&clients[at], NULL, client, NULL);
	connections = CLIENTS * ((calls + CALLS_OF_A_CONNECTION - 1) / CALLS_OF_A_CONNECTION);
	while (daemon.gone < connections) {
		int told = lw_loop_turn(daemon.loop, -1, events);

		expect(told >= 0, "lw_loop_turn");
		for (int at = 0; at < told; at++)
			serve(&daemon, &events[at]);
	}
	for (int at = 0; at < CLIENTS; at++)
		pthread_join(clients[at], NULL);
	for (uint64_t number = 0; number < RUNNERS; number++) {
		expect(!lw_fast_path_withdraw(daemon.loop, number), "a runner isn't on offer");
		close(daemon.runners[number].job[1]);
	}
	for (int at = 0; at < RUNNERS; at++)
		pthread_join(runners[at], NULL);
	lw_loop_close(daemon.loop);
	lw_supervisor_stop(daemon.supervisor);
	printf("%d done, %d handed over, %d without a runner, %d jobs\n", daemon.done, daemon.handed, daemon.refused,
	       daemon.jobs);
	expect(daemon.done + daemon.handed + daemon.refused == CLIENTS * calls, "not as many answers as calls");
	expect(daemon.done && daemon.handed && daemon.jobs == JOBS, "a way wasn't taken");
	return 0;
}
