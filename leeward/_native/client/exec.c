/* The program `leeward`: exec, ping and status without an interpreter's start.
 *
 * Runs in:   the command line. A whole `leeward exec` is one short process, and Python alone
 *            takes ten times what the job does.
 * Not here:  every other command, help, and the mistakes of a command line: whatever this
 *            program doesn't take as it stands goes to the Python one beside it, before
 *            anything was read or sent. So each message has one wording.
 *
 * Exit status: as cli/leeward_cli/main.py has it. */
#include "exec.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "status.h"
#include "text.h"

/* The Python command line, in the folder of this program. */
#define BESIDE "leeward-python"

/* Seconds that a daemon may take to answer a ping or a status. */
#define ANSWER_S 5.0

/* Fill closed ones of 0, 1 and 2, so that no socket of ours becomes somebody's stdout. */
static void keep_standard_descriptors(void)
{
	struct stat about;

	for (int fd = 0; fd < 3; fd++)
		if (fstat(fd, &about))
			open("/dev/null", O_RDWR);
}

/* All of *data* to *fd*. Returns 0 or -errno. */
int lw_write(int fd, const void *data, size_t length)
{
	const char *at = data;

	while (length) {
		/* Some file systems and pipes refuse one write of more than 2 GiB. */
		ssize_t step = write(fd, at, length < (size_t)1 << 30 ? length : (size_t)1 << 30);

		if (step < 0 && errno == EINTR)
			continue;
		if (step < 0)
			return -errno;
		at += step;
		length -= (size_t)step;
	}
	return 0;
}

/* One line of our own on standard error; that nobody listens is no error. */
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

/* Tell a system call's failure as Python does; the exit status. A reader that has seen enough
 * ends us as it would have by the signal, so that a shell sees it. */
int lw_system_error(int error)
{
	char text[160];

	if (error == EPIPE) {
		signal(SIGPIPE, SIG_DFL);
		raise(SIGPIPE);
	}
	snprintf(text, sizeof text, "[Errno %d] %s", error, strerror(error));
	lw_complain(text);
	return 1;
}

/* Become the Python command line; the exit status if that isn't there. */
static int hand_over(char **argv)
{
	char path[4096], text[4200];
	ssize_t length = readlink("/proc/self/exe", path, sizeof path - sizeof BESIDE);
	char *slash;

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

/* Where an option's value goes, or NULL where this option has none or isn't known. */
static const char **value_of(struct lw_line *line, const char *name, size_t length, bool is_exec)
{
	const struct {
		const char *name;
		const char **value;
		bool exec_only;
	} options[] = {
		{"--socket", &line->socket, false}, {"--file", &line->file, true}, {"-m", &line->module, true},
		{"--timeout", &line->timeout, true}, {"--memory", &line->memory, true},
	};

	for (size_t i = 0; i < sizeof options / sizeof *options; i++)
		if (strlen(options[i].name) == length && !memcmp(options[i].name, name, length) &&
		    (is_exec || !options[i].exec_only))
			return options[i].value;
	return NULL;
}

/* Take an option without a value; false if it isn't one, or is repeated. */
static bool read_flag(struct lw_line *line, const char *word, const char *command)
{
	bool is_exec = !strcmp(command, "exec");
	bool *flag = NULL;

	if (!strcmp(word, "--json") && strcmp(command, "ping"))
		flag = &line->json;
	else if (!strcmp(word, "--stdin") && is_exec)
		flag = &line->from_stdin;
	else if (!strcmp(word, "--raw") && is_exec)
		flag = &line->raw;
	if (!flag || *flag)
		return false;
	*flag = true;
	return true;
}

/* Take the words of a command apart. False where they are for the Python command line. */
static bool read_line(const char *command, int count, char **words, struct lw_line *line)
{
	bool is_exec = !strcmp(command, "exec");
	int end = 0;

	while (end < count && strcmp(words[end], "--"))
		end++;
	if (end < count) {
		line->after = (const char **)words + end + 1;
		line->after_count = (size_t)(count - end - 1);
	}
	for (int i = 0; i < end; i++) {
		const char *word = words[i], *equals = strchr(word, '='), **value;
		size_t length = equals ? (size_t)(equals - word) : strlen(word);
		bool is_setting = is_exec && length == 5 && !memcmp(word, "--env", 5);

		if (word[0] != '-' || !word[1]) {
			line->word = word;
			line->words++;
			continue;
		}
		value = value_of(line, word, length, is_exec);
		if (!value && !is_setting) {
			if (!read_flag(line, word, command))
				return false;
			continue;
		}
		if ((value && *value) || (!equals && i + 1 == end))
			return false;
		word = equals ? equals + 1 : words[++i];
		if (value)
			*value = word;
		else
			line->environment[line->environment_count++] = word;
	}
	return is_exec || (!line->words && !line->after_count);
}

static int complain_of_daemon(void)
{
	lw_complain(leeward_last_error());
	return 1;
}

static int run_exec(const struct lw_line *line, struct lw_job *job)
{
	leeward_handle *handle = leeward_connect(line->socket);
	leeward_result *result;

	if (!handle)
		return complain_of_daemon();
	result = leeward_execute(handle, job->has_code ? (const char *)job->code.data : NULL, job->code.length,
				 &job->options);
	return result ? lw_job_show(result, line) : complain_of_daemon();
}

static int run_ping(const struct lw_line *line)
{
	leeward_handle *handle = leeward_connect(line->socket);
	int failed;

	if (!handle || leeward_ping(handle, ANSWER_S))
		return complain_of_daemon();
	failed = lw_write(1, "Pong!\n", 6);
	return failed ? lw_system_error(-failed) : 0;
}

static int run_status(const struct lw_line *line, char **argv)
{
	leeward_handle *handle = leeward_connect(line->socket);
	struct lw_buffer text = {.limit = SIZE_MAX / 2};
	struct lw_value map;
	int failed;

	if (!handle || lw_status(handle, ANSWER_S, &map))
		return complain_of_daemon();
	if (line->json ? lw_json_map(&text, &map) != 0 : !lw_status_text(&text, &map)) {
		signal(SIGPIPE, SIG_DFL);
		return hand_over(argv); /* of a form that only Python shows */
	}
	if (line->json)
		lw_put(&text, "\n", 1);
	if (text.no_memory)
		return lw_system_error(ENOMEM);
	failed = lw_write(1, text.data, text.length);
	return failed ? lw_system_error(-failed) : 0;
}

int main(int argc, char **argv)
{
	const char *command = argc > 1 ? argv[1] : "";
	struct lw_line line = {0};
	struct lw_job job = {.has_code = false};
	int error = 0;

	keep_standard_descriptors();
	if (strcmp(command, "exec") && strcmp(command, "ping") && strcmp(command, "status"))
		return hand_over(argv);
	line.environment = calloc((size_t)argc, sizeof *line.environment);
	if (!line.environment)
		return lw_system_error(ENOMEM);
	if (!read_line(command, argc - 2, argv + 2, &line))
		return hand_over(argv);
	if (!strcmp(command, "exec") && !lw_job_read(&line, &job, &error)) {
		if (error)
			return lw_system_error(error);
		return hand_over(argv);
	}
	/* Inherited as it is by the Python one, which ignores it by itself. */
	signal(SIGPIPE, SIG_IGN);
	if (!strcmp(command, "exec"))
		return run_exec(&line, &job);
	return !strcmp(command, "ping") ? run_ping(&line) : run_status(&line, argv);
}
