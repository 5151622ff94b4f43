#include "request.h"

#include <math.h>
#include <string.h>

#include "fault.h"
#include "text.h"

/* Options of a later version than this library's are taken up to here; a larger size is no size. */
#define MAX_OPTIONS 4096

static int invalid(const char *what, const char *wrong)
{
	return lw_fail(LEEWARD_INVALID, "%s: %s", what, wrong);
}

/* The options that *given* stands for, in this library's version.
 *
 * A caller of a later version may leave what this library doesn't know at zero. */
int lw_options_read(const leeward_options *given, leeward_options *ret_options)
{
	leeward_options options = {0};
	size_t size = given && given->size ? given->size : sizeof options;

	if (size < sizeof options || size > MAX_OPTIONS)
		return invalid("options", "size is neither 0 nor sizeof(leeward_options)");
	if (given) {
		const unsigned char *bytes = (const unsigned char *)given;

		memcpy(&options, given, sizeof options);
		for (size_t i = sizeof options; i < size; i++)
			if (bytes[i])
				return invalid("options", "they ask for what this version of libleeward doesn't have");
	}
	if (!(options.timeout >= 0 && isfinite(options.timeout)))
		return invalid("options", "timeout is no time");
	if (!(options.deadline >= 0 && isfinite(options.deadline)))
		return invalid("options", "deadline is no time");
	*ret_options = options;
	return LEEWARD_OK;
}

static int check_text(const char *what, const char *text)
{
	if (!text)
		return invalid(what, "one of them is NULL");
	return lw_utf8_valid((const uint8_t *)text, strlen(text)) ? LEEWARD_OK : invalid(what, "not UTF-8");
}

static int check_array(const char *what, const void *array, size_t count)
{
	if (count && !array)
		return invalid(what, "NULL, and a count above 0");
	return count <= LW_MAX_ENTRIES ? LEEWARD_OK : invalid(what, "more than 4096 of them");
}

static int check_texts(const char *what, const char *const *texts, size_t count)
{
	int failed = check_array(what, texts, count);

	for (size_t i = 0; !failed && i < count; i++)
		failed = check_text(what, texts[i]);
	return failed;
}

static int check_environment(const leeward_options *options)
{
	int failed = check_texts("environment", options->environment, options->environment_count);

	for (size_t i = 0; !failed && i < options->environment_count; i++)
		if (!strchr(options->environment[i], '='))
			failed = invalid("environment", "one of them is no NAME=value");
	return failed;
}

static int check_files(const leeward_options *options)
{
	int failed = check_array("files", options->files, options->file_count);

	for (size_t i = 0; !failed && i < options->file_count; i++) {
		const leeward_file *file = &options->files[i];

		failed = check_text("files", file->name);
		if (!failed && file->length && !file->data)
			failed = invalid("files", "data is NULL, and length above 0");
		for (size_t j = 0; !failed && j < i; j++)
			if (!strcmp(options->files[j].name, file->name))
				failed = invalid("files", "a name is there twice");
	}
	return failed;
}

static int check_execute(const char *code, size_t length, const leeward_options *options)
{
	int failed = LEEWARD_OK;

	if (!code && length)
		return invalid("code", "NULL, and a length above 0");
	if (!code == !options->module)
		return invalid("code", code ? "there is a module as well" : "nothing to run");
	if (options->stdin_length && !options->stdin_data)
		return invalid("stdin_data", "NULL, and a length above 0");
	if (options->name)
		failed = check_text("name", options->name);
	if (!failed && options->module)
		failed = check_text("module", options->module);
	if (!failed)
		failed = check_texts("arguments", options->arguments, options->argument_count);
	if (!failed)
		failed = check_texts("collect", options->collect, options->collect_count);
	if (!failed)
		failed = check_environment(options);
	return failed ? failed : check_files(options);
}

static void begin(struct lw_buffer *buffer, int64_t id, const char *op, size_t fields)
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

static int finish(struct lw_buffer *buffer, const char *op)
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

