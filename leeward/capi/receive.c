#include "receive.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "calls.h"
#include "fault.h"
#include "memfile.h"
#include "reply.h"
#include "text.h"

static const struct {
	const char *kind;
	int code;
} REFUSALS[] = {
	{"busy", LEEWARD_BUSY}, {"queue_timeout", LEEWARD_QUEUE_TIMEOUT}, {"shutting_down", LEEWARD_SHUTTING_DOWN},
	{"version", LEEWARD_VERSION_MISMATCH}, {"bad_request", LEEWARD_REJECTED}, {"cancelled", LEEWARD_CANCELLED},
	{"forbidden", LEEWARD_FORBIDDEN}, {"sandbox_over", LEEWARD_SANDBOX_OVER}, {"process_over", LEEWARD_PROCESS_OVER},
	{"session_over", LEEWARD_SESSION_OVER},
};

static int refusal_code(const struct lw_value *kind)
{
	for (size_t i = 0; i < sizeof REFUSALS / sizeof *REFUSALS; i++)
		if (lw_is(kind, REFUSALS[i].kind))
			return REFUSALS[i].code;
	return LEEWARD_REFUSED;
}

static int protocol_error(leeward_handle *handle, const char *wrong)
{
	return lw_calls_lose(handle, lw_fail(LEEWARD_BAD_REPLY, "the daemon broke the protocol: %s", wrong));
}

/* Make the daemon's refusal the last error: one line, escaped for a terminal, never empty. Returns its code. */
static int refused(const struct lw_reply *reply)
{
	size_t length = reply->message.length < LW_FAULT_TEXT ? reply->message.length : LW_FAULT_TEXT;
	struct lw_buffer line = {.limit = SIZE_MAX / 2};
	int code = refusal_code(&reply->kind);

	lw_escape(&line, reply->message.data, length);
	for (size_t i = 0; !line.no_memory && i < line.length; i++)
		if (line.data[i] == '\n' || line.data[i] == '\t')
			line.data[i] = ' ';
	if (line.no_memory)
		lw_fail(code, "this process has no memory left for the error's text");
	else if (line.length)
		lw_fail(code, "%.*s", (int)line.length, (const char *)line.data);
	else
		lw_fail(code, "the daemon refused without a reason");
	free(line.data);
	lw_fail_until(reply->retry_after);
	return code;
}

static int answer_job(leeward_handle *handle, struct lw_call *call, const struct lw_reply *reply, uint8_t **block)
{
	struct lw_mapping mappings[LW_MAX_ARENAS] = {{NULL, 0}};
	const char *wrong;
	int failed = lw_memfile_map(&handle->link, reply, mappings);

	if (failed)
		return lw_calls_lose(handle, failed);
	failed = lw_result_make(reply, *block, mappings, &call->result, &wrong);
	if (!failed) {
		*block = NULL; /* the result owns it now */
		lw_calls_complete(handle, call, LEEWARD_OK);
		return LEEWARD_OK;
	}
	lw_unmap(mappings);
	return failed == -ENOMEM ? lw_calls_lose(handle, lw_fail_no_memory()) : protocol_error(handle, wrong);
}

/* Whether *reply* has a status in the form that leeward_status returns. Checks that it is one line of ASCII without a NUL, but
 * not that it is JSON. */
static bool is_json(const struct lw_reply *reply, struct lw_value *ret_json)
{
	bool plain = lw_find(&reply->ok, "json", ret_json) && ret_json->type == LW_TEXT && ret_json->length &&
		     ret_json->data[0] == '{';

	for (uint32_t i = 0; plain && i < ret_json->length; i++)
		plain = ret_json->data[i] >= ' ' && ret_json->data[i] <= '~';
	return plain;
}

/* Show the output in an answer to output_take. Returns what is wrong with the answer, or NULL. */
static const char *answer_output(struct lw_live *live, const struct lw_reply *reply)
{
	struct lw_value streams[2];
	bool running, over;

	lw_find(&reply->ok, "stdout", &streams[0]);
	lw_find(&reply->ok, "stderr", &streams[1]);
	if (streams[0].type != LW_BINARY || streams[1].type != LW_BINARY ||
	    !lw_answer_flag(reply, "running", &running) || !lw_answer_flag(reply, "over", &over))
		return "no output in an answer to output_take";
	live->asked = false;
	live->over = over;
	live->next = running ? 0 : lw_now() + LW_LIVE_S;
	if (streams[0].length || streams[1].length)
		live->failed = live->show(live, streams);
	live->taken[0] += streams[0].length;
	live->taken[1] += streams[1].length;
	return NULL;
}

