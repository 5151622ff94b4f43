#include "wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

/* --- reading ------------------------------------------------------------------ */

/* Read a big-endian number of *width* bytes. */
static uint64_t big_endian(const uint8_t *at, size_t width)
{
	uint64_t number = 0;

	for (size_t i = 0; i < width; i++)
		number = number << 8 | at[i];
	return number;
}

/* Read a number of *width* bytes and advance the cursor. Returns 0 or -EBADMSG. */
static int take(struct lw_cursor *cursor, size_t width, uint64_t *ret_number)
{
	if ((size_t)(cursor->end - cursor->at) < width)
		return -EBADMSG;
	*ret_number = big_endian(cursor->at, width);
	cursor->at += width;
	return 0;
}

static int take_bytes(struct lw_cursor *cursor, enum lw_type type, uint64_t length, struct lw_value *ret_value)
{
	if ((uint64_t)(cursor->end - cursor->at) < length)
		return -EBADMSG;
	*ret_value = (struct lw_value){.type = type, .data = cursor->at, .length = (uint32_t)length};
	cursor->at += length;
	return 0;
}

static int open_container(struct lw_cursor *cursor, enum lw_type type, uint64_t entries, struct lw_value *ret_value)
{
	*ret_value = (struct lw_value){.type = type, .entries = (uint32_t)entries, .inside = *cursor};
	return 0;
}

static int take_number(struct lw_cursor *cursor, uint8_t first, struct lw_value *ret_value)
{
	struct lw_value value = {.type = LW_INTEGER};
	uint64_t raw;

	switch (first) {
	case 0xca: { /* float 32 */
		float single;
		uint32_t bits;

		if (take(cursor, 4, &raw))
			return -EBADMSG;
		bits = (uint32_t)raw;
		memcpy(&single, &bits, sizeof single);
		value.type = LW_NUMBER;
		value.number = (double)single;
		break;
	}
	case 0xcb: /* float 64 */
		if (take(cursor, 8, &raw))
			return -EBADMSG;
		memcpy(&value.number, &raw, sizeof value.number);
		value.type = LW_NUMBER;
		break;
	case 0xcc: case 0xcd: case 0xce: case 0xcf: /* unsigned of 1, 2, 4 or 8 bytes */
		if (take(cursor, (size_t)1 << (first - 0xcc), &raw))
			return -EBADMSG;
		if (raw > INT64_MAX)
			value.type = LW_HUGE;
		else
			value.integer = (int64_t)raw;
		break;
	default: { /* 0xd0 to 0xd3, signed of 1, 2, 4 or 8 bytes */
		size_t width = (size_t)1 << (first - 0xd0);
		uint64_t sign = (uint64_t)1 << (8 * width - 1);

		if (take(cursor, width, &raw))
			return -EBADMSG;
		/* Two's complement without a cast that is implementation-defined in C. */
		value.integer = raw & sign ? -(int64_t)((sign - 1) - (raw & (sign - 1))) - 1 : (int64_t)raw;
	}
	}
	*ret_value = value;
	return 0;
}

/* Read one value, and step over it; an array or map is stepped into.
 *
 * Safe on any bytes. Returns 0; -EBADMSG if they end too early; -EPROTO for a type that isn't accepted: extension types,
 * timestamps, 0xc1. */
int lw_next(struct lw_cursor *cursor, struct lw_value *ret_value)
{
	uint64_t length;
	uint8_t first;

	if (cursor->at >= cursor->end)
		return -EBADMSG;
	first = *cursor->at++;
	if (first <= 0x7f || first >= 0xe0) {
		*ret_value = (struct lw_value){.type = LW_INTEGER, .integer = first <= 0x7f ? first : first - 0x100};
		return 0;
	}
	if (first <= 0x8f)
		return open_container(cursor, LW_MAP, first & 15u, ret_value);
	if (first <= 0x9f)
		return open_container(cursor, LW_ARRAY, first & 15u, ret_value);
	if (first <= 0xbf)
		return take_bytes(cursor, LW_TEXT, first & 31u, ret_value);
	switch (first) {
	case 0xc0:
		*ret_value = (struct lw_value){.type = LW_NIL};
		return 0;
	case 0xc2: case 0xc3:
		*ret_value = (struct lw_value){.type = LW_BOOL, .boolean = first == 0xc3};
		return 0;
	case 0xc4: case 0xc5: case 0xc6:
		if (take(cursor, (size_t)1 << (first - 0xc4), &length))
			return -EBADMSG;
		return take_bytes(cursor, LW_BINARY, length, ret_value);
	case 0xd9: case 0xda: case 0xdb:
		if (take(cursor, (size_t)1 << (first - 0xd9), &length))
			return -EBADMSG;
		return take_bytes(cursor, LW_TEXT, length, ret_value);
	case 0xdc: case 0xdd:
		if (take(cursor, (size_t)2 << (first - 0xdc), &length))
			return -EBADMSG;
		return open_container(cursor, LW_ARRAY, length, ret_value);
	case 0xde: case 0xdf:
		if (take(cursor, (size_t)2 << (first - 0xde), &length))
			return -EBADMSG;
		return open_container(cursor, LW_MAP, length, ret_value);
	default:
		if (first >= 0xca && first <= 0xd3)
			return take_number(cursor, first, ret_value);
		return -EPROTO;
	}
}

