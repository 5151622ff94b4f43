#include "request.h"

#include <math.h>
#include <string.h>

#include "fault.h"
#include "operations.h"
#include "text.h"

/* Bytes of the first version, which a size of 0 stands for. */
#define FIRST_OPTIONS offsetof(leeward_options, idempotent)

int lw_invalid(const char *what, const char *wrong)
{
	return lw_fail(LEEWARD_INVALID, "%s: %s", what, wrong);
}

/* Copy a caller's struct, of *size* bytes, into this library's version of it, which has *known* bytes and is zero.
 * *what* is for the error. Returns a leeward_error.
 *
 * Fields that an earlier version didn't have stay zero. Fields of a later version must be zero. */
int lw_options_copy(const char *what, const void *given, size_t size, void *ret_options, size_t known)
{
	const unsigned char *bytes = given;

	memcpy(ret_options, given, size < known ? size : known);
	for (size_t i = known; i < size; i++)
		if (bytes[i])
			return lw_invalid(what, "a field or flag is set that this version of libleeward doesn't know");
	return LEEWARD_OK;
}

/* Copy *given*, of whatever version, into this library's version of the struct, and check it. Returns a leeward_error. */
int lw_options_read(const leeward_options *given, leeward_options *ret_options)
{
	leeward_options options = {0};
	size_t size = given && given->size ? given->size : FIRST_OPTIONS;

	if (size < FIRST_OPTIONS || size > LW_MAX_OPTIONS)
		return lw_invalid("options", "size is neither 0 nor sizeof(leeward_options)");
	if (given && lw_options_copy("options", given, size, &options, sizeof options))
		return LEEWARD_INVALID;
	if (!(options.timeout >= 0 && isfinite(options.timeout)))
		return lw_invalid("options", "timeout must be a finite number, 0 or more");
	if (!(options.deadline >= 0 && isfinite(options.deadline)))
		return lw_invalid("options", "deadline must be a finite number, 0 or more");
	*ret_options = options;
	return LEEWARD_OK;
}

int lw_check_text(const char *what, const char *text)
{
	if (!text)
		return lw_invalid(what, "one of them is NULL");
	return lw_utf8_valid((const uint8_t *)text, strlen(text)) ? LEEWARD_OK : lw_invalid(what, "not UTF-8");
}

static int check_array(const char *what, const void *array, size_t count)
{
	if (count && !array)
		return lw_invalid(what, "NULL, and a count above 0");
	return count <= LW_MAX_ENTRIES ? LEEWARD_OK : lw_invalid(what, "more than 4096 of them");
}

int lw_check_texts(const char *what, const char *const *texts, size_t count)
{
	int failed = check_array(what, texts, count);

	for (size_t i = 0; !failed && i < count; i++)
		failed = lw_check_text(what, texts[i]);
	return failed;
}

/* Whether all settings are NAME=value. */
int lw_check_settings(const char *what, const char *const *settings, size_t count)
{
	int failed = lw_check_texts(what, settings, count);

	for (size_t i = 0; !failed && i < count; i++)
		if (!strchr(settings[i], '='))
			failed = lw_invalid(what, "one of them isn't NAME=value");
	return failed;
}

static int check_files(const leeward_options *options)
{
	int failed = check_array("files", options->files, options->file_count);

	for (size_t i = 0; !failed && i < options->file_count; i++) {
		const leeward_file *file = &options->files[i];

		failed = lw_check_text("files", file->name);
		if (!failed && file->length && !file->data)
			failed = lw_invalid("files", "data is NULL, and length above 0");
		for (size_t j = 0; !failed && j < i; j++)
			if (!strcmp(options->files[j].name, file->name))
				failed = lw_invalid("files", "a name occurs twice");
	}
	return failed;
}

static int check_execute(const char *code, size_t length, const leeward_options *options)
{
	int failed = LEEWARD_OK;

	if (!code && length)
		return lw_invalid("code", "NULL, and a length above 0");
	if (!code == !options->module)
		return lw_invalid("code", code ? "code and options->module are both set" : "nothing to run");
	if (options->stdin_length && !options->stdin_data)
		return lw_invalid("stdin_data", "NULL, and a length above 0");
	if (options->name)
		failed = lw_check_text("name", options->name);
	if (!failed && options->module)
		failed = lw_check_text("module", options->module);
	if (!failed && options->label)
		failed = lw_check_text("label", options->label);
	if (!failed)
		failed = lw_check_texts("arguments", options->arguments, options->argument_count);
	if (!failed)
		failed = lw_check_texts("collect", options->collect, options->collect_count);
	if (!failed)
		failed = lw_check_settings("environment", options->environment, options->environment_count);
	return failed ? failed : check_files(options);
}

/* Begin the frame of a request with *fields* fields beside its id and its op. */
void lw_request_begin(struct lw_buffer *buffer, int64_t id, const char *op, size_t fields)
{
	static const uint8_t room[LW_HEADER];

	buffer->length = 0;
	buffer->no_memory = false;
	buffer->limit = LW_HEADER + (size_t)LW_MAX_REQUEST;
	lw_put(buffer, room, sizeof room);
	lw_put_map(buffer, 3 + fields);
	lw_put_word(buffer, "v");
	lw_put_integer(buffer, LW_VERSION);
	lw_put_word(buffer, "id");
	lw_put_integer(buffer, (uint64_t)id);
	lw_put_word(buffer, "op");
	lw_put_word(buffer, op);
}