/* Process one frame, and take ownership of *block*. An error means that the connection was closed. */
static int answer(leeward_handle *handle, uint8_t **block, size_t length)
{
	struct lw_mapping mappings[LW_MAX_ARENAS] = {{NULL, 0}};
	struct lw_reply reply;
	struct lw_value json;
	const char *wrong;
	struct lw_call *call;
	int failed = LEEWARD_OK;

	if (lw_reply_read(*block + LW_HEADER, length, &reply, &wrong))
		return protocol_error(handle, wrong);
	if (!reply.id)
		return reply.refused ? lw_calls_lose(handle, refused(&reply)) : protocol_error(handle, "an answer to nobody");
	call = lw_calls_find(handle, reply.id);
	if (!call || call->done)
		return protocol_error(handle, "an answer to a request that isn't waiting");
	if (call->op == LW_JOB && !reply.refused && !call->abandoned)
		return answer_job(handle, call, &reply, block);
	if (call->op == LW_ARENA && !reply.refused) {
		wrong = lw_arena_take(&handle->link, &reply);
		if (wrong)
			return protocol_error(handle, wrong);
	} else if (call->op == LW_DOCK && !reply.refused) {
		wrong = lw_dock_take(&handle->link, &reply, &call->socket);
		if (wrong)
			return protocol_error(handle, wrong);
	} else if (reply.arena_count) {
		failed = lw_memfile_map(&handle->link, &reply, mappings);
		lw_unmap(mappings);
		if (failed)
			return lw_calls_lose(handle, failed);
	}
	if (call->op == LW_OUTPUT && handle->live && !reply.refused) {
		wrong = answer_output(handle->live, &reply);
		if (wrong)
			return protocol_error(handle, wrong);
		if (handle->live->failed)
			return lw_calls_lose(handle, lw_fail(LEEWARD_AWAY, "the job's output can't be written"));
	}
	if (call->abandoned) {
		lw_calls_forget(handle, call);
		return LEEWARD_OK;
	}
	if (reply.refused) {
		failed = refused(&reply);
		call->text = strdup(leeward_last_error());
	} else if (call->op == LW_ASK || call->op == LW_DOCK) {
		call->block = *block;
		call->reply = reply;
		*block = NULL;
	} else if (call->op == LW_STATUS) {
		if (!is_json(&reply, &json))
			return protocol_error(handle, "a status that is no JSON in ASCII");
		call->text = strndup((const char *)json.data, json.length);
		if (!call->text)
			return lw_calls_lose(handle, lw_fail_no_memory());
	}
	lw_calls_complete(handle, call, failed);
	return LEEWARD_OK;
}

/* Receive and process what the daemon has sent.
 *
 * Args:
 *	wait: wait at most LW_PATIENCE_S, if there is nothing.
 *
 * Returns 1 if something was received, 0 if not, or the error that ended the connection. */
int lw_receive(leeward_handle *handle, bool wait)
{
	ssize_t got = lw_link_receive(&handle->link, wait);
	int taken;

	if (got == -EAGAIN || got == -EINTR)
		return 0;
	if (got == -EOVERFLOW)
		return lw_calls_lose(handle, lw_fail(LEEWARD_BAD_REPLY, "a result's descriptor was lost: this process has"
							       " too many open files"));
	if (got == -ENOMEM)
		return lw_calls_lose(handle, lw_fail_no_memory());
	if (got <= 0)
		return lw_calls_lose(handle, lw_link_away(&handle->link, "it went away before it answered"));
	do {
		uint8_t *block = NULL;
		size_t length;
		int failed = LEEWARD_OK;

		taken = lw_link_take(&handle->link, &block, &length);
		if (taken == -ENOMEM)
			return lw_calls_lose(handle, lw_fail_no_memory());
		if (taken < 0)
			return protocol_error(handle, "a frame is larger than a reply may be");
		if (taken)
			failed = answer(handle, &block, length);
		free(block);
		if (failed)
			return failed;
	} while (taken);
	if (handle->link.descriptor_count > LW_MAX_DESCRIPTORS)
		return protocol_error(handle, "more descriptors than were announced");
	return 1;
}
