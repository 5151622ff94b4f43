/* What leeward.h promises of live sandboxes, as a program that ends at the first broken promise.
 *
 *	checks good SOCKET       everything, by a daemon that works
 *	checks nonsense SOCKET   NULL and bad arguments to every function
 *
 * Run plain, under valgrind, and with the library's sources under ASan and UBSan. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "leeward.h"

#define CHECK(promise)                                                                           \
	do {                                                                                     \
		if (!(promise)) {                                                                \
			fprintf(stderr, "line %d: %s (last error: %d %s)\n", __LINE__, #promise, \
				leeward_last_error_code(), leeward_last_error());                \
			exit(1);                                                                 \
		}                                                                                \
	} while (0)

#define FAILS(code, call) CHECK(!(call) && leeward_last_error_code() == (code) && *leeward_last_error())
#define ERROR(code, call) CHECK((call) == (code) && leeward_last_error_code() == (code) && *leeward_last_error())

static leeward_result *shell(leeward_sandbox *box, const char *line)
{
	leeward_program program = {.size = sizeof program, .shell = line};
	leeward_result *result = leeward_sandbox_run(box, &program);

	CHECK(result);
	return result;
}

static int is(const void *data, size_t length, const char *text)
{
	return length == strlen(text) && !memcmp(data, text, length);
}

static void prints(leeward_sandbox *box, const char *line, const char *text)
{
	leeward_result *result = shell(box, line);

	CHECK(result->outcome == LEEWARD_FINISHED && !result->exit_code && is(result->stdout_data, result->stdout_length, text));
	leeward_free_result(result);
}

/* --- programs ----------------------------------------------------------------- */

static void check_runs(leeward_sandbox *box)
{
	const char *argv[] = {"/bin/sh", "-c", "cat; pwd; echo $A $B >&2; exit 3"}, *environment[] = {"A=1", "B=old", "B=2"};
	const char *missing[] = {"no-such-program"}, *folder[] = {"/tmp"};
	leeward_program program = {.size = sizeof program, .argv = argv, .argc = 3, .cwd = "/tmp", .environment = environment,
				   .environment_count = 3, .stdin_data = "in\n", .stdin_length = 3, .title = "a title"};
	leeward_result *result = leeward_sandbox_run(box, &program);

	CHECK(result && result->outcome == LEEWARD_FINISHED && result->exit_code == 3);
	CHECK(is(result->stdout_data, result->stdout_length, "in\n/tmp\n"));
	CHECK(is(result->stderr_data, result->stderr_length, "1 2\n") && !result->file_count && !result->shown_count);
	leeward_free_result(result);

	program = (leeward_program){.argv = missing, .argc = 1};
	CHECK((result = leeward_sandbox_run(box, &program)) && result->exit_code == 127 && result->stderr_length);
	leeward_free_result(result);
	program.argv = folder;
	CHECK((result = leeward_sandbox_run(box, &program)) && result->exit_code == 126);
	leeward_free_result(result);

	program = (leeward_program){.shell = "echo before; sleep 100", .timeout = 0.3};
	CHECK((result = leeward_sandbox_run(box, &program)) && result->outcome == LEEWARD_TIMED_OUT && result->exit_code == 124);
	CHECK(result->limit == LEEWARD_LIMIT_TIME && is(result->stdout_data, result->stdout_length, "before\n"));
	leeward_free_result(result);

	program = (leeward_program){.shell = "yes | head -c 3000000"};
	CHECK((result = leeward_sandbox_run(box, &program)) && result->stdout_length == 3000000);
	CHECK(result->stdout_data[0] == 'y' && result->stdout_data[2999999] == '\n');
	leeward_free_result(result);

	program = (leeward_program){.shell = "sleep 100", .deadline = 0.2};
	FAILS(LEEWARD_NO_ANSWER, leeward_sandbox_run(box, &program));
	prints(box, "echo on", "on\n"); /* by a new connection */
}

struct seen {
	char text[1 << 16];
	size_t length;
	int64_t last;
	int stop_after;
};

static int see(void *context, const leeward_chunk *chunk)
{
	struct seen *seen = context;

	CHECK(chunk->size == sizeof *chunk && chunk->number == seen->last + 1 && chunk->time > 0 && chunk->length);
	CHECK((chunk->stream == 1 || chunk->stream == 2) && seen->length + chunk->length < sizeof seen->text);
	memcpy(seen->text + seen->length, chunk->data, chunk->length);
	seen->length += chunk->length;
	seen->text[seen->length] = '\0';
	seen->last = chunk->number;
	return seen->stop_after && --seen->stop_after == 0;
}

/* Read until it shows *text*. */
static void until_shown(leeward_sandbox *box, int64_t process, int64_t *after, struct seen *seen, const char *text)
{
	while (!strstr(seen->text, text))
		CHECK(leeward_process_read(box, process, after, 20, see, seen) == 1 || strstr(seen->text, text));
}