/* Does a later setting name the same variable? */
static bool is_overridden(const leeward_options *options, size_t at)
{
	const char *setting = options->environment[at];
	size_t name = (size_t)(strchr(setting, '=') - setting) + 1;

	for (size_t i = at + 1; i < options->environment_count; i++)
		if (!strncmp(setting, options->environment[i], name))
			return true;
	return false;
}

static void put_environment(struct lw_buffer *buffer, const leeward_options *options)
{
	size_t names = 0;

	for (size_t i = 0; i < options->environment_count; i++)
		names += !is_overridden(options, i);
	lw_put_word(buffer, "env");
	lw_put_map(buffer, names);
	for (size_t i = 0; i < options->environment_count; i++) {
		const char *setting = options->environment[i], *equals = strchr(setting, '=');

		if (is_overridden(options, i))
			continue;
		lw_put_text(buffer, setting, (size_t)(equals - setting));
		lw_put_word(buffer, equals + 1);
	}
}

static void put_texts(struct lw_buffer *buffer, const char *field, const char *const *texts, size_t count)
{
	lw_put_word(buffer, field);
	lw_put_array(buffer, count);
	for (size_t i = 0; i < count; i++)
		lw_put_word(buffer, texts[i]);
}

static void put_limits(struct lw_buffer *buffer, const leeward_options *options)
{
	const struct {
		const char *name;
		uint64_t value;
	} limits[] = {{"memory", options->memory}, {"output", options->output}, {"processes", options->processes}};
	size_t count = options->timeout > 0;

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
	if (options->timeout > 0) {
		lw_put_word(buffer, "time");
		lw_put_number(buffer, options->timeout);
	}
}

/* Write an execute request, header included; the fields in the order of leeward/client/options.py.
 * Returns a leeward_error. */
int lw_request_execute(struct lw_buffer *buffer, int64_t id, const char *code, size_t length,
		       const leeward_options *options)
{
	bool limits = options->timeout > 0 || options->memory || options->output || options->processes;
	int failed = check_execute(code, length, options);

	if (failed)
		return failed;
	begin(buffer, id, "execute",
	      (size_t)1 + (options->name && *options->name) + (options->argument_count > 0) +
		      (options->environment_count > 0) + (options->file_count > 0) + (options->stdin_length > 0) +
		      (options->collect_count > 0) + limits);
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
		put_texts(buffer, "args", options->arguments, options->argument_count);
	if (options->environment_count)
		put_environment(buffer, options);
	if (options->file_count) {
		lw_put_word(buffer, "files");
		lw_put_map(buffer, options->file_count);
		for (size_t i = 0; i < options->file_count; i++) {
			lw_put_word(buffer, options->files[i].name);
			lw_put_binary(buffer, options->files[i].data, options->files[i].length);
		}
	}
	if (options->stdin_length) {
		lw_put_word(buffer, "stdin");
		lw_put_binary(buffer, options->stdin_data, options->stdin_length);
	}
	if (options->collect_count)
		put_texts(buffer, "collect", options->collect, options->collect_count);
	if (limits)
		put_limits(buffer, options);
	return finish(buffer, "execute");
}

/* Write a request without fields of its own. */
int lw_request_plain(struct lw_buffer *buffer, int64_t id, const char *op)
{
	begin(buffer, id, op, 0);
	return finish(buffer, op);
}

/* Write the request that takes request *target* back. */
int lw_request_cancel(struct lw_buffer *buffer, int64_t id, int64_t target)
{
	begin(buffer, id, "cancel", 1);
	lw_put_word(buffer, "target");
	lw_put_integer(buffer, (uint64_t)target);
	return finish(buffer, "cancel");
}

/* Write the frame that stands for request *id*, which lies in *slot* of the arena. */
int lw_request_slot(struct lw_buffer *buffer, int64_t id, int slot, size_t length)
{
	begin(buffer, id, "slot", 2);
	lw_put_word(buffer, "slot");
	lw_put_integer(buffer, (uint64_t)slot);
	lw_put_word(buffer, "length");
	lw_put_integer(buffer, length);
	return finish(buffer, "slot");
}