static uint64_t children(const struct lw_value *value)
{
	if (value->type == LW_MAP)
		return 2 * (uint64_t)value->entries;
	return value->type == LW_ARRAY ? value->entries : 0;
}

/* Step over one value with everything in it. Returns as lw_next. */
int lw_skip(struct lw_cursor *cursor)
{
	struct lw_value value;
	uint64_t left = 1;

	/* Each iteration consumes at least one byte, so a false count can't make this loop long. */
	while (left) {
		int failed = lw_next(cursor, &value);

		if (failed)
			return failed;
		/* No overflow: each byte adds less than 2^33, and there are at most 2^24 of them. */
		left += children(&value) - 1;
	}
	return 0;
}

/* Values and depth within bounds, text valid, nothing left over. */
static const char *check_structure(const uint8_t *payload, size_t length)
{
	struct lw_cursor cursor = {payload, payload + length};
	uint64_t outer[LW_MAX_DEPTH];
	uint64_t values = 0, left = 1;
	size_t depth = 0;

	while (true) {
		struct lw_value value;
		int failed = lw_next(&cursor, &value);

		if (failed == -EPROTO)
			return "a byte starts no value that is taken; extension types are refused";
		if (failed)
			return "the map is cut short";
		left--;
		values++;
		if (value.type == LW_TEXT && !lw_utf8_valid(value.data, value.length))
			return "text that isn't UTF-8";
		if (value.type == LW_ARRAY || value.type == LW_MAP) {
			if (value.entries > LW_MAX_ENTRIES)
				return "a map or array of too many entries";
			if (depth == LW_MAX_DEPTH)
				return "maps and arrays nested too deep";
			outer[depth++] = left;
			left = children(&value);
		}
		if (values + left > LW_MAX_VALUES)
			return "too many values in a frame";
		while (!left) {
			if (!depth)
				return cursor.at == cursor.end ? NULL : "bytes are left over after the map";
			left = outer[--depth];
		}
	}
}

static int compare_keys(const void *left, const void *right)
{
	const struct lw_value *one = left, *other = right;

	if (one->length != other->length)
		return one->length < other->length ? -1 : 1;
	return memcmp(one->data, other->data, one->length);
}

/* What is wrong with the keys of a large map. They are sorted to find duplicates: to compare all pairs of 4,096 long keys
 * that differ at their ends would take seconds. */
static const char *check_many(const struct lw_value *map)
{
	struct lw_value *keys = malloc(map->entries * sizeof *keys); /* at most 4,096: check_structure has bounded it */
	struct lw_cursor cursor = map->inside;
	const char *wrong = keys ? NULL : "a map is too large for this process's memory";

	for (uint32_t i = 0; keys && i < map->entries; i++)
		if (lw_next(&cursor, &keys[i]) || lw_skip(&cursor))
			wrong = "the map is cut short";
	if (!wrong)
		qsort(keys, map->entries, sizeof *keys, compare_keys);
	for (uint32_t i = 1; !wrong && i < map->entries; i++)
		if (!compare_keys(&keys[i - 1], &keys[i]))
			wrong = "a map has the same key twice";
	free(keys);
	return wrong;
}

/* What is wrong with the keys of *map*, whose structure is checked; NULL if each is text of a valid length and unique. */
static const char *check_keys(const struct lw_value *map)
{
	enum { FEW = 24 };
	struct lw_value few[FEW];
	struct lw_cursor cursor = map->inside;

	for (uint32_t i = 0; i < map->entries; i++) {
		struct lw_value key;

		if (lw_next(&cursor, &key) || key.type != LW_TEXT ||
		    lw_utf8_length(key.data, key.length) > LW_MAX_KEY || lw_skip(&cursor))
			return "a map's key must be text of a sensible length";
		if (map->entries > FEW)
			continue;
		few[i] = key;
		for (uint32_t j = 0; j < i; j++)
			if (!compare_keys(&few[j], &key))
				return "a map has the same key twice";
	}
	return map->entries > FEW ? check_many(map) : NULL;
}

/* Whether *payload* is one map that keeps to all bounds of docs/wire.md.
 *
 * Returns 0, or -EBADMSG with what is wrong. In a payload that passes, lw_next and lw_skip can't fail. */
int lw_check(const uint8_t *payload, size_t length, const char **ret_wrong)
{
	struct lw_cursor cursor = {payload, payload + length};
	struct lw_value value;

	if (length > LW_MAX_REQUEST || !length || lw_next(&cursor, &value) || value.type != LW_MAP) {
		*ret_wrong = "a frame must hold a map";
		return -EBADMSG;
	}
	*ret_wrong = check_structure(payload, length);
	cursor.at = payload;
	while (!*ret_wrong && cursor.at < cursor.end)
		if (!lw_next(&cursor, &value) && value.type == LW_MAP)
			*ret_wrong = check_keys(&value);
	return *ret_wrong ? -EBADMSG : 0;
}