static void check_streams(leeward_sandbox *box)
{
	leeward_program program = {.shell = "read line; echo \"<$line>\"; cat; echo end >&2", .keep_stdin = 1};
	int64_t process = leeward_process_start(box, &program), after = 0;
	struct seen seen = {.last = 0};
	leeward_result *result;

	CHECK(process > 0);
	CHECK(leeward_process_read(box, process, &after, 0, see, &seen) == 1 && !after);
	FAILS(LEEWARD_NOT_YET, leeward_process_wait(box, process, 0));
	CHECK(leeward_process_write(box, process, "hello\n", 6) == 6);
	until_shown(box, process, &after, &seen, "<hello>\n");
	CHECK(leeward_process_write(box, process, "rest", 4) == 4);
	CHECK(!leeward_process_close_stdin(box, process));
	while (leeward_process_read(box, process, &after, -1, see, &seen))
		CHECK(leeward_last_error_code() != LEEWARD_AWAY);
	CHECK(!strcmp(seen.text, "<hello>\nrestend\n") && after == seen.last);
	CHECK((result = leeward_process_wait(box, process, -1)) && !result->exit_code && !result->stdout_length);
	CHECK(result->outcome == LEEWARD_FINISHED && result->stdout_data && result->duration_us > 0);
	leeward_free_result(result);
	CHECK(leeward_process_write(box, process, "late", 4) == 0);
	CHECK(leeward_process_signal(box, process, SIGTERM) == 0);
	CHECK(leeward_process_read(box, process, &after, -1, see, &seen) == 0); /* it is still known */
	ERROR(LEEWARD_PROCESS_OVER, leeward_process_kill(box, 1000));

	/* A callback that stops has what it took, and no more. */
	program = (leeward_program){.shell = "echo 1; echo 2 >&2; sleep 0.1; echo 3"};
	process = leeward_process_start(box, &program);
	seen = (struct seen){.stop_after = 1};
	after = 0;
	CHECK(process > 0);
	for (int more = 1; more; more = leeward_process_read(box, process, &after, -1, see, &seen)) {
		CHECK(more == 1 && after == seen.last);
		seen.stop_after = 1;
	}
	CHECK(strchr(seen.text, '1') && strchr(seen.text, '2') && strchr(seen.text, '3') && seen.length == 6);

	program = (leeward_program){.shell = "trap 'echo got; exit 5' TERM; echo up; while :; do sleep 0.05; done"};
	process = leeward_process_start(box, &program);
	after = 0;
	seen = (struct seen){.last = 0};
	until_shown(box, process, &after, &seen, "up");
	CHECK(leeward_process_signal(box, process, SIGTERM) == 1);
	until_shown(box, process, &after, &seen, "got");
	CHECK((result = leeward_process_wait(box, process, 20)) && result->exit_code == 5);
	leeward_free_result(result);

	program = (leeward_program){.shell = "sleep 1000 & sleep 1000"};
	process = leeward_process_start(box, &program);
	CHECK(process > 0 && !leeward_process_kill(box, process));
	CHECK((result = leeward_process_wait(box, process, 20)) && result->outcome == LEEWARD_SIGNALLED);
	CHECK(result->exit_code == 137);
	leeward_free_result(result);
}

static void check_terminals(leeward_sandbox *box)
{
	leeward_program program = {.shell = "stty size; read x; stty size; test -t 0 && echo yes", .rows = 30, .columns = 100};
	int64_t process = leeward_process_start(box, &program), after = 0;
	struct seen seen = {.last = 0};

	CHECK(process > 0);
	until_shown(box, process, &after, &seen, "30 100");
	CHECK(leeward_process_resize(box, process, 11, 22) == 1);
	CHECK(leeward_process_write(box, process, "\n", 1) == 1);
	until_shown(box, process, &after, &seen, "11 22");
	until_shown(box, process, &after, &seen, "yes");
	ERROR(LEEWARD_REJECTED, leeward_process_resize(box, 1, 11, 22));
}

/* --- Python ------------------------------------------------------------------- */

static leeward_result *python(leeward_sandbox *box, int64_t kernel, const char *code, const leeward_options *options)
{
	leeward_result *result = leeward_sandbox_execute(box, kernel, code, strlen(code), options);

	CHECK(result);
	return result;
}

/* A file has the state; one that was changed, and another one, are refused. */
static void check_snapshot_files(leeward_handle *handle, leeward_sandbox *box, const char *snapshot)
{
	char path[] = "/tmp/leeward-checks-XXXXXX", again[LEEWARD_SNAPSHOT_ID];
	int fd = mkstemp(path);
	leeward_result *result;
	int64_t copy;

	CHECK(fd >= 0 && !close(fd) && !leeward_snapshot_save(handle, snapshot, path));
	CHECK(!leeward_snapshot_load(handle, path, again) && strcmp(again, snapshot));
	CHECK((copy = leeward_kernel_begin(box, again)) > 0);
	result = python(box, copy, "print(x)", NULL);
	CHECK(is(result->stdout_data, result->stdout_length, "[6]\n"));
	leeward_free_result(result);
	CHECK(!leeward_kernel_close(box, copy) && !leeward_snapshot_remove(handle, again));
	CHECK((fd = open(path, O_RDWR)) >= 0 && pwrite(fd, "x", 1, lseek(fd, 0, SEEK_END) - 1) == 1 && !close(fd));
	ERROR(LEEWARD_SNAPSHOT_FAILED, leeward_snapshot_load(handle, path, again));
	CHECK(!truncate(path, 5000));
	ERROR(LEEWARD_SNAPSHOT_FAILED, leeward_snapshot_load(handle, path, again));
	CHECK(!remove(path));
	ERROR(LEEWARD_SNAPSHOT_FAILED, leeward_snapshot_load(handle, path, again));
	ERROR(LEEWARD_SNAPSHOT_FAILED, leeward_snapshot_load(handle, "/etc/passwd", again));
	ERROR(LEEWARD_SNAPSHOT_FAILED, leeward_snapshot_save(handle, snapshot, "/proc/none/state"));
	ERROR(LEEWARD_INVALID, leeward_snapshot_save(handle, snapshot, NULL));
}

