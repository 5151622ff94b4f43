/* Snapshots of kernels: taken, given to kernels, removed, written into files and read.
 *
 * A file is a line, a head, the bytes, and a hash of all that, as leeward/client/snapshot_files.py has it. It may be anybody's:
 * its head is decoded within bounds, and the daemon checks what it says. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fault.h"
#include "request.h"
#include "sandbox.h"
#include "sha256.h"

static const char FIRST[] = "leeward snapshot 1\n";
#define FIRST_SIZE (sizeof FIRST - 1)
#define MOST_HEAD ((uint32_t)(256 + 64) << 10)
/* What must be equal where a snapshot is loaded: entries, at most. */
#define MOST_KEY 64

static int check_snapshot(const char *snapshot)
{
	return snapshot && lw_is_id(snapshot, strlen(snapshot)) ? LEEWARD_OK : lw_invalid("snapshot", "not the id of a snapshot");
}

static int check_both(const leeward_handle *handle, const char *what, const char *text)
{
	return !handle ? lw_invalid("handle", "NULL") : !text || !*text ? lw_invalid(what, "NULL or empty") : LEEWARD_OK;
}

int leeward_kernel_snapshot(leeward_sandbox *sandbox, int64_t kernel, char *ret_id)
{
	struct lw_kernel_snapshot_answer taken = {0};
	struct lw_answer answer;
	int failed = lw_check_one(sandbox, "kernel", kernel);

	if (!failed && !ret_id)
		failed = lw_invalid("ret_id", "NULL");
	if (!failed)
		failed = lw_ask(sandbox, LW_REQUEST(kernel_snapshot, LW_ABOUT(sandbox), .kernel = (uint64_t)kernel), &answer);
	if (failed)
		return failed;
	if (!LW_READ(&answer.reply.ok, kernel_snapshot, &taken) || !lw_is_id(taken.snapshot.data, taken.snapshot.length))
		return lw_bad_answer(sandbox->handle, &answer, "a snapshot has no id");
	memcpy(ret_id, taken.snapshot.data, LW_ID);
	ret_id[LW_ID] = 0;
	free(answer.block);
	return LEEWARD_OK;
}

int leeward_kernel_rollback(leeward_sandbox *sandbox, int64_t kernel, const char *snapshot)
{
	if (lw_check_one(sandbox, "kernel", kernel) || check_snapshot(snapshot))
		return LEEWARD_INVALID;
	return lw_ask_nothing(sandbox, LW_REQUEST(kernel_rollback, LW_ABOUT(sandbox), .kernel = (uint64_t)kernel,
						  .snapshot = {snapshot, LW_ID}));
}

int64_t leeward_kernel_begin(leeward_sandbox *sandbox, const char *snapshot)
{
	if (check_snapshot(snapshot))
		return LEEWARD_INVALID;
	return LW_NUMBER(sandbox, kernel_open, 1, .snapshot = {snapshot, LW_ID});
}

int leeward_snapshot_remove(leeward_handle *handle, const char *snapshot)
{
	struct lw_answer answer;
	int failed = check_both(handle, "snapshot", snapshot);

	if (!failed)
		failed = check_snapshot(snapshot);
	if (!failed)
		failed = lw_ask_handle(handle, LW_REQUEST(snapshot_remove, .snapshot = {snapshot, LW_ID}), &answer);
	if (!failed)
		free(answer.block);
	return failed;
}

/* --- files ---------------------------------------------------------------------- */

/* A file, and the hash of what was read or written. */
struct file {
	FILE *stream;
	const char *path;
	struct lw_sha256 hash;
};

static int failed_file(const struct file *file, const char *why)
{
	return lw_fail(LEEWARD_SNAPSHOT_FAILED, "%.200s: %s", file->path, why);
}

static int put(struct file *file, const void *data, size_t length)
{
	lw_sha256_add(&file->hash, data, length);
	return fwrite(data, 1, length, file->stream) == length ? LEEWARD_OK : failed_file(file, strerror(errno));
}

static int get(struct file *file, void *data, size_t length)
{
	if (fread(data, 1, length, file->stream) != length)
		return failed_file(file, ferror(file->stream) ? strerror(errno) : "the file ends too early");
	lw_sha256_add(&file->hash, data, length);
	return LEEWARD_OK;
}