/* Whether *text* is the word *word*. */
bool lw_is(const struct lw_value *text, const char *word)
{
	return text->type == LW_TEXT && text->length == strlen(word) && !memcmp(text->data, word, text->length);
}

/* Find the value of *key* in a checked map. False, with nil in *ret_value, if it is missing. */
bool lw_find(const struct lw_value *map, const char *key, struct lw_value *ret_value)
{
	struct lw_cursor cursor = map->inside;

	for (uint32_t i = 0; i < map->entries; i++) {
		struct lw_value name;

		if (lw_next(&cursor, &name))
			break;
		if (lw_is(&name, key))
			return !lw_next(&cursor, ret_value);
		if (lw_skip(&cursor))
			break;
	}
	*ret_value = (struct lw_value){.type = LW_NIL};
	return false;
}

/* --- writing ------------------------------------------------------------------ */

/* Append *length* bytes. A failure is recorded in the buffer; check it when everything is written. */
void lw_put(struct lw_buffer *buffer, const void *data, size_t length)
{
	size_t needed;

	if (__builtin_add_overflow(buffer->length, length, &needed))
		needed = SIZE_MAX;
	if (needed <= buffer->limit && !buffer->no_memory && needed > buffer->capacity) {
		size_t capacity = buffer->capacity < 256 ? 256 : buffer->capacity;
		uint8_t *grown;

		while (capacity < needed)
			capacity = capacity > SIZE_MAX / 2 ? needed : capacity * 2;
		grown = realloc(buffer->data, capacity);
		if (grown) {
			buffer->data = grown;
			buffer->capacity = capacity;
		}
		buffer->no_memory = !grown;
	}
	if (length && needed <= buffer->capacity && needed <= buffer->limit)
		memcpy(buffer->data + buffer->length, data, length);
	buffer->length = needed;
}

/* A first byte, and *number* in *width* big-endian bytes. */
static void put_sized(struct lw_buffer *buffer, unsigned first, uint64_t number, size_t width)
{
	uint8_t bytes[9] = {(uint8_t)first};

	for (size_t i = 0; i < width; i++)
		bytes[1 + i] = (uint8_t)(number >> (8 * (width - 1 - i)));
	lw_put(buffer, bytes, 1 + width);
}

/* A first byte, and *number* in as many bytes as it needs: *width*, whose first byte is *first*, or twice or four times as many,
 * whose first bytes are the next. */
static void put_length(struct lw_buffer *buffer, unsigned first, size_t width, uint64_t number)
{
	for (; width < 8 && number >> (8 * width); width *= 2)
		first++;
	put_sized(buffer, first, number, width);
}

/* Append a whole number; no field has a negative one. */
void lw_put_integer(struct lw_buffer *buffer, uint64_t number)
{
	if (number <= 0x7f)
		put_sized(buffer, (unsigned)number, 0, 0);
	else
		put_length(buffer, 0xcc, 1, number);
}

void lw_put_true(struct lw_buffer *buffer)
{
	lw_put(buffer, "\xc3", 1);
}

void lw_put_number(struct lw_buffer *buffer, double number)
{
	uint64_t bits;

	memcpy(&bits, &number, sizeof bits);
	put_sized(buffer, 0xcb, bits, 8);
}

/* Text of *length* bytes, which the caller knows to be UTF-8. The buffer's limit is below 4 GiB. */
void lw_put_text(struct lw_buffer *buffer, const char *text, size_t length)
{
	char whole[32] = {(char)(0xa0 | (length & 31))};

	if (length && length <= 31) { /* nearly every text: in one piece */
		memcpy(whole + 1, text, length);
		lw_put(buffer, whole, 1 + length);
		return;
	}
	if (length)
		put_length(buffer, 0xd9, 1, length);
	else
		put_sized(buffer, 0xa0, 0, 0);
	lw_put(buffer, text, length);
}

void lw_put_word(struct lw_buffer *buffer, const char *word)
{
	lw_put_text(buffer, word, strlen(word));
}

void lw_put_binary(struct lw_buffer *buffer, const void *data, size_t length)
{
	put_length(buffer, 0xc4, 1, length);
	lw_put(buffer, data, length);
}

void lw_put_array(struct lw_buffer *buffer, size_t entries)
{
	if (entries <= 15)
		put_sized(buffer, 0x90 | (unsigned)entries, 0, 0);
	else
		put_length(buffer, 0xdc, 2, entries);
}

void lw_put_map(struct lw_buffer *buffer, size_t entries)
{
	if (entries <= 15)
		put_sized(buffer, 0x80 | (unsigned)entries, 0, 0);
	else
		put_length(buffer, 0xde, 2, entries);
}

/* The length in front of a payload of *length* bytes. */
void lw_put_header(uint8_t header[LW_HEADER], size_t length)
{
	for (int i = 0; i < LW_HEADER; i++)
		header[i] = (uint8_t)(length >> (8 * (LW_HEADER - 1 - i)));
}