static void check_snapshots(leeward_handle *handle, leeward_sandbox *box)
{
	char snapshot[LEEWARD_SNAPSHOT_ID];
	int64_t kernel = leeward_kernel_open(box), copy;
	leeward_result *result;

	CHECK(kernel > 0);
	leeward_free_result(python(box, kernel, "x = [6]", NULL));
	CHECK(!leeward_kernel_snapshot(box, kernel, snapshot) && strlen(snapshot) == 26);
	leeward_free_result(python(box, kernel, "x.append(7)", NULL));
	CHECK((copy = leeward_kernel_begin(box, snapshot)) > kernel);
	CHECK(!leeward_kernel_rollback(box, kernel, snapshot));
	for (int i = 0; i < 2; i++) {
		result = python(box, i ? copy : kernel, "print(x)", NULL);
		CHECK(is(result->stdout_data, result->stdout_length, "[6]\n"));
		leeward_free_result(result);
	}
	leeward_free_result(python(box, kernel, "import subprocess; p = subprocess.Popen(['sleep', '100'])", NULL));
	ERROR(LEEWARD_SNAPSHOT_FAILED, leeward_kernel_snapshot(box, kernel, snapshot));
	ERROR(LEEWARD_INVALID, leeward_kernel_rollback(box, kernel, "x"));
	check_snapshot_files(handle, box, snapshot);
	CHECK(!leeward_snapshot_remove(handle, snapshot));
	ERROR(LEEWARD_SNAPSHOT_FAILED, leeward_snapshot_remove(handle, snapshot));
	CHECK(!leeward_kernel_close(box, kernel) && !leeward_kernel_close(box, copy));
}

static void check_copies(leeward_handle *handle, leeward_sandbox *box)
{
	leeward_sandbox *other = leeward_sandbox_open(handle, NULL);
	leeward_result *result;

	CHECK(other);
	leeward_free_result(python(box, 0, "open('kept', 'w').write('abc')", NULL));
	CHECK(leeward_sandbox_copy_files(other, leeward_sandbox_id(box)) > 0);
	result = python(other, 0, "print(open('kept').read())", NULL);
	CHECK(is(result->stdout_data, result->stdout_length, "abc\n"));
	leeward_free_result(result);
	ERROR(LEEWARD_REJECTED, leeward_sandbox_copy_files(other, leeward_sandbox_id(box)));
	ERROR(LEEWARD_INVALID, leeward_sandbox_copy_files(other, "x"));
	CHECK(!leeward_sandbox_kill(other));
	leeward_sandbox_detach(other);
}

static void check_python(leeward_sandbox *box, const char *path)
{
	const char *collect[] = {"made"};
	leeward_options options = {.size = sizeof options, .collect = collect, .collect_count = 1, .display = 1,
				   .stdin_data = "in", .stdin_length = 2};
	leeward_result *result = python(box, 0, "import sys\nopen('made', 'w').write(sys.stdin.read())\n6 * 7", &options);
	int64_t kernel, other;

	CHECK(result->outcome == LEEWARD_FINISHED && result->file_count == 1 && is(result->files[0].data, result->files[0].length, "in"));
	CHECK(result->value && !strcmp(result->value, "42") && result->shown_count == 1);
	CHECK(result->shown[0].form_count == 1 && !strcmp(result->shown[0].forms[0].type, "text/plain"));
	CHECK(is(result->shown[0].forms[0].data, result->shown[0].forms[0].length, "42"));
	leeward_free_result(result);
	prints(box, "cat made", "in");

	CHECK((kernel = leeward_kernel_open(box)) > 0 && (other = leeward_kernel_open(box)) > kernel);
	leeward_free_result(python(box, kernel, "x = 6", NULL));
	leeward_free_result(python(box, other, "x = 5", NULL));
	result = python(box, kernel, "print(x * 7)", NULL);
	CHECK(is(result->stdout_data, result->stdout_length, "42\n") && !result->value && !result->shown);
	leeward_free_result(result);
	options = (leeward_options){.size = sizeof options, .display = 1};
	result = python(box, kernel, "class H:\n  def _repr_html_(self): return '<b>h</b>'\n  def __repr__(self): return 'plain'\nH()",
			&options);
	CHECK(result->shown_count == 1 && result->shown[0].form_count == 2 && !strcmp(result->value, "plain"));
	leeward_free_result(result);
	CHECK(leeward_kernel_interrupt(box, kernel) == 0); /* nothing runs */
	CHECK(!leeward_kernel_reset(box, kernel));
	result = python(box, kernel, "print(x)", NULL);
	CHECK(result->outcome == LEEWARD_RAISED && !strcmp(result->error_type, "NameError"));
	leeward_free_result(result);
	result = python(box, kernel, "import os; os._exit(4)", NULL);
	CHECK(result->exit_code == 4);
	leeward_free_result(result);
	FAILS(LEEWARD_SESSION_OVER, leeward_sandbox_execute(box, kernel, "1", 1, NULL));
	CHECK(!leeward_last_error_may_have_run());
	CHECK(!leeward_kernel_close(box, kernel) && !leeward_kernel_close(box, other));

	/* By another handle, while this one waits: here the interrupt waits for the code. */
	CHECK((kernel = leeward_kernel_open(box)) > 0);
	leeward_free_result(python(box, kernel, "import os, signal, threading\nthreading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()",
				   NULL));
	(void)path;
	result = python(box, kernel, "import time; time.sleep(60)", NULL);
	CHECK(result->outcome == LEEWARD_RAISED && !strcmp(result->error_type, "KeyboardInterrupt"));
	leeward_free_result(result);
	CHECK(!leeward_kernel_close(box, kernel));
}

