#include "text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One character of *at*, which is before *end*.
 *
 * Returns how many bytes it has, or, where they are no UTF-8, minus the bytes that one
 * U+FFFD stands for, as Unicode recommends and Python does: the longest start of a
 * character, and at least one. *ret_point* is set for a character only. */
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

/* The characters of valid text. */
size_t lw_utf8_length(const uint8_t *data, size_t length)
{
	size_t characters = 0;

	for (size_t i = 0; i < length; i++)
		characters += (data[i] & 0xc0) != 0x80;
	return characters;
}

/* Does a terminal act on it? C0 with newline and tab, DEL, C1. */
bool lw_is_control(uint32_t point)
{
	return point < 32 || (point >= 127 && point < 160);
}

/* Characters that show as nothing, or turn the text around them: who reads a name with one in
 * it sees another name. */
static bool is_invisible(uint32_t point)
{
	return point == 0xad || (point >= 0x200b && point <= 0x200f) || (point >= 0x2028 && point <= 0x202e) ||
	       (point >= 0x2060 && point <= 0x206f) || point == 0xfeff || (point >= 0xe0000 && point <= 0xe007f);
}

/* Is *name*, which is valid text, a relative path of ordinary components? As
 * leeward.wire.job.is_plain_name, but for characters that only Python's tables know to be
 * unprintable. */
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

/* *text* in quotes, in ASCII, as Python's ascii() shows it; cut where *size* ends. */
void lw_ascii(char *to, size_t size, const char *text)
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
			/* How Python carries a byte that is no text: surrogateescape. */
			point = 0xdc00u + *at;
			step = 1;
		}
		if (point == (uint32_t)quote || point == '\\')
			snprintf(piece, sizeof piece, "\\%c", (char)point);
		else if (point == '\n' || point == '\r' || point == '\t')
			snprintf(piece, sizeof piece, "\\%c", point == '\n' ? 'n' : point == '\r' ? 'r' : 't');
		else if (point >= 32 && point < 127)
			snprintf(piece, sizeof piece, "%c", (char)point);
		else if (point <= 0xff)
			snprintf(piece, sizeof piece, "\\x%02" PRIx32, point);
		else if (point <= 0xffff)
			snprintf(piece, sizeof piece, "\\u%04" PRIx32, point);
		else
			snprintf(piece, sizeof piece, "\\U%08" PRIx32, point);
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

/* What "%.*e" wrote, without the locale: the digits, and the exponent returned. */
static int digits_of(const char *text, char ret_digits[24])
{
	const char *exponent = strchr(text, 'e');
	int used = 0;

	for (const char *at = text; at < exponent; at++)
		if (*at >= '0' && *at <= '9') /* passes over the point, whatever this locale's is */
			ret_digits[used++] = *at;
	ret_digits[used] = '\0';
	return (int)strtol(exponent + 1, NULL, 10);
}

/* Count the last digit of *text* up, and say whether it is *size* then; else leave it. */
static bool reads_back_above(char *text, double size)
{
	char *last = strchr(text, 'e') - 1;

	if (*last == '9')
		return false;
	++*last;
	if (strtod(text, NULL) == size)
		return true;
	--*last;
	return false;
}

/* *number* as Python's repr: the fewest digits that read back as the same. In any locale. */
void lw_double_text(char to[LW_DOUBLE_TEXT], double number)
{
	double size = fabs(number);
	const char *sign = signbit(number) ? "-" : "";
	char digits[24], text[48];
	int precision = 0, exponent, count;

	if (!isfinite(number)) {
		snprintf(to, LW_DOUBLE_TEXT, "%s", isnan(number) ? "nan" : *sign ? "-inf" : "inf");
		return;
	}
	for (; precision < 17; precision++) { /* 17 digits always do */
		snprintf(text, sizeof text, "%.*e", precision, size);
		/* Just between two texts of 16 digits printf takes the even one, and below a power of two
		 * only the other may read back. */
		if (strtod(text, NULL) == size || (precision == 15 && reads_back_above(text, size)))
			break;
	}
	exponent = digits_of(text, digits);
	count = precision + 1;
	if (exponent < -4 || exponent >= 16)
		snprintf(to, LW_DOUBLE_TEXT, "%s%c%s%se%c%02d", sign, digits[0], count > 1 ? "." : "", digits + 1,
			 exponent < 0 ? '-' : '+', abs(exponent) % 1000);
	else if (exponent < 0)
		snprintf(to, LW_DOUBLE_TEXT, "%s0.%.*s%s", sign, -exponent - 1, "000", digits);
	else if (count <= exponent + 1)
		snprintf(to, LW_DOUBLE_TEXT, "%s%s%.*s.0", sign, digits, exponent + 1 - count, "000000000000000");
	else
		snprintf(to, LW_DOUBLE_TEXT, "%s%.*s.%s", sign, exponent + 1, digits, digits + exponent + 1);
}

