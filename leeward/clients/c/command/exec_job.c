/* Makes a job from a command line, and shows a result.
 *
 * Runs in:   the program `leeward`. cli/leeward_cli/job.py is the same for Python. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec.h"
#include "text.h"

/* Read *fd* to its end. Returns 0 or -errno. */
static int read_all(int fd, struct lw_buffer *ret_content)
{
	struct lw_buffer content = {.limit = SIZE_MAX / 2};
	ssize_t got;

	lw_put(&content, "", 0);
	do {
		char chunk[1 << 16];

		got = read(fd, chunk, sizeof chunk);
		if (got > 0)
			lw_put(&content, chunk, (size_t)got);
	} while (got > 0 || (got < 0 && errno == EINTR));
	if (got < 0 || content.no_memory) {
		int error = got < 0 ? errno : ENOMEM;

		free(content.data);
		return -error;
	}
	*ret_content = content;
	return 0;
}

/* The name of a file in tracebacks. NULL if only Python's Unicode tables can say whether it is printable. */
static const char *shown_name(const char *path)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

	for (const char *at = name; *at; at++) {
		if ((unsigned char)*at >= 0x80)
			return NULL;
		if (lw_is_control((unsigned char)*at))
			return "<file>";
	}
	return *name ? name : NULL;
}

static bool read_file(const char *path, struct lw_job *job)
{
	int fd, failed;

	job->options.name = shown_name(path);
	if (!job->options.name)
		return false;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	failed = read_all(fd, &job->code);
	close(fd);
	return !failed;
}

/* Could *word*, given as code, be meant as a file's path? Then the Python command line decides and reports it. */
static bool may_be_path(const char *word)
{
	size_t length = strlen(word);

	if (!length || length > 4096 || strpbrk(word, " \t\n()=\"'"))
		return false;
	return (length > 3 && !strcmp(word + length - 3, ".py")) || !access(word, F_OK);
}

/* The job that *line* describes.
 *
 * Returns false if the Python command line has to do it, and nothing was read from standard input; or, with
 * *ret_error set to an errno, if reading has failed. */
bool lw_job_read(const struct lw_line *line, struct lw_job *ret_job, int *ret_error)
{
	bool from_stdin = line->words && !strcmp(line->word, "-");
	struct lw_job job = {
		.has_code = !line->given.module,
		.options = {
			.size = sizeof job.options, .label = line->given.label,
			.timeout = line->given.timeout, .memory = line->given.memory, .module = line->given.module,
			.arguments = line->after, .argument_count = line->after_count,
			.environment = line->given.env, .environment_count = line->given.env_count,
		},
	};

	if (line->words + (line->given.file != NULL) + (line->given.module != NULL) != 1 ||
	    (from_stdin && line->given.from_stdin) ||
	    (line->given.file && !read_file(line->given.file, &job)) ||
	    (line->words && !from_stdin && may_be_path(line->word)))
		return false;
	if (from_stdin || line->given.from_stdin) {
		*ret_error = -read_all(0, from_stdin ? &job.code : &job.input);
		if (*ret_error)
			return false;
		if (from_stdin)
			job.options.name = "<stdin>";
	}
	if (line->words && !from_stdin) {
		job.code.limit = SIZE_MAX / 2;
		lw_put(&job.code, line->word, strlen(line->word));
	}
	if (job.has_code && !job.code.data) {
		job.code.data = calloc(1, 1); /* an empty program is valid, and data must not be NULL */
		if (!job.code.data) {
			*ret_error = ENOMEM;
			return false;
		}
	}
	job.options.stdin_data = job.input.data;
	job.options.stdin_length = job.input.length;
	*ret_job = job;
	return true;
}

/* --- showing ------------------------------------------------------------------ */

/* Write *size* with the largest unit that gives a whole number, such as 256MiB. */
static void size_text(char *to, size_t room, uint64_t size)
{
	static const char *const NAMES[] = {"", "KiB", "MiB", "GiB", "TiB"};
	int unit = 0;

	while (unit < 4 && size && size % 1024 == 0) {
		size /= 1024;
		unit++;
	}
	snprintf(to, room, "%" PRIu64 "%s", size, NAMES[unit]);
}

