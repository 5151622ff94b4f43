#include "request.h"

#include <math.h>
#include <string.h>

#include "fault.h"
#include "operations.h"
#include "text.h"

/* Bytes of the first version, which a size of 0 stands for. */
#define FIRST_OPTIONS offsetof(leeward_options, idempotent)

/* The largest struct that is accepted from a caller, who may know a later version. */
#define MAX_OPTIONS 4096

/* Whether it is a finite number of seconds, 0 or more. */
bool lw_is_time(double seconds)
{
	return seconds >= 0 && isfinite(seconds);
}

int lw_invalid(const char *what, const char *wrong)
{
	return lw_fail(LEEWARD_INVALID, "%s: %s", what, wrong);
}

/* As LW_OPTIONS_COPY. */
int lw_options_copy(const char *what, const char *type, const void *given, size_t first, void *ret_options, size_t known)
{
	const unsigned char *bytes = given;
	size_t size = first;

	if (!given)
		return LEEWARD_OK;
	if (*(const size_t *)given)
		size = *(const size_t *)given;
	if (size < first || size > MAX_OPTIONS)
		return lw_fail(LEEWARD_INVALID, "%s: size is neither 0 nor sizeof(%s)", what, type);
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

	if (LW_OPTIONS_COPY("options", leeward_options, given, FIRST_OPTIONS, &options))
		return LEEWARD_INVALID;
	if (!lw_is_time(options.timeout))
		return lw_invalid("options", "timeout must be a finite number, 0 or more");
	if (!lw_is_time(options.deadline))
		return lw_invalid("options", "deadline must be a finite number, 0 or more");
	if (!lw_is_time(options.wall) || !lw_is_time(options.cpu_time))
		return lw_invalid("options", "wall and cpu_time must be finite numbers, 0 or more");
	*ret_options = options;
	return LEEWARD_OK;
}

int lw_check_text(const char *what, const char *text)
{
	if (!text)
		return lw_invalid(what, "one of them is NULL");
	return lw_utf8_valid((const uint8_t *)text, strlen(text)) ? LEEWARD_OK : lw_invalid(what, "not UTF-8");
}

/* Whether all of *texts* are text, and *settings* NAME=value. */
static int check_texts(const struct lw_texts *texts, bool settings)
{
	int failed = LEEWARD_OK;

	for (size_t i = 0; !failed && i < texts->count; i++) {
		failed = lw_check_text(texts->name, texts->texts[i]);
		if (!failed && settings && !strchr(texts->texts[i], '='))
			failed = lw_invalid(texts->name, "one of them isn't NAME=value");
	}
	return failed;
}

static int check_files(const struct lw_files *files)
{
	int failed = LEEWARD_OK;

	for (size_t i = 0; !failed && i < files->count; i++) {
		const leeward_file *file = &files->files[i];

		failed = lw_check_text("files", file->name);
		if (!failed && file->length && !file->data)
			failed = lw_invalid("files", "data is NULL, and length above 0");
		for (size_t j = 0; !failed && j < i; j++)
			if (!strcmp(files->files[j].name, file->name))
				failed = lw_invalid("files", "a name occurs twice");
	}
	return failed;
}

static int check_array(const char *what, const void *array, size_t count)
{
	if (count && !array)
		return lw_invalid(what, "NULL, and a count above 0");
	return count <= LW_MAX_ENTRIES ? LEEWARD_OK : lw_invalid(what, "more than 4096 of them");
}

static int check_value(const struct lw_field *field, const void *at)
{
	const struct lw_bytes *bytes = at;
	const struct lw_texts *texts = at;
	const struct lw_files *files = at;
	int failed;

	switch (field->kind) {
	case LW_AS_TEXT:
		return lw_utf8_valid(bytes->data, bytes->length) ? LEEWARD_OK : lw_invalid(field->name, "not UTF-8");
	case LW_TEXTS: case LW_SETTINGS:
		failed = check_array(texts->name, texts->texts, texts->count);
		return failed ? failed : check_texts(texts, field->kind == LW_SETTINGS);
	case LW_FILES:
		failed = check_array("files", files->files, files->count);
		return failed ? failed : check_files(files);
	default:
		return LEEWARD_OK;
	}
}

