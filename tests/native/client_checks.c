/* What leeward.h promises, as a program that ends at the first broken promise.
 *
 *	checks good SOCKET       jobs of every kind by a daemon that works
 *	checks nonsense SOCKET   NULL and bad arguments to every function
 *	checks one SOCKET [S]    one job, with a deadline of S seconds; prints code and message
 *	checks loop SOCKET       for each number on stdin: so many jobs, 5 ms apart; prints the microseconds of each
 *
 * Run plain, under valgrind, and with the library's sources under ASan and UBSan. */
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "leeward.h"

#define CHECK(promise)                                                                           \
	do {                                                                                     \
		if (!(promise)) {                                                                \
			fprintf(stderr, "line %d: %s (last error: %s)\n", __LINE__, #promise,    \
				leeward_last_error());                                           \
			exit(1);                                                                 \
		}                                                                                \
	} while (0)

static leeward_result *run(leeward_handle *handle, const char *code, const leeward_options *options)
{
	leeward_result *result = leeward_execute(handle, code, strlen(code), options);

	CHECK(result);
	return result;
}

static int printed(const leeward_result *result, const char *text)
{
	return result->stdout_length == strlen(text) && !memcmp(result->stdout_data, text, result->stdout_length);
}

static void check_results(leeward_handle *handle)
{
	leeward_result *result = run(handle, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)", NULL);

	CHECK(result->size == sizeof *result && result->outcome == LEEWARD_FINISHED && result->exit_code == 7);
	CHECK(printed(result, "out\n") && result->stderr_length == 4 && !memcmp(result->stderr_data, "err\n", 4));
	CHECK(!result->limit && !result->truncated && !result->error_type && !result->denied && !result->files);
	CHECK(result->duration_us > 0 && result->cpu_time_us >= 0);
	leeward_free_result(result);

	result = run(handle, "1/0", NULL);
	CHECK(result->outcome == LEEWARD_RAISED && result->exit_code == 1);
	CHECK(!strcmp(result->error_type, "ZeroDivisionError") && !strcmp(result->error_message, "division by zero"));
	CHECK(strstr(result->error_traceback, "line 1"));
	leeward_result_free(result);

	result = run(handle, "import os\ntry: os.chroot('/')\nexcept PermissionError: pass", NULL);
	CHECK(result->denied_count == 1 && !strcmp(result->denied[0].name, "chroot") && result->denied[0].count == 1);
	leeward_free_result(result);

	result = run(handle, "import sys; sys.stdout.buffer.write(bytes(range(256)))", NULL);
	CHECK(result->stdout_length == 256);
	for (int i = 0; i < 256; i++)
		CHECK(result->stdout_data[i] == i);
	leeward_free_result(result);

	CHECK(result = leeward_execute(handle, "", 0, NULL));
	CHECK(result->outcome == LEEWARD_FINISHED && !result->stdout_length && result->stdout_data);
	leeward_free_result(result);
}

static void check_options(leeward_handle *handle)
{
	const char *arguments[] = {"a", "--b"}, *environment[] = {"K=old", "L=", "K=v=w"}, *collect[] = {"/workspace/out/*", "nix"};
	leeward_file files[] = {{"d/in", "\0x", 2}, {"empty", NULL, 0}};
	leeward_options options = {.size = sizeof options, .arguments = arguments, .argument_count = 2,
				   .environment = environment, .environment_count = 3, .files = files, .file_count = 2,
				   .collect = collect, .collect_count = 2, .stdin_data = "input", .stdin_length = 5};
	leeward_result *result = run(handle,
				     "import os, sys; print(sys.argv[1:], os.environ['K'], os.environ['L'], sys.stdin.read(),"
				     "open('d/in', 'rb').read(), flush=True); os.mkdir('out');"
				     "open('out/big', 'wb').write(b'f' * (3 << 20)); open('out/none', 'wb')", &options);
	leeward_options limits = {.timeout = 0.2}, module = {.module = "json.tool", .stdin_data = "[1]", .stdin_length = 3};
	leeward_options memory = {.memory = 1};

	CHECK(printed(result, "['a', '--b'] v=w  input b'\\x00x'\n"));
	CHECK(result->file_count == 2 && result->left_out_count == 1);
	CHECK(!strcmp(result->left_out[0].name, "nix") && !strcmp(result->left_out[0].reason, "no_match"));
	for (size_t i = 0; i < result->file_count; i++) {
		const leeward_file *file = &result->files[i];

		CHECK(strcmp(file->name, "out/big") || (file->length == 3 << 20 && *(const char *)file->data == 'f'));
		CHECK(strcmp(file->name, "out/none") || !file->length);
	}
	leeward_free_result(result);

	result = run(handle, "while True: pass", &limits);
	CHECK(result->outcome == LEEWARD_TIMED_OUT && result->limit == LEEWARD_LIMIT_TIME && result->exit_code == 124);
	leeward_free_result(result);

	CHECK(result = leeward_execute(handle, NULL, 0, &module));
	CHECK(printed(result, "[\n    1\n]\n"));
	leeward_free_result(result);

	CHECK(!leeward_execute(handle, "1", 1, &memory) && leeward_last_error_code() == LEEWARD_REJECTED);
	CHECK(strstr(leeward_last_error(), "memory"));
}

