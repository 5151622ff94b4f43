/* Requests: from a caller's options to a frame.
 *
 * Runs in:   libleeward and the command line. Pure.
 * Checks:    only what would crash this code or break the frame: pointers, invalid UTF-8, the size of a frame. The daemon
 *            checks values, for clients in all languages. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "leeward.h"
#include "wire.h"

/* The largest struct of options that is accepted from a caller, who may know a later version. */
#define LW_MAX_OPTIONS 4096

/* How a job is to end. */
enum lw_end {
	LW_TAKE_BACK, /* its answer is the refusal "cancelled" */
	LW_INTERRUPT, /* by KeyboardInterrupt; its answer is its result */
	LW_KILL,
};

int lw_options_copy(const char *what, const void *given, size_t size, void *ret_options, size_t known);
int lw_options_read(const leeward_options *given, leeward_options *ret_options);
int lw_invalid(const char *what, const char *wrong);
int lw_check_text(const char *what, const char *text);
int lw_check_texts(const char *what, const char *const *texts, size_t count);
int lw_check_settings(const char *what, const char *const *settings, size_t count);
void lw_put_settings(struct lw_buffer *buffer, const char *field, const char *const *settings, size_t count);
void lw_put_texts(struct lw_buffer *buffer, const char *field, const char *const *texts, size_t count);
void lw_put_limits(struct lw_buffer *buffer, double timeout, uint64_t memory, uint64_t output, uint64_t processes,
		   int32_t overflow);
void lw_request_begin(struct lw_buffer *buffer, int64_t id, const char *op, size_t fields);
int lw_request_finish(struct lw_buffer *buffer, const char *op);
int lw_request_execute(struct lw_buffer *buffer, int64_t id, const char *sandbox, int64_t kernel, const char *code,
		       size_t length, const leeward_options *options);
int lw_request_bare(struct lw_buffer *buffer, int64_t id, const char *op);
int lw_request_status(struct lw_buffer *buffer, int64_t id);
int lw_request_slot(struct lw_buffer *buffer, int64_t id, int slot, size_t length);
int lw_request_output(struct lw_buffer *buffer, int64_t id, int64_t target, const uint64_t taken[2]);
int lw_request_cancel(struct lw_buffer *buffer, int64_t id, int64_t target, enum lw_end how);
