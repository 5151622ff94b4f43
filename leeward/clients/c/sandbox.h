/* Requests about live sandboxes, and their answers.
 *
 * Runs in:   libleeward.
 * Waits:     as calls.h describes: as long as the daemon responds.
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

struct leeward_sandbox {
	leeward_handle *handle;
	char id[LW_ID + 1];
	uint64_t reader; /* of output, for the daemon; 0, which many may have, where no random number was to be had */
};

/* An answer, and the frame that it points into, which the caller frees. */
struct lw_answer {
	uint8_t *block;
	struct lw_reply reply;
};

/* The field by which a request names its sandbox. A function that is given NULL for it fails before it sends anything. */
#define LW_ABOUT(box) .sandbox = {(box) ? (box)->id : NULL, LW_ID}
/* Send a request whose answer is one number of at least *least*, or one boolean. Returns it, or a leeward_error. */
#define LW_NUMBER(box, op, least, ...) \
	lw_ask_number(box, LW_REQUEST(op, LW_ABOUT(box), __VA_ARGS__), lw_fields_##op##_answer, least)

leeward_result *lw_ask_result(leeward_handle *handle, double deadline);
int lw_ask(const leeward_sandbox *sandbox, const struct lw_request *request, struct lw_answer *ret_answer);
int lw_ask_handle(leeward_handle *handle, const struct lw_request *request, struct lw_answer *ret_answer);
int lw_ask_nothing(const leeward_sandbox *sandbox, const struct lw_request *request);
int64_t lw_ask_number(const leeward_sandbox *sandbox, const struct lw_request *request, const struct lw_field *field,
		      int64_t least);
int lw_bad_answer(leeward_handle *handle, struct lw_answer *answer, const char *wrong);
int lw_answered(leeward_handle *handle, struct lw_answer *answer, int failed, const char *wrong);
int lw_sandbox_check(const leeward_sandbox *sandbox);
int lw_check_one(const leeward_sandbox *sandbox, const char *what, int64_t number);

/* mount.c: folders of the host for a sandbox. This process opens them, with its own rights, and sends them to a dock of the
 * daemon's opener; it has a descriptor for each until the sandbox is open or refused. */

struct lw_folder {
	int fd;
	const leeward_mount *mount;
	char *path; /* its resolved path, from the kernel */
	int is_file;
};

struct lw_folders {
	struct lw_folder folders[LW_MAX_MOUNTS];
	size_t count;
};

int lw_mounts_check(const leeward_mount *mounts, size_t count);
int lw_folders_open(struct lw_folders *folders, const leeward_mount *mounts, size_t count);
int lw_folders_send(const struct lw_folders *folders, int socket);
void lw_folders_close(struct lw_folders *folders);
