/* Live sandboxes: open, attach, list and end them, and run Python in them. sandbox.h has the theory of operation. */
#include "sandbox.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "mount.h"
#include "request.h"

/* Bytes of the first version, which a size of 0 stands for. */
#define FIRST_OPTIONS offsetof(leeward_sandbox_options, mounts)

static bool is_time(double seconds)
{
	return seconds >= 0 && isfinite(seconds);
}

/* Copy *given*, of whatever version, into this library's version of the struct, and check it. Returns a leeward_error. */
static int read_options(const leeward_sandbox_options *given, leeward_sandbox_options *ret_options)
{
	leeward_sandbox_options options = {0};
	size_t size = given && given->size ? given->size : FIRST_OPTIONS;
	int failed;

	if (size < FIRST_OPTIONS || size > LW_MAX_OPTIONS)
		return lw_invalid("options", "size is neither 0 nor sizeof(leeward_sandbox_options)");
	if (given && lw_options_copy("options", given, size, &options, sizeof options))
		return LEEWARD_INVALID;
	if (!is_time(options.timeout) || !is_time(options.idle) || !is_time(options.lifetime))
		return lw_invalid("options", "timeout, idle and lifetime must be finite numbers, 0 or more");
	failed = lw_check_settings("environment", options.environment, options.environment_count);
	if (!failed)
		failed = lw_check_settings("metadata", options.metadata, options.metadata_count);
	if (!failed && options.profile)
		failed = lw_check_text("profile", options.profile);
	if (!failed && options.environment_name)
		failed = lw_check_text("environment_name", options.environment_name);
	if (!failed && options.egress)
		failed = lw_check_text("egress", options.egress);
	if (!failed)
		failed = lw_mounts_check(options.mounts, options.mount_count);
	*ret_options = options;
	return failed;
}

static leeward_sandbox *make(leeward_handle *handle, const char *id)
{
	leeward_sandbox *sandbox = calloc(1, sizeof *sandbox);

	if (!sandbox) {
		lw_fail_no_memory();
		return NULL;
	}
	sandbox->handle = handle;
	memcpy(sandbox->id, id, LW_ID);
	return sandbox;
}

static void put_name(struct lw_buffer *buffer, const char *field, const char *name)
{
	lw_put_word(buffer, field);
	lw_put_text(buffer, name, strlen(name));
}

static void put_time(struct lw_buffer *buffer, const char *field, double seconds)
{
	lw_put_word(buffer, field);
	lw_put_number(buffer, seconds);
}

/* Write the request for a sandbox with *options*. *dock* is the number of the dock with its folders, 0 without folders. */
static void put_open(leeward_handle *handle, const leeward_sandbox_options *options, const struct lw_folders *folders,
		     int64_t dock)
{
	bool limits = options->timeout > 0 || options->memory || options->output || options->processes || options->overflow;
	struct lw_buffer *buffer =
		lw_begin(handle, "sandbox_open", (size_t)limits + (options->environment_count > 0) +
			 (options->metadata_count > 0) + (options->idle > 0) + (options->lifetime > 0) +
			 (options->profile != NULL) + (options->environment_name != NULL) + (options->egress != NULL) +
			 (dock ? 2 : 0));

	if (limits)
		lw_put_limits(buffer, options->timeout, options->memory, options->output, options->processes,
			      options->overflow);
	if (options->environment_count)
		lw_put_settings(buffer, "env", options->environment, options->environment_count);
	if (options->metadata_count)
		lw_put_settings(buffer, "metadata", options->metadata, options->metadata_count);
	if (options->idle > 0)
		put_time(buffer, "idle", options->idle);
	if (options->lifetime > 0)
		put_time(buffer, "lifetime", options->lifetime);
	if (options->profile)
		put_name(buffer, "profile", options->profile);
	if (options->environment_name)
		put_name(buffer, "environment", options->environment_name);
	if (options->egress)
		put_name(buffer, "egress", options->egress);
	if (dock) {
		lw_folders_put(buffer, folders);
		lw_put_word(buffer, "dock");
		lw_put_integer(buffer, (uint64_t)dock);
	}
}