/* Append the texts of *value*, an array or a map of texts. */
static bool put_texts(struct lw_buffer *buffer, const struct lw_value *value)
{
	const uint32_t count = value->type == LW_MAP ? 2 * value->entries : value->entries;
	struct lw_cursor cursor = value->inside;
	struct lw_value text;

	if (value->type == LW_MAP)
		lw_put_map(buffer, value->entries);
	else
		lw_put_array(buffer, value->entries);
	for (uint32_t i = 0; i < count; i++) {
		if (lw_next(&cursor, &text) || text.type != LW_TEXT)
			return false;
		lw_put_text(buffer, (const char *)text.data, text.length);
	}
	return true;
}

/* Write the head of a file, by the answers about its snapshot. -EBADMSG, -ENOMEM, or 0. */
static int make_head(const struct lw_snapshot_info_answer *info, const struct lw_snapshot_export_answer *needs,
		     const uint64_t sizes[2], struct lw_buffer *head)
{
	struct lw_buffer facts = {.limit = MOST_HEAD};
	bool valid;

	lw_put_map(&facts, 3);
	lw_put_word(&facts, "python");
	lw_put_text(&facts, info->python.data, info->python.length);
	lw_put_word(&facts, "packages");
	valid = put_texts(&facts, &info->packages);
	lw_put_word(&facts, "lost");
	valid = valid && put_texts(&facts, &info->lost);
	lw_put_map(head, 4);
	lw_put_word(head, "key");
	valid = valid && put_texts(head, &needs->key);
	lw_put_word(head, "sizes");
	lw_put_array(head, 2);
	lw_put_integer(head, sizes[0]);
	lw_put_integer(head, sizes[1]);
	lw_put_word(head, "made");
	lw_put_number(head, info->made);
	lw_put_word(head, "facts");
	lw_put_binary(head, facts.data, facts.length);
	valid = valid && facts.length <= facts.limit && head->length <= head->limit;
	free(facts.data);
	return facts.no_memory || head->no_memory ? -ENOMEM : valid ? 0 : -EBADMSG;
}

static bool read_sizes(const struct lw_value *value, uint64_t ret_sizes[2])
{
	struct lw_cursor cursor = value->inside;
	struct lw_value size;

	if (value->type != LW_ARRAY || value->entries != 2)
		return false;
	for (int i = 0; i < 2; i++) {
		if (lw_next(&cursor, &size) || size.type != LW_INTEGER || size.integer < 0 || size.integer > (int64_t)1 << 62)
			return false;
		ret_sizes[i] = (uint64_t)size.integer;
	}
	return true;
}

static int write_head(leeward_handle *handle, const char *snapshot, struct file *file, uint64_t *ret_size)
{
	struct lw_snapshot_info_answer info = {0};
	struct lw_snapshot_export_answer needs = {0};
	struct lw_buffer head = {.limit = MOST_HEAD};
	struct lw_answer told, answer = {0};
	uint64_t sizes[2];
	uint8_t length[LW_HEADER];
	int wrong, failed = lw_ask_handle(handle, LW_REQUEST(snapshot_info, .snapshot = {snapshot, LW_ID}), &told);

	if (failed)
		return failed;
	failed = lw_ask_handle(handle, LW_REQUEST(snapshot_export, .snapshot = {snapshot, LW_ID}), &answer);
	if (failed) {
		free(told.block);
		return failed;
	}
	wrong = LW_READ(&told.reply.ok, snapshot_info, &info) && LW_READ(&answer.reply.ok, snapshot_export, &needs) &&
		read_sizes(&needs.sizes, sizes) ? make_head(&info, &needs, sizes, &head) : -EBADMSG;
	free(told.block);
	failed = lw_answered(handle, &answer, wrong, "what is told of a snapshot is malformed");
	if (!failed) {
		*ret_size = sizes[0] + sizes[1];
		lw_put_header(length, head.length);
		failed = put(file, FIRST, FIRST_SIZE);
		failed = failed ? failed : put(file, length, sizeof length);
		failed = failed ? failed : put(file, head.data, head.length);
	}
	free(head.data);
	return failed;
}