static bool has_limits(const struct lw_limits *limits)
{
	return limits->time > 0 || limits->memory || limits->output || limits->processes || limits->overflow ||
	       limits->descriptors || limits->files || limits->wall > 0 || limits->cpu_time > 0;
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
	case LW_TEXTS: case LW_SETTINGS:
		return ((const struct lw_texts *)at)->count > 0;
	case LW_FILES:
		return ((const struct lw_files *)at)->count > 0;
	case LW_LIMITS:
		return has_limits(at);
	case LW_PAIR:
		return ((const struct lw_pair *)at)->one != 0;
	case LW_MOUNTS:
		return *(const struct lw_folders *const *)at != NULL;
	default:
		return ((const struct lw_bytes *)at)->data != NULL;
	}
}

/* Whether a later setting has the same name. */
static bool is_overridden(const struct lw_texts *settings, size_t at)
{
	const char *setting = settings->texts[at];
	size_t name = (size_t)(strchr(setting, '=') - setting) + 1;

	for (size_t i = at + 1; i < settings->count; i++)
		if (!strncmp(setting, settings->texts[i], name))
			return true;
	return false;
}

static void put_settings(struct lw_buffer *buffer, const struct lw_texts *settings)
{
	size_t names = 0;

	for (size_t i = 0; i < settings->count; i++)
		names += !is_overridden(settings, i);
	lw_put_map(buffer, names);
	for (size_t i = 0; i < settings->count; i++) {
		const char *setting = settings->texts[i], *equals = strchr(setting, '=');

		if (is_overridden(settings, i))
			continue;
		lw_put_text(buffer, setting, (size_t)(equals - setting));
		lw_put_word(buffer, equals + 1);
	}
}

/* Write a map of limits, without those that are 0. */
static void put_limits(struct lw_buffer *buffer, const struct lw_limits *limits)
{
	const struct {
		const char *name;
		uint64_t value;
	} sizes[] = {{"memory", limits->memory}, {"output", limits->output}, {"processes", limits->processes},
		     {"descriptors", limits->descriptors}, {"files", limits->files}};
	const struct {
		const char *name;
		double value;
	} times[] = {{"time", limits->time}, {"wall", limits->wall}, {"cpu_time", limits->cpu_time}};
	size_t count = limits->overflow != 0;

	for (size_t i = 0; i < LW_COUNT(sizes); i++)
		count += sizes[i].value > 0;
	for (size_t i = 0; i < LW_COUNT(times); i++)
		count += times[i].value > 0;
	lw_put_map(buffer, count);
	for (size_t i = 0; i < LW_COUNT(sizes); i++) {
		if (!sizes[i].value)
			continue;
		lw_put_word(buffer, sizes[i].name);
		lw_put_integer(buffer, sizes[i].value);
	}
	for (size_t i = 0; i < LW_COUNT(times); i++) {
		if (!(times[i].value > 0))
			continue;
		lw_put_word(buffer, times[i].name);
		lw_put_number(buffer, times[i].value);
	}
	if (limits->overflow) {
		lw_put_word(buffer, "overflow");
		lw_put_word(buffer, limits->overflow == LEEWARD_OVERFLOW_CUT ? "cut" : "end");
	}
}

static void put_value(struct lw_buffer *buffer, enum lw_kind kind, const void *at)
{
	const struct lw_bytes *bytes = at;
	const struct lw_texts *texts = at;
	const struct lw_files *files = at;
	const struct lw_pair *pair = at;

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
	case LW_TEXTS:
		lw_put_array(buffer, texts->count);
		for (size_t i = 0; i < texts->count; i++)
			lw_put_word(buffer, texts->texts[i]);
		break;
	case LW_SETTINGS:
		put_settings(buffer, texts);
		break;
	case LW_FILES:
		lw_put_map(buffer, files->count);
		for (size_t i = 0; i < files->count; i++) {
			lw_put_word(buffer, files->files[i].name);
			lw_put_binary(buffer, files->files[i].data, files->files[i].length);
		}
		break;
	case LW_LIMITS:
		put_limits(buffer, at);
		break;
	case LW_PAIR:
		lw_put_array(buffer, 2);
		lw_put_integer(buffer, pair->one);
		lw_put_integer(buffer, pair->other);
		break;
	case LW_MOUNTS:
		lw_folders_put(buffer, *(const struct lw_folders *const *)at);
		break;
	case LW_LIST: case LW_TABLE: case LW_ANYTHING:
		break; /* no request has one */
	}
}