/* Open the folders, send them to a dock, and send the request for the sandbox. Returns a leeward_error. */
static int ask_open(leeward_handle *handle, const leeward_sandbox_options *options, struct lw_answer *ret_answer)
{
	struct lw_folders folders = {0};
	int64_t dock = 0;
	int failed = LEEWARD_OK;

	if (options->mount_count)
		failed = lw_folders_open(&folders, options->mounts, options->mount_count);
	if (!failed && options->mount_count)
		failed = lw_folders_dock(&folders, handle, &dock);
	if (!failed) {
		put_open(handle, options, &folders, dock);
		failed = lw_ask(handle, "sandbox_open", ret_answer);
	}
	lw_folders_close(&folders);
	return failed;
}

leeward_sandbox *leeward_sandbox_open(leeward_handle *handle, const leeward_sandbox_options *given)
{
	leeward_sandbox *sandbox;
	leeward_sandbox_options options = {0};
	struct lw_answer answer;
	struct lw_value id;

	if (!handle) {
		lw_invalid("handle", "NULL");
		return NULL;
	}
	if (read_options(given, &options) || ask_open(handle, &options, &answer))
		return NULL;
	lw_find(&answer.reply.ok, "sandbox", &id);
	if (id.type != LW_TEXT || !lw_is_id(id.data, id.length)) {
		lw_bad_answer(handle, &answer, "an opened sandbox has no id");
		return NULL;
	}
	sandbox = make(handle, (const char *)id.data);
	free(answer.block);
	return sandbox;
}

leeward_sandbox *leeward_sandbox_attach(leeward_handle *handle, const char *id)
{
	leeward_sandbox *sandbox;
	leeward_sandboxes *about;

	if (!handle || !id || !lw_is_id((const uint8_t *)id, strlen(id))) {
		lw_invalid(handle ? "id" : "handle", handle ? "not the id of a sandbox" : "NULL");
		return NULL;
	}
	sandbox = make(handle, id);
	about = sandbox ? leeward_sandbox_info_of(sandbox) : NULL;
	if (!about) {
		leeward_sandbox_detach(sandbox);
		return NULL;
	}
	leeward_free_sandboxes(about);
	return sandbox;
}

const char *leeward_sandbox_id(const leeward_sandbox *sandbox)
{
	return sandbox ? sandbox->id : NULL;
}

void leeward_sandbox_detach(leeward_sandbox *sandbox)
{
	free(sandbox);
}

int leeward_sandbox_kill(leeward_sandbox *sandbox)
{
	if (lw_sandbox_check(sandbox))
		return LEEWARD_INVALID;
	LW_BEGIN(sandbox->handle, sandbox_kill, LW_ABOUT(sandbox));
	return lw_ask_nothing(sandbox, "sandbox_kill");
}

int leeward_sandbox_extend(leeward_sandbox *sandbox, double idle, double lifetime)
{
	if (lw_sandbox_check(sandbox))
		return LEEWARD_INVALID;
	if (!is_time(idle) || !is_time(lifetime))
		return lw_invalid("idle, lifetime", "both must be finite numbers, 0 or more");
	LW_BEGIN(sandbox->handle, sandbox_extend, LW_ABOUT(sandbox), .idle = idle, .lifetime = lifetime);
	return lw_ask_nothing(sandbox, "sandbox_extend");
}

/* Add a page of sandboxes to *list*, which is made if it is NULL. *last* is set to where the next page begins, 0 if this was the
 * last one. Returns 0, -ENOMEM or -EBADMSG. */
static int add_page(const struct lw_reply *reply, leeward_sandboxes **list, int64_t *last)
{
	struct lw_value rows;
	bool more = false;

	if (!lw_find(&reply->ok, "sandboxes", &rows) || rows.type != LW_ARRAY)
		return -EBADMSG;
	if (!*list) {
		*list = calloc(1, sizeof **list);
		if (!*list)
			return -ENOMEM;
		(*list)->size = sizeof **list;
	}
	for (uint32_t i = 0; i < rows.entries; i++) {
		struct lw_cursor after = rows.inside;
		struct lw_value row;
		int failed;

		lw_skip(&after);
		lw_next(&rows.inside, &row);
		rows.inside = after;
		failed = lw_sandboxes_add(list, &row);
		if (failed)
			return failed;
	}
	if (!lw_answer_flag(reply, "more", &more) || !more || !rows.entries) {
		*last = 0;
		return 0;
	}
	return lw_answer_whole(reply, "last", *last + 1, last) ? 0 : -EBADMSG;
}