static int write_all(leeward_handle *handle, const char *snapshot, struct file *file)
{
	uint8_t digest[LW_DIGEST];
	uint64_t size = 0;
	int failed = write_head(handle, snapshot, file, &size);

	for (uint64_t at = 0; !failed && at < size;) {
		struct lw_snapshot_read_answer piece = {0};
		struct lw_answer answer;

		failed = lw_ask_handle(handle, LW_REQUEST(snapshot_read, .snapshot = {snapshot, LW_ID}, .offset = at), &answer);
		if (failed)
			break;
		if (!LW_READ(&answer.reply.ok, snapshot_read, &piece) || !piece.data.length)
			return lw_bad_answer(handle, &answer, "a piece of a snapshot has no bytes");
		failed = put(file, piece.data.data, piece.data.length);
		at += piece.data.length;
		free(answer.block);
	}
	lw_sha256_end(&file->hash, digest);
	failed = failed ? failed : put(file, digest, sizeof digest);
	if (!failed && (fflush(file->stream) || fsync(fileno(file->stream))))
		failed = failed_file(file, strerror(errno));
	return failed;
}

int leeward_snapshot_save(leeward_handle *handle, const char *snapshot, const char *path)
{
	static const char ENDING[] = ".leeward-XXXXXX";
	struct file file = {.path = path};
	char *part;
	int fd, failed = check_both(handle, "path", path);

	if (!failed)
		failed = check_snapshot(snapshot);
	if (failed)
		return failed;
	part = malloc(strlen(path) + sizeof ENDING);
	if (!part)
		return lw_fail_no_memory();
	memcpy(part, path, strlen(path));
	memcpy(part + strlen(path), ENDING, sizeof ENDING);
	fd = mkstemp(part); /* for its user alone */
	file.stream = fd < 0 ? NULL : fdopen(fd, "wb");
	if (!file.stream) {
		failed = failed_file(&file, strerror(errno));
		if (fd >= 0)
			close(fd);
	} else {
		lw_sha256_begin(&file.hash);
		failed = write_all(handle, snapshot, &file);
		if (fclose(file.stream) && !failed)
			failed = failed_file(&file, strerror(errno));
		if (!failed && rename(part, path))
			failed = failed_file(&file, strerror(errno));
	}
	if (failed && fd >= 0)
		unlink(part);
	free(part);
	return failed;
}

/* The settings NAME=value of a map of texts, each in memory of its own; NULL at the end. */
static int read_key(const struct lw_value *map, char *ret_settings[MOST_KEY + 1])
{
	struct lw_cursor cursor = map->inside;
	struct lw_value name, value;

	if (map->type != LW_MAP || map->entries > MOST_KEY)
		return -EBADMSG;
	for (uint32_t i = 0; i < map->entries; i++) {
		if (lw_next(&cursor, &name) || lw_next(&cursor, &value) || name.type != LW_TEXT || value.type != LW_TEXT ||
		    memchr(name.data, '=', name.length) || memchr(name.data, 0, name.length) || memchr(value.data, 0, value.length))
			return -EBADMSG;
		ret_settings[i] = malloc((size_t)name.length + value.length + 2);
		if (!ret_settings[i])
			return -ENOMEM;
		memcpy(ret_settings[i], name.data, name.length);
		ret_settings[i][name.length] = '=';
		memcpy(ret_settings[i] + name.length + 1, value.data, value.length);
		ret_settings[i][name.length + 1 + value.length] = 0;
	}
	return 0;
}