static void check_large(leeward_handle *handle)
{
	leeward_options options = {.output = 32 << 20};
	leeward_result *result = run(handle, "print('x' * (16 << 20), end='')", &options);

	leeward_result *other = run(handle, "print(1)", NULL);
	CHECK(printed(other, "1\n"));
	leeward_free_result(other);
	CHECK(result->stdout_length == 16 << 20);
	for (size_t i = 0; i < result->stdout_length; i += 4096)
		CHECK(result->stdout_data[i] == 'x');
	leeward_free_result(result);
}

/* More of them in flight than an arena has slots, one taken back; then one that fits into none, and one again that does. */
static void check_large_requests(leeward_handle *handle)
{
	enum { JOBS = 6, SIZE = 2 << 20, TOO_LARGE = 17 << 20 };
	leeward_options options = {.stdin_length = SIZE};
	static char input[TOO_LARGE];
	static const char CODE[] = "import sys; data = sys.stdin.buffer.read(); print(len(data), data[0], data[-1])";
	static const size_t SIZES[] = {TOO_LARGE, SIZE, 16};
	int64_t ids[JOBS], id;
	leeward_result *result;
	char wanted[64];

	options.stdin_data = input;
	for (int i = 0; i < JOBS; i++) {
		memset(input, i, SIZE);
		CHECK((ids[i] = leeward_submit(handle, CODE, strlen(CODE), &options)) > 0);
	}
	CHECK(!leeward_cancel(handle, ids[JOBS - 1]));
	for (int i = 0; i < JOBS - 1; i++) {
		CHECK(result = leeward_wait(handle, &ids[i], -1));
		snprintf(wanted, sizeof wanted, "%d %d %d\n", SIZE, i, i);
		CHECK(printed(result, wanted));
		leeward_free_result(result);
	}
	id = ids[JOBS - 1];
	leeward_free_result(leeward_wait(handle, &id, -1)); /* cancelled, or it was quicker */
	for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
		memset(input, 'x', SIZES[i]);
		options.stdin_length = SIZES[i];
		CHECK(result = leeward_execute(handle, CODE, strlen(CODE), &options));
		snprintf(wanted, sizeof wanted, "%zu 120 120\n", SIZES[i]);
		CHECK(printed(result, wanted));
		leeward_free_result(result);
	}
}

/* Many in flight, taken as they come by somebody else's event loop. */
static void check_batch(leeward_handle *handle)
{
	enum { JOBS = 32 };
	int64_t ids[JOBS], id, total = 0;
	int left = JOBS;

	for (int i = 0; i < JOBS; i++) {
		char code[32];

		snprintf(code, sizeof code, "print(%d)", i);
		CHECK((ids[i] = leeward_submit(handle, code, strlen(code), NULL)) > 0);
	}
	while (left) {
		struct pollfd wait = {.fd = leeward_fd(handle), .events = POLLIN};
		leeward_result *result;

		CHECK(poll(&wait, 1, 30000) == 1);
		while (id = 0, result = leeward_wait(handle, &id, 0)) {
			int number = atoi((const char *)result->stdout_data);

			CHECK(id == result->id && id == ids[number]);
			total += number;
			left--;
			leeward_free_result(result);
		}
		CHECK(leeward_last_error_code() == (left ? LEEWARD_NOT_YET : LEEWARD_INVALID));
	}
	CHECK(total == JOBS * (JOBS - 1) / 2);
}

/* More jobs than the daemon lets wait, of which some are refused. */
enum { MAPPED = 300 };
struct mapping {
	int count, refused, stop_next, stop_ended; /* of jobs; the number at which a callback ends the call, or 0 */
	bool seen[MAPPED];
	char code[MAPPED][40];
	leeward_options options;
};