/* Whether the fields of *request* can be written. Returns a leeward_error.
 *
 * Args:
 *	ret_given: a bit for each field that is given. */
int lw_request_check(const struct lw_request *request, uint64_t *ret_given)
{
	uint64_t given = 0;
	int failed = LEEWARD_OK;

	for (size_t i = 0; !failed && i < request->count; i++) {
		const void *at = (const char *)request->values + request->fields[i].offset;

		if (!is_given(&request->fields[i], at))
			continue;
		given |= UINT64_C(1) << i;
		failed = check_value(&request->fields[i], at);
	}
	*ret_given = given;
	return failed;
}

/* Write the frame of *request*. Returns a leeward_error. */
int lw_request_write(struct lw_buffer *buffer, int64_t id, const struct lw_request *request)
{
	static const uint8_t room[LW_HEADER];
	uint64_t given;
	int failed = lw_request_check(request, &given);

	if (failed)
		return failed;
	buffer->length = 0;
	buffer->no_memory = false;
	buffer->limit = LW_HEADER + (size_t)LW_MAX_REQUEST;
	lw_put(buffer, room, sizeof room);
	lw_put_map(buffer, 3 + (size_t)__builtin_popcountll(given));
	lw_put_word(buffer, "v");
	lw_put_integer(buffer, LW_VERSION);
	lw_put_word(buffer, "id");
	lw_put_integer(buffer, (uint64_t)id);
	lw_put_word(buffer, "op");
	lw_put_word(buffer, request->op);
	for (; given; given &= given - 1) {
		const struct lw_field *field = &request->fields[__builtin_ctzll(given)];

		lw_put_word(buffer, field->name);
		put_value(buffer, field->kind, (const char *)request->values + field->offset);
	}
	if (buffer->no_memory)
		return lw_fail_no_memory();
	if (buffer->length > buffer->limit)
		return lw_fail(LEEWARD_REJECTED,
			       "%s can't be sent: a message of %zu bytes is above the %d that a frame may have", request->op,
			       buffer->length - LW_HEADER, LW_MAX_REQUEST);
	lw_put_header(buffer->data, buffer->length - LW_HEADER);
	return LEEWARD_OK;
}

struct lw_bytes lw_bytes_of(const char *text)
{
	return (struct lw_bytes){text, text ? strlen(text) : 0};
}

/* Of an option that "" leaves out as well. */
static struct lw_bytes some_text(const char *text)
{
	return lw_bytes_of(text && *text ? text : NULL);
}

/* Write an execute request; with *sandbox*, its id, a sandbox_execute, in *kernel* unless that is 0. Returns a
 * leeward_error. */
int lw_request_execute(struct lw_buffer *buffer, int64_t id, const char *sandbox, int64_t kernel, const char *code,
		       size_t length, const leeward_options *options)
{
	const struct lw_execute job = {
		.code = {code, length}, .module = lw_bytes_of(options->module), .name = some_text(options->name),
		.args = {"arguments", options->arguments, options->argument_count},
		.env = {"environment", options->environment, options->environment_count},
		.files = {options->files, options->file_count},
		.stdin_ = {options->stdin_length ? options->stdin_data : NULL, options->stdin_length},
		.collect = {"collect", options->collect, options->collect_count}, .display = options->display != 0,
		.limits = {options->timeout, options->memory, options->output, options->processes, options->overflow,
			   options->descriptors, 0, options->wall, options->cpu_time},
		.label = some_text(options->label),
	};

	if (!code && length)
		return lw_invalid("code", "NULL, and a length above 0");
	if (!code == !options->module)
		return lw_invalid("code", code ? "code and options->module are both set" : "nothing to run");
	if (options->stdin_length && !options->stdin_data)
		return lw_invalid("stdin_data", "NULL, and a length above 0");
	if (!sandbox)
		return lw_request_write(buffer, id, &(const struct lw_request){"execute", lw_fields_execute,
							       LW_COUNT(lw_fields_execute), &job});
	return lw_request_write(buffer, id, LW_REQUEST(sandbox_execute, .sandbox = lw_bytes_of(sandbox),
		.kernel = (uint64_t)kernel, .code = job.code, .name = job.name, .args = job.args, .env = job.env,
		.files = job.files, .stdin_ = job.stdin_, .collect = job.collect, .display = job.display,
		.limits = job.limits));
}
