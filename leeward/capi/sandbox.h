/* Requests about live sandboxes, and their answers.
 *
 * Runs in:   libleeward.
 * Waits:     as await.h describes: as long as the daemon responds.
 *
 * Theory of operation: a sandbox belongs to the user and not to the connection, so a request names it by its id; the
 * object here is that id and a handle. A function sends a request, waits for its answer, and reads it. A large file or a
 * long output takes several requests, one after the other. One request waits at most LW_PIECE_S for output or an end, so
 * the daemon is never silent for long. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "answer.h"
#include "calls.h"
#include "leeward.h"
#include "operations.h"
#include "reply.h"

/* Seconds that one request waits for output or for an end. */
#define LW_PIECE_S 30.0
/* Bytes of one write. */
#define LW_PIECE ((size_t)1 << 20)

/* Seconds for a file call that may take long: a folder with its content, a file moved to another file system. */
#define LW_LONG_S 300

struct leeward_sandbox {
	leeward_handle *handle;
	char id[LW_ID + 1];
};

/* An answer, and the frame that it points into, which the caller frees. */
struct lw_answer {
	uint8_t *block;
	struct lw_reply reply;
};

/* Begin a request of the operation *op*, with fields as LW_WRITE takes them; LW_ABOUT: about a sandbox. */
#define LW_BEGIN(handle, op, ...) LW_WRITE(&(handle)->out, lw_next_request(handle), op, __VA_ARGS__)
#define LW_ABOUT(box) .sandbox = {(box)->id, LW_ID}

int64_t lw_next_request(leeward_handle *handle);
struct lw_buffer *lw_begin(leeward_handle *handle, const char *op, size_t fields);
int lw_ask(leeward_handle *handle, const char *op, struct lw_answer *ret_answer);
leeward_result *lw_ask_result(leeward_handle *handle, const char *op, double until);
int lw_bad_answer(leeward_handle *handle, struct lw_answer *answer, const char *wrong);
int lw_ask_dock(leeward_handle *handle, int64_t *ret_number, int *ret_socket);

int lw_sandbox_check(const leeward_sandbox *sandbox);
struct lw_buffer *lw_about(const leeward_sandbox *sandbox, const char *op, size_t fields);
int lw_check_one(const leeward_sandbox *sandbox, const char *what, int64_t number);
int lw_ask_nothing(const leeward_sandbox *sandbox, const char *op);
int lw_ask_flag(const leeward_sandbox *sandbox, const char *op, const char *flag);
int64_t lw_ask_number(const leeward_sandbox *sandbox, const char *op, const char *name, int64_t least);

int lw_file_check(const leeward_sandbox *sandbox, const char *path);
int lw_file_call(const leeward_sandbox *sandbox, const char *op, const char *path, struct lw_answer *ret_answer);
int lw_file_call_done(const leeward_sandbox *sandbox, struct lw_answer *answer, int failed);
int lw_file_call_for_nothing(const leeward_sandbox *sandbox, const char *op, const char *path);
