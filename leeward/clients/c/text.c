#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Decode the character at *at*, which is before *end*.
 *
 * Returns its length in bytes, with *ret_point* set. For invalid UTF-8 it returns minus the number of bytes that one U+FFFD
 * replaces, as Unicode recommends and Python does: the longest prefix of a character, at least one byte. */
int lw_utf8_step(const uint8_t *at, const uint8_t *end, uint32_t *ret_point)
{
	uint8_t first = *at;
	uint8_t low = 0x80, high = 0xbf; /* of the second byte */
	uint32_t point;
	int length;

	if (first < 0x80) {
		*ret_point = first;
		return 1;
	}
	if (first < 0xc2 || first > 0xf4)
		return -1;
	length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
	point = first & (0x7fu >> length);
	if (first == 0xe0)
		low = 0xa0; /* less would be overlong */
	else if (first == 0xed)
		high = 0x9f; /* more would be a surrogate */
	else if (first == 0xf0)
		low = 0x90;
	else if (first == 0xf4)
		high = 0x8f; /* U+10FFFF is the last */
	for (int i = 1; i < length; i++) {
		if (at + i >= end || at[i] < low || at[i] > high)
			return -i;
		point = point << 6 | (at[i] & 0x3fu);
		low = 0x80;
		high = 0xbf;
	}
	*ret_point = point;
	return length;
}

bool lw_utf8_valid(const uint8_t *data, size_t length)
{
	const uint8_t *end = data + length;
	uint32_t point;

	while (data < end) {
		int step = lw_utf8_step(data, end, &point);

		if (step < 0)
			return false;
		data += step;
	}
	return true;
}

/* The number of characters in a valid text. */
size_t lw_utf8_length(const uint8_t *data, size_t length)
{
	size_t characters = 0;

	for (size_t i = 0; i < length; i++)
		characters += (data[i] & 0xc0) != 0x80;
	return characters;
}

/* Whether a terminal acts on the character: C0 with newline and tab, DEL, C1. */
bool lw_is_control(uint32_t point)
{
	return point < 32 || (point >= 127 && point < 160);
}

/* Characters that are invisible, or change the direction of text around them: a name with such a character looks like
 * another name. */
static bool is_invisible(uint32_t point)
{
	return point == 0xad || (point >= 0x200b && point <= 0x200f) || (point >= 0x2028 && point <= 0x202e) ||
	       (point >= 0x2060 && point <= 0x206f) || point == 0xfeff || (point >= 0xe0000 && point <= 0xe007f);
}

/* The characters that are escaped in output: the invisible ones and some more, which names may have.
 * leeward/errors.py has the same list. */
static bool is_hiding(uint32_t point)
{
	return is_invisible(point) || point == 0x61c || point == 0x115f || point == 0x1160 || point == 0x180e ||
	       point == 0x3164 || point == 0xffa0 || (point >= 0xfff9 && point <= 0xfffb) ||
	       (point >= 0xe0080 && point <= 0xe0fff);
}

/* Whether *name*, which is valid text, is a relative path of ordinary components. Same as leeward.wire.job_frames.is_plain_name,
 * except for unprintable characters that only Python's Unicode tables know. */
bool lw_is_plain_name(const uint8_t *name, size_t length)
{
	const uint8_t *end = name + length, *part = name;
	uint32_t point;
	int parts = 1;

	if (!length || lw_utf8_length(name, length) > 1024)
		return false;
	for (const uint8_t *at = name; at <= end; at++) {
		if (at < end && *at != '/')
			continue;
		if (at == part || (at - part == 1 && part[0] == '.') || (at - part == 2 && part[0] == '.' && part[1] == '.'))
			return false;
		parts += at < end;
		part = at + 1;
	}
	while (name < end) {
		int step = lw_utf8_step(name, end, &point);

		if (step < 0 || lw_is_control(point) || is_invisible(point))
			return false;
		name += step;
	}
	return parts <= 16;
}

/* Write *text*, the name of a file, in quotes; cut at *size* bytes. Invalid bytes are \xNN, control characters and those
 * that a terminal would hide are escapes. leeward/errors.py has the same function. */
void lw_quoted(char *to, size_t size, const char *text)
{
	const uint8_t *at = (const uint8_t *)text, *end = at + strlen(text);
	char quote = strchr(text, '\'') && !strchr(text, '"') ? '"' : '\'';
	char piece[16];
	size_t used = 0;

	if (size < 3) {
		if (size)
			*to = '\0';
		return;
	}
	to[used++] = quote;
	while (at < end) {
		uint32_t point = 0;
		int step = lw_utf8_step(at, end, &point);
		size_t length;

		if (step < 0) {
			snprintf(piece, sizeof piece, "\\x%02x", *at);
			step = 1;
		} else if (point == (uint32_t)quote || point == '\\') {
			snprintf(piece, sizeof piece, "\\%c", (char)point);
		} else if (point == '\n' || point == '\r' || point == '\t') {
			snprintf(piece, sizeof piece, "\\%c", point == '\n' ? 'n' : point == '\r' ? 'r' : 't');
		} else if (!lw_is_control(point) && !is_hiding(point)) {
			memcpy(piece, at, (size_t)step);
			piece[step] = '\0';
		} else if (point < 0x80) {
			snprintf(piece, sizeof piece, "\\x%02" PRIx32, point);
		} else {
			snprintf(piece, sizeof piece, point < 0x10000 ? "\\u%04" PRIx32 : "\\U%08" PRIx32, point);
		}
		length = strlen(piece);
		if (used + length + 2 > size)
			break;
		memcpy(to + used, piece, length);
		used += length;
		at += step;
	}
	to[used++] = quote;
	to[used] = '\0';
}

/* Append *data*: control characters and invalid bytes as \xNN, characters that a terminal would hide as \uNNNN. */
void lw_escape(struct lw_buffer *buffer, const uint8_t *data, size_t length)
{
	const uint8_t *end = data + length, *plain = data;

	while (data < end) {
		uint32_t point = 0;
		int step = lw_utf8_step(data, end, &point);

		if (step > 0 && (!lw_is_control(point) || point == '\n' || point == '\t') && !is_hiding(point)) {
			data += step;
			continue;
		}
		lw_put(buffer, plain, (size_t)(data - plain));
		for (int i = 0; i < (step < 0 ? -step : 1); i++) {
			char shown[12];
			unsigned value = step < 0 ? (unsigned)data[i] : (unsigned)point;
			int size = snprintf(shown, sizeof shown, "\\x%02x", value);

			if (step > 0 && is_hiding(point))
				size = snprintf(shown, sizeof shown, point < 0x10000 ? "\\u%04x" : "\\U%08x", value);
			lw_put(buffer, shown, (size_t)size);
		}
		data += abs(step);
		plain = data;
	}
	lw_put(buffer, plain, (size_t)(data - plain));
}
