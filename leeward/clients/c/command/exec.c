/* The program `leeward`: exec and ping without an interpreter's start.
 *
 * Runs in:   the command line. A whole `leeward exec` is one short process, and Python alone
 *            takes ten times what the job does.
 * Not here:  every other command, --json, help, and errors in a command line. In these cases this program executes the
 *            Python command line beside it, before anything was read or sent. So each message is written once.
 *
 * Exit status: as cli/leeward_cli/main.py has it. */
#include "exec.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "calls.h"
#include "text.h"

/* The Python command line, in the folder of this program. */
#define BESIDE "leeward-python"

/* The exit status after a job that was ended by Ctrl-C: 128 + SIGINT, as the shell says it. */
#define INTERRUPTED 130

/* Seconds that a daemon may take to answer a ping. */
#define ANSWER_S 5.0

/* Open /dev/null for each closed one of descriptors 0, 1 and 2, so that no socket gets the number of stdout. */
static void keep_standard_descriptors(void)
{
	struct stat about;

	for (int fd = 0; fd < 3; fd++)
		if (fstat(fd, &about))
			open("/dev/null", O_RDWR);
}

/* Write all of *data* to *fd*. Returns 0 or -errno. */
int lw_write(int fd, const void *data, size_t length)
{
	const char *at = data;

	while (length) {
		/* Some file systems and pipes refuse one write of more than 2 GiB. */
		ssize_t step = write(fd, at, length < (size_t)1 << 30 ? length : (size_t)1 << 30);

		if (step < 0 && errno == EINTR)
			continue;
		if (step < 0 && errno == EAGAIN) {
			/* Whoever started this command has made its output non-blocking. */
			struct pollfd room = {.fd = fd, .events = POLLOUT};

			poll(&room, 1, -1);
			continue;
		}
		if (step < 0)
			return -errno;
		at += step;
		length -= (size_t)step;
	}
	return 0;
}

/* Write one message to standard error; failures are ignored. */
void lw_complain(const char *message)
{
	struct lw_buffer line = {.limit = SIZE_MAX / 2};

	lw_put(&line, "leeward: ", 9);
	for (const char *end; *message; message = end + (*end == '\n')) {
		end = strchrnul(message, '\n');
		lw_escape(&line, (const uint8_t *)message, (size_t)(end - message));
		lw_put(&line, " ", *end == '\n');
	}
	lw_put(&line, "\n", 1);
	if (!line.no_memory)
		lw_write(2, line.data, line.length);
	free(line.data);
}

/* Report a failed system call as Python does. Returns the exit status. For EPIPE the program ends itself by SIGPIPE, so
 * that a shell sees the usual status. */
int lw_system_error(int error)
{
	char text[160];

	if (error == EPIPE) {
		signal(SIGPIPE, SIG_DFL);
		raise(SIGPIPE);
	}
	/* A full disk, as in messages.py. */
	if (error == ENOSPC || error == EDQUOT || error == EFBIG || error == EIO)
		snprintf(text, sizeof text, "can't write the output: %s", strerror(error));
	else
		snprintf(text, sizeof text, "[Errno %d] %s", error, strerror(error));
	lw_complain(text);
	return 1;
}

static int complain_of_input(int error)
{
	char text[160];

	snprintf(text, sizeof text, "can't read standard input: %s", strerror(error));
	lw_complain(text);
	return 1;
}

/* Execute the Python command line. Returns the exit status if that fails. */
static int hand_over(char **argv)
{
	char path[4096], text[4200];
	struct stat about;
	ssize_t length = readlink("/proc/self/exe", path, sizeof path - sizeof BESIDE);
	char *slash;

	if (!fstat(0, &about) && S_ISDIR(about.st_mode)) {
		/* An interpreter dies on it, and prints its stack. */
		lw_complain("standard input is a folder");
		return 1;
	}
	if (length > 0) {
		path[length] = '\0';
		slash = strrchr(path, '/');
		memcpy(slash ? slash + 1 : path, BESIDE, sizeof BESIDE);
		argv[0] = path;
		execv(path, argv);
	} else {
		snprintf(path, sizeof path, "%s", BESIDE);
	}
	snprintf(text, sizeof text, "%s, which serves this command, can't be started: %s", path, strerror(errno));
	lw_complain(text);
	return 1;
}