/* Write the field *name*, if it is true. */
void lw_put_flag(struct lw_buffer *buffer, const char *name, bool flag)
{
	if (!flag)
		return;
	lw_put_word(buffer, name);
	lw_put_true(buffer);
}

static bool is_given(const struct lw_field *field, const void *at)
{
	if (field->needed)
		return true;
	switch (field->kind) {
	case LW_FLAG:
		return *(const bool *)at;
	case LW_WHOLE:
		return *(const uint64_t *)at != 0;
	case LW_SOME:
		return ((const struct lw_some *)at)->given;
	case LW_SECONDS:
		return *(const double *)at > 0;
	case LW_AS_TEXT:
	case LW_AS_BINARY:
		break;
	}
	return ((const struct lw_bytes *)at)->data != NULL;
}

static void put_value(struct lw_buffer *buffer, enum lw_kind kind, const void *at)
{
	const struct lw_bytes *bytes = at;

	switch (kind) {
	case LW_FLAG:
		lw_put_true(buffer);
		break;
	case LW_WHOLE:
		lw_put_integer(buffer, *(const uint64_t *)at);
		break;
	case LW_SOME:
		lw_put_integer(buffer, ((const struct lw_some *)at)->value);
		break;
	case LW_SECONDS:
		lw_put_number(buffer, *(const double *)at);
		break;
	case LW_AS_TEXT:
		lw_put_text(buffer, bytes->data, bytes->length);
		break;
	case LW_AS_BINARY:
		lw_put_binary(buffer, bytes->data, bytes->length);
		break;
	}
}

/* Write *request*, a struct with the *count* fields of its operation. lw_request_finish completes it. */
void lw_request_write(struct lw_buffer *buffer, int64_t id, const char *op, const struct lw_field *fields, size_t count,
		      const void *request)
{
	size_t given = 0;

	for (size_t i = 0; i < count; i++)
		given += is_given(&fields[i], (const char *)request + fields[i].offset);
	lw_request_begin(buffer, id, op, given);
	for (size_t i = 0; i < count; i++) {
		const void *at = (const char *)request + fields[i].offset;

		if (!is_given(&fields[i], at))
			continue;
		lw_put_word(buffer, fields[i].name);
		put_value(buffer, fields[i].kind, at);
	}
}

struct lw_bytes lw_bytes_of(const char *text)
{
	return (struct lw_bytes){text, text ? strlen(text) : 0};
}

/* Complete a request whose last field was written. Returns a leeward_error. */
int lw_request_finish(struct lw_buffer *buffer, const char *op)
{
	if (buffer->no_memory)
		return lw_fail_no_memory();
	if (buffer->length > buffer->limit)
		return lw_fail(LEEWARD_REJECTED,
			       "%s can't be sent: a message of %zu bytes is above the %u that a frame may have", op,
			       buffer->length - LW_HEADER, LW_MAX_REQUEST);
	lw_put_header(buffer->data, buffer->length - LW_HEADER);
	return LEEWARD_OK;
}

/* Whether a later setting has the same name. */
static bool is_overridden(const char *const *settings, size_t count, size_t at)
{
	size_t name = (size_t)(strchr(settings[at], '=') - settings[at]) + 1;

	for (size_t i = at + 1; i < count; i++)
		if (!strncmp(settings[at], settings[i], name))
			return true;
	return false;
}

/* Write a map of settings that lw_check_settings has accepted. */
void lw_put_settings(struct lw_buffer *buffer, const char *field, const char *const *settings, size_t count)
{
	size_t names = 0;

	for (size_t i = 0; i < count; i++)
		names += !is_overridden(settings, count, i);
	lw_put_word(buffer, field);
	lw_put_map(buffer, names);
	for (size_t i = 0; i < count; i++) {
		const char *equals = strchr(settings[i], '=');

		if (is_overridden(settings, count, i))
			continue;
		lw_put_text(buffer, settings[i], (size_t)(equals - settings[i]));
		lw_put_word(buffer, equals + 1);
	}
}

void lw_put_texts(struct lw_buffer *buffer, const char *field, const char *const *texts, size_t count)
{
	lw_put_word(buffer, field);
	lw_put_array(buffer, count);
	for (size_t i = 0; i < count; i++)
		lw_put_word(buffer, texts[i]);
}