static int next_job(void *context, int64_t number, leeward_map_job *ret_job)
{
	struct mapping *mapping = context;

	if (number == mapping->count)
		return 0;
	if (mapping->stop_next && number == mapping->stop_next)
		return -1000;
	snprintf(mapping->code[number], sizeof *mapping->code, number % 50 ? "print(%d)" : "import time; time.sleep(%d)",
		 (int)number * (number % 50 != 0));
	*ret_job = (leeward_map_job){mapping->code[number], strlen(mapping->code[number]),
				     number % 7 ? NULL : &mapping->options};
	return 1;
}

static int job_ended(void *context, int64_t number, leeward_result *result)
{
	struct mapping *mapping = context;
	char text[16];

	CHECK(number >= 0 && number < mapping->count && !mapping->seen[number]);
	mapping->seen[number] = true;
	snprintf(text, sizeof text, number % 50 ? "%d\n" : "", (int)number);
	if (!result) {
		CHECK(leeward_last_error_code() == LEEWARD_REJECTED && number % 7 == 0);
		mapping->refused++;
	} else {
		CHECK(printed(result, text));
		leeward_free_result(result);
	}
	return mapping->stop_ended && number == mapping->stop_ended ? -2000 : 0;
}

static void check_map(leeward_handle *handle)
{
	struct mapping mapping = {.count = MAPPED, .options = {.size = sizeof(leeward_options), .timeout = 1e9}};
	int left = MAPPED;

	CHECK(leeward_map(handle, next_job, job_ended, &mapping, 0, 0) == LEEWARD_OK);
	for (int i = 0; i < MAPPED; i++)
		left -= mapping.seen[i];
	CHECK(!left && mapping.refused == MAPPED / 7 + 1);

	mapping = (struct mapping){.count = MAPPED, .stop_next = 20};
	CHECK(leeward_map(handle, next_job, job_ended, &mapping, 5, 0) == -1000);
	mapping = (struct mapping){.count = MAPPED, .stop_ended = 30};
	CHECK(leeward_map(handle, next_job, job_ended, &mapping, 5, 60) == -2000);
	mapping = (struct mapping){.count = 0};
	CHECK(leeward_map(handle, next_job, job_ended, &mapping, 1, 0) == LEEWARD_OK);
	CHECK(leeward_map(handle, next_job, job_ended, &mapping, 241, 0) == LEEWARD_INVALID);
	CHECK(leeward_map(handle, next_job, NULL, &mapping, 1, 0) == LEEWARD_INVALID);
	CHECK(leeward_map(NULL, next_job, job_ended, &mapping, 1, 0) == LEEWARD_INVALID);
	CHECK(leeward_map(handle, next_job, job_ended, &mapping, 1, -1) == LEEWARD_INVALID);
	CHECK(!leeward_ping(handle, 0)); /* nothing is left in flight */
}

static int next_forever(void *context, int64_t number, leeward_map_job *ret_job)
{
	static const char FOREVER[] = "while True: pass";

	*ret_job = (leeward_map_job){FOREVER, strlen(FOREVER), context};
	return number < 3;
}

/* The deadline of all, and the limits that load doesn't change. */
static void check_clocks(leeward_handle *handle)
{
	leeward_options options = {.size = sizeof options, .timeout = 20, .wall = 30, .cpu_time = 0.2};
	leeward_result *result = run(handle, "while True: pass", &options);

	CHECK(result->outcome == LEEWARD_TIMED_OUT && result->limit == LEEWARD_LIMIT_CPU && result->starved_us >= 0);
	leeward_free_result(result);
	options.cpu_time = -1;
	CHECK(!leeward_execute(handle, "1", 1, &options) && leeward_last_error_code() == LEEWARD_INVALID);
	CHECK(leeward_map(handle, next_forever, job_ended, NULL, 3, 0.3) == LEEWARD_NO_ANSWER);
}

static void check_cancel_and_deadline(leeward_handle *handle)
{
	static const char FOREVER[] = "while True: pass";
	leeward_options options = {.deadline = 0.2};
	leeward_result *result;
	int64_t id, other;

	CHECK((id = leeward_submit(handle, FOREVER, strlen(FOREVER), NULL)) > 0);
	CHECK(!leeward_wait(handle, &id, 0.05) && leeward_last_error_code() == LEEWARD_NOT_YET);
	CHECK(!leeward_cancel(handle, id));
	CHECK(!leeward_wait(handle, &id, -1) && leeward_last_error_code() == LEEWARD_CANCELLED);
	CHECK(leeward_cancel(handle, id) == LEEWARD_INVALID);

	/* One of two jobs misses its deadline: it is taken back, and the other one goes on. */
	CHECK((other = leeward_submit(handle, "print('on')", 11, NULL)) > 0);
	CHECK(!leeward_execute(handle, FOREVER, strlen(FOREVER), &options) && leeward_last_error_code() == LEEWARD_NO_ANSWER);
	CHECK(result = leeward_wait(handle, &other, -1));
	CHECK(printed(result, "on\n"));
	leeward_free_result(result);

	/* The only one: the connection goes with it, and the next call makes another. */
	CHECK(!leeward_execute(handle, FOREVER, strlen(FOREVER), &options) && leeward_last_error_code() == LEEWARD_NO_ANSWER);
	CHECK(leeward_fd(handle) == LEEWARD_AWAY);
	CHECK(!leeward_ping(handle, 0) && leeward_fd(handle) >= 0);
}