/* Begin an import with the head that *packed* is. */
static int begin_import(leeward_handle *handle, const struct file *file, const uint8_t *packed, uint32_t length, char *ret_id,
			uint64_t *ret_size)
{
	struct lw_snapshot_import_answer begun = {0};
	struct lw_cursor cursor = {packed, packed + length};
	struct lw_value head, key, sizes, facts, made;
	char *settings[MOST_KEY + 1] = {0};
	struct lw_answer answer;
	const char *wrong;
	uint64_t both[2];
	int failed = lw_check(packed, length, &wrong) || lw_next(&cursor, &head) || head.type != LW_MAP ||
		     !lw_find(&head, "key", &key) || !lw_find(&head, "sizes", &sizes) || !lw_find(&head, "facts", &facts) ||
		     !lw_find(&head, "made", &made) || facts.type != LW_BINARY ||
		     (made.type != LW_NUMBER && made.type != LW_INTEGER) || !read_sizes(&sizes, both) ? -EBADMSG : read_key(&key, settings);

	if (!failed) {
		*ret_size = both[0] + both[1];
		failed = lw_ask_handle(handle, LW_REQUEST(snapshot_import,
			.key = {"key", (const char *const *)settings, key.entries}, .sizes = {both[0], both[1]},
			.facts = {facts.data, facts.length}, .made = made.type == LW_NUMBER ? made.number : (double)made.integer), &answer);
		if (!failed && (!LW_READ(&answer.reply.ok, snapshot_import, &begun) || !lw_is_id(begun.snapshot.data, begun.snapshot.length))) {
			failed = lw_bad_answer(handle, &answer, "a snapshot has no id");
		} else if (!failed) {
			memcpy(ret_id, begun.snapshot.data, LW_ID);
			ret_id[LW_ID] = 0;
			free(answer.block);
		}
	} else {
		failed = failed == -ENOMEM ? lw_fail_no_memory() : failed_file(file, "the file's head isn't that of a snapshot");
	}
	for (char **each = settings; *each; each++)
		free(*each);
	return failed;
}

static int read_head(leeward_handle *handle, struct file *file, char *ret_id, uint64_t *ret_size)
{
	char begun[FIRST_SIZE];
	uint8_t four[LW_HEADER], *packed;
	uint32_t length;
	int failed = get(file, begun, sizeof begun);

	if (!failed && memcmp(begun, FIRST, sizeof begun) != 0)
		failed = failed_file(file, "this file holds no snapshot of leeward's");
	failed = failed ? failed : get(file, four, sizeof four);
	if (failed)
		return failed;
	length = (uint32_t)four[0] << 24 | (uint32_t)four[1] << 16 | (uint32_t)four[2] << 8 | four[3];
	if (length > MOST_HEAD)
		return failed_file(file, "the file's head is too large");
	packed = malloc(length + 1);
	if (!packed)
		return lw_fail_no_memory();
	failed = get(file, packed, length);
	failed = failed ? failed : begin_import(handle, file, packed, length, ret_id, ret_size);
	free(packed);
	return failed;
}

static int send_all(leeward_handle *handle, struct file *file, const char *snapshot, uint64_t left)
{
	uint8_t digest[LW_DIGEST], found[LW_DIGEST + 1];
	uint8_t *piece = malloc(LW_PIECE);
	int failed = piece ? LEEWARD_OK : lw_fail_no_memory();

	while (!failed && left) {
		const size_t some = left < LW_PIECE ? (size_t)left : LW_PIECE;
		struct lw_answer answer;

		failed = get(file, piece, some);
		left -= some;
		if (!failed && !left) {
			lw_sha256_end(&file->hash, digest);
			if (fread(found, 1, sizeof found, file->stream) != LW_DIGEST || memcmp(found, digest, LW_DIGEST) != 0)
				failed = failed_file(file, "the file was damaged: its hash is another one");
		}
		if (!failed)
			failed = lw_ask_handle(handle, LW_REQUEST(snapshot_write, .snapshot = {snapshot, LW_ID}, .data = {piece, some}), &answer);
		if (!failed)
			free(answer.block);
	}
	free(piece);
	return failed;
}

int leeward_snapshot_load(leeward_handle *handle, const char *path, char *ret_id)
{
	struct file file = {.path = path};
	uint64_t size = 0;
	int failed = check_both(handle, "path", path);

	if (!failed && !ret_id)
		failed = lw_invalid("ret_id", "NULL");
	if (failed)
		return failed;
	file.stream = fopen(path, "rbe");
	if (!file.stream)
		return failed_file(&file, strerror(errno));
	lw_sha256_begin(&file.hash);
	failed = read_head(handle, &file, ret_id, &size);
	if (!failed) {
		failed = send_all(handle, &file, ret_id, size);
		if (failed) {
			const struct lw_fault why = *lw_last_fault();
			leeward_snapshot_remove(handle, ret_id);
			*lw_last_fault() = why;
		}
	}
	fclose(file.stream);
	return failed;
}