/* Write the message for a job that was ended by a limit, a signal or an internal failure. False for all other ends. */
static bool end_text(char *to, size_t room, const leeward_result *result)
{
	char peak[32];

	switch (result->outcome) {
	case LEEWARD_TIMED_OUT:
		snprintf(to, room, "time limit reached after %.3g s", (double)result->duration_us / 1e6);
		return true;
	case LEEWARD_OUT_OF_MEMORY:
		size_text(peak, sizeof peak, result->memory_peak);
		snprintf(to, room, "memory limit reached (peak %s)", peak);
		return true;
	case LEEWARD_OUTPUT_LIMIT:
		snprintf(to, room, "output limit reached; the rest was cut off");
		return true;
	case LEEWARD_INTERNAL:
		snprintf(to, room, "the worker was lost");
		return true;
	case LEEWARD_SIGNALLED:
		snprintf(to, room, "the job was ended");
		return true;
	default:
		return false;
	}
}

/* Write output of the job to *fd*; control characters are escaped if that is a terminal. Returns 0 or -errno. */
static int show_stream(int fd, const unsigned char *data, size_t length, bool raw)
{
	struct lw_buffer escaped = {.limit = SIZE_MAX / 2};
	int failed;

	if (!length)
		return 0;
	if (raw || !isatty(fd))
		return lw_write(fd, data, length);
	lw_escape(&escaped, data, length);
	failed = escaped.no_memory ? -ENOMEM : lw_write(fd, escaped.data, escaped.length);
	free(escaped.data);
	return failed;
}

static bool asked_for_network(const leeward_result *result)
{
	for (size_t i = 0; i < result->denied_count; i++)
		if (!strcmp(result->denied[i].name, "network"))
			return true;
	return false;
}

/* How many bytes at the end of *data* may be an incomplete UTF-8 character. */
static size_t cut(const uint8_t *data, size_t length)
{
	for (size_t back = 1; back <= 3 && back <= length; back++) {
		uint8_t byte = data[length - back];
		size_t need = byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : byte < 0xf8 ? 4 : 0;

		if (byte >= 0xc0)
			return back < need ? back : 0;
		if (byte < 0x80)
			return 0;
	}
	return 0;
}

/* Show new output of both streams. An incomplete character at the end is kept in *begun* for the next call. */
int lw_job_show_live(struct lw_live *live, const struct lw_bytes streams[2])
{
	struct lw_shown *shown = live->context;
	int failed = 0;

	for (int i = 0; i < 2 && !failed; i++) {
		struct lw_buffer text = {.limit = SIZE_MAX / 2};
		size_t whole;

		lw_put(&text, shown->begun[i], shown->begun_length[i]);
		lw_put(&text, streams[i].data, streams[i].length);
		if (text.no_memory) {
			free(text.data);
			return -ENOMEM;
		}
		whole = text.length - (shown->raw || !isatty(1 + i) ? 0 : cut(text.data, text.length));
		shown->begun_length[i] = text.length - whole;
		if (shown->begun_length[i])
			memcpy(shown->begun[i], text.data + whole, shown->begun_length[i]);
		failed = show_stream(1 + i, text.data, whole, shown->raw);
		free(text.data);
	}
	return failed;
}

/* Show what hasn't been shown of one stream. */
static int show_rest(const struct lw_live *live, int stream, const unsigned char *data, size_t length, bool raw)
{
	const struct lw_shown *shown = live->context;
	uint64_t begun = live->taken[stream] - shown->begun_length[stream];

	/* The daemon may shorten the traceback at the end of stderr, so that the result is shorter than what was shown. */
	return begun < length ? show_stream(1 + stream, data + begun, length - begun, raw) : 0;
}

/* Print a result as the options say. Returns the exit status. */
int lw_job_show(const leeward_result *result, const struct lw_line *line, const struct lw_live *live)
{
	struct lw_buffer text = {.limit = SIZE_MAX / 2};
	char end[160];
	int failed;

	failed = show_rest(live, 0, result->stdout_data, result->stdout_length, line->given.raw);
	if (!failed)
		failed = show_rest(live, 1, result->stderr_data, result->stderr_length, line->given.raw);
	if (failed)
		return lw_system_error(-failed);
	if (end_text(end, sizeof end, result)) {
		lw_put(&text, end, strlen(end));
		if (result->error_message && *result->error_message) {
			lw_put(&text, ": ", 2);
			lw_put(&text, result->error_message, strlen(result->error_message));
		}
		lw_put(&text, "", 1);
		lw_complain(text.no_memory ? end : (const char *)text.data);
	}
	if (result->hint)
		lw_complain(result->hint);
	if (result->exit_code && asked_for_network(result))
		lw_complain("the job asked for the network, and there is none in the sandbox; give it what it needs as files"
			    " or standard input (`leeward explain network`)");
	return result->exit_code;
}
