/* Frames and MessagePack: bytes to values and back. Pure: no socket, no clock, no globals.
 *
 * Runs in:   programs of others, by libleeward, and the command line.
 * Trust:     none. Replies contain what jobs wrote, and the peer may not be a leeward daemon.
 *            Nothing here allocates by a length that the peer claims: a decoded value points
 *            into the frame, and a frame grows as its bytes arrive.
 * Source:    docs/wire.md; the MessagePack specification, github.com/msgpack/msgpack */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bounds.h"

enum lw_type {
	LW_NIL,
	LW_BOOL,
	LW_INTEGER,
	LW_HUGE, /* an integer above 2^63 - 1, whose value isn't kept: no field of ours has one */
	LW_NUMBER,
	LW_TEXT,
	LW_BINARY,
	LW_ARRAY,
	LW_MAP,
};

/* What is left to read of a payload. */
struct lw_cursor {
	const uint8_t *at, *end;
};

/* One value. Text and binary point into the payload; the entries of an array or a map begin at `inside`. */
struct lw_value {
	enum lw_type type;
	bool boolean;
	int64_t integer;
	double number;
	const uint8_t *data;
	uint32_t length; /* bytes of text or binary */
	uint32_t entries;
	struct lw_cursor inside;
};

/* Bytes that are being written. Beyond `limit` they are counted but not stored. */
struct lw_buffer {
	uint8_t *data;
	size_t length, capacity, limit;
	bool no_memory;
};

int lw_next(struct lw_cursor *cursor, struct lw_value *ret_value);
int lw_skip(struct lw_cursor *cursor);
int lw_check(const uint8_t *payload, size_t length, const char **ret_wrong);
bool lw_find(const struct lw_value *map, const char *key, struct lw_value *ret_value);
bool lw_is(const struct lw_value *text, const char *word);

void lw_put(struct lw_buffer *buffer, const void *data, size_t length);
void lw_put_integer(struct lw_buffer *buffer, uint64_t number);
void lw_put_true(struct lw_buffer *buffer);
void lw_put_number(struct lw_buffer *buffer, double number);
void lw_put_text(struct lw_buffer *buffer, const char *text, size_t length);
void lw_put_word(struct lw_buffer *buffer, const char *word);
void lw_put_binary(struct lw_buffer *buffer, const void *data, size_t length);
void lw_put_array(struct lw_buffer *buffer, size_t entries);
void lw_put_map(struct lw_buffer *buffer, size_t entries);
void lw_put_header(uint8_t header[LW_HEADER], size_t length);