/* --- files -------------------------------------------------------------------- */

static void check_files(leeward_sandbox *box)
{
	static char large[(5 << 20) + 7];
	leeward_content *content;
	leeward_entries *entries;

	CHECK(!leeward_file_write(box, "d/e/f.txt", "hello\0x", 7, 0640));
	CHECK((content = leeward_file_read(box, "d/e/f.txt", 0)) && content->length == 7 && !memcmp(content->data, "hello\0x", 7));
	CHECK(content->mode == 0640 && content->time_ns > 0 && content->size == sizeof *content);
	leeward_free_content(content);
	CHECK(!leeward_file_append(box, "d/e/f.txt", "!", 1));
	prints(box, "wc -c < d/e/f.txt", "8\n");
	CHECK(!leeward_file_write(box, "empty", NULL, 0, -1));
	CHECK((content = leeward_file_read(box, "empty", 0)) && !content->length && content->data);
	leeward_free_content(content);

	for (size_t i = 0; i < sizeof large; i++)
		large[i] = (char)(i * 7 + i / 251);
	CHECK(!leeward_file_write(box, "large", large, sizeof large, -1));
	CHECK((content = leeward_file_read(box, "large", 0)) && content->length == sizeof large);
	CHECK(!memcmp(content->data, large, sizeof large));
	leeward_free_content(content);
	FAILS(LEEWARD_FILE, leeward_file_read(box, "large", sizeof large - 1));
	CHECK(leeward_last_error_errno() == EFBIG);
	CHECK((content = leeward_file_read(box, "large", sizeof large)));
	leeward_free_content(content);

	FAILS(LEEWARD_FILE, leeward_file_read(box, "nothing", 0));
	CHECK(leeward_last_error_errno() == ENOENT && strstr(leeward_last_error(), "nothing"));
	FAILS(LEEWARD_FILE, leeward_file_read(box, "d", 0));
	CHECK(leeward_last_error_errno() == EISDIR);
	ERROR(LEEWARD_FILE, leeward_file_write(box, "empty/x", "x", 1, -1));
	CHECK(leeward_last_error_errno() == ENOTDIR);
	ERROR(LEEWARD_FILE, leeward_file_write(box, "/usr/x", large, sizeof large, -1));
	ERROR(LEEWARD_FILE, leeward_file_mkdir(box, "d", 0));
	CHECK(leeward_last_error_errno() == EEXIST && !leeward_file_mkdir(box, "d/g/h", 1));
	prints(box, "mkfifo fifo; ln -s d/e/f.txt link; printf '' > \"$(printf 'd/\\377')\"", "");
	FAILS(LEEWARD_FILE, leeward_file_read(box, "fifo", 0));

	CHECK((entries = leeward_file_list(box, "d")) && entries->count == 3 && !strcmp(entries->entries[0]->name, "e"));
	CHECK(entries->entries[0]->kind == LEEWARD_KIND_FOLDER && !strcmp(entries->entries[1]->name, "g"));
	CHECK(!strcmp(entries->entries[2]->name, "\377") && entries->entries[2]->kind == LEEWARD_KIND_FILE);
	leeward_free_entries(entries);
	CHECK((entries = leeward_file_list(box, "d/g/h")) && !entries->count && !entries->entries);
	leeward_free_entries(entries);
	CHECK((entries = leeward_file_stat(box, "link", 0)) && entries->count == 1);
	CHECK(entries->entries[0]->kind == LEEWARD_KIND_LINK && !strcmp(entries->entries[0]->target, "d/e/f.txt"));
	leeward_free_entries(entries);
	CHECK((entries = leeward_file_stat(box, "link", 1)) && entries->entries[0]->kind == LEEWARD_KIND_FILE);
	CHECK(entries->entries[0]->length == 8 && entries->entries[0]->mode == 0640 && !entries->entries[0]->target);
	leeward_free_entries(entries);
	prints(box, "mkdir many; cd many; seq 5000 | xargs touch", "");
	CHECK((entries = leeward_file_list(box, "many")) && entries->count == 5000);
	for (size_t i = 1; i < entries->count; i++)
		CHECK(strcmp(entries->entries[i - 1]->name, entries->entries[i]->name) < 0);
	leeward_free_entries(entries);

	CHECK(!leeward_file_move(box, "large", "d/moved"));
	FAILS(LEEWARD_FILE, leeward_file_stat(box, "large", 0));
	CHECK(!leeward_file_remove(box, "d/moved", 0));
	ERROR(LEEWARD_FILE, leeward_file_remove(box, "d", 0));
	CHECK(leeward_last_error_errno() == ENOTEMPTY && !leeward_file_remove(box, "d", 1) && !leeward_file_remove(box, "many", 1));
}

