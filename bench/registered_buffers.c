/* Does a ring's registered buffer make a receive or a send over a Unix socket quicker? docs/decisions/0013.
 *
 *	gcc -O2 -o /tmp/registered bench/registered_buffers.c -luring && /tmp/registered
 *
 * One process has both ends. Each way has its turn in every round; what is printed is the median of one submission with
 * its completion, in microseconds, or why the kernel won't. */
#define _GNU_SOURCE
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 2000
#define ROOM ((size_t)1 << 20)

enum way { RECV, READ_FIXED, SEND, WRITE_FIXED, SEND_ZC, SEND_ZC_FIXED, WAYS };

static const char *const NAMES[] = { "recv", "read_fixed", "send", "write_fixed", "send_zc", "send_zc, registered" };
static struct io_uring ring;
static int ends[2];
static char *buffer;

static void must(int good, const char *what)
{
	if (good)
		return;
	perror(what);
	exit(1);
}

static void prepare(enum way way, unsigned size)
{
	struct io_uring_sqe *entry = io_uring_get_sqe(&ring);

	switch (way) {
	case RECV:
		io_uring_prep_recv(entry, ends[0], buffer, size, 0);
		break;
	case READ_FIXED:
		io_uring_prep_read_fixed(entry, ends[0], buffer, size, 0, 0);
		break;
	case SEND:
		io_uring_prep_send(entry, ends[0], buffer, size, 0);
		break;
	case WRITE_FIXED:
		io_uring_prep_write_fixed(entry, ends[0], buffer, size, 0, 0);
		break;
	default:
		io_uring_prep_send_zc(entry, ends[0], buffer, size, 0, 0);
		if (SEND_ZC_FIXED == way)
			entry->ioprio |= IORING_RECVSEND_FIXED_BUF;
	}
}

static double once(enum way way, unsigned size, int *ret_error)
{
	static char other[ROOM];
	struct io_uring_cqe *done;
	struct timespec start, end;
	unsigned flags;
	int result;

	if (way <= READ_FIXED)
		must(write(ends[1], other, size) == (ssize_t)size, "write");
	clock_gettime(CLOCK_MONOTONIC, &start);
	prepare(way, size);
	must(io_uring_submit_and_wait(&ring, 1) == 1 && !io_uring_peek_cqe(&ring, &done), "io_uring_enter");
	result = done->res;
	flags = done->flags;
	io_uring_cqe_seen(&ring, done);
	clock_gettime(CLOCK_MONOTONIC, &end);
	if (flags & IORING_CQE_F_MORE) { /* the word that the buffer is free */
		must(!io_uring_wait_cqe(&ring, &done), "io_uring_wait_cqe");
		io_uring_cqe_seen(&ring, done);
	}
	if (result < 0)
		*ret_error = -result;
	for (ssize_t left = way <= READ_FIXED ? 0 : result; left > 0;) {
		ssize_t step = read(ends[1], other, (size_t)left);

		must(step > 0, "read");
		left -= step;
	}
	return 1e6 * (double)(end.tv_sec - start.tv_sec) + 1e-3 * (double)(end.tv_nsec - start.tv_nsec);
}

static int compare(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;

	return (a > b) - (a < b);
}

int main(void)
{
	static const unsigned sizes[] = { 64, 1 << 10, 16 << 10, 64 << 10, 128 << 10 };
	static double times[WAYS][ROUNDS];
	struct io_uring_params params = { .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN };
	struct iovec registered;
	int room = (int)ROOM;

	must(!posix_memalign((void **)&buffer, 1 << 21, ROOM), "memory");
	memset(buffer, 1, ROOM);
	must(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
	for (int i = 0; i < 2; i++)
		must(!setsockopt(ends[i], SOL_SOCKET, SO_SNDBUF, &room, sizeof room), "SO_SNDBUF");
	must(!io_uring_queue_init_params(8, &ring, &params), "io_uring_setup");
	registered = (struct iovec){ buffer, ROOM };
	must(!io_uring_register_buffers(&ring, &registered, 1), "io_uring_register");
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		int errors[WAYS] = { 0 };

		for (int round = 0; round < ROUNDS; round++)
			for (int way = 0; way < WAYS; way++)
				times[way][round] = once((enum way)way, sizes[i], &errors[way]);
		printf("%6u bytes:", sizes[i]);
		for (int way = 0; way < WAYS; way++) {
			qsort(times[way], ROUNDS, sizeof(double), compare);
			if (errors[way])
				printf("  %s: %s", NAMES[way], strerror(errors[way]));
			else
				printf("  %s %.2f", NAMES[way], times[way][ROUNDS / 2]);
		}
		putchar('\n');
	}
	return 0;
}