/* Free the answer. Returns *list*; or NULL, with the error set, if *failed*, and frees the list. */
static leeward_sandboxes *parsed(leeward_handle *handle, struct lw_answer *answer, leeward_sandboxes *list, int failed)
{
	if (!failed) {
		free(answer->block);
		return list;
	}
	leeward_free_sandboxes(list);
	if (failed == -ENOMEM) {
		free(answer->block);
		lw_fail_no_memory();
	} else {
		lw_bad_answer(handle, answer, "a sandbox's description is malformed");
	}
	return NULL;
}

leeward_sandboxes *leeward_sandbox_info_of(leeward_sandbox *sandbox)
{
	leeward_sandboxes *list = NULL;
	struct lw_answer answer;
	int failed;

	if (lw_sandbox_check(sandbox))
		return NULL;
	LW_BEGIN(sandbox->handle, sandbox_info, LW_ABOUT(sandbox));
	if (lw_ask(sandbox->handle, "sandbox_info", &answer))
		return NULL;
	failed = lw_sandboxes_add(&list, &answer.reply.ok);
	return parsed(sandbox->handle, &answer, list, failed);
}

leeward_sandboxes *leeward_sandbox_list(leeward_handle *handle)
{
	leeward_sandboxes *list = NULL;
	int64_t last = 0;

	if (!handle) {
		lw_invalid("handle", "NULL");
		return NULL;
	}
	do {
		struct lw_answer answer;
		int failed;

		LW_BEGIN(handle, sandbox_list, .after = (uint64_t)last);
		if (lw_ask(handle, "sandbox_list", &answer)) {
			leeward_free_sandboxes(list);
			return NULL;
		}
		failed = add_page(&answer.reply, &list, &last);
		list = parsed(handle, &answer, list, failed);
	} while (list && last);
	return list;
}

/* --- Python ------------------------------------------------------------------- */

leeward_result *leeward_sandbox_execute(leeward_sandbox *sandbox, int64_t kernel, const char *code, size_t length,
					const leeward_options *given)
{
	leeward_options options;
	leeward_handle *handle;

	if (lw_sandbox_check(sandbox) || lw_options_read(given, &options))
		return NULL;
	if (kernel < 0 || options.module || !code) {
		lw_invalid(kernel < 0 ? "kernel" : "code", kernel < 0 ? "below 0" : "NULL, or options->module is set");
		return NULL;
	}
	handle = sandbox->handle;
	lw_calls_part(handle);
	options.label = NULL;
	if (lw_request_execute(&handle->out, ++handle->last_id, sandbox->id, kernel, code, length, &options))
		return NULL;
	return lw_ask_result(handle, "sandbox_execute", options.deadline > 0 ? lw_now() + options.deadline : INFINITY);
}

int64_t leeward_kernel_open(leeward_sandbox *sandbox)
{
	if (lw_sandbox_check(sandbox))
		return LEEWARD_INVALID;
	LW_BEGIN(sandbox->handle, kernel_open, LW_ABOUT(sandbox));
	return lw_ask_number(sandbox, "kernel_open", "kernel", 1);
}

int leeward_kernel_interrupt(leeward_sandbox *sandbox, int64_t kernel)
{
	if (lw_check_one(sandbox, "kernel", kernel))
		return LEEWARD_INVALID;
	LW_BEGIN(sandbox->handle, kernel_interrupt, LW_ABOUT(sandbox), .kernel = (uint64_t)kernel);
	return lw_ask_flag(sandbox, "kernel_interrupt", "interrupted");
}

int leeward_kernel_reset(leeward_sandbox *sandbox, int64_t kernel)
{
	if (lw_check_one(sandbox, "kernel", kernel))
		return LEEWARD_INVALID;
	LW_BEGIN(sandbox->handle, kernel_reset, LW_ABOUT(sandbox), .kernel = (uint64_t)kernel);
	return lw_ask_nothing(sandbox, "kernel_reset");
}

int leeward_kernel_close(leeward_sandbox *sandbox, int64_t kernel)
{
	if (lw_check_one(sandbox, "kernel", kernel))
		return LEEWARD_INVALID;
	LW_BEGIN(sandbox->handle, kernel_close, LW_ABOUT(sandbox), .kernel = (uint64_t)kernel);
	return lw_ask_nothing(sandbox, "kernel_close");
}