static void check_search(leeward_sandbox *box)
{
	leeward_matches *matches;
	leeward_content *content;
	leeward_names *names;

	prints(box, "mkdir -p s/deep; printf 'one\\nTwo two\\nthree\\n' > s/a.txt; printf 'two\\n' > s/deep/b.txt; ln -s a.txt s/l; echo two > s/c.md", "");
	CHECK((names = leeward_file_glob(box, "s", "**/*.txt", 0)) && names->count == 2 && !names->more);
	CHECK(!strcmp(names->names[0], "s/a.txt") && !strcmp(names->names[1], "s/deep/b.txt") && names->size == sizeof *names);
	leeward_free_names(names);
	CHECK((names = leeward_file_glob(box, ".", "s/*", 1)) && names->count == 1 && names->more);
	leeward_free_names(names);
	CHECK((names = leeward_file_glob(box, "s", "no*", 0)) && !names->count && !names->names && !names->more);
	leeward_free_names(names);

	CHECK((matches = leeward_file_grep(box, "s", "t[w]o$", "*.txt", 0, 0)) && matches->count == 2 && !matches->more);
	CHECK(!strcmp(matches->matches[0]->path, "s/a.txt") && matches->matches[0]->line == 2);
	CHECK(is(matches->matches[0]->text, matches->matches[0]->length, "Two two"));
	CHECK(!strcmp(matches->matches[1]->path, "s/deep/b.txt") && matches->matches[1]->size == sizeof **matches->matches);
	leeward_free_matches(matches);
	CHECK((matches = leeward_file_grep(box, "s/a.txt", "TW", NULL, LEEWARD_GREP_LITERAL | LEEWARD_GREP_IGNORE_CASE, 0)));
	CHECK(matches->count == 1);
	leeward_free_matches(matches);
	CHECK((matches = leeward_file_grep(box, "s", "o", NULL, 0, 1)) && matches->count == 1 && matches->more);
	leeward_free_matches(matches);
	FAILS(LEEWARD_FILE, leeward_file_grep(box, "s", "(", NULL, 0, 0));
	CHECK(!leeward_last_error_errno());
	FAILS(LEEWARD_FILE, leeward_file_grep(box, "nothing", "x", NULL, 0, 0));
	CHECK(leeward_last_error_errno() == ENOENT);

	CHECK(leeward_file_edit(box, "s/a.txt", "three", 5, "3\0", 2) == 1);
	CHECK((content = leeward_file_read(box, "s/a.txt", 0)) && content->length == 15 && !memcmp(content->data + 12, "3\0\n", 3));
	leeward_free_content(content);
	CHECK(leeward_file_edit(box, "s/a.txt", "nothing", 7, NULL, 0) == 0);
	CHECK(leeward_file_edit(box, "s/a.txt", "o", 1, "0", 1) == 3);
	ERROR(LEEWARD_FILE, leeward_file_edit(box, "nothing", "a", 1, "b", 1));

	CHECK(!leeward_file_copy(box, "s", "t"));
	prints(box, "cat t/deep/b.txt; readlink t/l", "two\na.txt\n");
	ERROR(LEEWARD_FILE, leeward_file_copy(box, "nothing", "u"));
	CHECK(leeward_last_error_errno() == ENOENT && !leeward_file_remove(box, "s", 1) && !leeward_file_remove(box, "t", 1));
}