static void check_fork(leeward_handle *handle)
{
	int64_t id = leeward_submit(handle, "print('parent')", 15, NULL);
	leeward_result *result;
	int status;
	pid_t child = fork();

	if (!child) {
		CHECK(!leeward_wait(handle, &id, 0) && leeward_last_error_code() == LEEWARD_INVALID);
		result = run(handle, "print('child')", NULL);
		CHECK(printed(result, "child\n"));
		leeward_free_result(result);
		leeward_disconnect(handle);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(result = leeward_wait(handle, &id, -1));
	CHECK(printed(result, "parent\n"));
	leeward_free_result(result);
}

static void *in_a_thread(void *path)
{
	leeward_handle *handle = leeward_connect(path);

	CHECK(handle);
	for (int i = 0; i < 20; i++)
		leeward_free_result(run(handle, "print(1)", NULL));
	CHECK(!leeward_execute(handle, NULL, 0, NULL) && leeward_last_error_code() == LEEWARD_INVALID);
	leeward_disconnect(handle);
	return NULL;
}

static void check_threads(char *path)
{
	pthread_t threads[4];

	leeward_connect("/nonexistent/socket");
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_create(&threads[i], NULL, in_a_thread, path));
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK(leeward_last_error_code() == LEEWARD_AWAY); /* this thread's own still */
}

static void good(char *path)
{
	leeward_handle *handle = leeward_connect(path);
	const char *status;

	CHECK(handle);
	CHECK(leeward_last_error_code() == LEEWARD_OK && !*leeward_last_error());
	check_results(handle);
	check_options(handle);
	check_large(handle);
	check_clocks(handle);
	check_cancel_and_deadline(handle);
	CHECK(!leeward_ping(handle, 0));
	CHECK((status = leeward_status(handle, 0)) && strstr(status, "\"workers\": {\"total\": "));
	check_fork(handle);
	check_threads(path);
	/* These send more than two workers serve, and for a second after that the daemon may say of any job that it is busy. */
	check_large_requests(handle);
	check_batch(handle);
	check_map(handle);
	CHECK(leeward_submit(handle, "print(1)", 8, NULL) > 0); /* nobody takes this one */
	leeward_disconnect(handle);
}

#define REFUSES(code, ...)                                                               \
	do {                                                                             \
		leeward_options options = {__VA_ARGS__};                                 \
		CHECK(!leeward_execute(handle, code, 1, &options));                      \
		CHECK(leeward_last_error_code() == LEEWARD_INVALID);                     \
		CHECK(leeward_submit(handle, code, 1, &options) == LEEWARD_INVALID);     \
	} while (0)