/* *data* with everything that a terminal would act on, and all that is no text, as \xNN. */
void lw_escape(struct lw_buffer *buffer, const uint8_t *data, size_t length)
{
	const uint8_t *end = data + length, *plain = data;

	while (data < end) {
		uint32_t point = 0;
		int step = lw_utf8_step(data, end, &point);

		if (step > 0 && (!lw_is_control(point) || point == '\n' || point == '\t')) {
			data += step;
			continue;
		}
		lw_put(buffer, plain, (size_t)(data - plain));
		for (int i = 0; i < (step < 0 ? -step : 1); i++) {
			char shown[8];

			snprintf(shown, sizeof shown, "\\x%02x", step < 0 ? (unsigned)data[i] : (unsigned)point);
			lw_put(buffer, shown, 4);
		}
		data += abs(step);
		plain = data;
	}
	lw_put(buffer, plain, (size_t)(data - plain));
}

/* *data* as a JSON string in ASCII; what is no UTF-8 becomes U+FFFD. */
void lw_json_text(struct lw_buffer *buffer, const uint8_t *data, size_t length)
{
	static const char NAMED[] = "\bb\nn\ff\rr\tt\"\"\\\\";
	const uint8_t *end = data + length;

	lw_put(buffer, "\"", 1);
	while (data < end) {
		const uint8_t *plain = data;
		uint32_t point = 0xfffd;
		char shown[16];
		int step;

		while (data < end && *data >= 32 && *data < 127 && *data != '"' && *data != '\\')
			data++;
		lw_put(buffer, plain, (size_t)(data - plain));
		if (data == end)
			break;
		step = lw_utf8_step(data, end, &point);
		if (step < 0)
			point = 0xfffd;
		data += abs(step);
		if (point < 128) {
			const char *name = point ? strchr(NAMED, (int)point) : NULL;

			/* Odd places hold the letters themselves, which never come here. */
			if (name && (name - NAMED) % 2 == 0)
				snprintf(shown, sizeof shown, "\\%c", name[1]);
			else
				snprintf(shown, sizeof shown, "\\u%04" PRIx32, point);
		} else if (point <= 0xffff) {
			snprintf(shown, sizeof shown, "\\u%04" PRIx32, point);
		} else {
			point -= 0x10000;
			snprintf(shown, sizeof shown, "\\u%04" PRIx32 "\\u%04" PRIx32, 0xd800 + (point >> 10),
				 0xdc00 + (point & 0x3ff));
		}
		lw_put(buffer, shown, strlen(shown));
	}
	lw_put(buffer, "\"", 1);
}

/* The entries of an array or a map, off *cursor*, in their brackets. */
static int json_entries(struct lw_buffer *buffer, const struct lw_value *value, struct lw_cursor *cursor)
{
	bool map = value->type == LW_MAP;

	lw_put(buffer, map ? "{" : "[", 1);
	for (uint32_t i = 0; i < value->entries; i++) {
		if (i)
			lw_put(buffer, ", ", 2);
		if (map) {
			if (lw_json(buffer, cursor))
				return -EBADMSG;
			lw_put(buffer, ": ", 2);
		}
		if (lw_json(buffer, cursor))
			return -EBADMSG;
	}
	lw_put(buffer, map ? "}" : "]", 1);
	return 0;
}

/* One value off *cursor* as JSON, spaced as json.dumps does it.
 *
 * Returns 0, or -EBADMSG for what JSON can't say: binary. A number that isn't finite
 * becomes null. Recursive: a checked payload is at most LW_MAX_DEPTH deep. */
int lw_json(struct lw_buffer *buffer, struct lw_cursor *cursor)
{
	char shown[LW_DOUBLE_TEXT];
	struct lw_value value;

	if (lw_next(cursor, &value))
		return -EBADMSG;
	switch (value.type) {
	case LW_TEXT:
		lw_json_text(buffer, value.data, value.length);
		return 0;
	case LW_ARRAY:
	case LW_MAP:
		return json_entries(buffer, &value, cursor);
	case LW_BINARY:
		return -EBADMSG;
	case LW_BOOL:
		snprintf(shown, sizeof shown, "%s", value.boolean ? "true" : "false");
		break;
	case LW_INTEGER:
		snprintf(shown, sizeof shown, "%" PRId64, value.integer);
		break;
	case LW_HUGE:
		snprintf(shown, sizeof shown, "%" PRIu64, value.huge);
		break;
	case LW_NUMBER:
		if (isfinite(value.number)) {
			lw_double_text(shown, value.number);
			break;
		}
		/* fall through */
	case LW_NIL:
		snprintf(shown, sizeof shown, "null");
	}
	lw_put(buffer, shown, strlen(shown));
	return 0;
}

/* A map that has been found already, as JSON. Returns as lw_json. */
int lw_json_map(struct lw_buffer *buffer, const struct lw_value *map)
{
	struct lw_cursor inside = map->inside;

	return json_entries(buffer, map, &inside);
}