/* Folders of the host: one as the work folder, a file to be read, a copy. */
static void check_mounts(leeward_handle *handle)
{
	char folder[] = "/tmp/leeward-c-XXXXXX", file[64];
	const leeward_mount mounts[] = {{.source = mkdtemp(folder), .target = "/workspace/", .writable = 1},
					{.source = file, .target = "/one", .writable = 0},
					{.source = folder, .target = "/copy", .overlay = 1}};
	const leeward_mount missing = {.source = "/no/such/folder", .target = "/x"}, device = {.source = "/dev/null", .target = "/x"};
	const leeward_mount twice[] = {{.source = folder, .target = "/x"}, {.source = folder, .target = "/x"}};
	leeward_sandbox_options options = {.size = sizeof options, .mounts = mounts, .mount_count = 3, .profile = "workdir"};
	leeward_sandboxes *list;
	leeward_sandbox *box;
	FILE *made;

	CHECK(mounts[0].source && snprintf(file, sizeof file, "%s/in", folder) > 0 && (made = fopen(file, "w")));
	CHECK(fputs("given\n", made) >= 0 && !fclose(made));
	CHECK((box = leeward_sandbox_open(handle, &options)));
	prints(box, "cat in /one /copy/in; echo out > out; echo kept > /copy/kept; (echo no > /one) 2>&1 | grep -c one", "given\ngiven\ngiven\n1\n");
	CHECK((list = leeward_sandbox_info_of(box)) && !strcmp(list->sandboxes[0]->profile, "workdir"));
	leeward_free_sandboxes(list);
	CHECK(!leeward_sandbox_kill(box) && !remove(file));
	leeward_sandbox_detach(box);
	snprintf(file, sizeof file, "%s/kept", folder);
	CHECK(remove(file) && errno == ENOENT);
	snprintf(file, sizeof file, "%s/out", folder);
	CHECK(!remove(file) && !remove(folder));

	options = (leeward_sandbox_options){.size = sizeof options, .mounts = &missing, .mount_count = 1};
	FAILS(LEEWARD_REJECTED, leeward_sandbox_open(handle, &options));
	CHECK(!leeward_last_error_may_have_run() && strstr(leeward_last_error(), "/no/such/folder"));
	options.mounts = &device;
	FAILS(LEEWARD_REJECTED, leeward_sandbox_open(handle, &options));
	options.mounts = twice;
	options.mount_count = 2;
	FAILS(LEEWARD_REJECTED, leeward_sandbox_open(handle, &options));
	options = (leeward_sandbox_options){.size = sizeof options, .profile = "no-such-profile"};
	FAILS(LEEWARD_REJECTED, leeward_sandbox_open(handle, &options));
	options = (leeward_sandbox_options){.size = sizeof options, .egress = "no-such-policy"};
	FAILS(LEEWARD_REJECTED, leeward_sandbox_open(handle, &options));
	options = (leeward_sandbox_options){.size = sizeof options, .environment_name = "no-such-environment"};
	FAILS(LEEWARD_REJECTED, leeward_sandbox_open(handle, &options));
	/* The first version, which ends before the mounts. */
	options = (leeward_sandbox_options){.size = offsetof(leeward_sandbox_options, mounts), .mount_count = 1};
	CHECK((box = leeward_sandbox_open(handle, &options)) && !leeward_sandbox_kill(box));
	leeward_sandbox_detach(box);
}

/* --- sandboxes ---------------------------------------------------------------- */

static const leeward_sandbox_info *find(const leeward_sandboxes *list, const char *id)
{
	for (size_t i = 0; i < list->count; i++)
		if (!strcmp(list->sandboxes[i]->id, id))
			return list->sandboxes[i];
	return NULL;
}

static void good(const char *path)
{
	const char *environment[] = {"NAME=box"}, *metadata[] = {"run=7", "who=c"};
	leeward_sandbox_options options = {.size = sizeof options, .environment = environment, .environment_count = 1,
					   .metadata = metadata, .metadata_count = 2, .idle = 60, .lifetime = 600,
					   .memory = 128 << 20, .timeout = 20};
	leeward_handle *handle = leeward_connect(path), *other = leeward_connect(path);
	leeward_sandbox *box, *same;
	leeward_sandboxes *list;
	const leeward_sandbox_info *info;
	size_t before;

	CHECK(handle && other && (list = leeward_sandbox_list(handle)) && (!list->count == !list->sandboxes));
	before = list->count;
	leeward_free_sandboxes(list);
	CHECK((box = leeward_sandbox_open(handle, &options)) && strlen(leeward_sandbox_id(box)) == 26);
	prints(box, "echo $NAME; echo kept > kept", "box\n");
	CHECK((same = leeward_sandbox_attach(other, leeward_sandbox_id(box))));
	prints(same, "cat kept", "kept\n");
	CHECK((list = leeward_sandbox_list(other)) && list->count == before + 1 && (info = find(list, leeward_sandbox_id(box))));
	CHECK(info->metadata_count == 2 && !strcmp(info->metadata[0], "run") && !strcmp(info->metadata[1], "7"));
	CHECK(!strcmp(info->metadata[3], "c") && !strcmp(info->profile, "python") && info->memory_limit == 128 << 20);
	CHECK(info->idle_us == 60000000 && info->left_us > 500000000 && info->age_us > 0 && !info->processes);
	leeward_free_sandboxes(list);
	CHECK(!leeward_sandbox_extend(box, 30, 0) && (list = leeward_sandbox_info_of(same)) && list->count == 1);
	CHECK(list->sandboxes[0]->idle_us == 30000000);
	leeward_free_sandboxes(list);

	check_runs(box);
	check_streams(box);
	check_terminals(box);
	check_python(box, path);
	check_snapshots(handle, box);
	check_copies(handle, box);
	check_files(box);
	check_search(box);
	check_mounts(other);

	CHECK(!leeward_sandbox_kill(same));
	ERROR(LEEWARD_SANDBOX_OVER, leeward_sandbox_kill(box));
	FAILS(LEEWARD_SANDBOX_OVER, leeward_sandbox_info_of(box));
	FAILS(LEEWARD_SANDBOX_OVER, leeward_file_read(box, "x", 0));
	FAILS(LEEWARD_SANDBOX_OVER, leeward_sandbox_attach(handle, leeward_sandbox_id(box)));
	FAILS(LEEWARD_SANDBOX_OVER, leeward_sandbox_attach(handle, "aaaaaaaaaaaaaaaaaaaaaaaaaa"));
	leeward_sandbox_detach(box);
	leeward_sandbox_detach(same);
	CHECK((box = leeward_sandbox_open(handle, NULL)) && !leeward_sandbox_kill(box));
	leeward_sandbox_detach(box);
	leeward_disconnect(handle);
	leeward_disconnect(other);
}

