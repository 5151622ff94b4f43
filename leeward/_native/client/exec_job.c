/* From a command line to a job, and from a result to bytes and an exit status.
 *
 * Runs in:   the program `leeward`. cli/leeward_cli/job.py is the same for Python. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec.h"
#include "reply.h"
#include "text.h"

/* All that can be read of *fd*. Returns 0 or -errno. */
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

static bool is_utf8(const char *text)
{
	return !text || lw_utf8_valid((const uint8_t *)text, strlen(text));
}

/* Seconds written plainly; what else Python's float takes is for Python. */
static bool read_seconds(const char *text, double *ret_seconds)
{
	char *end;

	if (!*text || text[strspn(text, "0123456789.")])
		return false;
	*ret_seconds = strtod(text, &end); /* this program sets no locale */
	return !*end && *ret_seconds > 0 && isfinite(*ret_seconds);
}

/* A size such as 64M, as leeward/spec/sizes.py has it; a fraction is for Python. */
static bool read_size(const char *text, uint64_t *ret_size)
{
	static const struct {
		const char *name;
		uint64_t size;
	} UNITS[] = {
		{"", 1}, {"B", 1}, {"K", (uint64_t)1 << 10}, {"M", (uint64_t)1 << 20}, {"G", (uint64_t)1 << 30},
		{"T", (uint64_t)1 << 40}, {"KiB", (uint64_t)1 << 10}, {"MiB", (uint64_t)1 << 20},
		{"GiB", (uint64_t)1 << 30}, {"TiB", (uint64_t)1 << 40}, {"KB", 1000}, {"MB", 1000000},
		{"GB", 1000000000}, {"TB", 1000000000000},
	};
	size_t digits = strspn(text, "0123456789");
	uint64_t number = 0;

	if (!digits || digits > 18)
		return false;
	for (size_t i = 0; i < digits; i++)
		number = number * 10 + (uint64_t)(text[i] - '0');
	for (size_t i = 0; i < sizeof UNITS / sizeof *UNITS; i++)
		if (!strcasecmp(text + digits, UNITS[i].name))
			/* 0 bytes is the daemon's to refuse, and the default in our options. */
			return number && !__builtin_mul_overflow(number, UNITS[i].size, ret_size);
	return false;
}

/* How a file is called in tracebacks. NULL: only Python's tables know whether it can be shown. */
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