static void nonsense(char *path)
{
	leeward_handle *handle = leeward_connect(path);
	const char *bad[] = {"\xff"}, *none[] = {NULL}, *plain[] = {"x"};
	leeward_file file = {NULL, NULL, 0}, hollow = {"a", NULL, 1}, twice[] = {{"a", "", 0}, {"a", "", 0}};
	struct {
		leeward_options options;
		char more[8];
	} later = {.options = {.size = sizeof later}};
	leeward_result *result;
	int64_t id = 12345;

	CHECK(handle);
	CHECK(leeward_execute(NULL, "1", 1, NULL) == NULL && leeward_last_error_code() == LEEWARD_INVALID);
	CHECK(leeward_submit(NULL, "1", 1, NULL) == LEEWARD_INVALID && leeward_cancel(NULL, 1) == LEEWARD_INVALID);
	CHECK(!leeward_wait(NULL, NULL, 0) && leeward_fd(NULL) == LEEWARD_INVALID);
	CHECK(leeward_ping(NULL, 0) == LEEWARD_INVALID && !leeward_status(NULL, 0));
	leeward_disconnect(NULL);
	leeward_free_result(NULL);
	leeward_result_free(NULL);
	CHECK(!leeward_execute(handle, NULL, 5, NULL) && leeward_last_error_code() == LEEWARD_INVALID);
	CHECK(!leeward_execute(handle, NULL, 0, NULL) && leeward_last_error_code() == LEEWARD_INVALID);
	CHECK(!leeward_wait(handle, NULL, 0) && leeward_last_error_code() == LEEWARD_INVALID);
	CHECK(!leeward_wait(handle, &id, 0) && leeward_last_error_code() == LEEWARD_INVALID && id == 12345);
	CHECK(!leeward_wait(handle, &id, (double)NAN) && leeward_last_error_code() == LEEWARD_INVALID);
	CHECK(leeward_cancel(handle, 7) == LEEWARD_INVALID && leeward_cancel(handle, -1) == LEEWARD_INVALID);
	CHECK(leeward_ping(handle, -1) == LEEWARD_INVALID && leeward_ping(handle, (double)NAN) == LEEWARD_INVALID);
	REFUSES("1", .size = 8);
	REFUSES("1", .size = (size_t)-1);
	REFUSES("1", .timeout = -1);
	REFUSES("1", .timeout = (double)NAN);
	REFUSES("1", .timeout = (double)INFINITY);
	REFUSES("1", .deadline = -1);
	REFUSES("1", .module = "json.tool");
	REFUSES("1", .name = "\xff");
	REFUSES("1", .argument_count = 1);
	REFUSES("1", .argument_count = (size_t)-1, .arguments = plain);
	REFUSES("1", .argument_count = 1, .arguments = none);
	REFUSES("1", .argument_count = 1, .arguments = bad);
	REFUSES("1", .environment_count = 1, .environment = plain);
	REFUSES("1", .environment_count = 1, .environment = none);
	REFUSES("1", .file_count = 1);
	REFUSES("1", .file_count = 1, .files = &file);
	REFUSES("1", .file_count = 1, .files = &hollow);
	REFUSES("1", .file_count = 2, .files = twice);
	REFUSES("1", .collect_count = 1, .collect = bad);
	REFUSES("1", .stdin_length = 1);
	later.more[7] = 1;
	CHECK(!leeward_execute(handle, "1", 1, &later.options) && leeward_last_error_code() == LEEWARD_INVALID);
	later.more[7] = 0;
	CHECK(result = leeward_execute(handle, "1", 1, &later.options)); /* a later struct that asks for nothing new */
	leeward_free_result(result);
	leeward_disconnect(handle);
	CHECK(!leeward_connect("/nonexistent/socket") && leeward_last_error_code() == LEEWARD_AWAY);
	CHECK(strstr(leeward_last_error(), "leeward daemon start"));
	for (int i = 0; i < 2; i++) {
		/* Who didn't look at leeward_connect's error is told it by the next call. */
		CHECK(!leeward_execute(NULL, "1", 1, NULL) && leeward_last_error_code() == LEEWARD_INVALID);
		CHECK(!strncmp(leeward_last_error(), "handle: NULL; before that: no daemon", 36));
	}
}

static void one(const char *path, double deadline)
{
	leeward_options options = {.size = sizeof options, .deadline = deadline, .no_retry_busy = !(deadline > 0)};
	leeward_handle *handle = leeward_connect(path);
	leeward_result *result = handle ? leeward_execute(handle, "x", 1, &options) : NULL;

	if (result)
		printf("0 %.*s\n", (int)result->stdout_length, (const char *)result->stdout_data);
	else
		printf("%d %s\n", leeward_last_error_code(), leeward_last_error());
	leeward_free_result(result);
	leeward_disconnect(handle);
}

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void loop(const char *path)
{
	const struct timespec gap = {.tv_nsec = 5000000};
	leeward_handle *handle = leeward_connect(path);
	char line[32];

	CHECK(handle);
	while (fgets(line, sizeof line, stdin)) {
		for (int left = atoi(line); left; left--) {
			leeward_result *result;
			int64_t start;

			nanosleep(&gap, NULL);
			start = now_ns();
			result = run(handle, "print('hello')", NULL);
			printf("%f ", (double)(now_ns() - start) / 1e3);
			CHECK(printed(result, "hello\n"));
			leeward_free_result(result);
		}
		puts("");
		fflush(stdout);
	}
	leeward_disconnect(handle);
}

int main(int argc, char **argv)
{
	CHECK(argc >= 3);
	if (!strcmp(argv[1], "good"))
		good(argv[2]);
	else if (!strcmp(argv[1], "nonsense"))
		nonsense(argv[2]);
	else if (!strcmp(argv[1], "loop"))
		loop(argv[2]);
	else
		one(argv[2], argc > 3 ? atof(argv[3]) : 0);
	return 0;
}