static int never(void *context, const leeward_chunk *chunk)
{
	CHECK(context && !chunk);
	return 0;
}

static void nonsense_of_a_sandbox(leeward_sandbox *box)
{
	leeward_program program = {0}, both = {.shell = "x", .argc = 1}, old = {.size = 8, .shell = "x"};
	leeward_program hollow = {.argc = 1}, late = {.shell = "x", .timeout = NAN}, half = {.shell = "x", .rows = 1};
	leeward_options module = {.module = "x"};
	leeward_program *wrong[] = {&program, &both, &old, &hollow, &late, &half, NULL};
	char path[5000];
	int64_t after = 0, before = -1;

	memset(path, 'x', sizeof path - 1);
	path[sizeof path - 1] = '\0';
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		FAILS(LEEWARD_INVALID, leeward_sandbox_run(box, wrong[i]));
		ERROR(LEEWARD_INVALID, leeward_process_start(box, wrong[i]));
	}
	program = (leeward_program){.shell = "x", .keep_stdin = 1};
	FAILS(LEEWARD_INVALID, leeward_sandbox_run(box, &program));
	FAILS(LEEWARD_INVALID, leeward_sandbox_execute(box, 0, NULL, 0, NULL));
	FAILS(LEEWARD_INVALID, leeward_sandbox_execute(box, 0, NULL, 0, &module));
	FAILS(LEEWARD_INVALID, leeward_sandbox_execute(box, -1, "1", 1, NULL));
	ERROR(LEEWARD_INVALID, leeward_kernel_interrupt(box, 0));
	ERROR(LEEWARD_INVALID, leeward_kernel_reset(box, -5));
	ERROR(LEEWARD_INVALID, leeward_kernel_close(box, 0));
	ERROR(LEEWARD_INVALID, leeward_process_read(box, 0, &after, 0, never, NULL));
	ERROR(LEEWARD_INVALID, leeward_process_read(box, 1, NULL, 0, never, NULL));
	ERROR(LEEWARD_INVALID, leeward_process_read(box, 1, &before, 0, never, NULL));
	ERROR(LEEWARD_INVALID, leeward_process_read(box, 1, &after, NAN, never, NULL));
	ERROR(LEEWARD_INVALID, leeward_process_read(box, 1, &after, 0, NULL, NULL));
	ERROR(LEEWARD_INVALID, leeward_process_write(box, 1, NULL, 1));
	ERROR(LEEWARD_INVALID, leeward_process_write(box, 0, "x", 1));
	ERROR(LEEWARD_INVALID, leeward_process_close_stdin(box, 0));
	ERROR(LEEWARD_INVALID, leeward_process_signal(box, 1, 0));
	ERROR(LEEWARD_INVALID, leeward_process_signal(box, 1, 65));
	ERROR(LEEWARD_INVALID, leeward_process_signal(box, 0, 9));
	ERROR(LEEWARD_INVALID, leeward_process_resize(box, 1, 0, 80));
	ERROR(LEEWARD_INVALID, leeward_process_resize(box, 0, 24, 80));
	ERROR(LEEWARD_INVALID, leeward_process_kill(box, 0));
	FAILS(LEEWARD_INVALID, leeward_process_wait(box, 0, 0));
	FAILS(LEEWARD_INVALID, leeward_process_wait(box, 1, NAN));
	ERROR(LEEWARD_INVALID, leeward_sandbox_extend(box, -1, 0));
	ERROR(LEEWARD_INVALID, leeward_sandbox_extend(box, 0, INFINITY));
	for (const char *bad = path;; bad = *bad ? "" : NULL) {
		FAILS(LEEWARD_INVALID, leeward_file_read(box, bad, 0));
		ERROR(LEEWARD_INVALID, leeward_file_write(box, bad, "x", 1, -1));
		ERROR(LEEWARD_INVALID, leeward_file_append(box, bad, "x", 1));
		FAILS(LEEWARD_INVALID, leeward_file_list(box, bad));
		FAILS(LEEWARD_INVALID, leeward_file_stat(box, bad, 0));
		ERROR(LEEWARD_INVALID, leeward_file_mkdir(box, bad, 1));
		ERROR(LEEWARD_INVALID, leeward_file_remove(box, bad, 1));
		ERROR(LEEWARD_INVALID, leeward_file_move(box, bad, "x"));
		ERROR(LEEWARD_INVALID, leeward_file_move(box, "x", bad));
		ERROR(LEEWARD_INVALID, leeward_file_copy(box, bad, "x"));
		ERROR(LEEWARD_INVALID, leeward_file_copy(box, "x", bad));
		FAILS(LEEWARD_INVALID, leeward_file_glob(box, bad, "*", 0));
		FAILS(LEEWARD_INVALID, leeward_file_glob(box, ".", bad, 0));
		FAILS(LEEWARD_INVALID, leeward_file_grep(box, bad, "x", NULL, 0, 0));
		FAILS(LEEWARD_INVALID, leeward_file_grep(box, ".", bad, NULL, 0, 0));
		ERROR(LEEWARD_INVALID, leeward_file_edit(box, bad, "x", 1, "y", 1));
		if (!bad)
			break;
	}
	ERROR(LEEWARD_INVALID, leeward_file_write(box, "x", NULL, 1, -1));
	ERROR(LEEWARD_INVALID, leeward_file_write(box, "x", "x", 1, 01777));
	ERROR(LEEWARD_INVALID, leeward_file_append(box, "x", NULL, 1));
	FAILS(LEEWARD_INVALID, leeward_file_grep(box, ".", "x", path, 0, 0));
	FAILS(LEEWARD_INVALID, leeward_file_grep(box, ".", "x", NULL, 4, 0));
	ERROR(LEEWARD_INVALID, leeward_file_edit(box, "x", NULL, 1, "y", 1));
	ERROR(LEEWARD_INVALID, leeward_file_edit(box, "x", "", 0, "y", 1));
	ERROR(LEEWARD_INVALID, leeward_file_edit(box, "x", "x", 1, NULL, 1));
	ERROR(LEEWARD_INVALID, leeward_file_edit(box, "x", "x", (1 << 20) + 1, "y", 1));
}