static bool read_options(const struct lw_line *line, leeward_options *options)
{
	for (size_t i = 0; i < line->environment_count; i++)
		if (line->environment[i][0] == '=' || !strchr(line->environment[i], '=') || !is_utf8(line->environment[i]))
			return false;
	for (size_t i = 0; i < line->after_count; i++)
		if (!is_utf8(line->after[i]))
			return false;
	options->module = line->module;
	options->environment = line->environment;
	options->environment_count = line->environment_count;
	options->arguments = line->after;
	options->argument_count = line->after_count;
	return is_utf8(line->module) && (!line->timeout || read_seconds(line->timeout, &options->timeout)) &&
	       (!line->memory || read_size(line->memory, &options->memory));
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

/* The job that *line* describes.
 *
 * Returns false where it is for the Python command line, and nothing has been read of
 * standard input; or with an errno if reading that has failed. */
bool lw_job_read(const struct lw_line *line, struct lw_job *ret_job, int *ret_error)
{
	bool from_stdin = line->words && !strcmp(line->word, "-");
	struct lw_job job = {.has_code = !line->module};

	if (line->words + (line->file != NULL) + (line->module != NULL) != 1 || (from_stdin && line->from_stdin) ||
	    !read_options(line, &job.options) || (line->file && !read_file(line->file, &job)))
		return false;
	if (from_stdin || line->from_stdin) {
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
		job.code.data = calloc(1, 1); /* no code at all is a program, too */
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

static void put(struct lw_buffer *buffer, const char *text)
{
	lw_put(buffer, text, strlen(text));
}

static void put_json(struct lw_buffer *buffer, const char *text)
{
	lw_json_text(buffer, (const uint8_t *)text, strlen(text));
}

static void put_micros(struct lw_buffer *buffer, const char *key, int64_t micros)
{
	char shown[LW_DOUBLE_TEXT];

	lw_double_text(shown, (double)micros / 1e6);
	put(buffer, key);
	put(buffer, shown);
}

static void put_result(struct lw_buffer *buffer, const leeward_result *result)
{
	char number[32];

	put(buffer, "{\"stdout\": ");
	lw_json_text(buffer, result->stdout_data, result->stdout_length);
	put(buffer, ", \"stderr\": ");
	lw_json_text(buffer, result->stderr_data, result->stderr_length);
	snprintf(number, sizeof number, "%d", (int)result->exit_code);
	put(buffer, ", \"exit_code\": ");
	put(buffer, number);
	put(buffer, ", \"outcome\": ");
	put_json(buffer, lw_outcome_word(result->outcome));
	put(buffer, ", \"limit\": ");
	if (result->limit)
		put_json(buffer, lw_limit_word(result->limit));
	else
		put(buffer, "null");
	put_micros(buffer, ", \"duration\": ", result->duration_us);
	put_micros(buffer, ", \"cpu_time\": ", result->cpu_time_us);
	snprintf(number, sizeof number, "%" PRIu64, result->memory_peak);
	put(buffer, ", \"memory_peak\": ");
	put(buffer, number);
	put(buffer, ", \"denied\": {");
	for (size_t i = 0; i < result->denied_count; i++) {
		put(buffer, i ? ", " : "");
		put_json(buffer, result->denied[i].name);
		snprintf(number, sizeof number, ": %" PRIu64, result->denied[i].count);
		put(buffer, number);
	}
	put(buffer, "}, \"truncated\": ");
	put(buffer, result->truncated ? "true" : "false");
	put(buffer, ", \"degraded\": [");
	for (size_t i = 0; i < result->degraded_count; i++) {
		put(buffer, i ? ", " : "");
		put_json(buffer, result->degraded[i]);
	}
	put(buffer, "], \"error\": ");
	if (result->error_type) {
		put(buffer, "{\"type\": ");
		put_json(buffer, result->error_type);
		put(buffer, ", \"message\": ");
		put_json(buffer, result->error_message);
		put(buffer, ", \"traceback\": ");
		put_json(buffer, result->error_traceback);
		put(buffer, "}}\n");
	} else {
		put(buffer, "null}\n");
	}
}

/* *size* bytes with the largest unit that leaves a whole number: 256MiB. */
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

/* What an end that isn't the job's own doing is called; false for all others. */
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
	default:
		return false;
	}
}

/* One stream of the job to ours; escaped where a terminal would act on it. Returns 0 or -errno. */
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

/* Print a result as the options say; return the exit status. */
int lw_job_show(const leeward_result *result, const struct lw_line *line)
{
	struct lw_buffer text = {.limit = SIZE_MAX / 2};
	char end[160];
	int failed;

	if (line->json) {
		put_result(&text, result);
		failed = text.no_memory ? -ENOMEM : lw_write(1, text.data, text.length);
		return failed ? lw_system_error(-failed) : result->exit_code;
	}
	failed = show_stream(1, result->stdout_data, result->stdout_length, line->raw);
	if (!failed)
		failed = show_stream(2, result->stderr_data, result->stderr_length, line->raw);
	if (failed)
		return lw_system_error(-failed);
	if (end_text(end, sizeof end, result)) {
		put(&text, end);
		if (result->error_message && *result->error_message) {
			put(&text, ": ");
			put(&text, result->error_message);
		}
		lw_put(&text, "", 1);
		lw_complain(text.no_memory ? end : (const char *)text.data);
	}
	return result->exit_code;
}