static int complain_of_daemon(void)
{
	lw_complain(leeward_last_error());
	return 1;
}

/* Whether a daemon may be started, because no socket is named. The Python command line decides, and starts it. */
static bool may_start(const struct lw_line *line)
{
	const char *named = getenv("LEEWARD_SOCKET");

	return !line->given.socket && !(named && *named);
}

/* Whether the daemon is on another machine, which the Python command line reaches. */
static bool is_far(const struct lw_line *line)
{
	const char *named = line->given.socket, *host = getenv("LEEWARD_HOST");

	return named && *named ? strstr(named, "://") != NULL : host && *host;
}

/* How often Ctrl-C was pressed. */
static struct lw_presses presses;

/* The first two Ctrl-C are passed on to the job. Without a job, or after them, the signal ends this program. */
static void interrupted(int number)
{
	presses.count++;
	if (presses.wanted && presses.count <= 2)
		return;
	signal(number, SIG_DFL);
	raise(number); /* when this handler returns */
}

/* Take Ctrl-C, unless it is ignored, as in the background of a shell. */
static void take_interrupts(leeward_handle *handle)
{
	struct sigaction before, ours = {.sa_handler = interrupted};

	if (sigaction(SIGINT, NULL, &before) || before.sa_handler == SIG_IGN)
		return;
	handle->presses = &presses;
	sigaction(SIGINT, &ours, NULL);
}

static int run_exec(leeward_handle *handle, const struct lw_line *line, struct lw_job *job)
{
	struct lw_shown shown = {.raw = line->given.raw};
	struct lw_live live = {.show = lw_job_show_live, .context = &shown};
	leeward_result *result;
	int status;

	handle = handle ? handle : leeward_connect(line->given.socket);
	if (!handle)
		return complain_of_daemon();
	take_interrupts(handle);
	handle->live = &live;
	presses.wanted = 1; /* from its first byte on there may be a job */
	result = leeward_execute(handle, job->has_code ? (const char *)job->code.data : NULL, job->code.length,
				 &job->options);
	presses.wanted = 0;
	if (!result && leeward_last_error_code() == LEEWARD_CANCELLED) {
		signal(SIGINT, SIG_DFL); /* the job was cancelled before it had a worker */
		raise(SIGINT);
	}
	if (live.failed)
		return lw_system_error(-live.failed);
	status = result ? lw_job_show(result, line, &live) : complain_of_daemon();
	return presses.count > 1 ? INTERRUPTED : status;
}

static int run_ping(const struct lw_line *line)
{
	leeward_handle *handle = leeward_connect(line->given.socket);
	int failed;

	if (!handle || leeward_ping(handle, ANSWER_S))
		return complain_of_daemon();
	failed = lw_write(1, "Pong!\n", 6);
	return failed ? lw_system_error(-failed) : 0;
}

int main(int argc, char **argv)
{
	const char *command = argc > 1 ? argv[1] : "";
	bool is_exec = !strcmp(command, "exec");
	struct lw_line line = {0};
	struct lw_job job = {.has_code = false};
	leeward_handle *handle = NULL;
	int error = 0;

	keep_standard_descriptors();
	if (!is_exec && strcmp(command, "ping"))
		return hand_over(argv);
	line.given.env = calloc((size_t)argc, sizeof *line.given.env);
	if (!line.given.env)
		return lw_system_error(ENOMEM);
	if (!lw_line_read(&line, is_exec, argc - 2, argv + 2) || is_far(&line))
		return hand_over(argv);
	if (is_exec && may_start(&line)) {
		/* Connect before standard input is read, because the Python command line couldn't read it again. */
		handle = leeward_connect(NULL);
		if (!handle)
			return hand_over(argv);
	}
	if (is_exec && !lw_job_read(&line, &job, &error))
		return error ? complain_of_input(error) : hand_over(argv);
	/* The Python command line inherits this, and ignores the signal as well. */
	signal(SIGPIPE, SIG_IGN);
	return is_exec ? run_exec(handle, &line, &job) : run_ping(&line);
}