static void nonsense(const char *path)
{
	const char *plain[] = {"no equals"}, *bad[] = {"A=\xff"};
	leeward_sandbox_options small = {.size = 8}, huge = {.size = 5000}, late = {.timeout = -1}, still = {.idle = NAN};
	leeward_sandbox_options hollow = {.environment_count = 1}, text = {.metadata = plain, .metadata_count = 1};
	leeward_sandbox_options bytes = {.environment = bad, .environment_count = 1}, much = {.memory = UINT64_MAX / 4};
	const leeward_mount none = {.target = "/x"}, relative = {.source = "/tmp", .target = "x"}, odd = {.source = "/tmp", .target = "/\xff"};
	leeward_sandbox_options many = {.size = sizeof many, .mounts = &none, .mount_count = 17}, no_mounts = {.size = sizeof many, .mount_count = 1};
	leeward_sandbox_options no_source = {.size = sizeof many, .mounts = &none, .mount_count = 1};
	leeward_sandbox_options no_target = {.size = sizeof many, .mounts = &relative, .mount_count = 1};
	leeward_sandbox_options no_text = {.size = sizeof many, .mounts = &odd, .mount_count = 1};
	leeward_sandbox_options no_name = {.size = sizeof many, .profile = "\xff"};
	leeward_sandbox_options *wrong[] = {&small, &huge, &late, &still, &hollow, &text, &bytes, &many, &no_mounts, &no_source,
					    &no_target, &no_text, &no_name};
	leeward_program program = {.shell = "true"};
	leeward_handle *handle = leeward_connect(path);
	leeward_sandbox *box;

	CHECK(handle);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		FAILS(LEEWARD_INVALID, leeward_sandbox_open(handle, wrong[i]));
	FAILS(LEEWARD_REJECTED, leeward_sandbox_open(handle, &much));
	FAILS(LEEWARD_INVALID, leeward_sandbox_open(NULL, NULL));
	FAILS(LEEWARD_INVALID, leeward_sandbox_attach(NULL, "aaaaaaaaaaaaaaaaaaaaaaaaaa"));
	FAILS(LEEWARD_INVALID, leeward_sandbox_attach(handle, NULL));
	FAILS(LEEWARD_INVALID, leeward_sandbox_attach(handle, "AAAAAAAAAAAAAAAAAAAAAAAAAA"));
	FAILS(LEEWARD_INVALID, leeward_sandbox_attach(handle, "a"));
	FAILS(LEEWARD_INVALID, leeward_sandbox_list(NULL));
	FAILS(LEEWARD_INVALID, leeward_sandbox_info_of(NULL));
	FAILS(LEEWARD_INVALID, leeward_sandbox_run(NULL, &program));
	FAILS(LEEWARD_INVALID, leeward_sandbox_execute(NULL, 0, "1", 1, NULL));
	ERROR(LEEWARD_INVALID, leeward_sandbox_kill(NULL));
	ERROR(LEEWARD_INVALID, leeward_kernel_open(NULL));
	ERROR(LEEWARD_INVALID, leeward_process_start(NULL, &program));
	CHECK(!leeward_sandbox_id(NULL));
	leeward_sandbox_detach(NULL);
	leeward_free_sandboxes(NULL);
	leeward_free_entries(NULL);
	leeward_free_content(NULL);
	leeward_free_names(NULL);
	leeward_free_matches(NULL);
	nonsense_of_a_sandbox(NULL);
	CHECK((box = leeward_sandbox_open(handle, NULL)));
	nonsense_of_a_sandbox(box);
	CHECK(!leeward_sandbox_kill(box)); /* and it still answers */
	leeward_sandbox_detach(box);
	ERROR(LEEWARD_INVALID, leeward_interrupt(NULL, 1));
	ERROR(LEEWARD_INVALID, leeward_kill(handle, 1));
	leeward_disconnect(handle);
}

int main(int argc, char **argv)
{
	CHECK(argc >= 3);
	if (!strcmp(argv[1], "good"))
		good(argv[2]);
	else
		nonsense(argv[2]);
	return 0;
}
