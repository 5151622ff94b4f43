/* Requests: from a caller's options to a frame.
 *
 * Runs in:   libleeward and the command line. Pure.
 * Checks:    only what would crash this code or break the frame: pointers, invalid UTF-8, the size of a frame. The daemon
 *            checks values, for clients in all languages. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "leeward.h"
#include "wire.h"

/* The largest struct of options that is accepted from a caller, who may know a later version. */
#define LW_MAX_OPTIONS 4096

/* Text or binary; NULL: none. */
struct lw_bytes {
	const void *data;
	size_t length;
};

/* A number that may be left out though 0 is one. */
struct lw_some {
	bool given;
	uint64_t value;
};

enum lw_kind {
	LW_FLAG,    /* a bool */
	LW_WHOLE,   /* a uint64_t */
	LW_SOME,    /* a struct lw_some */
	LW_SECONDS, /* a double */
	LW_AS_TEXT, /* a struct lw_bytes */
	LW_AS_BINARY,
};

/* A field of an operation: a row of a table in operations.h. */
struct lw_field {
	const char *name;
	enum lw_kind kind;
	bool needed;
	size_t offset; /* in the operation's struct */
};

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
void lw_request_write(struct lw_buffer *buffer, int64_t id, const char *op, const struct lw_field *fields, size_t count,
		      const void *request);
void lw_put_flag(struct lw_buffer *buffer, const char *name, bool flag);
struct lw_bytes lw_bytes_of(const char *text);
void lw_request_begin(struct lw_buffer *buffer, int64_t id, const char *op, size_t fields);
int lw_request_finish(struct lw_buffer *buffer, const char *op);
int lw_request_execute(struct lw_buffer *buffer, int64_t id, const char *sandbox, int64_t kernel, const char *code,
		       size_t length, const leeward_options *options);

/* Write a request of the operation *op*, whose fields are those of its struct in operations.h, with designated
 * initialisers. */
#define LW_WRITE(buffer, id, op, ...) \
	lw_request_write(buffer, id, #op, lw_fields_##op, sizeof lw_fields_##op / sizeof *lw_fields_##op, \
			 &(struct lw_##op){__VA_ARGS__})

int lw_request_bare(struct lw_buffer *buffer, int64_t id, const char *op);
int lw_request_status(struct lw_buffer *buffer, int64_t id);
int lw_request_slot(struct lw_buffer *buffer, int64_t id, int slot, size_t length);
int lw_request_output(struct lw_buffer *buffer, int64_t id, int64_t target, const uint64_t taken[2]);
int lw_request_cancel(struct lw_buffer *buffer, int64_t id, int64_t target, enum lw_end how);