/* Write the map `limits`, without those that are 0. *overflow* is a leeward_overflow. */
void lw_put_limits(struct lw_buffer *buffer, double timeout, uint64_t memory, uint64_t output, uint64_t processes,
		   int32_t overflow)
{
	const struct {
		const char *name;
		uint64_t value;
	} limits[] = {{"memory", memory}, {"output", output}, {"processes", processes}};
	size_t count = (size_t)(timeout > 0) + (overflow != 0);

	for (int i = 0; i < 3; i++)
		count += limits[i].value > 0;
	lw_put_word(buffer, "limits");
	lw_put_map(buffer, count);
	for (int i = 0; i < 3; i++) {
		if (!limits[i].value)
			continue;
		lw_put_word(buffer, limits[i].name);
		lw_put_integer(buffer, limits[i].value);
	}
	if (timeout > 0) {
		lw_put_word(buffer, "time");
		lw_put_number(buffer, timeout);
	}
	if (overflow) {
		lw_put_word(buffer, "overflow");
		lw_put_word(buffer, overflow == LEEWARD_OVERFLOW_CUT ? "cut" : "end");
	}
}

static void put_files(struct lw_buffer *buffer, const leeward_options *options)
{
	lw_put_word(buffer, "files");
	lw_put_map(buffer, options->file_count);
	for (size_t i = 0; i < options->file_count; i++) {
		lw_put_word(buffer, options->files[i].name);
		lw_put_binary(buffer, options->files[i].data, options->files[i].length);
	}
}

/* Write an execute request, header included; the fields in the order of leeward/client/options.py.
 *
 * Args:
 *	sandbox: the id of a live sandbox to run the code in, NULL for none.
 *	kernel: the number of a kernel of that sandbox, 0 for none.
 *
 * Returns a leeward_error. */
int lw_request_execute(struct lw_buffer *buffer, int64_t id, const char *sandbox, int64_t kernel, const char *code,
		       size_t length, const leeward_options *options)
{
	bool limits = options->timeout > 0 || options->memory || options->output || options->processes || options->overflow;
	bool label = options->label && *options->label;
	int failed = check_execute(code, length, options);

	if (failed)
		return failed;
	lw_request_begin(buffer, id, sandbox ? "sandbox_execute" : "execute",
	      (size_t)1 + (sandbox != NULL) + (kernel != 0) + (options->display != 0) + (options->name && *options->name) + (options->argument_count > 0) +
		      (options->environment_count > 0) + (options->file_count > 0) + (options->stdin_length > 0) +
		      (options->collect_count > 0) + limits + label);
	if (sandbox) {
		lw_put_word(buffer, "sandbox");
		lw_put_word(buffer, sandbox);
	}
	if (kernel) {
		lw_put_word(buffer, "kernel");
		lw_put_integer(buffer, (uint64_t)kernel);
	}
	if (code) {
		lw_put_word(buffer, "code");
		lw_put_binary(buffer, code, length);
	} else {
		lw_put_word(buffer, "module");
		lw_put_word(buffer, options->module);
	}
	if (options->name && *options->name) {
		lw_put_word(buffer, "name");
		lw_put_word(buffer, options->name);
	}
	if (options->argument_count)
		lw_put_texts(buffer, "args", options->arguments, options->argument_count);
	if (options->environment_count)
		lw_put_settings(buffer, "env", options->environment, options->environment_count);
	if (options->file_count)
		put_files(buffer, options);
	if (options->stdin_length) {
		lw_put_word(buffer, "stdin");
		lw_put_binary(buffer, options->stdin_data, options->stdin_length);
	}
	if (options->collect_count)
		lw_put_texts(buffer, "collect", options->collect, options->collect_count);
	if (options->display) {
		lw_put_word(buffer, "display");
		lw_put_true(buffer);
	}
	if (limits)
		lw_put_limits(buffer, options->timeout, options->memory, options->output, options->processes,
			      options->overflow);
	if (label) {
		lw_put_word(buffer, "label");
		lw_put_word(buffer, options->label);
	}
	return lw_request_finish(buffer, "execute");
}

/* Write a request without fields of its own. */
int lw_request_bare(struct lw_buffer *buffer, int64_t id, const char *op)
{
	lw_request_begin(buffer, id, op, 0);
	return lw_request_finish(buffer, op);
}

/* Write the request for the status as JSON. */
int lw_request_status(struct lw_buffer *buffer, int64_t id)
{
	LW_WRITE(buffer, id, status, .form = lw_bytes_of("json"));
	return lw_request_finish(buffer, "status");
}

/* Write the request that cancels, interrupts or kills request *target*. */
int lw_request_cancel(struct lw_buffer *buffer, int64_t id, int64_t target, enum lw_end how)
{
	LW_WRITE(buffer, id, cancel, .target = (uint64_t)target, .interrupt = how == LW_INTERRUPT, .kill = how == LW_KILL);
	return lw_request_finish(buffer, "cancel");
}

/* Write the request for the output of job *target*, behind the first *taken* bytes of each stream. */
int lw_request_output(struct lw_buffer *buffer, int64_t id, int64_t target, const uint64_t taken[2])
{
	LW_WRITE(buffer, id, output_take, .target = (uint64_t)target, .stdout_ = taken[0], .stderr_ = taken[1]);
	return lw_request_finish(buffer, "output_take");
}

/* Write the frame that refers to request *id* in *slot* of the arena. */
int lw_request_slot(struct lw_buffer *buffer, int64_t id, int slot, size_t length)
{
	LW_WRITE(buffer, id, slot, .slot = (uint64_t)slot, .length = length);
	return lw_request_finish(buffer, "slot");
}
