/* Requests: from a caller's options to a frame, by the tables of operations.h.
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

#define LW_COUNT(array) (sizeof(array) / sizeof *(array))

struct lw_folders;
void lw_folders_put(struct lw_buffer *buffer, const struct lw_folders *folders);

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

/* Texts, or settings: NAME=value each. The name is the caller's, for errors. */
struct lw_texts {
	const char *name;
	const char *const *texts;
	size_t count;
};

struct lw_files {
	const leeward_file *files;
	size_t count;
};

struct lw_limits {
	double time;
	uint64_t memory, output, processes;
	int32_t overflow; /* a leeward_overflow */
	uint64_t descriptors, files;
	double wall, cpu_time;
};

struct lw_pair {
	uint64_t one, other;
};

/* What a field is in a struct of operations.h, and on the wire. Those from LW_LIST on are of answers. */
enum lw_kind {
	LW_FLAG,    /* a bool */
	LW_WHOLE,   /* a uint64_t; of an answer at most INT64_MAX */
	LW_SOME,    /* a struct lw_some */
	LW_SECONDS, /* a double */
	LW_AS_TEXT, /* a struct lw_bytes */
	LW_AS_BINARY,
	LW_TEXTS, /* a struct lw_texts, as an array */
	LW_SETTINGS, /* the same, as a map */
	LW_FILES,
	LW_LIMITS,
	LW_PAIR, /* an array of two */
	LW_MOUNTS, /* a pointer to a struct lw_folders */
	LW_LIST, /* a struct lw_value that is an array */
	LW_TABLE, /* one that is a map */
	LW_ANYTHING,
};

/* A field of an operation: a row of a table in operations.h. */
struct lw_field {
	const char *name;
	enum lw_kind kind;
	bool needed;
	size_t offset; /* in the operation's struct */
};

/* A request of the operation *op*: its fields, with designated initialisers, are those of its struct in operations.h. */
struct lw_request {
	const char *op;
	const struct lw_field *fields;
	size_t count;
	const void *values;
};
#define LW_REQUEST(op, ...) \
	(&(const struct lw_request){#op, lw_fields_##op, LW_COUNT(lw_fields_##op), &(const struct lw_##op){__VA_ARGS__}})
/* One without fields. */
#define LW_BARE(op) (&(const struct lw_request){#op, NULL, 0, NULL})

/* Copy a caller's struct of *type*, which begins with its size, into this library's version of it, which is zero. A size of 0
 * stands for the *first* version's; NULL changes nothing. *what* is for the error. Returns a leeward_error.
 *
 * Fields that an earlier version didn't have stay zero. Fields of a later version must be zero. */
#define LW_OPTIONS_COPY(what, type, given, first, ret_options) \
	lw_options_copy(what, #type, given, first, ret_options, sizeof(type))

int lw_options_copy(const char *what, const char *type, const void *given, size_t first, void *ret_options, size_t known);
bool lw_is_time(double seconds);
int lw_options_read(const leeward_options *given, leeward_options *ret_options);
int lw_invalid(const char *what, const char *wrong);
int lw_check_text(const char *what, const char *text);
struct lw_bytes lw_bytes_of(const char *text);
int lw_request_check(const struct lw_request *request, uint64_t *ret_given);
int lw_request_write(struct lw_buffer *buffer, int64_t id, const struct lw_request *request);
int lw_request_execute(struct lw_buffer *buffer, int64_t id, const char *sandbox, int64_t kernel, const char *code,
		       size_t length, const leeward_options *options);
